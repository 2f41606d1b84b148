//! Numbers in text: a cursor over the bytes of a chunk.
//!
//! Exact: a number is the `f64` that [`str::parse`] returns for the same characters. Short ones,
//! nearly all, take a path that is exact by arithmetic: an integer up to 2^53 and a power of ten up
//! to 10^22 are both exact as `f64`, so one division or multiplication rounds once, correctly
//! (Clinger, "How to read floating point numbers accurately", 1990). All others are passed to
//! [`str::parse`]. The end of the bytes is read as an end of line.

use crate::Precision;
use crate::error::{Fault, shown};

/// Result of a parser.
pub(crate) type Parsed<T> = std::result::Result<T, Fault>;

const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
const EXACT_WHOLE: u64 = 1 << 53;
/// Largest number of digits that always fit a `u64`, and 18 fit an `i64` too.
const SAFE_DIGITS: usize = 18;

/// A position in the bytes of a chunk.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at a byte.
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline(always)]
    pub(crate) fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(b'\n')
    }

    /// Skips spaces, tabs, and the carriage return of a line's end.
    #[inline(always)]
    pub(crate) fn skip_blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r') {
            self.at += 1;
        }
    }

    /// Skips the rest of the line and its end.
    pub(crate) fn skip_line(&mut self) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at =
            memchr::memchr(b'\n', rest).map_or(self.bytes.len(), |length| self.at + length + 1);
    }

    /// Skips blanks and the end of the line; anything else is an error.
    #[inline(always)]
    pub(crate) fn end_line(&mut self) -> Parsed<()> {
        self.skip_blanks();
        match self.peek() {
            b'\n' => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.fault(format!(
                "{} is more than expected in the line",
                self.token()
            ))),
        }
    }

    /// A whole number from 0 to 2^63 - 1. `what` names it in errors.
    #[inline(always)]
    pub(crate) fn index(&mut self, what: &str) -> Parsed<u64> {
        let start = self.at;
        let value = self.digits(0);
        match self.at - start {
            1..=SAFE_DIGITS => Ok(value),
            _ => self.long_index(start, what),
        }
    }

    #[cold]
    fn long_index(&mut self, start: usize, what: &str) -> Parsed<u64> {
        let digits = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        let value = digits
            .parse::<u64>()
            .ok()
            .filter(|&value| value <= i64::MAX as u64);
        if let Some(value) = value {
            return Ok(value);
        }
        let long = self.at > start;
        self.at = start;
        let token = self.token();
        Err(self.fault(match (long, self.peek()) {
            (true, _) => format!("{what} {token} is larger than 2^63 - 1"),
            (false, b'-') => format!("{what} {token} is negative"),
            (false, _) => format!("{what} is expected to be a whole number, found {token}"),
        }))
    }

    /// `index:value`, followed by a blank or the end of the line, with at most seven consecutive
    /// digits in either: nearly all entries of real files, read with one bounds check and few
    /// branches. Consumes nothing if the text has another form.
    #[inline(always)]
    pub(crate) fn short_pair(&mut self) -> Option<(u64, f64)> {
        let window: &[u8; 24] = self.bytes.get(self.at..)?.first_chunk()?;
        let (index, index_digits) = short_digits(window, 0);
        let (whole, whole_digits) = short_digits(window, index_digits + 1);
        if window[index_digits] != b':'
            || index_digits.wrapping_sub(1) > 6
            || whole_digits.wrapping_sub(1) > 6
        {
            return None;
        }
        let mut end = index_digits + 1 + whole_digits;
        let mut value = whole as f64;
        if window[end] == b'.' {
            let (decimals, count) = short_digits(window, end + 1);
            if count > 7 {
                return None;
            }
            value = (whole * WHOLE_POWERS[count] + decimals) as f64 / EXACT_POWERS[count];
            end += 1 + count;
        }
        if !matches!(window[end], b' ' | b'\n') {
            return None;
        }
        self.at += end;
        Some((index, value))
    }

    /// Appends the following digits to `value`; wraps beyond 19 digits.
    #[inline(always)]
    fn digits(&mut self, mut value: u64) -> u64 {
        // Eight at once: the lengths of indices, one to seven digits, are unpredictable for a
        // branch predictor.
        if let Some(eight) = self.bytes.get(self.at..self.at + 8) {
            let (digits, count) = leading_digits(eight.try_into().expect("eight bytes"));
            if count < 8 {
                self.at += count;
                return value.wrapping_mul(WHOLE_POWERS[count]).wrapping_add(digits);
            }
        }
        while let digit @ 0..=9 = self.peek().wrapping_sub(b'0') {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        value
    }

    /// A finite number. It ends before a blank, a comma, a colon, a `#` or the end of the line.
    /// `what` names it in errors.
    #[inline(always)]
    pub(crate) fn number(&mut self, what: &str) -> Parsed<f64> {
        let start = self.at;
        let negative = self.peek() == b'-';
        self.at += usize::from(negative || self.peek() == b'+');
        let first = self.at;
        let mut whole = self.digits(0);
        let mut count = self.at - first;
        let mut decimals = 0;
        if self.peek() == b'.' {
            self.at += 1;
            let point = self.at;
            whole = self.digits(whole);
            decimals = self.at - point;
            count += decimals;
        }
        if !is_end(self.peek()) || count.wrapping_sub(1) >= SAFE_DIGITS || whole > EXACT_WHOLE {
            return self.long_number(start, what);
        }
        let magnitude = match decimals {
            0 => whole as f64,
            _ => whole as f64 / EXACT_POWERS[decimals],
        };
        Ok(if negative { -magnitude } else { magnitude })
    }

    /// A value of a matrix: a finite number, which float32 can hold if `precision` is single.
    #[inline(always)]
    pub(crate) fn value(&mut self, precision: Precision) -> Parsed<f64> {
        let start = self.at;
        let value = self.number("the value")?;
        match precision == Precision::Single && (value as f32).is_infinite() {
            true => Err(self.beyond_single(start)),
            false => Ok(value),
        }
    }

    #[cold]
    fn beyond_single(&mut self, start: usize) -> Fault {
        self.at = start;
        self.fault(format!(
            "the value {} is beyond float32; import it as float64",
            self.token()
        ))
    }

    #[inline(never)]
    fn long_number(&mut self, start: usize, what: &str) -> Parsed<f64> {
        let length = self.bytes[start..]
            .iter()
            .position(|&byte| is_end(byte))
            .unwrap_or(self.bytes.len() - start);
        let token = &self.bytes[start..start + length];
        let value = std::str::from_utf8(token)
            .ok()
            .and_then(|token| token.parse::<f64>().ok());
        self.at = start;
        match value {
            Some(value) if value.is_finite() => {
                self.at = start + length;
                Ok(value)
            }
            Some(_) if token.iter().any(u8::is_ascii_digit) => {
                Err(self.fault(format!("{what} {} is too large for float64", self.token())))
            }
            Some(_) => Err(self.fault(format!("{what} {} is not finite", self.token()))),
            None => Err(self.fault(format!(
                "{what} is expected to be a number, found {}",
                self.token()
            ))),
        }
    }

    /// The rest of the bytes as text, if it is UTF-8.
    pub(crate) fn utf8(&mut self) -> Parsed<&'a str> {
        std::str::from_utf8(&self.bytes[self.at..]).map_err(|error| {
            let at = self.at + error.valid_up_to();
            let byte = self.bytes[at];
            Fault::new(
                at,
                format!(
                    "the byte {byte:#04x} is not UTF-8; convert the text first (iconv -t UTF-8)"
                ),
            )
        })
    }

    /// The text up to the next blank, quoted and shortened, for errors.
    #[cold]
    pub(crate) fn token(&self) -> String {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(rest.len());
        match length {
            0 if self.peek() == b'\n' => "the end of the line".into(),
            0 => "a blank".into(),
            _ => format!(
                "'{}'",
                shown(&String::from_utf8_lossy(&rest[..length.min(400)]))
            ),
        }
    }

    #[cold]
    pub(crate) fn fault(&self, reason: impl Into<String>) -> Fault {
        Fault::new(self.at, reason)
    }
}

