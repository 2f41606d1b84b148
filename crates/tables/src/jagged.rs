//! Features of a whole batch in few arrays.

use std::ops::Range;

use outcore_core::{Error, Result};
use outcore_kernels::embedding::Pooling;

use crate::look_up::{Bags, Feature, Ids};

/// What a call asks of several tables, in the form of FBGEMM's table-batched embeddings and of TorchRec's
/// `KeyedJaggedTensor`: all features have the same number of bags, one for each sample.
///
/// ```
/// use outcore_tables::{Ids, JaggedBatch, Pooling};
///
/// let batch = JaggedBatch {
///     tables: &[0, 2],
///     ids: Ids::I64(&[7, 1, 7, 5]),
///     lengths: Ids::I64(&[2, 0, 1, 1]),
///     mode: Pooling::Sum,
///     weights: None,
/// };
/// let features = batch.features()?;
/// assert_eq!((features[0].ids.len(), features[1].ids.get(1)), (2, 5));
/// assert!(JaggedBatch { lengths: Ids::I64(&[2, 0, 1, 2]), ..batch }.features().is_err());
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct JaggedBatch<'a> {
    /// Number of the table of each feature.
    pub tables: &'a [usize],
    /// Those of the first feature, then those of the second, and so on; of each feature, bag by bag.
    pub ids: Ids<'a>,
    /// How many ids each bag has, in the same order.
    pub lengths: Ids<'a>,
    /// How a bag becomes a row.
    pub mode: Pooling,
    /// A factor for each id; of sums only.
    pub weights: Option<&'a [f32]>,
}

impl<'a> JaggedBatch<'a> {
    /// Each feature by itself.
    ///
    /// # Errors
    /// [`Error::Shape`] for lengths that are not as many for each feature, and for weights that are not one for
    /// each id; [`Error::Value`] for lengths that are negative or do not add up to the number of ids.
    pub fn features(&self) -> Result<Vec<Feature<'a>>> {
        let (features, lengths, ids) = (self.tables.len(), self.lengths.len(), self.ids.len());
        if features == 0 || !lengths.is_multiple_of(features) {
            return Err(Error::shape(format!(
                "{lengths} lengths are no equal numbers of bags for {features} features"
            )));
        }
        if let Some(weights) = self.weights.filter(|weights| weights.len() != ids) {
            return Err(Error::shape(format!(
                "{} weights for {ids} ids",
                weights.len()
            )));
        }
        let (bags, mut end) = (lengths / features, 0);
        let mut found = Vec::with_capacity(features);
        for (feature, &table) in self.tables.iter().enumerate() {
            let lengths = self.lengths.part(feature * bags..(feature + 1) * bags);
            let of_feature = self.next(end, lengths, feature)?;
            end = of_feature.end;
            found.push(Feature {
                table,
                ids: self.ids.part(of_feature.clone()),
                bags: Bags::Lengths(lengths),
                mode: self.mode,
                weights: self.weights.map(|weights| &weights[of_feature]),
                padding: None,
            });
        }
        match end == ids {
            true => Ok(found),
            false => Err(Error::value(format!(
                "the lengths are {end} together, for {ids} ids"
            ))),
        }
    }

    /// Which ids are those of a feature.
    fn next(&self, start: usize, lengths: Ids<'_>, feature: usize) -> Result<Range<usize>> {
        let mut end = start;
        for length in lengths.iter() {
            let wanted = usize::try_from(length).map_err(|_| {
                let table = self.tables[feature];
                Error::value(format!(
                    "a bag of feature {feature}, which is of table {table}, has length {length}"
                ))
            })?;
            end = end
                .checked_add(wanted)
                .filter(|end| *end <= self.ids.len())
                .ok_or_else(|| {
                    let ids = self.ids.len();
                    Error::value(format!("the lengths are more than the {ids} ids"))
                })?;
        }
        Ok(start..end)
    }
}
