//! Numbers as text: the shortest that reads back as the same number.

/// The type for which the text has to be exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// float32: its values are written as `0.1`, not `0.10000000149011612`; values beyond its range
    /// are written as float64.
    Single,
    /// float64.
    #[default]
    Double,
}

const EXACT_WHOLE: f64 = 9_007_199_254_740_992.0;

pub(crate) fn push_index(out: &mut Vec<u8>, index: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(index).as_bytes());
}

/// `value` must be finite.
pub(crate) fn push_number(out: &mut Vec<u8>, value: f64, precision: Precision) {
    let whole = value as i64;
    let is_whole = whole as f64 == value
        && value.abs() < EXACT_WHOLE
        && (whole != 0 || value.is_sign_positive());
    match precision {
        _ if is_whole => out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes()),
        Precision::Single if (value as f32).is_finite() => {
            out.extend_from_slice(zmij::Buffer::new().format(value as f32).as_bytes())
        }
        _ => out.extend_from_slice(zmij::Buffer::new().format(value).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn printed(value: f64, precision: Precision) -> String {
        let mut out = Vec::new();
        push_number(&mut out, value, precision);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(printed(1.0, Precision::Double), "1");
        assert_eq!(printed(-3.0, Precision::Single), "-3");
        assert_eq!(printed(f64::from(0.1_f32), Precision::Single), "0.1");
        assert_eq!(printed(0.1, Precision::Double), "0.1");
        assert_eq!(printed(1.5e300, Precision::Single), "1.5e+300");
    }

    proptest! {
        #[test]
        fn numbers_read_back_as_they_were(bits: u64, single_bits: u32, small in -1e18..1e18_f64, whole: i64) {
            for value in [f64::from_bits(bits), small, whole as f64, -0.0] {
                if value.is_finite() {
                    prop_assert_eq!(printed(value, Precision::Double).parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
            }
            for single in [f32::from_bits(single_bits), small as f32, whole as f32, -0.0] {
                if single.is_finite() {
                    prop_assert_eq!(printed(f64::from(single), Precision::Single).parse::<f32>().unwrap().to_bits(), single.to_bits());
                }
            }
        }
    }
}
