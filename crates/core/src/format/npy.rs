//! The `.npy` header: our own is written, any is read.
//!
//! The parser is our own, because what the format allows and a matrix needs is small: one flat
//! dictionary, no recursion, bounded length. Source: NumPy Enhancement Proposal 1 and
//! `numpy/lib/format.py`, versions 1.0 to 3.0.
//!
//! ```text
//!   "\x93NUMPY" | major minor | header length, u16 (1.0) or u32, little-endian | header | data
//!   header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   padded with spaces, ended by a newline
//! ```
//!
//! Our own headers fill 4096 bytes, so that the data begin on a block of any medium. Types that
//! NumPy does not have, such as bfloat16, are void in the dictionary; a comment behind it, which
//! NumPy skips, has their name:
//!
//! ```text
//!   {'descr': '|V2', 'fortran_order': False, 'shape': (3, 4), } # bfloat16
//! ```

use super::dtype::native;
use super::{DType, Dense, FormatError, Order, corrupt, unsupported};

/// Bytes of the header that [`npy`] makes, and enough of any usual file to parse it.
pub const HEAD_BYTES: usize = 4096;

/// The longest foreign header. A matrix needs about a hundred bytes; only records of thousands of
/// fields need more than this.
const LONGEST_HEADER_BYTES: usize = 1 << 20;

const MAGIC: &[u8] = b"\x93NUMPY";

/// A new `.npy` file: its description and its header of [`HEAD_BYTES`].
///
/// ```
/// use outcore_core::format::{DType, Order, is_npy, npy, npy_head_bytes, parse_npy, parse_npy_array};
///
/// let (dense, mut file) = npy("x.npy", DType::F32, &[1, 2], Order::Row)?;
/// assert!(is_npy(&file));
/// assert_eq!(npy_head_bytes("x.npy", &file[..12])?, file.len());
/// assert_eq!(parse_npy("x.npy", &file, dense.file_bytes())?, dense);
/// file.extend([0; 8]);
/// assert_eq!(parse_npy_array("x.npy", &file)?.shape, [1, 2]);
/// # Ok::<(), outcore_core::FormatError>(())
/// ```
///
/// # Errors
/// [`FormatError::Unsupported`] for a shape that is no vector or matrix, or too large for any file.
pub fn npy(
    object: &str,
    dtype: DType,
    shape: &[u64],
    order: Order,
) -> Result<(Dense, Vec<u8>), FormatError> {
    let dense = Dense::checked(dtype, shape, order, HEAD_BYTES as u64, None)
        .map_err(|reason| unsupported(object, reason))?;
    let shape = match *shape {
        [length] => format!("({length},)"),
        _ => format!(
            "({})",
            shape
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let fortran = match dense.order {
        Order::Row => "False",
        Order::Column => "True",
    };
    Ok((dense, header(dtype, fortran, &shape)))
}

fn header(dtype: DType, fortran: &str, shape: &str) -> Vec<u8> {
    let descr = dtype.descr();
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    let comment = match dtype.is_void() {
        true => format!(" # {dtype}"),
        false => String::new(),
    };
    let mut header = Vec::with_capacity(HEAD_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    // 4086: what is left of 4096 after magic, version and this length itself.
    header.extend_from_slice(&4086u16.to_le_bytes());
    header.extend_from_slice(dictionary.as_bytes());
    header.extend_from_slice(comment.as_bytes());
    header.resize(HEAD_BYTES - 1, b' ');
    header.push(b'\n');
    header
}

/// Where in a `.npy` file the numbers of a vector are.
///
/// ```
/// use outcore_core::format::{DType, Vector, parse_npy_vector};
///
/// let vector = Vector::new(DType::I64, 6);
/// assert_eq!(vector.file_bytes(), 4096 + 48);
/// assert_eq!(parse_npy_vector("x.npy", &vector.header(), vector.file_bytes())?, vector);
/// assert_eq!(vector.shift(), 0);
/// println!("{}", String::from_utf8_lossy(&vector.header_by_rows(2)));
/// # Ok::<(), outcore_core::FormatError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// The type of the numbers.
    pub element: DType,
    /// How many there are.
    pub len: u64,
    /// Bytes before the first.
    pub data_offset: u64,
}

impl Vector {
    /// A new vector behind a header of [`HEAD_BYTES`].
    #[must_use]
    pub fn new(element: DType, len: u64) -> Vector {
        Vector {
            element,
            len,
            data_offset: HEAD_BYTES as u64,
        }
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        header(self.element, "False", &format!("({},)", self.len))
    }

    /// As [`Dense::shift`].
    #[must_use]
    pub fn shift(&self) -> u64 {
        self.data_offset % self.element.bytes()
    }

    /// The same as a matrix of `cols` columns.
    #[must_use]
    pub fn header_by_rows(&self, cols: u64) -> Vec<u8> {
        header(
            self.element,
            "False",
            &format!("({}, {cols})", self.len / cols),
        )
    }

    /// Bytes of the file, header included.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.data_offset + self.len * self.element.bytes()
    }
}

/// The description of a vector in a `.npy` file, as [`parse_npy`] gives that of a matrix.
///
/// # Errors
/// Those of [`FormatError`].
pub fn parse_npy_vector(object: &str, head: &[u8], file_len: u64) -> Result<Vector, FormatError> {
    let (fields, data_offset) = parse(object, head, file_len)?;
    let vector = fields
        .vector(data_offset)
        .map_err(|reason| unsupported(object, reason))?;
    match file_len < vector.file_bytes() {
        true => Err(FormatError::Truncated {
            object: object.to_owned(),
            expected: vector.file_bytes(),
            actual: file_len,
        }),
        false => Ok(vector),
    }
}

/// An array in a `.npy` file, of any type of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyArray {
    /// Its type, as NumPy writes it.
    pub descr: String,
    /// Extents.
    pub shape: Vec<u64>,
    /// Whether the first index is the fastest.
    pub by_columns: bool,
    /// Bytes before the data.
    pub data_offset: u64,
}

