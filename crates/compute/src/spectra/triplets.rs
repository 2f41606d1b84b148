//! From right singular vectors to triplets, and what is left of pairs when they are multiplied once
//! more.
//!
//! A V is made orthonormal, A V = Q R, and R is decomposed: left vectors are orthonormal and values
//! as accurate as products are, those near zero included, of which A^T A V keeps half the digits.

use outcore_core::{Result, Session, Stage};
use outcore_engine::Reservation;
use outcore_kernels as kernels;
use outcore_kernels::{Mat, MatRef, Svd, swap_cols_idx};

use super::course::{Chunks, Planned, square_bytes, svd_bytes};
use super::orthonormal::{Noise, append};
use super::search::Found;
use super::tall::{Tall, TallLayout};
use crate::operator::{Operator, RowProduct};

/// A vector of fewer roundings of a product than this is not known.
const ROUNDING: f64 = 256.0;

/// The least square of a singular value of unit vectors that are made orthonormal at once.
const INDEPENDENT: f64 = 1e-2;

/// The same of one that is along others: nothing is left of it but rounding.
const DEPENDENT: f64 = 1e-10;

/// What a search has found, with the left vectors; right ones are its vectors.
pub(super) struct Left {
    pub(super) left: Tall,
    /// For what these are still to be multiplied with when they are read.
    pub(super) held: Option<Reservation>,
    pub(super) values: Vec<f64>,
    pub(super) residuals: Vec<f64>,
}

/// |A v - w v| of each pair.
pub(super) fn eigen_residuals(
    operator: &impl Operator,
    found: &mut Found,
    chunks: Chunks,
    stage: &mut Stage,
) -> Result<Vec<f64>> {
    let _held = chunks.reserve(stage)?;
    let (order, count) = (found.vectors.rows(), found.values.len());
    let mut residuals = Vec::with_capacity(count);
    for columns in chunks.of(count) {
        let done = columns.start as f64 / count as f64;
        let v = found.vectors.columns(columns.clone(), stage)?;
        let mut image = Mat::zeros(order, columns.len());
        operator.apply(v.as_ref(), image.as_mut(), stage)?;
        found.products += 1;
        residuals.extend(differences(&image, v.as_ref(), &found.values[columns]));
        stage.reach(0.9 + 0.1 * done);
    }
    Ok(residuals)
}

/// Left vectors and values in ascending order; the right ones are put in it.
pub(super) fn triplets<O: Operator>(
    session: &Session,
    operator: &O,
    found: &mut Found,
    planned: &Planned,
    stage: &mut Stage,
) -> Result<Left> {
    if let (Some(chunks), Some(rows)) = (planned.by_rows, operator.by_rows())
        && let Some(left) = by_rows(session, (operator, rows), found, planned, chunks, stage)?
    {
        return Ok(left);
    }
    column_by_column(session, operator, found, planned, stage)
}

/// All of A V goes to scratch and stays there as it is until left vectors are written. Its Gram matrix
/// says what makes it orthonormal. Where a value is so small that its vector is rounding, columns are
/// made one after another instead: nothing then. If these have no room, noise takes its place. Of the
/// residuals A^T U - V S, A^T A V is what another pass has; it changes as A V does.
fn by_rows<O: Operator>(
    session: &Session,
    (operator, rows): (&O, &dyn RowProduct),
    found: &mut Found,
    planned: &Planned,
    chunks: Chunks,
    stage: &mut Stage,
) -> Result<Option<Left>> {
    let mut held = chunks.reserve(stage)?;
    let ([_, n], count) = (operator.shape(), found.values.len());
    let layout = planned.left.expect("triplets have left vectors");
    let mut left = Tall::of_rows(session, layout);
    let images = TallLayout::in_scratch(layout.real, n, count);
    let mut images = Tall::new(session, images, stage)?;
    for columns in chunks.of(count) {
        let v = found.vectors.columns(columns.clone(), stage)?;
        let (made, offsets) = rows.apply_rows(v.as_ref(), stage)?;
        left.append_rows(made, offsets);
        let mut image = Mat::zeros(n, columns.len());
        operator.apply_gram(v.as_ref(), image.as_mut(), stage)?;
        drop(v);
        let image = images.split(image.as_ref());
        images.append(&image, stage)?;
        found.products += 2;
        stage.reach(0.9 + 0.08 * columns.end as f64 / count as f64);
    }
    let mut factors = Factors::new(&left.gram(stage)?, operator.epsilon())?;
    if !factors.are_told && planned.by_columns.is_some() {
        return Ok(None);
    }
    if !factors.are_told {
        factors = factors.with_noise(&mut left, stage)?;
    }
    let for_others = chunks.blocks_bytes - square_bytes(count);
    let small = ascending(&factors.factor, for_others, stage)?;
    let (lost, lost_length) = (factors.lost, factors.lost_length);
    let (of_images, of_rows) = factors.rotated(small.left);
    left.rotate(of_rows.as_ref().unwrap_or(&of_images).as_ref(), 0..0, stage)?;
    images.rotate(of_images.as_ref(), 0..0, stage)?;
    drop((of_images, of_rows));
    found.vectors.rotate(small.right.as_ref(), 0..0, stage)?;
    let values = small.values;
    let mut residuals = Vec::with_capacity(count);
    for columns in chunks.of(count) {
        let image = images.columns(columns.clone(), stage)?;
        let v = found.vectors.columns(columns.clone(), stage)?;
        residuals.extend(differences(&image, v.as_ref(), &values[columns]));
    }
    // Noise has no image. What A^T makes of it, beyond all that A makes of V, is no longer than what
    // noise is in the place of.
    residuals[..lost].fill(lost_length);
    held.shrink((8 * (count + lost) * count) as u64);
    Ok(Some(Left {
        left,
        held: Some(held),
        values,
        residuals,
    }))
}

