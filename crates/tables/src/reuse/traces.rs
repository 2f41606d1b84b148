//! Traces for tests.

/// Ids of rows by Zipf's law: the k-th hottest of `rows` is looked up in proportion to `k^-skew`.
pub(crate) struct Zipf {
    /// Of the rows up to each one.
    shares: Vec<f64>,
    state: u64,
}

impl Zipf {
    pub(crate) fn new(rows: u64, skew: f64, seed: u64) -> Zipf {
        let mut sum = 0.0;
        let shares = (1..=rows).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Zipf {
            shares: shares.collect(),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }
}

impl Iterator for Zipf {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // xorshift64* (Vigna, 2016).
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let draw = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        let share = draw as f64 / (1u64 << 53) as f64 * self.shares.last()?;
        Some(self.shares.partition_point(|&other| other <= share) as u64)
    }
}

/// Look-ups of several tables in turn: table and id.
pub(crate) fn interleaved(traces: &[Vec<u64>]) -> impl Iterator<Item = (usize, u64)> {
    let longest = traces.iter().map(Vec::len).max().unwrap_or(0);
    let at =
        |place: usize| move |(table, trace): (usize, &Vec<u64>)| Some((table, *trace.get(place)?));
    (0..longest).flat_map(move |place| traces.iter().enumerate().filter_map(at(place)))
}
