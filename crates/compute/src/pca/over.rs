//! Components of the rows of several ranks: what each has added up of its own, put together.
//!
//! S_r is what rank r has of its n_r rows, about their mean m_r. With m the mean of all rows, S of
//! all is sum_r S_r + sum_r n_r (m_r - m)(m_r - m)^T. Rank 0 searches, and tells the others what it
//! has found, so that all have the same bits.
//!
//! No message is waited for in a task of the engine: this is the thread of a driven job, which is left
//! alone when it is cancelled.

use outcore_core::{Result, Stage, Team};
use outcore_device::Locked;
use outcore_engine::{Extent, Outcome};
use outcore_kernels::{Eigen, MatMut, MatRef, view};

use super::Pca;
use super::search::Search;
use super::solve::{Products, Solve};
use super::stored::{StoredPanels, product_bytes};
use crate::operator::Operator;
use crate::ranks::{heard, told};

/// How many rows each rank has, and how far their mean is off that of all.
struct Means {
    of_all: Vec<f64>,
    ranks: Vec<(f64, Vec<f64>)>,
}

impl Means {
    fn gather(team: &Team, rows: u64, mean: Result<Vec<f64>>) -> Result<Means> {
        let sent = mean.map(|mean| {
            let numbers: Vec<f64> = std::iter::once(rows as f64).chain(mean).collect();
            told(&numbers)
        });
        let all = team.all_gather(sent)?;
        let mut ranks: Vec<(f64, Vec<f64>)> = all
            .iter()
            .map(|bytes| heard(bytes))
            .map(|numbers| (numbers[0], numbers[1..].to_vec()))
            .collect();
        let samples: f64 = ranks.iter().map(|(rows, _)| rows).sum();
        let features = ranks[0].1.len();
        let of_all: Vec<f64> = (0..features)
            .map(|j| {
                ranks
                    .iter()
                    .map(|(rows, mean)| rows / samples * mean[j])
                    .sum()
            })
            .collect();
        for (_, mean) in &mut ranks {
            mean.iter_mut()
                .zip(&of_all)
                .for_each(|(mean, all)| *mean -= all);
        }
        Ok(Means { of_all, ranks })
    }

    /// What ranks add to S by the distances of their means: in one row, times x.
    fn between(&self, row: usize) -> impl Iterator<Item = (f64, &[f64])> {
        let ranks = self.ranks.iter().filter(|(rows, _)| *rows > 0.0);
        ranks.map(move |(rows, off)| (rows * off[row], off.as_slice()))
    }
}

impl Search {
    /// What rank 0 has found, on every rank.
    pub(super) fn tell(
        &self,
        team: &Team,
        found: Result<Option<(Eigen<f64>, f64)>>,
        mean: Vec<f64>,
    ) -> Result<Pca> {
        let sent = found.map(|found| match found {
            None => Vec::new(),
            Some((eigen, total)) => {
                let model = self.model(eigen, Vec::new(), total);
                let count = [model.total_variance, model.explained_variance.len() as f64];
                let numbers = [&count[..], &model.explained_variance, &model.components].concat();
                told(&numbers)
            }
        });
        let told = heard(&team.broadcast(sent)?);
        let (explained, components) = told[2..].split_at(told[1] as usize);
        Ok(Pca {
            samples: self.samples,
            features: self.features as u64,
            mean,
            components: components.to_vec(),
            explained_variance: explained.to_vec(),
            total_variance: told[0],
        })
    }
}

impl Solve {
    pub(super) fn run_over(
        self,
        team: &Team,
        outcome: &Outcome,
        products: Products,
        stage: &mut Stage,
    ) -> Result<Pca> {
        match products {
            Products::InMemory(lanes) => {
                let bytes =
                    self.bytes(true) + (lanes.count() as u64 + 1) * self.panels.lane_bytes();
                let held = stage.reserve("the covariance", bytes);
                let assembled = held.and_then(|held| Ok((self.assemble(outcome, &lanes)?, held)));
                let ((sums, matrix), _held) = team.agree(assembled)?;
                let delta = self.delta(&sums);
                let means = Means::gather(team, self.rows, Ok(self.own_mean(outcome, &delta)))?;
                let matrix = team.sum(Ok(self.centred(matrix, &delta)))?;
                let model = (team.rank() == 0).then(|| self.search_all(matrix, &means, stage));
                self.search.tell(team, model.transpose(), means.of_all)
            }
            Products::Stored(extent) => self.search_stored(team, outcome, &extent, stage),
        }
    }

    /// Mean of the shifted columns of the rank's own rows.
    fn delta(&self, sums: &[f64]) -> Vec<f64> {
        let n = self.rows.max(1) as f64;
        sums.iter().map(|sum| sum / n).collect()
    }

    fn own_mean(&self, outcome: &Outcome, delta: &[f64]) -> Vec<f64> {
        match self.rows {
            0 => vec![0.0; self.search.features],
            _ => self.mean(outcome, delta),
        }
    }

    /// S of the rank's own rows about their mean.
    fn centred(&self, mut matrix: Vec<f64>, delta: &[f64]) -> Vec<f64> {
        let n = self.rows as f64;
        for (row, values) in matrix.chunks_mut(self.search.features).enumerate() {
            let pairs = values.iter_mut().zip(delta);
            pairs.for_each(|(value, other)| *value -= n * delta[row] * other);
        }
        matrix
    }

