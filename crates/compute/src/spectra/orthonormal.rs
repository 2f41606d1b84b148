//! Blocks of columns made orthonormal to a tall basis and appended to it.
//!
//! Classical Gram-Schmidt twice, and within the block Cholesky QR with the eigenvalues of the small
//! Gram matrix in the place of its Cholesky factor, which shows directions that are not there
//! (Stathopoulos and Wu, "A block orthogonalization procedure with constant synchronization
//! requirements", SIAM J. Sci. Comput. 2002). A pass over the basis for each time, and one before them
//! where what is along it is not known, whatever the width of the block.

use std::ops::Range;

use outcore_core::{Error, Result, Session, Stage};
use outcore_device::Locked;
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Mat, MatMut, MatRef};

use super::tall::{Panels, Tall, block_width};

/// The Gram matrix of a block that is orthonormal up to rounding differs by less from the identity:
/// the last factor then makes it orthonormal.
const NEARLY_ORTHONORMAL: f64 = 0.1;

/// A vector of unit length is along the basis if the square of what is left of it is less than this part of what is left of
/// noise, on average, where the basis leaves one dimension of the space.
const SHORT: f64 = 1e-2;

/// Rounds at most; three are enough but for blocks of noise.
const ROUNDS: usize = 32;

/// Vectors of noise, the same for the same seed wherever they are made.
#[derive(Clone, Copy)]
pub(super) struct Noise {
    pub(super) seed: u64,
    /// Vectors made so far.
    pub(super) made: u64,
}

