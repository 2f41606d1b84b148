//! A share of all keys, chosen by hash.

/// Fewer keys than one in this many say nothing about any table.
const RATE_MIN: f64 = 1.0 / (1u64 << 32) as f64;

#[derive(Clone, Copy)]
pub(super) struct Sample {
    hash_max: u64,
    rate: f64,
}

impl Sample {
    /// A rate outside of what makes sense is brought inside; one that is no number becomes the lowest.
    pub(super) fn new(rate: f64) -> Sample {
        let rate = if rate > RATE_MIN {
            rate.min(1.0)
        } else {
            RATE_MIN
        };
        Sample {
            hash_max: (rate * 2f64.powi(64)) as u64,
            rate,
        }
    }

    /// As many keys as are followed at most, of as many as there may be.
    pub(super) fn of(keys_max: u64, rows_max: u64) -> Sample {
        Sample::new(keys_max.max(1) as f64 / rows_max.max(1) as f64)
    }

    /// Two thirds of these keys; the first time as much more as has `least` reached in whole steps.
    pub(super) fn thinned(&self, least: &Sample) -> Sample {
        let steps = (self.rate / least.rate).log(1.5);
        Sample::new(least.rate * 1.5f64.powi((steps - 1e-6).ceil() as i32 - 1))
    }

    /// The share of all keys.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    pub(super) fn takes(&self, key: u64) -> bool {
        mix(key) <= self.hash_max
    }

    /// Keys, rows or look-ups that one of the sample stands for.
    pub(super) fn scale(&self) -> f64 {
        1.0 / self.rate
    }

    /// How many of this many rows are in the sample.
    pub(super) fn part_of(&self, rows: u64) -> u64 {
        (rows as f64 * self.rate).round() as u64
    }
}

/// The finalizer of splitmix64: all bits of the result depend on all bits of `x`.
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