/// The description of an array in a `.npy` file, all of which is there.
///
/// # Errors
/// Those of [`FormatError`].
pub fn parse_npy_array(object: &str, file: &[u8]) -> Result<NpyArray, FormatError> {
    match parse(object, file, file.len() as u64)? {
        (
            Fields {
                descr: Some(Descr::Simple(descr)),
                fortran_order: Some(by_columns),
                shape: Some(shape),
                ..
            },
            data_offset,
        ) => Ok(NpyArray {
            descr,
            shape,
            by_columns,
            data_offset,
        }),
        _ => {
            let reason =
                "one of descr, fortran_order and shape is missing, or it holds records".to_owned();
            Err(unsupported(object, reason))
        }
    }
}

/// Whether a file claims to be `.npy`, by its first bytes.
#[must_use]
pub fn is_npy(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// The bytes before the data of a `.npy` file, found from its first 12 bytes (or all, if there are
/// fewer): how much [`parse_npy`] wants to see.
///
/// # Errors
/// [`FormatError::Corrupt`] where the file does not begin like `.npy`, [`FormatError::Unsupported`]
/// for an unknown version.
pub fn npy_head_bytes(object: &str, head: &[u8]) -> Result<usize, FormatError> {
    Ok(preamble(object, head)?.end)
}

/// The description of a `.npy` file from its first bytes, of which [`HEAD_BYTES`] nearly always are
/// enough, and the file's length.
///
/// # Errors
/// Those of [`FormatError`]; [`FormatError::Corrupt`] also where `head` ends within the header.
pub fn parse_npy(object: &str, head: &[u8], file_len: u64) -> Result<Dense, FormatError> {
    let (fields, data_offset) = parse(object, head, file_len)?;
    let dense = fields
        .dense(data_offset)
        .map_err(|reason| unsupported(object, reason))?;
    dense.check_len(object, file_len)?;
    Ok(dense)
}

fn parse(object: &str, head: &[u8], file_len: u64) -> Result<(Fields, u64), FormatError> {
    let header = preamble(object, head)?;
    let data_offset = header.end as u64;
    if file_len < data_offset {
        return Err(FormatError::Truncated {
            object: object.to_owned(),
            expected: data_offset,
            actual: file_len,
        });
    }
    let Some(text) = head.get(header.clone()) else {
        let reason = "the file ends within its header".to_owned();
        return Err(corrupt(object, head.len(), reason));
    };
    let fields = Parser { text, at: 0 }
        .dictionary()
        .map_err(|(at, reason)| corrupt(object, header.start + at, reason))?;
    Ok((fields, data_offset))
}

/// Where the header's text lies in the file.
fn preamble(object: &str, head: &[u8]) -> Result<std::ops::Range<usize>, FormatError> {
    if !is_npy(head) {
        let reason = "it does not begin like a .npy file".to_owned();
        return Err(corrupt(object, 0, reason));
    }
    let (start, len) = match *head.get(6..).unwrap_or_default() {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        [] | [1..=3, ..] => {
            let reason = "the file ends within its header".to_owned();
            return Err(corrupt(object, head.len(), reason));
        }
        [major, ..] => {
            return Err(unsupported(object, format!("version {major} of .npy")));
        }
    };
    match len > LONGEST_HEADER_BYTES {
        true => Err(unsupported(object, format!("a header of {len} bytes"))),
        false => Ok(start..start + len),
    }
}

/// What a `.npy` dictionary says.
#[derive(Default)]
struct Fields {
    descr: Option<Descr>,
    fortran_order: Option<bool>,
    shape: Option<Vec<u64>>,
    /// The type that a comment behind the dictionary names.
    named: Option<DType>,
}

enum Descr {
    Simple(String),
    Structured,
}

impl Fields {
    /// The reason is the error.
    fn dense(self, data_offset: u64) -> Result<Dense, String> {
        let (Some(descr), Some(fortran_order), Some(shape)) =
            (self.descr, self.fortran_order, self.shape)
        else {
            return Err("one of descr, fortran_order and shape is missing".to_owned());
        };
        let order = match fortran_order {
            true => Order::Column,
            false => Order::Row,
        };
        Dense::checked(descr.dtype(self.named)?, &shape, order, data_offset, None)
    }
}

impl Fields {
    /// The reason is the error.
    fn vector(self, data_offset: u64) -> Result<Vector, String> {
        let (Some(Descr::Simple(descr)), Some(_), Some(shape)) =
            (self.descr, self.fortran_order, self.shape)
        else {
            return Err(
                "one of descr, fortran_order and shape is missing, or it holds records".to_owned(),
            );
        };
        let len = match *shape {
            [len] => Some(len),
            [rows, cols] if self.fortran_order == Some(false) || rows <= 1 || cols <= 1 => {
                rows.checked_mul(cols)
            }
            [_, _] => {
                return Err(format!(
                    "a shape of {shape:?} by columns, where a vector, or a matrix by rows, is needed"
                ));
            }
            _ => {
                return Err(format!(
                    "{} dimensions, where a vector, or a matrix by rows, is needed",
                    shape.len()
                ));
            }
        };
        let len = len.ok_or_else(|| format!("a shape of {shape:?}"))?;
        let elements = [
            DType::U8,
            DType::U16,
            DType::I32,
            DType::I64,
            DType::F32,
            DType::F64,
        ];
        let element = DType::parse(&descr)
            .filter(|element| elements.contains(element))
            .ok_or_else(|| format!("dtype '{descr}', which no part of a sparse matrix has"))?;
        let bytes = len
            .checked_mul(element.bytes())
            .and_then(|bytes| bytes.checked_add(data_offset));
        match bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok()) {
            true => Ok(Vector {
                element,
                len,
                data_offset,
            }),
            false => Err(format!("{len} numbers are larger than any file")),
        }
    }
}

