//! The covariance of sparse rows: one pass for the lower triangle of (X - s)^T (X - s), a product for each pair of
//! entries of a row.
//!
//! The shift s is the mean m of columns without zeros, and 0 of all others: so rows stay sparse. S is that matrix less
//! n (m - s) (m - s)^T. With one zero in n elements the deviation is at least m / sqrt(n), so that what is taken off
//! costs log10 n of the 15 digits at most.
//!
//! Cost: one pass over X; p (p + 1) / 2 products for a row of p entries; 4 d^2 bytes a lane, and 12 d^2 at the end.

use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage, Team, with_real};
use outcore_engine::Plan;
use outcore_kernels::{Lines, MatRef, Real, mirror_lower, view_mut};
use outcore_matrix::{Compressed, Rows, Sparse};

use super::search::Search;
use super::{Components, Pca, Wanted};
use crate::pass::{Fold, fold};
use crate::ranks::AllRows;

/// Finds the principal components of sparse rows, stored by rows, which are not made dense. `mean` is that of each
/// column, `nonzeros` how many entries it has.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::sparse_column_statistics;
/// use outcore_compute::pca::{Components, fit_sparse};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let found = sparse_column_statistics(&session, &a)?.run()?;
/// let (mean, nonzeros) = (found.columns.mean, found.nonzeros);
/// let found = fit_sparse(&session, &a, mean, &nonzeros, Components::Count(1), 0)?.run()?;
/// assert!((found.total_variance - 7.0).abs() < 1e-9);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit`](super::fit); [`Error::Value`] for a matrix that is stored by columns, and for statistics of other
/// columns or elements that are not finite.
pub fn fit_sparse(
    session: &Session,
    a: &Sparse,
    mean: Vec<f64>,
    nonzeros: &[u64],
    components: Components,
    seed: u64,
) -> Result<Job<Pca>> {
    let wanted = Wanted {
        samples: a.rows(),
        components,
        seed,
    };
    wanted.check(a.name(), a.cols())?;
    plan(session, a, mean, nonzeros, wanted, None)
}

/// The same of the rows of all ranks, on each; both are those of all rows. A collective call: every rank makes it,
/// and runs the job. A rank may have no rows.
///
/// Cost: as [`fit_sparse`] of the rank's own rows; 4 d^2 bytes a rank sent, twice.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::pca::{Components, fit_sparse_over};
/// use outcore_core::{Team, ThreadRanks};
/// use std::sync::Arc;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let mean = vec![0.5, 1.5, 1.0];
/// let found = fit_sparse_over(&session, &a, mean, &[1, 1, 1], Components::Count(1), 0, &alone)?.run()?;
/// assert_eq!(found.samples, 2);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit_sparse`], of any rank, and as [`fit_over`](super::fit_over).
pub fn fit_sparse_over(
    session: &Session,
    a: &Sparse,
    mean: Vec<f64>,
    nonzeros: &[u64],
    components: Components,
    seed: u64,
    team: &Team,
) -> Result<Job<Pca>> {
    let asked = format!("{components:?} with the seed {seed}");
    let all = AllRows::of(team, a.shape(), Ok(a.real()), &asked)?;
    let wanted = Wanted {
        samples: all.count,
        components,
        seed,
    };
    team.alike(wanted.check(a.name(), a.cols()))?;
    team.agree(plan(session, a, mean, nonzeros, wanted, Some(team)))
}

fn plan(
    session: &Session,
    a: &Sparse,
    mean: Vec<f64>,
    nonzeros: &[u64],
    wanted: Wanted,
    team: Option<&Team>,
) -> Result<Job<Pca>> {
    if a.format() != Compressed::Rows {
        return Err(Error::value(format!(
            "{} is stored by columns; a covariance is made of rows",
            a.name()
        )));
    }
    let d = mean.len();
    let fits = [d, nonzeros.len()] == [a.cols() as usize; 2];
    if !fits || mean.iter().any(|mean| !mean.is_finite()) {
        return Err(Error::value(format!(
            "{}: no statistics of its {} columns, of finite elements",
            a.name(),
            a.cols()
        )));
    }
    let shift: Vec<f64> = mean
        .iter()
        .zip(nonzeros)
        .map(|(mean, count)| if *count == wanted.samples { *mean } else { 0.0 })
        .collect();
    let delta: Vec<f64> = mean
        .iter()
        .zip(&shift)
        .map(|(mean, shift)| mean - shift)
        .collect();
    let search = Search::new(session, wanted, d);
    let (triangle, matrix) = (8 * elements(d) as u64, 8 * (d as u64).saturating_pow(2));
    let bytes = matrix.saturating_add(search.basis_bytes());
    let (needed, budget) = (bytes.saturating_add(triangle), session.memory_bytes());
    if needed > budget {
        return Err(Error::OverBudget {
            what: format!("the covariance of {d} features"),
            needed,
            available: MemorySplit::new(session).free(),
            budget,
        });
    }
    let mut plan = Plan::new("pca fit");
    plan.bound(a.stored_bytes());
    plan.reads_later(a.stored_bytes());
    plan.hold(needed);
    plan.note("passes", 1);
    plan.note("covariance", "in memory");
    let (own, a, team) = (session.clone(), a.clone(), team.cloned());
    Job::driven(session, vec![plan], move |stage, _| {
        let products = products(&own, &a, shift, stage);
        match team {
            None => {
                let _held = stage.reserve("the covariance", needed)?;
                let (eigen, total) = search.leading(whole(products?, d)?, &delta, stage)?;
                Ok(search.model(eigen, mean, total))
            }
            Some(team) => team.drive(|| {
                let _held = team.agree(stage.reserve("the covariance", needed))?;
                let products = team.sum(products)?;
                let found = (team.rank() == 0)
                    .then(|| search.leading(whole(products, d)?, &delta, stage))
                    .transpose();
                search.tell(&team, found, mean)
            }),
        }
    })
}

