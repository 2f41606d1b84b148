//! The head of a GGUF file, as language models on CPUs have them. Pure.
//!
//! ```text
//!   "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type, value | tensors: name, extents, type, offset | elements
//! ```
//!
//! Only plain elements are known; of quantized ones there is the name of their type. Source: the
//! specification of GGUF in the ggml repository, versions 2 and 3.
//!
//! ```
//! use outcore_core::format::gguf::{MAGIC, parse};
//!
//! let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
//! let mut head = [&MAGIC[..], &3u32.to_le_bytes(), &1u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
//! head.extend(text("token_embd.weight"));
//! head.extend(2u32.to_le_bytes());
//! head.extend([4u64, 1000].map(u64::to_le_bytes).concat());
//! head.extend(0u32.to_le_bytes());
//! head.extend(0u64.to_le_bytes());
//! let tensors = parse(&head)?.expect("a whole head");
//! assert_eq!((tensors[0].shape.as_slice(), tensors[0].dtype.as_str()), (&[1000, 4][..], "F32"));
//! assert_eq!(tensors[0].first % 32, 0);
//! assert_eq!(parse(&head[..40])?, None);
//! # Ok::<(), String>(())
//! ```

use super::safetensors::{Tensor, dtype, shown};

/// The first bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Bytes of a head at most: vocabularies are in it.
pub const HEAD_MOST: u64 = 256 << 20;

const EXTENTS_MOST: u32 = 8;
const ALIGNMENT: u64 = 32;

/// The tensors of a file, of which these are the first bytes, in the order of their bytes, by
/// the names of types that safetensors has; `None` when the head goes on behind them.
///
/// # Errors
/// The reason, for what is no such head.
pub fn parse(head: &[u8]) -> Result<Option<Vec<Tensor>>, String> {
    match (Head { bytes: head, at: 0 }).tensors() {
        Ok(tensors) => Ok(Some(tensors)),
        Err(Wrong::Short) => Ok(None),
        Err(Wrong::Format(what)) => Err(what),
    }
}

enum Wrong {
    /// It goes on behind the bytes that are there.
    Short,
    Format(String),
}

type Parsed<T> = Result<T, Wrong>;

fn wrong<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Wrong::Format(what.into()))
}

struct Head<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Head<'_> {
    fn tensors(&mut self) -> Parsed<Vec<Tensor>> {
        if self.array::<4>()? != MAGIC {
            return wrong("it does not begin with GGUF");
        }
        match self.u32()? {
            2 | 3 => {}
            version => {
                return wrong(format!(
                    "version {version} of GGUF, where 2 and 3 are known"
                ));
            }
        }
        let (count, pairs) = (self.u64()?, self.u64()?);
        let mut alignment = ALIGNMENT;
        for _ in 0..pairs {
            let key = self.text()?;
            let kind = self.u32()?;
            match (key.as_str(), kind) {
                ("general.alignment", 4) => alignment = u64::from(self.u32()?),
                _ => self.skip_value(kind)?,
            }
        }
        if !alignment.is_power_of_two() {
            return wrong(format!("an alignment of {alignment}"));
        }
        let mut tensors = Vec::new();
        for _ in 0..count {
            tensors.push(self.tensor()?);
        }
        let start = (self.at as u64).next_multiple_of(alignment);
        for tensor in &mut tensors {
            let bytes = match dtype(&tensor.dtype) {
                None => Some(0),
                Some(dtype) => tensor
                    .shape
                    .iter()
                    .try_fold(dtype.bytes(), |bytes, &extent| bytes.checked_mul(extent)),
            };
            let first = start.checked_add(tensor.first);
            let end = first
                .zip(bytes)
                .and_then(|(first, bytes)| first.checked_add(bytes));
            let (Some(first), Some(end)) = (first, end) else {
                return wrong(format!("{} is beyond any file", shown(&tensor.name)));
            };
            (tensor.first, tensor.end) = (first, end);
        }
        tensors.sort_by_key(|tensor| (tensor.first, tensor.end));
        Ok(tensors)
    }

    /// A tensor, whose first byte is counted from that of all elements.
    fn tensor(&mut self) -> Parsed<Tensor> {
        let (name, extents) = (self.text()?, self.u32()?);
        if extents > EXTENTS_MOST {
            return wrong(format!("{} has {extents} extents", shown(&name)));
        }
        // The first one is that of elements which are next to each other.
        let mut shape = (0..extents)
            .map(|_| self.u64())
            .collect::<Parsed<Vec<u64>>>()?;
        shape.reverse();
        let dtype = type_name(self.u32()?);
        Ok(Tensor {
            name,
            dtype,
            shape,
            first: self.u64()?,
            end: 0,
        })
    }

    fn skip_value(&mut self, kind: u32) -> Parsed<()> {
        match (kind, value_bytes(kind)) {
            (_, Some(bytes)) => self.take(bytes).map(drop),
            (8, _) => self.text().map(drop),
            (9, _) => {
                let (kind, count) = (self.u32()?, self.u64()?);
                match (kind, value_bytes(kind)) {
                    (_, Some(bytes)) => self.take(bytes.saturating_mul(count)).map(drop),
                    (8, _) => (0..count).try_for_each(|_| self.text().map(drop)),
                    _ => wrong(format!("an array of values of type {kind}")),
                }
            }
            _ => wrong(format!("a value of type {kind}")),
        }
    }

    fn take(&mut self, bytes: u64) -> Parsed<&[u8]> {
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.at.checked_add(bytes))
            .filter(|end| *end <= self.bytes.len())
            .ok_or(Wrong::Short)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let taken = self.take(N as u64)?;
        Ok(taken.try_into().expect("as many bytes as were asked for"))
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Parsed<String> {
        let bytes = self.u64()?;
        Ok(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }
}

/// Bytes of a value that always has as many.
fn value_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// What safetensors calls the type of elements, or ggml, where the former has no such type.
fn type_name(number: u32) -> String {
    const QUANTIZED: [(u32, &str); 12] = [
        (2, "Q4_0"),
        (3, "Q4_1"),
        (6, "Q5_0"),
        (7, "Q5_1"),
        (8, "Q8_0"),
        (9, "Q8_1"),
        (10, "Q2_K"),
        (11, "Q3_K"),
        (12, "Q4_K"),
        (13, "Q5_K"),
        (14, "Q6_K"),
        (15, "Q8_K"),
    ];
    let plain = match number {
        0 => Some("F32"),
        1 => Some("F16"),
        24 => Some("I8"),
        25 => Some("I16"),
        26 => Some("I32"),
        27 => Some("I64"),
        28 => Some("F64"),
        30 => Some("BF16"),
        _ => QUANTIZED
            .iter()
            .find(|(known, _)| *known == number)
            .map(|(_, name)| *name),
    };
    plain.map_or_else(|| format!("ggml {number}"), str::to_owned)
}