/// A V = Q R: what its Gram matrix tells of both.
struct Factors {
    /// R.
    factor: Mat<f64>,
    /// Of its columns.
    lengths: Vec<f64>,
    /// Of the lengths of its rows where columns are of unit length.
    squares: Vec<f64>,
    /// Where noise has the place of some columns: Q is A V, and noise beside it, times the first; the
    /// second is left to do of that.
    with_noise: Option<[Mat<f64>; 2]>,
    /// Whether all columns of Q are told well.
    are_told: bool,
    /// The last columns of Q that are not told at all, and no longer than this in A V.
    lost: usize,
    lost_length: f64,
}

impl Factors {
    fn new(gram: &Mat<f64>, epsilon: f64) -> Result<Factors> {
        let count = gram.nrows();
        let lengths: Vec<f64> = (0..count).map(|at| gram[(at, at)].sqrt()).collect();
        let largest = lengths.iter().fold(0.0, |a: f64, b| a.max(*b));
        let least = ROUNDING * epsilon * largest;
        let known: Vec<usize> = (0..count).filter(|&at| lengths[at] > least).collect();
        let unit = Mat::from_fn(known.len(), known.len(), |i, j| {
            let [i, j] = [known[i], known[j]];
            gram[(i, j)] / (lengths[i] * lengths[j])
        });
        let eigen = kernels::eigh(unit.as_ref(), None)?;
        let kept: Vec<usize> = (0..known.len())
            .filter(|&at| eigen.values[at] > DEPENDENT)
            .collect();
        // R = E^1/2 Y^T D where the unit Gram matrix is Y E Y^T.
        let (mut factor, mut squares) = (Mat::zeros(count, count), vec![1.0; count]);
        for (at, &direction) in kept.iter().enumerate() {
            let square = eigen.values[direction];
            squares[at] = square;
            for (of_known, &column) in known.iter().enumerate() {
                let along = eigen.vectors[(of_known, direction)];
                factor[(at, column)] = square.sqrt() * along * lengths[column];
            }
        }
        let is_independent = eigen.values.iter().all(|square| *square > INDEPENDENT);
        let dropped = if kept.len() < known.len() {
            DEPENDENT.sqrt() * largest
        } else {
            0.0
        };
        let short = lengths.iter().filter(|length| **length <= least);
        let lost_length = short.fold(dropped, |a, b| a.max(*b));
        Ok(Factors {
            factor,
            lengths,
            squares,
            with_noise: None,
            are_told: is_independent && known.len() == count,
            lost: count - kept.len(),
            lost_length,
        })
    }

    /// What A V times is Q; columns that are lost are zero.
    fn inverse(&self) -> Mat<f64> {
        Mat::from_fn(self.lengths.len(), self.squares.len(), |column, at| {
            let length = self.lengths[column];
            match self.factor[(at, column)] {
                0.0 => 0.0,
                along => along / self.squares[at] / length / length,
            }
        })
    }

    /// What images and rows are to be multiplied with, once more by this; `None`: rows as images.
    fn rotated(self, by: Mat<f64>) -> (Mat<f64>, Option<Mat<f64>>) {
        match self.with_noise {
            None => (self.inverse() * by, None),
            Some([inverse, left]) => (inverse.subrows(0, by.nrows()) * &by, Some(left * &by)),
        }
    }