fn products(session: &Session, a: &Sparse, shift: Vec<f64>, stage: &mut Stage) -> Result<Vec<f64>> {
    let (rows, columns) = (Rows::Sparse(a.clone()), shift.len());
    let full = (0..columns)
        .filter(|&column| shift[column] != 0.0)
        .collect();
    let products = Products { shift, full };
    let job = with_real!(a.real(), T => fold::<T, _>(session, "covariance", &rows, products)?);
    stage.complete(job)
}

/// Both triangles of a matrix.
fn whole(triangle: Vec<f64>, d: usize) -> Result<Vec<f64>> {
    let mut matrix = vec![0.0; d * d];
    for (row, values) in matrix.chunks_mut(d).enumerate() {
        values[..=row].copy_from_slice(&triangle[elements(row)..elements(row + 1)]);
    }
    mirror_lower(view_mut(&mut matrix, d, d, d, 1)?)?;
    Ok(matrix)
}

/// Elements of the first `rows` rows of the lower triangle, which is where the next row begins.
fn elements(rows: usize) -> usize {
    match rows % 2 {
        0 => (rows / 2).saturating_mul(rows + 1),
        _ => rows.saturating_mul(rows / 2 + 1),
    }
}

/// Sums of products of the entries of each row, less the shift: the lower triangle, row after row.
struct Products {
    shift: Vec<f64>,
    /// Columns with a shift: an entry that is not stored is less than 0 there.
    full: Vec<usize>,
}

impl<T: Real> Fold<T> for Products {
    type Element = f64;

    fn elements(&self) -> usize {
        elements(self.shift.len())
    }

    fn held_bytes(&self) -> u64 {
        8 * (elements(self.shift.len()) + self.shift.len() + self.full.len()) as u64
    }

    /// The entries of one row.
    fn task_bytes(&self, _rows: usize) -> usize {
        2 * size_of::<(usize, f64)>() * self.shift.len()
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _state: &mut [f64], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse(&self, state: &mut [f64], _first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut row: Vec<(usize, f64)> = Vec::with_capacity(2 * self.shift.len());
        lines.each_line(|_, entries| {
            // Of a column with a shift, one entry more: where none is stored it is the only one.
            row.clear();
            row.extend(
                self.full
                    .iter()
                    .map(|&column| (column, -self.shift[column])),
            );
            entries.each(|column, value| row.push((column, value.f64())));
            if !row.is_sorted_by(|one, next| one.0 < next.0) {
                add_up_duplicates(&mut row);
            }
            for (at, &(column, value)) in row.iter().enumerate() {
                let products = &mut state[elements(column)..][..=column];
                for &(other, by) in &row[..=at] {
                    products[other] += value * by;
                }
            }
        });
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}

/// Entries in the order of columns, one for each.
fn add_up_duplicates(row: &mut Vec<(usize, f64)>) {
    row.sort_by_key(|(column, _)| *column);
    row.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triangle_has_its_rows_one_after_another() {
        let starts: Vec<usize> = (0..6).map(elements).collect();
        assert_eq!(starts, [0, 1, 3, 6, 10, 15]);
    }

    #[test]
    fn duplicates_count_as_one_entry_with_their_sum() {
        let mut row = vec![(3, 1.0), (1, 2.0), (3, 0.5), (0, 4.0)];
        add_up_duplicates(&mut row);
        assert_eq!(row, [(0, 4.0), (1, 2.0), (3, 1.5)]);
    }
}