impl Descr {
    /// The type of the elements; `named` says which one is behind void. The reason is the error.
    fn dtype(self, named: Option<DType>) -> Result<DType, String> {
        let Descr::Simple(descr) = self else {
            return Err("records (a structured dtype), where numbers are needed; save its fields as arrays of their own".into());
        };
        if let Some(dtype) = DType::parse(&descr) {
            return Ok(dtype);
        }
        let Some(native) = native(&descr) else {
            return Err(format!(
                "big-endian dtype '{descr}'; save it as x.astype(x.dtype.newbyteorder('='))"
            ));
        };
        match (native, native.strip_prefix('V')) {
            (_, Some(bytes)) => named
                .filter(|dtype| dtype.is_void() && bytes.parse() == Ok(dtype.bytes()))
                .ok_or_else(|| {
                    format!(
                        "void (dtype '{descr}'), as NumPy saves bfloat16 and float8, without the name of its type; outcore.open(path, dtype=) takes one"
                    )
                }),
            ("f1", _) => Err(format!(
                "dtype '{descr}', as NumPy saves float8_e5m2; outcore.open(path, dtype='float8_e5m2') takes it"
            )),
            ("O" | "O8", _) => Err("Python objects, where numbers are needed".into()),
            ("g" | "f16" | "f12" | "longdouble" | "G" | "c32" | "c24", _) => {
                Err(format!("longdouble (dtype '{descr}'), whose bytes depend on the machine; save it as x.astype('float64')"))
            }
            _ => Err(format!("dtype '{descr}', where numbers are needed")),
        }
    }
}