impl Noise {
    /// The row-th element of a vector.
    fn element(seed: u64, vector: u64, row: u64) -> f64 {
        // Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
        let mix = |z: u64| {
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let start = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(vector));
        // The sum of four uniform numbers is as good as a normal one.
        let uniform = |part: u64| {
            let bits =
                mix(start.wrapping_add((4 * row + part).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        (0..4).map(uniform).sum()
    }

    /// Some rows of as many vectors, those that come next.
    pub(super) fn rows(&self, rows: Range<usize>, columns: usize) -> Mat<f64> {
        Mat::from_fn(rows.len(), columns, |row, column| {
            let (vector, row) = (self.made + column as u64, rows.start + row);
            Noise::element(self.seed, vector, row as u64)
        })
    }

    /// As many new vectors, as columns.
    pub(super) fn block(&mut self, rows: usize, columns: usize) -> Mat<f64> {
        let made = self.rows(0..rows, columns);
        self.made += columns as u64;
        made
    }
}

/// What an appended block is in terms of the basis: W = V `coefficients` + `new` `coupling`.
pub(super) struct Appended {
    /// Columns of the basis before x columns of W.
    pub(super) coefficients: Mat<f64>,
    /// New columns x columns of W.
    pub(super) coupling: Mat<f64>,
}

/// Appends an orthonormal basis of what `w` has beyond the span of `basis`; `known` is what is along
/// that, V^T W, up to what is small beside W; the shorter a direction is beside others of W, the more of
/// that is left in it, so that it is for bases that are stored in f32. A direction no longer
/// than `negligible` is replaced by noise, so that as many columns as `w` has are appended, or as
/// many as are left of the space.
///
/// # Errors
/// [`Error::Value`] for vectors that do not become orthonormal.
pub(super) fn append(
    session: &Session,
    basis: &mut Tall,
    w: Mat<f64>,
    known: Option<Mat<f64>>,
    negligible: f64,
    noise: &mut Noise,
    stage: &mut Stage,
) -> Result<Appended> {
    let (used, width) = (basis.used(), w.ncols());
    let wanted = width.min(basis.rows() - used).min(basis.capacity() - used);
    let blas = session.blas().clone();
    let block = basis.split(w.as_ref());
    drop(w);
    let mut coefficients = Mat::zeros(used, width);
    let mut coupling = Mat::identity(width, width);
    let short = SHORT / basis.rows() as f64;
    // Of directions that are left out nothing must be along the basis.
    let mut along = match known.filter(|_| wanted == width) {
        Some(known) => known,
        None => project(basis, &block, &blas, stage)?,
    };
    for round in 0.. {
        // What is along the basis comes off, and is looked at once more.
        let sums = subtract(basis, &block, &along, &blas, stage)?;
        coefficients += &along * &coupling;
        let gram = sums.subrows(used, sums.ncols());
        let is_orthonormal = (0..gram.ncols()).all(|j| {
            (0..gram.nrows())
                .all(|i| (gram[(i, j)] - f64::from(u8::from(i == j))).abs() < NEARLY_ORTHONORMAL)
        });
        let Whitening {
            mut factor,
            back,
            squares,
        } = whitening(gram, wanted)?;
        coupling = &back * &coupling;
        // Of noise nothing is in W: it is of no length there, and yet a direction.
        let is_lost = |at: usize| {
            coupling.row(at).norm_l2() <= negligible && (round == 0 || squares[at] < short)
        };
        let lost: Vec<usize> = (0..wanted).filter(|&at| is_lost(at)).collect();
        for &at in &lost {
            factor.col_mut(at).fill(0.0);
            coupling.row_mut(at).fill(0.0);
        }
        along = sums.subrows(0, used) * &factor;
        scale(basis, &block, &factor, &blas, stage)?;
        if !lost.is_empty() {
            replace(basis, &block, &lost, noise);
            along = project(basis, &block, &blas, stage)?;
        }
        let done = round > 0 && is_orthonormal && lost.is_empty() && wanted == gram.ncols();
        if done || wanted == 0 {
            break;
        }
        if round == ROUNDS {
            return Err(Error::value(format!(
                "{wanted} vectors do not become orthonormal to the {used} of a basis"
            )));
        }
    }
    basis.append(&block, stage)?;
    Ok(Appended {
        coefficients,
        coupling,
    })
}

/// V^T W.
fn project(basis: &Tall, block: &Panels, blas: &Blas, stage: &mut Stage) -> Result<Mat<f64>> {
    let (used, width) = (basis.used(), block_width(block));
    if used == 0 || width == 0 {
        return Ok(Mat::zeros(used, width));
    }
    let blas = blas.clone();
    basis.pass(
        "project",
        block,
        [used, width],
        stage,
        move |_, v, w, sum| {
            Ok(kernels::gemm(
                sum,
                1.0,
                v.transpose(),
                w.as_ref(),
                1.0,
                &blas,
            )?)
        },
    )
}

/// W less V C, with V^T W above W^T W of what is left.
fn subtract(
    basis: &Tall,
    block: &Panels,
    along: &Mat<f64>,
    blas: &Blas,
    stage: &mut Stage,
) -> Result<Mat<f64>> {
    let (used, width) = (basis.used(), block_width(block));
    let (blas, along) = (blas.clone(), along.clone());
    if width == 0 {
        return Ok(Mat::zeros(used, 0));
    }
    let work = move |_: usize, v: MatRef<'_, f64>, mut w: MatMut<'_, f64>, sum: MatMut<'_, f64>| {
        let (onto, gram) = sum.split_at_row_mut(used);
        if used > 0 {
            kernels::gemm(w.as_mut(), -1.0, v, along.as_ref(), 1.0, &blas)?;
            kernels::gemm(onto, 1.0, v.transpose(), w.as_ref(), 1.0, &blas)?;
        }
        let w = w.as_ref();
        Ok(kernels::gemm(gram, 1.0, w.transpose(), w, 1.0, &blas)?)
    };
    basis.pass("orthogonalize", block, [used + width, width], stage, work)
}

/// The block becomes its product with a small matrix, which has no more columns than it.
fn scale(
    basis: &Tall,
    block: &Panels,
    factor: &Mat<f64>,
    blas: &Blas,
    stage: &mut Stage,
) -> Result<()> {
    let (blas, factor) = (blas.clone(), factor.clone());
    let columns = factor.ncols();
    let work = move |w: MatMut<'_, f64>| {
        let mut scaled = Mat::zeros(w.nrows(), columns);
        kernels::gemm(
            scaled.as_mut(),
            1.0,
            w.as_ref(),
            factor.as_ref(),
            0.0,
            &blas,
        )?;
        w.subcols_mut(0, columns).copy_from(&scaled);
        Ok(())
    };
    basis.beside("scale", block, stage, work)?;
    for panel in block.iter() {
        let mut panel = panel.locked();
        let rows = panel.nrows();
        panel.truncate(rows, columns);
    }
    Ok(())
}

/// Noise in the place of columns that are none.
fn replace(basis: &Tall, block: &Panels, lost: &[usize], noise: &mut Noise) {
    let fresh = noise.block(basis.rows(), lost.len());
    let mut first = 0;
    for panel in block.iter() {
        let mut panel = panel.locked();
        for (from, &into) in lost.iter().enumerate() {
            let length = fresh.col(from).norm_l2();
            for row in 0..panel.nrows() {
                panel[(row, into)] = fresh[(first + row, from)] / length;
            }
        }
        first += panel.nrows();
    }
}

/// The longest directions of a block.
struct Whitening {
    /// W times this has unit columns.
    factor: Mat<f64>,
    /// What these are to be multiplied by to give W.
    back: Mat<f64>,
    /// Squares of their lengths in W.
    squares: Vec<f64>,
}

fn whitening(gram: MatRef<'_, f64>, wanted: usize) -> Result<Whitening> {
    let width = gram.ncols();
    let symmetric = Mat::from_fn(width, width, |i, j| (gram[(i, j)] + gram[(j, i)]) / 2.0);
    let eigen = kernels::eigh(symmetric.as_ref(), None)?;
    let largest = eigen.values.first().copied().unwrap_or(0.0);
    // A square that is rounding of the largest one says that there is a direction, not how long it
    // is: the next round tells.
    let least = largest * f64::EPSILON * width as f64;
    let length = |at: usize| eigen.values[at].max(least).sqrt();
    let inverse = |at: usize| {
        if length(at) > 0.0 {
            length(at).recip()
        } else {
            0.0
        }
    };
    let vectors = &eigen.vectors;
    Ok(Whitening {
        factor: Mat::from_fn(width, wanted, |i, j| vectors[(i, j)] * inverse(j)),
        back: Mat::from_fn(wanted, width, |i, j| vectors[(j, i)] * length(i)),
        squares: eigen.values,
    })
}

#[cfg(test)]
mod tests {
    use outcore_core::{Job, RealType};

