//! What is computed from matrices on SSD.
//!
//! Most of it is a [`pass`] over the rows of a matrix, or an iteration on an [`operator`], whose
//! products are passes. Every algorithm has the same inside: at the top what it is, its shapes, cost
//! and source; then its plan, which moves nothing; its run; and a small reference in its tests, or in
//! the tests of the facade.

#![forbid(unsafe_code)]

pub mod kmeans;
mod krylov;
pub mod linalg;
pub mod neighbors;
pub mod operator;
pub mod pass;
pub mod pca;
mod ranks;
pub mod spectra;
pub mod topics;

#[cfg(test)]
pub(crate) mod testing {
    //! What tests of algorithms begin with.

    use bytemuck::Pod;
    use outcore_core::RealType;
    use outcore_device::Buf;
    use outcore_matrix::Operand;

    /// Rows of `cols` elements each, in memory.
    pub(crate) fn operand<T: Pod>(x: &[T], cols: usize, dtype: RealType) -> Operand {
        let bytes: &[u8] = bytemuck::cast_slice(x);
        let mut buf = Buf::anonymous(bytes.len()).expect("there is memory");
        buf[..bytes.len()].copy_from_slice(bytes);
        Operand::Memory {
            bytes: buf.freeze(),
            dtype,
            rows: (x.len() / cols) as u64,
            cols: cols as u64,
            row_stride: cols as u64,
            col_stride: 1,
        }
    }

    /// Numbers from -1 to 1, by a recurrence.
    pub(crate) fn numbers(seed: u64) -> impl FnMut() -> f32 {
        let mut state = seed;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        }
    }
}