/// A walk over the header's text. Errors are where and what.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

type Parsed<T> = Result<T, (usize, String)>;

impl<'a> Parser<'a> {
    fn dictionary(mut self) -> Parsed<Fields> {
        let mut fields = Fields::default();
        self.expect(b'{')?;
        while !self.skip(b'}') {
            let at = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            let twice = match key {
                b"descr" => fields.descr.replace(self.descr()?).is_some(),
                b"fortran_order" => fields.fortran_order.replace(self.boolean()?).is_some(),
                b"shape" => fields.shape.replace(self.shape()?).is_some(),
                _ => return Err((at, format!("unknown key {:?}", readable(key)))),
            };
            if twice {
                return Err((at, format!("{:?} is there twice", readable(key))));
            }
            if matches!(fields.descr, Some(Descr::Structured)) {
                // What follows is nested, and of no use once this is known.
                fields.fortran_order.get_or_insert_default();
                fields.shape.get_or_insert_default();
                return Ok(fields);
            }
            if !self.skip(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        match self.peek() {
            None => Ok(fields),
            Some(b'#') => {
                let comment = String::from_utf8_lossy(&self.text[self.at + 1..]);
                fields.named = DType::parse(comment.trim());
                Ok(fields)
            }
            Some(_) => Err((self.at, "text after the dictionary".to_owned())),
        }
    }

    fn descr(&mut self) -> Parsed<Descr> {
        match self.peek() {
            Some(b'[' | b'(' | b'{') => Ok(Descr::Structured),
            _ => Ok(Descr::Simple(readable(self.string()?))),
        }
    }

    fn boolean(&mut self) -> Parsed<bool> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (&b"False"[..], false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err((self.at, "expected True or False".to_owned()))
    }

    fn shape(&mut self) -> Parsed<Vec<u64>> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.skip(b')') {
            shape.push(self.integer()?);
            if !self.skip(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn integer(&mut self) -> Parsed<u64> {
        self.peek();
        let start = self.at;
        let digits = self.text[start..].iter().take_while(|c| c.is_ascii_digit());
        self.at += digits.count();
        let digits = readable(&self.text[start..self.at]);
        // Python 2 wrote long integers with an L.
        if self.text.get(self.at) == Some(&b'L') {
            self.at += 1;
        }
        let number = digits.parse();
        number.map_err(|_| (start, "expected a length below 2^64".to_owned()))
    }

    /// A string without escapes, which no matrix's header contains.
    fn string(&mut self) -> Parsed<&'a [u8]> {
        let start = self.at;
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return Err((self.at, "expected a string".to_owned()));
        };
        let inside = &self.text[self.at + 1..];
        let Some(len) = inside.iter().position(|c| *c == quote) else {
            return Err((start, "a string without an end".to_owned()));
        };
        self.at += len + 2;
        Ok(&inside[..len])
    }

    /// The next character that is not white space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn skip(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: u8) -> Parsed<()> {
        match self.skip(wanted) {
            true => Ok(()),
            false => Err((self.at, format!("expected '{}'", char::from(wanted)))),
        }
    }
}

/// For errors; long junk is cut.
fn readable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()
}