    use super::*;
    use crate::spectra::tall::TallLayout;
    use crate::spectra::testing::{noise, session};

    type Known = dyn Fn(&Tall, &Mat<f64>, &mut Stage) -> Result<Option<Mat<f64>>> + Send;

    /// What is along the basis, off by a thousandth.
    fn nearly(basis: &Tall, block: &Mat<f64>, stage: &mut Stage) -> Result<Option<Mat<f64>>> {
        let all = basis.columns(0..basis.used(), stage)?;
        Ok(Some(1.001 * all.transpose() * block))
    }

    /// Appends blocks one after another, whether what is along the basis is known or not, and checks
    /// that the basis is orthonormal and gives each back.
    fn check(rows: usize, blocks: Vec<Mat<f64>>, negligible: f64) {
        check_with(
            rows,
            blocks.clone(),
            negligible,
            RealType::F64,
            Box::new(|_, _, _| Ok(None)),
        );
        check_with(rows, blocks, negligible, RealType::F32, Box::new(nearly));
    }

    fn check_with(
        rows: usize,
        blocks: Vec<Mat<f64>>,
        negligible: f64,
        real: RealType,
        known: Box<Known>,
    ) {
        let digits = match real {
            RealType::F64 => 1e-13,
            RealType::F32 => 1e-5,
        };
        let (_folder, session) = session(32 << 20, 2);
        let own = session.clone();
        let job = Job::driven(&session, vec![], move |stage, _| {
            let mut basis = Tall::new(&own, TallLayout::in_memory(real, rows, 24), stage)?;
            let mut noise = Noise { seed: 5, made: 0 };
            for block in blocks {
                let (before, length) = (basis.used(), block.norm_l2());
                let along = known(&basis, &block, stage)?;
                let appended = append(
                    &own,
                    &mut basis,
                    block.clone(),
                    along,
                    negligible,
                    &mut noise,
                    stage,
                )?;
                let all = basis.columns(0..basis.used(), stage)?;
                let off = all.transpose() * &all - Mat::<f64>::identity(all.ncols(), all.ncols());
                assert!(off.norm_max() < digits, "not orthonormal: {off:?}");
                let along = all.subcols(0, before) * &appended.coefficients;
                let new = all.subcols(before, basis.used() - before) * &appended.coupling;
                let rest = (block - along - new).norm_max();
                assert!(rest <= digits * length + negligible, "{rest} is lost");
            }
            Ok(basis.used())
        });
        let used = job.expect("it fits").run().expect("nothing can fail");
        assert_eq!(used, rows.min(12));
    }

    #[test]
    fn blocks_of_any_rank_are_appended_as_whole_ones() {
        let rows = 700;
        let (first, second) = (noise(rows, 4, 0), noise(rows, 4, 1));
        // Twice the same column, nothing, and what is there already.
        let deficient = Mat::from_fn(rows, 4, |row, column| match column {
            0 | 1 => second[(row, 0)],
            2 => 0.0,
            _ => 3.0 * first[(row, 2)],
        });
        check(
            rows,
            vec![first.clone(), deficient, Mat::zeros(rows, 4)],
            1e-12,
        );
        // Columns that differ by a billionth, of lengths far apart.
        let clustered = Mat::from_fn(rows, 4, |row, column| {
            let scale = [1.0, 1.0, 1e6, 1e-6][column];
            scale * (first[(row, 1)] + 1e-9 * second[(row, column)])
        });
        check(rows, vec![first, clustered, second], 1e-16);
    }

    #[test]
    fn no_more_columns_are_appended_than_there_is_room_for() {
        check(7, (0..3).map(|seed| noise(7, 4, seed)).collect(), 1e-12);
    }

    /// Of the last vectors of noise next to nothing is outside the basis.
    #[test]
    fn noise_fills_the_whole_space() {
        for (real, seed) in (0..8).flat_map(|seed| [(RealType::F64, seed), (RealType::F32, seed)]) {
            let (_folder, session) = session(32 << 20, 2);
            let own = session.clone();
            let (rows, block) = (500, [10, 16, 58][seed as usize % 3]);
            let job = Job::driven(&session, vec![], move |stage, _| {
                let mut basis = Tall::new(&own, TallLayout::in_memory(real, rows, rows), stage)?;
                let mut noise = Noise { seed, made: 0 };
                while basis.used() < rows {
                    let nothing = Mat::zeros(rows, block);
                    append(&own, &mut basis, nothing, None, 0.0, &mut noise, stage)?;
                }
                let all = basis.columns(0..rows, stage)?;
                let off = all.transpose() * &all - Mat::<f64>::identity(rows, rows);
                Ok(off.norm_max())
            });
            let off = job.expect("it fits").run().expect("nothing can fail");
            let most = match real {
                RealType::F64 => 1e-13,
                RealType::F32 => 1e-5,
            };
            assert!(off < most, "{real:?}, seed {seed}: {off}");
        }
    }
}
