//! The Laplacian of a graph, known by its adjacency matrix and degrees.

use outcore_core::{Error, Result, Stage};
use outcore_kernels::{Mat, MatMut, MatRef};

use super::Operator;

/// Which matrix of a graph W with degrees D.
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
/// use outcore_compute::operator::{GraphForm, Laplacian, Matrix, Operator};
///
/// let graph = Array::temporary(&session, DType::F64, &[2, 2], Order::Row)?;
/// graph.copy_from_slice(&[0.0, 1.0, 1.0, 0.0])?;
/// let graph = Matrix::new(&session, graph)?;
/// let laplacian = Laplacian::new(graph, vec![1.0, 1.0], GraphForm::Laplacian)?;
/// assert_eq!(laplacian.shape(), [2, 2]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Laplacian<O> {
    graph: O,
    degrees: Vec<f64>,
    /// D^-1/2, where the form is normalized.
    scale: Option<Vec<f64>>,
    form: GraphForm,
}

impl<O: Operator> Laplacian<O> {
    /// `degrees` are the sums of the rows of the adjacency matrix.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of degrees; [`Error::Value`] for degrees below zero.
    pub fn new(graph: O, degrees: Vec<f64>, form: GraphForm) -> Result<Laplacian<O>> {
        let [rows, columns] = graph.shape();
        if rows != columns || degrees.len() != rows {
            return Err(Error::shape(format!(
                "a graph of {rows} x {columns}, {} degrees",
                degrees.len()
            )));
        }
        if let Some(node) = degrees
            .iter()
            .position(|degree| degree.is_nan() || *degree < 0.0)
        {
            let (name, degree) = (graph.name(), degrees[node]);
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
        let scale = (form != GraphForm::Laplacian).then(|| degrees.iter().map(root).collect());
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
        let vectors = self.degrees.len() * (columns + 2);
        self.graph.held_bytes(columns) + 8 * vectors as u64
    }

    fn name(&self) -> &str {
        self.graph.name()
    }

    fn pass_bytes(&self) -> u64 {
        self.graph.pass_bytes()
    }

    fn epsilon(&self) -> f64 {
        self.graph.epsilon()
    }

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let Some(scale) = &self.scale else {
            self.graph.apply(x, y.as_mut(), stage)?;
            each(y, |row, column, y| self.degrees[row] * x[(row, column)] - y);
            return Ok(());
        };
        let scaled = Mat::from_fn(x.nrows(), x.ncols(), |row, column| {
            scale[row] * x[(row, column)]
        });
        self.graph.apply(scaled.as_ref(), y.as_mut(), stage)?;
        match self.form {
            GraphForm::NormalizedAdjacency => each(y, |row, _, y| scale[row] * y),
            _ => each(y, |row, column, y| {
                if scale[row] > 0.0 {
                    x[(row, column)] - scale[row] * y
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