const WHOLE_POWERS: [u64; 8] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The leading digits of eight bytes as a number, and their count.
#[inline(always)]
fn leading_digits(bytes: [u8; 8]) -> (u64, usize) {
    let eight = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    let no_digit = (eight.wrapping_add(0x7676_7676_7676_7676) | eight) & 0x8080_8080_8080_8080;
    let count = no_digit.trailing_zeros() as usize / 8;
    // In two steps, because a shift by 64 is undefined.
    let digits = if count == 8 {
        eight
    } else {
        eight << 8 << (56 - 8 * count)
    };
    (eight_digits(digits), count)
}

#[inline(always)]
fn short_digits(window: &[u8; 24], start: usize) -> (u64, usize) {
    leading_digits(window[start..start + 8].try_into().expect("eight bytes"))
}

/// The number of eight digits, the first in the lowest byte, each already minus `'0'`: neighbours
/// are combined three times.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    let pairs = (digits.wrapping_mul(10) + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' | b'#')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Option<f64> {
        let mut cursor = Cursor::new(text.as_bytes(), 0);
        let value = cursor.number("the value").ok();
        value.filter(|_| cursor.is_at_end())
    }

    fn reference(text: &str) -> Option<f64> {
        text.parse::<f64>().ok().filter(|value| value.is_finite())
    }

    #[test]
    fn numbers_at_the_edges_of_the_fast_path_are_those_of_the_standard_library() {
        let edges = [
            "0",
            "-0",
            "+1",
            "1.",
            ".5",
            ".",
            "-",
            "+",
            "",
            "e5",
            "1e",
            "1e5",
            "1E-5",
            "1e400",
            "-1e400",
            "1e-400",
            "nan",
            "inf",
            "-infinity",
            "9007199254740992",
            "9007199254740993",
            "900719925474099.3",
            "0.000000000000000001",
            "0.0000000000000000000000001",
            "123456789012345678",
            "1234567890123456789",
            "99999999999999999999",
            "12345678",
            "123456789",
            "1234567.8",
            "1_0",
            "--1",
            "1.2.3",
        ];
        for text in edges {
            assert_eq!(
                number(text).map(f64::to_bits),
                reference(text).map(f64::to_bits),
                "{text:?}"
            );
        }
    }

    #[test]
    fn indices_up_to_the_largest_are_read_and_beyond_it_refused() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0000000000000000000000007", Some(7)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("9223372036854775808", None),
            ("99999999999999999999999", None),
            ("-1", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(
                Cursor::new(text.as_bytes(), 0).index("index").ok(),
                expected,
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn printed_numbers_are_read_back_bit_for_bit(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(number(&format!("{value}")).map(f64::to_bits), Some(bits));
            prop_assert_eq!(number(&format!("{value:e}")).map(f64::to_bits), Some(bits));
        }

        #[test]
        fn decimals_are_those_of_the_standard_library(text in "[-+]?[0-9]{0,20}(\\.[0-9]{0,20})?([eE][-+]?[0-9]{0,3})?") {
            prop_assert_eq!(number(&text).map(f64::to_bits), reference(&text).map(f64::to_bits));
        }

        #[test]
        fn short_pairs_are_those_of_the_standard_library(index in "[0-9]{0,9}", value in "[-0-9]{0,9}(\\.[0-9e]{0,9})?", end in "[ \n#:,]") {
            let text = format!("{index}:{value}{end}3:1 and what follows it");
            let mut cursor = Cursor::new(text.as_bytes(), 0);
            match cursor.short_pair() {
                Some((read_index, read_value)) => {
                    prop_assert_eq!(Ok(read_index), index.parse());
                    prop_assert_eq!(Some(read_value.to_bits()), reference(&value).map(f64::to_bits));
                    prop_assert_eq!(cursor.at, index.len() + 1 + value.len());
                }
                None => {
                    let short = |digits: &str| digits.len() <= 7 && digits.bytes().all(|byte| byte.is_ascii_digit());
                    let (whole, decimals) = value.split_once('.').unwrap_or((&value, ""));
                    let is_short = short(&index) && short(whole) && short(decimals) && !index.is_empty() && !whole.is_empty();
                    prop_assert!(!is_short || !(end == " " || end == "\n"), "{}", text);
                    prop_assert_eq!(cursor.at, 0);
                }
            }
        }

        #[test]
        fn digits_are_read_alike_wherever_the_chunk_ends(value in 0..=i64::MAX as u64, after in "[ :\n]{0,12}") {
            let text = format!("{value}{after}");
            let mut cursor = Cursor::new(text.as_bytes(), 0);
            prop_assert_eq!(cursor.index("index").ok(), Some(value));
            prop_assert_eq!(cursor.at, value.to_string().len());
        }
    }
}
