//! Optimizers whose state lies beside the rows.

use std::fmt;
use std::str::FromStr;

use outcore_kernels::embedding::RowUpdate;

/// How rows change with their gradients.
///
/// ```
/// use outcore_tables::Optimizer;
///
/// let adam: Optimizer = "adam".parse()?;
/// assert_eq!(adam, Optimizer::Adam { betas: (0.9, 0.999), eps: 1e-8 });
/// assert_eq!(adam.name(), "adam");
/// # Ok::<(), outcore_tables::UnknownOptimizer>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `torch.optim.SGD`, without momentum.
    Sgd,
    /// FBGEMM's exact row-wise Adagrad: a number beside each row.
    RowwiseAdagrad {
        /// Added to the root.
        eps: f64,
    },
    /// `torch.optim.SparseAdam`: two numbers beside each element.
    Adam {
        /// Decay of the mean and of the mean of squares.
        betas: (f64, f64),
        /// Added to the root.
        eps: f64,
    },
}

/// No optimizer has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOptimizer(String);

impl fmt::Display for UnknownOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "optimizer '{}', not 'sgd', 'rowwise_adagrad' or 'adam'",
            self.0
        )
    }
}

impl std::error::Error for UnknownOptimizer {}

/// With the constants of PyTorch and FBGEMM.
impl FromStr for Optimizer {
    type Err = UnknownOptimizer;

    fn from_str(name: &str) -> Result<Optimizer, UnknownOptimizer> {
        match name {
            "sgd" => Ok(Optimizer::Sgd),
            "rowwise_adagrad" => Ok(Optimizer::RowwiseAdagrad { eps: 1e-8 }),
            "adam" => Ok(Optimizer::Adam {
                betas: (0.9, 0.999),
                eps: 1e-8,
            }),
            _ => Err(UnknownOptimizer(name.to_owned())),
        }
    }
}

impl Optimizer {
    /// What tables that are made for it call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::RowwiseAdagrad { .. } => "rowwise_adagrad",
            Optimizer::Adam { .. } => "adam",
        }
    }

    /// Bytes beside a row of `dim` elements.
    pub(crate) fn state_bytes(&self, dim: usize) -> usize {
        size_of::<f32>() * self.update(0.0, 1).state_len(dim)
    }

    /// The rule of a step, counted from 1.
    pub(crate) fn update(&self, rate: f64, step: u64) -> RowUpdate {
        match *self {
            Optimizer::Sgd => RowUpdate::Sgd { rate: rate as f32 },
            Optimizer::RowwiseAdagrad { eps } => RowUpdate::RowwiseAdagrad {
                rate: rate as f32,
                eps: eps as f32,
            },
            Optimizer::Adam { betas, eps } => RowUpdate::Adam {
                rate,
                betas,
                eps: eps as f32,
                step,
            },
        }
    }
}
