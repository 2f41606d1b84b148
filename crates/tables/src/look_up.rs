//! What is looked up: bags of row numbers, checked and brought to one form.
//!
//! The meaning is that of `torch.nn.EmbeddingBag` and `torch.nn.Embedding`. Bags are given by offsets,
//! with or without the end of the last one, by lengths, or as rows of one length; a row number may be the
//! padding, which is no member of a bag.

use std::ops::Range;

use outcore_core::{DType, Error, Result};
use outcore_kernels::embedding::{Pooling, Weights};

/// Row numbers of either width.
///
/// ```
/// use outcore_core::DType;
/// use outcore_tables::Ids;
///
/// let ids = Ids::I32(&[7, -1]);
/// assert_eq!((ids.len(), ids.is_empty(), ids.get(1)), (2, false, -1));
/// let bytes = [0u64, 5].map(u64::to_ne_bytes);
/// assert!(Ids::of(DType::F32, bytes.as_flattened()).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// 32 bits.
    I32(&'a [i32]),
    /// 64 bits.
    I64(&'a [i64]),
}

impl<'a> Ids<'a> {
    /// Numbers of one of the two types, in memory that is aligned for them.
    ///
    /// ```
    /// use outcore_core::DType;
    /// use outcore_tables::Ids;
    ///
    /// let numbers = [3i64, 1];
    /// let ids = Ids::of(DType::I64, bytemuck::cast_slice(&numbers))?;
    /// assert_eq!(ids.get(0), 3);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for another type, [`Error::Shape`] for bytes that are no whole aligned numbers.
    pub fn of(dtype: DType, bytes: &'a [u8]) -> Result<Ids<'a>> {
        let ids = match dtype {
            DType::I32 => bytemuck::try_cast_slice(bytes).map(Ids::I32),
            DType::I64 => bytemuck::try_cast_slice(bytes).map(Ids::I64),
            _ => {
                let what = format!("ids are of int32 or int64, not of {dtype}");
                return Err(Error::DType { what });
            }
        };
        ids.map_err(|error| Error::shape(format!("{} bytes of ids: {error}", bytes.len())))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Ids::I32(ids) => ids.len(),
            Ids::I64(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// Without such a one.
    #[must_use]
    pub fn get(&self, at: usize) -> i64 {
        match self {
            Ids::I32(ids) => i64::from(ids[at]),
            Ids::I64(ids) => ids[at],
        }
    }

    /// Some of them.
    ///
    /// # Panics
    /// Where there are fewer.
    pub(crate) fn part(&self, range: Range<usize>) -> Ids<'a> {
        match self {
            Ids::I32(ids) => Ids::I32(&ids[range]),
            Ids::I64(ids) => Ids::I64(&ids[range]),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }
}

/// Which ids make a bag.
#[derive(Clone, Copy, Debug)]
pub enum Bags<'a> {
    /// Every id is a row of the result: `torch.nn.Embedding`.
    Each,
    /// All bags have this many.
    Fixed(usize),
    /// Where each bag begins; the last one ends with the ids.
    Offsets(Ids<'a>),
    /// The same, followed by where the last one ends.
    OffsetsAndEnd(Ids<'a>),
    /// How many ids each has.
    Lengths(Ids<'a>),
}

/// What a call asks of one table: one feature of a model.
#[derive(Clone, Copy, Debug)]
pub struct Feature<'a> {
    /// Number of the table in its set.
    pub table: usize,
    /// Row numbers.
    pub ids: Ids<'a>,
    /// Which of them make a bag.
    pub bags: Bags<'a>,
    /// How a bag becomes a row.
    pub mode: Pooling,
    /// A factor for each id; of sums only.
    pub weights: Option<&'a [f32]>,
    /// The row number that is no member of a bag; where every id is a row of the result it has no
    /// meaning for a look-up.
    pub padding: Option<u64>,
}

impl Feature<'_> {
    /// Bytes of the form in which it is carried out.
    pub(crate) fn held_bytes(&self) -> u64 {
        let ids = self.ids.len();
        let bags = match self.bags {
            Bags::Each => ids,
            Bags::Fixed(length) => ids / length.max(1),
            Bags::Offsets(of) | Bags::OffsetsAndEnd(of) | Bags::Lengths(of) => of.len(),
        };
        let weight = if self.weights.is_some() { 4 } else { 0 };
        ((8 + weight) * ids + 8 * (bags + 1)) as u64
    }
}

/// A feature in the form in which it is carried out.
#[derive(Debug, Default)]
pub(crate) struct Bagged {
    /// Without padding.
    pub(crate) rows: Vec<u64>,
    /// Where each bag begins in `rows`, and the end.
    pub(crate) starts: Vec<usize>,
    pub(crate) weights: Option<Vec<f32>>,
    /// Whether products with weights are rounded before they are added.
    rounds: bool,
}

impl Bagged {
    pub(crate) fn bags(&self) -> usize {
        self.starts.len() - 1
    }

    /// The bag that has a row, by its position.
    pub(crate) fn bag_of(&self, position: usize) -> usize {
        self.starts.partition_point(|&start| start <= position) - 1
    }

    /// The weights of some positions.
    pub(crate) fn weights(&self, positions: Range<usize>) -> Weights<'_> {
        match &self.weights {
            None => Weights::Equal,
            Some(weights) if self.rounds => Weights::Rounded(&weights[positions]),
            Some(weights) => Weights::Fused(&weights[positions]),
        }
    }

    /// Checks a feature of a table with `rows` rows.
    ///
    /// # Errors
    /// [`Error::Value`], naming the table and the id; [`Error::Shape`] for weights or offsets that do not
    /// fit the ids.
    pub(crate) fn of(feature: &Feature<'_>, name: &str, rows: u64) -> Result<Bagged> {
        let ids = feature.ids;
        let mut starts = starts(feature.bags, ids.len(), name)?;
        if let Some(weights) = feature.weights {
            if weights.len() != ids.len() {
                let (weights, ids) = (weights.len(), ids.len());
                return Err(Error::shape(format!(
                    "{name}: {weights} weights for {ids} ids"
                )));
            }
            if feature.mode != Pooling::Sum {
                return Err(Error::value(format!(
                    "{name}: per_sample_weights are for sums, not for other modes"
                )));
            }
        }
        let mut numbers: Vec<u64> = match ids {
            // What is negative becomes larger than any number of rows.
            Ids::I32(ids) => ids.iter().map(|&id| i64::from(id) as u64).collect(),
            Ids::I64(ids) => ids.iter().map(|&id| id as u64).collect(),
        };
        if numbers.iter().fold(0, |most, &row| most.max(row)) >= rows && !numbers.is_empty() {
            let at = numbers.iter().position(|&row| row >= rows).unwrap_or(0);
            let (id, count) = (ids.get(at), ids.len());
            return Err(Error::value(format!(
                "{name} has {rows} rows, numbered from 0, and none with the number {id} (id {at} of {count})"
            )));
        }
        let mut weights = feature.weights.map(<[f32]>::to_vec);
        let is_bag = !matches!(feature.bags, Bags::Each);
        if let Some(padding) = feature.padding.filter(|_| is_bag) {
            leave_out(padding, &mut numbers, &mut starts, &mut weights);
        }
        Ok(Bagged {
            rows: numbers,
            starts,
            weights,
            // As PyTorch's kernels do it.
            rounds: feature.padding.is_some(),
        })
    }
}

/// Where each bag begins, and the end.
fn starts(bags: Bags<'_>, ids: usize, name: &str) -> Result<Vec<usize>> {
    let wrong = |what: String| Err(Error::value(format!("{name}: {what}")));
    match bags {
        Bags::Each => Ok((0..=ids).collect()),
        Bags::Fixed(length) => match length {
            0 => wrong("bags of 0 ids do not say how many there are; lengths do".into()),
            _ if ids.is_multiple_of(length) => Ok((0..=ids).step_by(length).collect()),
            _ => wrong(format!("{ids} ids do not make bags of {length}")),
        },
        Bags::Lengths(lengths) => {
            let (mut starts, mut sum) = (Vec::with_capacity(lengths.len() + 1), 0usize);
            starts.push(0);
            for (bag, length) in lengths.iter().enumerate() {
                let Some(end) = usize::try_from(length)
                    .ok()
                    .and_then(|length| sum.checked_add(length))
                    .filter(|end| *end <= ids)
                else {
                    return wrong(format!(
                        "length {length} of bag {bag}, where {} ids are left",
                        ids - sum
                    ));
                };
                sum = end;
                starts.push(sum);
            }
            match sum == ids {
                true => Ok(starts),
                false => wrong(format!("the lengths are {sum} together, for {ids} ids")),
            }
        }
        Bags::Offsets(offsets) | Bags::OffsetsAndEnd(offsets) => {
            let has_end = matches!(bags, Bags::OffsetsAndEnd(_));
            let mut starts = Vec::with_capacity(offsets.len() + 1);
            for (bag, offset) in offsets.iter().enumerate() {
                let before = starts.last().copied().unwrap_or(0);
                match usize::try_from(offset) {
                    Ok(start) if start >= before && start <= ids && (bag > 0 || start == 0) => {
                        starts.push(start)
                    }
                    _ if bag == 0 => return wrong(format!("the first offset is {offset}, not 0")),
                    _ => {
                        return wrong(format!(
                            "offset {offset} of bag {bag} is not between {before}, the one before it, and {ids}, the number of ids"
                        ));
                    }
                }
            }
            match (has_end, starts.last()) {
                (true, None) => {
                    return wrong("offsets that include the last one are at least one".into());
                }
                (true, Some(&end)) if end != ids => {
                    return wrong(format!(
                        "the last offset is {end}, not {ids}, the number of ids"
                    ));
                }
                (true, _) => {}
                (false, None) if ids > 0 => return wrong(format!("no offsets for {ids} ids")),
                (false, _) => starts.push(ids),
            }
            Ok(starts)
        }
    }
}

/// Takes one row number out of all bags.
fn leave_out(
    padding: u64,
    rows: &mut Vec<u64>,
    starts: &mut [usize],
    weights: &mut Option<Vec<f32>>,
) {
    let mut kept = 0;
    let mut next = 0;
    for at in 0..=rows.len() {
        while next < starts.len() && starts[next] == at {
            starts[next] = kept;
            next += 1;
        }
        if at < rows.len() && rows[at] != padding {
            rows[kept] = rows[at];
            if let Some(weights) = weights {
                weights[kept] = weights[at];
            }
            kept += 1;
        }
    }
    rows.truncate(kept);
    if let Some(weights) = weights {
        weights.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(ids: &'a [i64], bags: Bags<'a>) -> Feature<'a> {
        Feature {
            table: 0,
            ids: Ids::I64(ids),
            bags,
            mode: Pooling::Sum,
            weights: None,
            padding: None,
        }
    }

    fn starts_of(ids: &[i64], bags: Bags<'_>) -> std::result::Result<Vec<usize>, String> {
        Bagged::of(&of(ids, bags), "t", 10)
            .map(|found| found.starts)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn bags_are_given_in_five_ways() {
        let ids = [1, 2, 3, 4];
        assert_eq!(starts_of(&ids, Bags::Each).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(starts_of(&ids, Bags::Fixed(2)).unwrap(), [0, 2, 4]);
        assert_eq!(starts_of(&[], Bags::Fixed(2)).unwrap(), [0]);
        let offsets = Ids::I32(&[0, 0, 3]);
        assert_eq!(
            starts_of(&ids, Bags::Offsets(offsets)).unwrap(),
            [0, 0, 3, 4]
        );
        let offsets = Ids::I64(&[0, 4, 4]);
        assert_eq!(
            starts_of(&ids, Bags::OffsetsAndEnd(offsets)).unwrap(),
            [0, 4, 4]
        );
        let lengths = Ids::I32(&[0, 1, 3, 0]);
        assert_eq!(
            starts_of(&ids, Bags::Lengths(lengths)).unwrap(),
            [0, 0, 1, 4, 4]
        );
        assert_eq!(starts_of(&[], Bags::Offsets(Ids::I64(&[]))).unwrap(), [0]);
        assert_eq!(
            starts_of(&[], Bags::Offsets(Ids::I64(&[0, 0]))).unwrap(),
            [0, 0, 0]
        );
    }

    #[test]
    fn what_makes_no_bags_is_refused_with_the_reason() {
        let ids = [1, 2, 3, 4];
        let cases: [(Bags<'_>, &str); 10] = [
            (Bags::Fixed(0), "lengths do"),
            (Bags::Fixed(3), "4 ids do not make bags of 3"),
            (
                Bags::Offsets(Ids::I64(&[0, 3, 2])),
                "offset 2 of bag 2 is not between 3",
            ),
            (Bags::Offsets(Ids::I64(&[0, 5])), "offset 5 of bag 1"),
            (Bags::Offsets(Ids::I64(&[1])), "the first offset is 1"),
            (Bags::Offsets(Ids::I64(&[0, -1])), "offset -1 of bag 1"),
            (Bags::Offsets(Ids::I64(&[])), "no offsets for 4 ids"),
            (
                Bags::OffsetsAndEnd(Ids::I64(&[0, 2])),
                "the last offset is 2, not 4",
            ),
            (
                Bags::Lengths(Ids::I64(&[2, 3])),
                "length 3 of bag 1, where 2 ids are left",
            ),
            (
                Bags::Lengths(Ids::I64(&[2, 1])),
                "the lengths are 3 together, for 4 ids",
            ),
        ];
        for (bags, expected) in cases {
            let found = starts_of(&ids, bags).unwrap_err();
            assert!(
                found.starts_with("t: ") && found.contains(expected),
                "{found}"
            );
        }
        for (id, ids) in [(-1, [0, -1]), (10, [0, 10])] {
            let found = starts_of(&ids, Bags::Each).unwrap_err();
            assert!(
                found.contains(&format!("none with the number {id} (id 1 of 2)")),
                "{found}"
            );
        }
        let weights = Feature {
            weights: Some(&[1.0]),
            ..of(&ids, Bags::Each)
        };
        assert!(Bagged::of(&weights, "t", 10).is_err());
    }

    #[test]
    fn padding_is_no_member_of_a_bag() {
        let feature = Feature {
            padding: Some(3),
            weights: Some(&[1.0, 2.0, 3.0, 4.0, 5.0]),
            ..of(&[3, 1, 3, 3, 2], Bags::Offsets(Ids::I64(&[0, 2, 3, 5])))
        };
        let found = Bagged::of(&feature, "t", 10).unwrap();
        assert_eq!(
            (found.rows, found.starts),
            (vec![1, 2], vec![0, 1, 1, 2, 2])
        );
        assert_eq!(found.weights.unwrap(), [2.0, 5.0]);
        let each = Feature {
            padding: Some(3),
            ..of(&[3, 1], Bags::Each)
        };
        assert_eq!(Bagged::of(&each, "t", 10).unwrap().rows, [3, 1]);
    }
}