    /// Q is made orthonormal to rounding, noise in the place of the columns that are lost.
    fn with_noise(mut self, a_v: &mut Tall, stage: &mut Stage) -> Result<Factors> {
        let (count, lost) = (self.factor.nrows(), self.lost);
        let mut inverse = self.inverse();
        if lost > 0 {
            let mut noise = Noise {
                seed: u64::MAX,
                made: 0,
            };
            a_v.append_noise(lost, &mut noise, stage)?;
            let gram = a_v.gram(stage)?;
            // Less what of noise is along Q.
            let q = inverse.subcols(0, count - lost);
            let along = q.transpose() * gram.submatrix(0, count, count, lost);
            let rest = gram.submatrix(count, count, lost, lost) - along.transpose() * &along;
            let whitened = inverse_root(rest.as_ref())?;
            let beyond = -(q * &along * &whitened);
            let mut all = Mat::zeros(count + lost, count);
            all.submatrix_mut(0, 0, count, count - lost).copy_from(q);
            all.submatrix_mut(0, count - lost, count, lost)
                .copy_from(beyond);
            all.submatrix_mut(count, count - lost, lost, lost)
                .copy_from(whitened);
            inverse = all;
        }
        // Once more, with sums of what is orthonormal but for the rounding of the first ones.
        a_v.rotate(inverse.as_ref(), 0..0, stage)?;
        let gram = a_v.gram(stage)?;
        let again = inverse_root(gram.as_ref())?;
        // E^1/2 Y^T = (Y E^-1/2)^T G.
        self.factor = again.transpose() * gram * &self.factor;
        self.with_noise = Some([inverse * &again, again]);
        Ok(self)
    }
}

/// What makes columns of this Gram matrix orthonormal.
fn inverse_root(gram: MatRef<'_, f64>) -> Result<Mat<f64>> {
    let eigen = kernels::eigh(gram, None)?;
    Ok(Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| {
        eigen.vectors[(i, j)] / eigen.values[j].sqrt()
    }))
}

/// The singular values and vectors of a factor, the smallest first; `held` bytes are there for them.
fn ascending(factor: &Mat<f64>, held: u64, stage: &Stage) -> Result<Svd<f64>> {
    let count = factor.nrows();
    let reserved = stage.reserve("singular vectors of a factor", svd_bytes(count, held))?;
    let mut found = kernels::svd(factor.as_ref())?;
    drop(reserved);
    found.values.reverse();
    for vectors in [&mut found.left, &mut found.right] {
        (0..count / 2).for_each(|at| swap_cols_idx(vectors.as_mut(), at, count - 1 - at));
    }
    Ok(found)
}

/// Columns of A V are in memory, some at a time, and become orthonormal one block after another: any
/// rank is right.
fn column_by_column<O: Operator>(
    session: &Session,
    operator: &O,
    found: &mut Found,
    planned: &Planned,
    stage: &mut Stage,
) -> Result<Left> {
    let ([m, n], count) = (operator.shape(), found.values.len());
    let layout = planned.left.expect("triplets have left vectors");
    let chunks = planned.by_columns.expect("left vectors have room");
    let _held = chunks.reserve(stage)?;
    let mut left = Tall::new(session, layout, stage)?;
    let largest = found.values.iter().fold(0.0, |a: f64, b| a.max(*b)).sqrt();
    let negligible = 4.0 * operator.epsilon() * largest;
    let mut noise = Noise {
        seed: u64::MAX,
        made: 0,
    };
    let mut factor = Mat::<f64>::zeros(count, count);
    for columns in chunks.of(count) {
        let v = found.vectors.columns(columns.clone(), stage)?;
        let mut image = Mat::zeros(m, columns.len());
        operator.apply(v.as_ref(), image.as_mut(), stage)?;
        found.products += 1;
        let used = left.used();
        let appended = append(
            session, &mut left, image, None, negligible, &mut noise, stage,
        )?;
        let mut into = factor.as_mut().subcols_mut(columns.start, columns.len());
        into.as_mut()
            .subrows_mut(0, used)
            .copy_from(&appended.coefficients);
        into.subrows_mut(used, columns.len())
            .copy_from(&appended.coupling);
        stage.reach(0.9 + 0.05 * columns.end as f64 / count as f64);
    }
    let small = ascending(&factor, 2 * square_bytes(count), stage)?;
    drop(factor);
    left.rotate(small.left.as_ref(), 0..0, stage)?;
    found.vectors.rotate(small.right.as_ref(), 0..0, stage)?;
    let values = small.values;
    let mut residuals = Vec::with_capacity(count);
    for columns in chunks.of(count) {
        let u = left.columns(columns.clone(), stage)?;
        let mut image = Mat::zeros(n, columns.len());
        operator.apply_transposed(u.as_ref(), image.as_mut(), stage)?;
        found.products += 1;
        let v = found.vectors.columns(columns.clone(), stage)?;
        residuals.extend(differences(&image, v.as_ref(), &values[columns.clone()]));
        stage.reach(0.95 + 0.05 * columns.end as f64 / count as f64);
    }
    Ok(Left {
        left,
        held: None,
        values,
        residuals,
    })
}

/// The lengths of the columns of an image less multiples of vectors.
fn differences(image: &Mat<f64>, vectors: MatRef<'_, f64>, values: &[f64]) -> Vec<f64> {
    let length = |(column, value): (usize, &f64)| {
        let pairs = image.col(column).iter().zip(vectors.col(column).iter());
        pairs
            .map(|(y, x)| (y - value * x).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    values.iter().enumerate().map(length).collect()
}
