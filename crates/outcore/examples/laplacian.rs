//! An operator of your own: the slowest oscillations of a drum, from the Laplacian of a grid that
//! is never stored.
//!
//! `cargo run --release -p outcore --example laplacian -- SIDE COUNT`

use outcore::kernels::{MatMut, MatRef};
use outcore::linalg::eigh_largest;
use outcore::operator::Symmetric;
use outcore::{Result, Session, Settings};

/// 8 I - L for the grid's Laplacian L, whose eigenvalues are between 0 and 8: its largest pairs are
/// the smallest of L.
pub(crate) fn drum(side: usize) -> impl Fn(MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()> + Send {
    move |x, mut y| {
        for column in 0..x.ncols() {
            for at in 0..side * side {
                let (i, j) = (at / side, at % side);
                let mut sum = 4.0 * x[(at, column)];
                // The edge of the drum is fixed at zero.
                for (is_inside, neighbour) in [
                    (i > 0, at.wrapping_sub(side)),
                    (i + 1 < side, at + side),
                    (j > 0, at.wrapping_sub(1)),
                    (j + 1 < side, at + 1),
                ] {
                    sum += if is_inside {
                        x[(neighbour, column)]
                    } else {
                        0.0
                    };
                }
                y[(at, column)] = sum;
            }
        }
        Ok(())
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
    let job = eigh_largest(&session, Symmetric::new(side * side, drum(side)), count, 0)?;
    println!("{}", job.explain()[0]);
    for value in job.run()?.values {
        println!("{:.6}", 8.0 - value);
    }
    Ok(())
}
