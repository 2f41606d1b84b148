//! An operator of your own: the slowest oscillations of a drum, from the Laplacian of a grid that
//! is never stored.
//!
//! `cargo run --release -p outcore --example laplacian -- SIDE COUNT`

use outcore::kernels::{MatMut, MatRef};
use outcore::operator::Symmetric;
use outcore::spectra::{SpectrumOptions, Which, eigsh};
use outcore::{DType, Result, Session, Settings};

/// Products with the Laplacian of the grid, whose eigenvalues are between 0 and 8.
pub(crate) fn drum(side: usize) -> impl Fn(MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()> + Send {
    move |x, mut y| {
        for column in 0..x.ncols() {
            for at in 0..side * side {
                let (i, j) = (at / side, at % side);
                let mut rest = 4.0 * x[(at, column)];
                // The edge of the drum is fixed at zero.
                for (is_inside, neighbour) in [
                    (i > 0, at.wrapping_sub(side)),
                    (i + 1 < side, at + side),
                    (j > 0, at.wrapping_sub(1)),
                    (j + 1 < side, at + 1),
                ] {
                    rest -= if is_inside {
                        x[(neighbour, column)]
                    } else {
                        0.0
                    };
                }
                y[(at, column)] = rest;
            }
        }
        Ok(())
    }
}

/// The smallest pairs, with residuals of 1e-9 of the largest eigenvalue.
pub(crate) fn slowest(count: usize) -> SpectrumOptions {
    SpectrumOptions {
        which: Which::Smallest,
        tolerance: 1e-9,
        ..SpectrumOptions::new(count)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let [side, count] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "SIDE COUNT")?;
    let (side, count): (usize, usize) = (side.parse()?, count.parse()?);
    let session = Session::new(Settings::default())?;
    let operator = Symmetric::new(side * side, drum(side));
    let job = eigsh(&session, operator, DType::F64, slowest(count))?;
    println!("{}", job.explain()[0]);
    let found = job.run()?;
    for (value, residual) in found.values.iter().zip(&found.residuals) {
        println!("{value:.6}, off by {residual:.0e} at most");
    }
    Ok(())
}
