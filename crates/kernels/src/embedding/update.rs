//! How a row changes with its gradient: rules of optimizers, by row.
//!
//! Each is, operation by operation, what PyTorch or FBGEMM compute, so that results can be compared bit by
//! bit or nearly so. Products that are added to something are fused with the addition.

/// A rule, with what it needs besides the row, its state and its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowUpdate {
    /// w - rate g: `torch.optim.SGD`, to the bit.
    Sgd {
        /// Learning rate.
        rate: f32,
    },
    /// One number of state: the mean of squared gradients is added up. FBGEMM's "exact row-wise
    /// Adagrad".
    RowwiseAdagrad {
        /// Learning rate.
        rate: f32,
        /// Added to the root.
        eps: f32,
    },
    /// Two numbers of state for each element, which change only with gradients of the row:
    /// `torch.optim.SparseAdam`.
    Adam {
        /// Learning rate.
        rate: f64,
        /// Decay of the mean and of the mean of squares.
        betas: (f64, f64),
        /// Added to the root.
        eps: f32,
        /// Number of this step, counted from 1.
        step: u64,
    },
}

impl RowUpdate {
    /// Numbers of state of a row of `dim` elements.
    #[must_use]
    pub fn state_len(&self, dim: usize) -> usize {
        match self {
            RowUpdate::Sgd { .. } => 0,
            RowUpdate::RowwiseAdagrad { .. } => 1,
            RowUpdate::Adam { .. } => 2 * dim,
        }
    }

    /// Changes a row and its state.
    ///
    /// # Panics
    /// Where row, gradient and state do not fit each other.
    pub fn apply(&self, row: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        assert!(
            row.len() == gradient.len() && state.len() == self.state_len(row.len()),
            "{} elements, {} of a gradient, {} of state",
            row.len(),
            gradient.len(),
            state.len()
        );
        with_fma(
            #[inline(always)]
            || match *self {
                RowUpdate::Sgd { rate } => add_products(row, -rate, gradient),
                RowUpdate::RowwiseAdagrad { rate, eps } => {
                    let squares: f32 = gradient.iter().map(|g| g * g).sum();
                    state[0] += squares / row.len().max(1) as f32;
                    add_products(row, -(rate / (state[0].sqrt() + eps)), gradient);
                }
                RowUpdate::Adam {
                    rate,
                    betas,
                    eps,
                    step,
                } => {
                    let left = |beta: f64| 1.0 - beta.powf(step as f64);
                    let size = (rate * left(betas.1).sqrt() / left(betas.0)) as f32;
                    let (one, two) = ((1.0 - betas.0) as f32, (1.0 - betas.1) as f32);
                    let (means, squares) = state.split_at_mut(row.len());
                    for (((w, m), s), g) in row.iter_mut().zip(means).zip(squares).zip(gradient) {
                        *m += (g - *m) * one;
                        *s += (g * g - *s) * two;
                        *w += -size * (*m / (s.sqrt() + eps));
                    }
                }
            },
        );
    }
}

/// sum + factor * numbers, each fused: how gradients of a row are added up.
///
/// # Panics
/// Where one is shorter than the other.
pub fn add_scaled(sum: &mut [f32], factor: f32, numbers: &[f32]) {
    assert_eq!(sum.len(), numbers.len(), "elements of a gradient");
    with_fma(
        #[inline(always)]
        || add_products(sum, factor, numbers),
    );
}

#[inline(always)]
fn add_products(sum: &mut [f32], factor: f32, numbers: &[f32]) {
    for (sum, x) in sum.iter_mut().zip(numbers) {
        *sum = factor.mul_add(*x, *sum);
    }
}

/// Carries out what is given, compiled for the vector instructions of this processor.
#[inline(always)]
fn with_fma(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the instructions.
        return unsafe { on_avx2(work) };
    }
    work();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn on_avx2(work: impl FnOnce()) {
    work();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u32, len: usize) -> Vec<f32> {
        (0..len as u32)
            .map(|at| ((at * 7919 + seed * 104_729) % 1000) as f32 / 499.5 - 1.0)
            .collect()
    }

    #[test]
    fn sgd_is_one_fused_product_an_element() {
        for dim in [1, 7, 8, 33] {
            let (before, gradient) = (numbers(1, dim), numbers(2, dim));
            let mut row = before.clone();
            RowUpdate::Sgd { rate: 0.1 }.apply(&mut row, &mut [], &gradient);
            for ((found, w), g) in row.iter().zip(before).zip(gradient) {
                assert_eq!(*found, (-0.1f32).mul_add(g, w));
            }
        }
    }

    #[test]
    fn rowwise_adagrad_is_that_of_ten_lines() {
        let dim = 24;
        let (mut row, mut state) = (numbers(3, dim), vec![0.0]);
        let mut expected: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let mut sum = 0.0;
        for seed in 0..20 {
            let gradient = numbers(seed, dim);
            let update = RowUpdate::RowwiseAdagrad {
                rate: 0.05,
                eps: 1e-8,
            };
            update.apply(&mut row, &mut state, &gradient);
            sum += gradient.iter().map(|g| f64::from(g * g)).sum::<f64>() / dim as f64;
            for (w, g) in expected.iter_mut().zip(&gradient) {
                *w -= 0.05 * f64::from(*g) / (sum.sqrt() + 1e-8);
            }
        }
        let near = |found: &f32, expected: &f64| (f64::from(*found) - expected).abs() < 1e-6;
        assert!(row.iter().zip(&expected).all(|(found, x)| near(found, x)));
    }

    #[test]
    fn adam_is_that_of_the_paper() {
        let dim = 10;
        let (mut row, mut state) = (numbers(4, dim), vec![0.0; 2 * dim]);
        let mut expected: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let (mut means, mut squares) = (vec![0.0; dim], vec![0.0; dim]);
        for step in 1..30 {
            let gradient = numbers(step as u32, dim);
            let update = RowUpdate::Adam {
                rate: 1e-2,
                betas: (0.9, 0.999),
                eps: 1e-8,
                step,
            };
            update.apply(&mut row, &mut state, &gradient);
            for at in 0..dim {
                let g = f64::from(gradient[at]);
                means[at] = 0.9 * means[at] + 0.1 * g;
                squares[at] = 0.999 * squares[at] + 0.001 * g * g;
                let size = 1e-2 * (1.0 - 0.999f64.powf(step as f64)).sqrt()
                    / (1.0 - 0.9f64.powf(step as f64));
                expected[at] -= size * means[at] / (squares[at].sqrt() + 1e-8);
            }
        }
        for (found, x) in row.iter().zip(&expected) {
            assert!((f64::from(*found) - x).abs() < 1e-6);
        }
    }
}
