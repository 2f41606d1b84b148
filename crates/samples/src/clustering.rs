//! How much more alike neighbours are than samples far apart: what a chunk shuffle has to be warned
//! of. Pure.
//!
//! For a field with one whole number, such as a class, the variance of the means of chunks over
//! that of the means of as many samples taken anywhere. It is about 1 for samples in no order.
//! Where samples are sorted by class it is about the number of samples of a chunk, and a chunk
//! shuffle then shows the classes one after another (Xu et al., CorgiPile, SIGMOD 2022, whose h_D
//! this is).

use serde::{Deserialize, Serialize};

use super::schema::{Kind, Schema};

/// Bytes of a chunk, as a chunk shuffle cuts them.
pub(super) const CHUNK_BYTES: u64 = 256 << 10;

/// Sums over what was written so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Clustering {
    count: u64,
    chunks: u64,
    /// Of the chunk that goes on.
    chunk_count: u64,
    chunk_bytes: u64,
    fields: Vec<Sums>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    sum: f64,
    squares: f64,
    /// Of the chunk that goes on.
    chunk_sum: f64,
    /// Of each chunk: the square of its sum, by its samples.
    between: f64,
}

impl Clustering {
    pub(super) fn add(&mut self, schema: &Schema, fields: &[impl AsRef<[u8]>]) {
        let numbers = schema
            .fields
            .iter()
            .zip(fields)
            .filter_map(|(field, bytes)| number(&field.kind, bytes.as_ref()));
        for (index, number) in numbers.enumerate() {
            if index == self.fields.len() {
                self.fields.push(Sums::default());
            }
            let sums = &mut self.fields[index];
            sums.sum += number;
            sums.squares += number * number;
            sums.chunk_sum += number;
        }
        self.count += 1;
        self.chunk_count += 1;
        self.chunk_bytes += fields
            .iter()
            .map(|bytes| bytes.as_ref().len() as u64)
            .sum::<u64>();
        if self.chunk_bytes >= CHUNK_BYTES {
            self.close_chunk();
        }
    }

    fn close_chunk(&mut self) {
        for sums in &mut self.fields {
            sums.between += sums.chunk_sum * sums.chunk_sum / self.chunk_count as f64;
            sums.chunk_sum = 0.0;
        }
        (self.chunks, self.chunk_count, self.chunk_bytes) = (self.chunks + 1, 0, 0);
    }

    /// By field with whole numbers, where there are chunks to compare.
    pub(super) fn found(mut self, schema: &Schema) -> Vec<(String, f64)> {
        if self.chunk_count > 0 {
            self.close_chunk();
        }
        let (count, chunks) = (self.count as f64, self.chunks as f64);
        let names = schema
            .fields
            .iter()
            .filter(|field| is_number(&field.kind))
            .map(|field| field.name.clone());
        let ratio = |sums: &Sums| {
            let about = sums.sum * sums.sum / count;
            let (between, all) = (
                (sums.between - about) / (chunks - 1.0),
                (sums.squares - about) / (count - 1.0),
            );
            // Rounding leaves a little of nothing where all numbers are equal.
            if all <= 1e-12 * sums.squares / count {
                1.0
            } else {
                between / all
            }
        };
        if self.chunks < 2 || self.count <= self.chunks {
            return Vec::new();
        }
        names.zip(self.fields.iter().map(ratio)).collect()
    }
}

fn is_number(kind: &Kind) -> bool {
    matches!(kind, Kind::Array { dtype, shape } if shape.is_empty() && matches!(dtype.as_bytes()[1], b'i' | b'u' | b'b'))
}

/// The whole number that a field is.
fn number(kind: &Kind, bytes: &[u8]) -> Option<f64> {
    let Kind::Array { dtype, .. } = kind else {
        return None;
    };
    if !is_number(kind) {
        return None;
    }
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let raw = u64::from_le_bytes(wide);
    let shift = 64 - 8 * bytes.len() as u32;
    Some(if dtype.as_bytes()[1] == b'i' {
        ((raw << shift) as i64 >> shift) as f64
    } else {
        raw as f64
    })
}
