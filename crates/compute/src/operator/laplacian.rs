//! The Laplacian of a graph, known by its adjacency matrix and degrees.
//!
//! Edges of a node to itself are in no form of it, as in `scipy.sparse.csgraph.laplacian`.

use outcore_core::{Error, Job, Result, Session, Stage, with_real};
use outcore_kernels::{Lines, Mat, MatMut, MatRef, Real};
use outcore_matrix::Rows;

use super::Operator;
use crate::pass::{Fold, fold};

/// What a graph's nodes have of edges.
#[derive(Clone, Debug, PartialEq)]
pub struct Degrees {
    /// Sums of the weights of a node's edges to others.
    pub others: Vec<f64>,
    /// Weights of its edge to itself.
    pub own: Vec<f64>,
}

impl Degrees {
    /// Those of a symmetric adjacency matrix, in one pass.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::Degrees;
    ///
    /// let graph = Array::temporary(&session, DType::F64, &[2, 2], Order::Row)?;
    /// graph.copy_from_slice(&[5.0, 1.0, 1.0, 0.0])?;
    /// let degrees = Degrees::of(&session, graph)?.run()?;
    /// assert_eq!((degrees.others, degrees.own), (vec![1.0, 1.0], vec![5.0, 0.0]));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a matrix that is not square; [`Error::OverBudget`].
    pub fn of(session: &Session, graph: impl Into<Rows>) -> Result<Job<Degrees>> {
        let graph = graph.into();
        let (nodes, width) = (graph.count(), graph.width());
        if nodes != width {
            return Err(Error::shape(format!(
                "a graph has a square matrix, not {}, of {nodes} x {width}",
                graph.name()
            )));
        }
        let nodes = nodes as usize;
        let job = with_real!(graph.real()?, T => fold::<T, _>(session, "degrees", &graph, Sums { nodes })?);
        Ok(job.map(move |mut others| {
            let own = others.split_off(nodes);
            Ok(Degrees { others, own })
        }))
    }
}

/// Sums of rows without the diagonal, and the diagonal after them.
struct Sums {
    nodes: usize,
}

impl Sums {
    fn add(&self, state: &mut [f64], row: usize, column: usize, value: f64) {
        let at = if row == column { self.nodes + row } else { row };
        state[at] += value;
    }
}

impl<T: Real> Fold<T> for Sums {
    type Element = f64;

    fn elements(&self) -> usize {
        2 * self.nodes
    }

    fn dense(&self, state: &mut [f64], first: u64, rows: MatRef<'_, T>) -> Result<()> {
        for column in 0..rows.ncols() {
            for row in 0..rows.nrows() {
                self.add(
                    state,
                    first as usize + row,
                    column,
                    rows[(row, column)].f64(),
                );
            }
        }
        Ok(())
    }

    fn sparse(&self, state: &mut [f64], first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|line, entries| {
            let row = first as usize + line;
            entries.each(|column, value| self.add(state, row, column, value.f64()));
        });
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}

/// Which matrix of a graph W, its diagonal left out, with degrees D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphForm {
    /// D - W.
    Laplacian,
    /// I - D^-1/2 W D^-1/2; rows of nodes without edges are zero.
    NormalizedLaplacian,
    /// D^-1/2 W D^-1/2.
    NormalizedAdjacency,
}

/// A matrix of a graph, n x n.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::operator::{Degrees, GraphForm, Laplacian, Matrix, Operator};
///
/// let graph = Array::temporary(&session, DType::F64, &[2, 2], Order::Row)?;
/// graph.copy_from_slice(&[0.0, 1.0, 1.0, 0.0])?;
/// let degrees = Degrees::of(&session, &graph)?.run()?;
/// let graph = Matrix::new(&session, graph)?;
/// let laplacian = Laplacian::new(graph, degrees, GraphForm::Laplacian)?;
/// assert_eq!(laplacian.shape(), [2, 2]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Laplacian<O> {
    graph: O,
    degrees: Degrees,
    /// D^-1/2, where the form is normalized.
    scale: Option<Vec<f64>>,
    form: GraphForm,
}

impl<O: Operator> Laplacian<O> {
    /// `degrees` are those of the adjacency matrix.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of degrees; [`Error::Value`] for degrees below zero.
    pub fn new(graph: O, degrees: Degrees, form: GraphForm) -> Result<Laplacian<O>> {
        let [rows, columns] = graph.shape();
        let Degrees { others, own } = &degrees;
        if rows != columns || others.len() != rows || own.len() != rows {
            return Err(Error::shape(format!(
                "a graph of {rows} x {columns}, {} degrees",
                others.len()
            )));
        }
        if let Some(node) = others
            .iter()
            .position(|degree| degree.is_nan() || *degree < 0.0)
        {
            let (name, degree) = (graph.name(), others[node]);
            return Err(Error::value(format!(
                "node {node} of {name} has degree {degree}; a Laplacian is of weights that are not negative"
            )));
        }
        let root = |&degree: &f64| {
            if degree > 0.0 {
                degree.sqrt().recip()
            } else {
                0.0
            }
        };
        let scale = (form != GraphForm::Laplacian).then(|| others.iter().map(root).collect());
        Ok(Laplacian {
            graph,
            degrees,
            scale,
            form,
        })
    }
}

impl<O: Operator> Operator for Laplacian<O> {
    fn shape(&self) -> [usize; 2] {
        self.graph.shape()
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        let vectors = self.degrees.own.len() * (columns + 3);
        self.graph.held_bytes(columns) + 8 * vectors as u64
    }

    fn name(&self) -> &str {
        self.graph.name()
    }

    fn identity(&self) -> String {
        format!("{:?} of {}", self.form, self.graph.identity())
    }

    fn pass_bytes(&self) -> u64 {
        self.graph.pass_bytes()
    }

    fn computing_s(&self, columns: usize) -> f64 {
        self.graph.computing_s(columns)
    }

    fn epsilon(&self) -> f64 {
        self.graph.epsilon()
    }

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let Degrees { others, own } = &self.degrees;
        let Some(scale) = &self.scale else {
            self.graph.apply(x, y.as_mut(), stage)?;
            each(y, |row, column, y| {
                (others[row] + own[row]) * x[(row, column)] - y
            });
            return Ok(());
        };
        let scaled = Mat::from_fn(x.nrows(), x.ncols(), |row, column| {
            scale[row] * x[(row, column)]
        });
        self.graph.apply(scaled.as_ref(), y.as_mut(), stage)?;
        // Without the diagonal.
        let along = |row, column, y| scale[row] * (y - own[row] * scaled[(row, column)]);
        match self.form {
            GraphForm::NormalizedAdjacency => each(y, along),
            _ => each(y, |row, column, y| {
                if scale[row] > 0.0 {
                    x[(row, column)] - along(row, column, y)
                } else {
                    0.0
                }
            }),
        }
        Ok(())
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.apply(x, y, stage)
    }
}

fn each(mut y: MatMut<'_, f64>, value: impl Fn(usize, usize, f64) -> f64) {
    for column in 0..y.ncols() {
        for row in 0..y.nrows() {
            y[(row, column)] = value(row, column, y[(row, column)]);
        }
    }
}
