//! How stored numbers become those that operations compute with.

use outcore_core::DType;
use outcore_engine::Decoder;
use outcore_kernels::decode;

/// Makes f32s of the elements of an array; none where those are what operations compute with, or
/// nothing that they take.
pub(crate) fn decoder_of(dtype: DType) -> Option<Decoder> {
    let decode = match dtype {
        DType::Bool | DType::U8 => decode::u8_to_f32,
        DType::I8 => decode::i8_to_f32,
        DType::U16 => decode::u16_to_f32,
        DType::I16 => decode::i16_to_f32,
        DType::F16 => decode::f16_to_f32,
        DType::BF16 => decode::bf16_to_f32,
        _ => return None,
    };
    Some(Decoder {
        form: 1 + dtype as u32,
        factor: 4 / dtype.bytes() as usize,
        decode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operations_take_is_real_or_decoded() {
        for dtype in DType::ALL {
            let decoded = decoder_of(dtype).map(|decoder| decoder.factor as u64 * dtype.bytes());
            match dtype.real().map(|real| DType::from(real).bytes()) {
                Some(bytes) if dtype != DType::F32 && dtype != DType::F64 => {
                    assert_eq!(decoded, Some(bytes), "{dtype}");
                }
                _ => assert_eq!(decoded, None, "{dtype}"),
            }
        }
    }
}