    fn search_all(
        &self,
        mut matrix: Vec<f64>,
        means: &Means,
        stage: &mut Stage,
    ) -> Result<(Eigen<f64>, f64)> {
        let freedom = self.search.freedom();
        for (row, values) in matrix.chunks_mut(self.search.features).enumerate() {
            for (scale, off) in means.between(row) {
                let pairs = values.iter_mut().zip(off);
                pairs.for_each(|(value, off)| *value += scale * off);
            }
            values.iter_mut().for_each(|value| *value /= freedom);
        }
        self.search.eigen(matrix, stage)
    }

    /// Rank 0 searches; products of the others are their part of it.
    fn search_stored(
        &self,
        team: &Team,
        outcome: &Outcome,
        extent: &Extent,
        stage: &mut Stage,
    ) -> Result<Pca> {
        let panels = self.stored(extent);
        let sums = match self.rows {
            0 => Ok(vec![0.0; self.search.features]),
            _ => panels.sums(stage),
        };
        let delta = self.delta(&team.agree(sums)?);
        let means = Means::gather(team, self.rows, Ok(self.own_mean(outcome, &delta)))?;
        let total = team.sum(Ok(vec![self.own_total(&delta)]))?[0] + self.total_between(&means);
        let freedom = self.search.freedom();
        let summed = Summed {
            team,
            panels,
            rows: self.rows as f64,
            delta,
            means: &means,
            freedom,
        };
        let found = match team.rank() {
            0 => {
                let kept = self.search.kept().unwrap_or(self.search.features);
                let eigen = self
                    .search
                    .krylov
                    .largest(&self.search.session, &summed, kept, stage);
                // The others wait for columns: none are left.
                let eigen = eigen.and_then(|eigen| summed.end().map(|()| eigen));
                eigen.map(|eigen| Some((eigen, total / freedom)))
            }
            _ => summed.serve(stage).map(|()| None),
        };
        self.search.tell(team, found, means.of_all.clone())
    }

    /// The trace of S of the rank's own rows.
    fn own_total(&self, delta: &[f64]) -> f64 {
        let diagonal = self.diagonal().locked();
        let n = self.rows as f64;
        let parts = diagonal.iter().zip(delta);
        parts
            .map(|(square, delta)| square - n * delta * delta)
            .sum()
    }

    fn total_between(&self, means: &Means) -> f64 {
        let squares = |off: &[f64]| off.iter().map(|off| off * off).sum::<f64>();
        means
            .ranks
            .iter()
            .map(|(rows, off)| rows * squares(off))
            .sum()
    }
}

/// The covariance of all rows, of which each rank has its part in scratch.
struct Summed<'a> {
    team: &'a Team,
    panels: StoredPanels<'a>,
    /// Of the rank.
    rows: f64,
    delta: Vec<f64>,
    means: &'a Means,
    freedom: f64,
}

impl Summed<'_> {
    /// The rank's part of a product, for columns that rank 0 has sent, until there are none.
    fn serve(&self, stage: &mut Stage) -> Result<()> {
        let d = self.delta.len();
        loop {
            let columns = self.team.broadcast(stage.check().map(|()| Vec::new()))?;
            let columns = heard(&columns);
            if columns.is_empty() {
                return Ok(());
            }
            let columns = view(&columns, d, columns.len() / d, columns.len() / d, 1);
            let product = columns
                .map_err(Into::into)
                .and_then(|x| self.own_product(x, stage));
            self.team.sum(product)?;
        }
    }

    /// Tells the others that no columns are left.
    fn end(&self) -> Result<()> {
        self.team.broadcast(Ok(Vec::new())).map(drop)
    }

    /// (S_r - n_r delta_r delta_r^T) x, row after row.
    fn own_product(&self, x: MatRef<'_, f64>, stage: &mut Stage) -> Result<Vec<f64>> {
        let (d, columns) = (self.delta.len(), x.ncols());
        if self.rows == 0.0 {
            return Ok(vec![0.0; d * columns]);
        }
        let mut product = self.panels.product(x, stage)?;
        for column in 0..columns {
            let along: f64 = (0..d).map(|row| self.delta[row] * x[(row, column)]).sum();
            for (row, delta) in self.delta.iter().enumerate() {
                product[row * columns + column] -= self.rows * delta * along;
            }
        }
        Ok(product)
    }
}

impl Operator for Summed<'_> {
    fn shape(&self) -> [usize; 2] {
        [self.delta.len(); 2]
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        product_bytes(
            self.panels.panels,
            self.delta.len(),
            columns,
            self.panels.blas,
        )
    }

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let (d, columns) = (self.delta.len(), x.ncols());
        let rows = (0..d).flat_map(|row| (0..columns).map(move |column| x[(row, column)]));
        let sent: Vec<f64> = rows.collect();
        let sent = stage.check().map(|()| told(&sent));
        self.team.broadcast(sent)?;
        let product = self.team.sum(self.own_product(x, stage))?;
        for column in 0..columns {
            for (row, product) in product.chunks(columns).enumerate() {
                y[(row, column)] = product[column];
            }
            for (rows, off) in &self.means.ranks {
                let along: f64 = (0..d).map(|row| off[row] * x[(row, column)]).sum();
                (0..d).for_each(|row| y[(row, column)] += rows * off[row] * along);
            }
            (0..d).for_each(|row| y[(row, column)] /= self.freedom);
        }
        Ok(())
    }

    /// It is symmetric.
    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.apply(x, y, stage)
    }
}
