//! Whole lines of a sparse matrix, for passes that need all entries of a line at once: pieces of one
//! line go to one task, which puts them together, as it does with tiles.

use outcore_core::Result;
use outcore_engine::Block;
use outcore_kernels::{Csr, Lines, Real};
use outcore_matrix::Sparse;
use outcore_matrix::sparse::{Piece, PieceBlocks, each_piece, whole_lines, with_lines};

/// Pieces that a task reads: one, or all of a line where lines are to be whole.
pub(super) fn groups(pieces: Vec<Piece>, whole: bool) -> Vec<Vec<Piece>> {
    if whole {
        whole_lines(&pieces)
    } else {
        pieces.into_iter().map(|piece| vec![piece]).collect()
    }
}

/// Their blocks.
pub(super) fn blocks_of(a: &Sparse, group: &[Piece]) -> Vec<PieceBlocks> {
    group.iter().map(|piece| a.blocks(piece)).collect()
}

/// Lines that lay in several pieces or in tiles, in CSR.
pub(super) struct Joined<T> {
    width: usize,
    offsets: Vec<i64>,
    indices: Vec<i64>,
    values: Vec<T>,
}

/// Whether lines of a group have to be put together to be whole.
fn are_apart(pieces: &[PieceBlocks]) -> bool {
    pieces.len() > 1 || pieces[0].index_element().is_none()
}

/// Bytes that this takes.
pub(super) fn joined_bytes<T>(pieces: &[PieceBlocks]) -> usize {
    let entries: u64 = pieces.iter().map(|piece| piece.piece.entries()).sum();
    let lines = pieces[0].piece.lines();
    if are_apart(pieces) {
        entries as usize * (8 + size_of::<T>()) + 16 * (lines.end - lines.start + 1) as usize
    } else {
        0
    }
}

impl<T: Real> Joined<T> {
    /// `None` where lines are whole as they lie.
    pub(super) fn of(pieces: &[PieceBlocks], blocks: &[Block]) -> Result<Option<Joined<T>>> {
        if !are_apart(pieces) {
            return Ok(None);
        }
        let lines = pieces[0].piece.lines();
        let (mut offsets, mut width) = (vec![0; (lines.end - lines.start + 1) as usize], 0);
        for (piece, blocks) in each_piece(pieces, blocks) {
            with_lines!(piece, blocks, T, a => {
                width = a.width();
                a.each_line(|line, entries| offsets[line + 1] += entries.len() as i64);
            });
        }
        for line in 1..offsets.len() {
            offsets[line] += offsets[line - 1];
        }
        let (mut next, count) = (offsets.clone(), offsets[offsets.len() - 1] as usize);
        let (mut indices, mut values) = (vec![0; count], vec![T::ZERO; count]);
        for (piece, blocks) in each_piece(pieces, blocks) {
            with_lines!(piece, blocks, T, a => a.each_line(|line, entries| {
                entries.each(|place, value| {
                    let at = next[line] as usize;
                    (indices[at], values[at]) = (place as i64, value);
                    next[line] += 1;
                });
            }));
        }
        Ok(Some(Joined {
            width,
            offsets,
            indices,
            values,
        }))
    }

    pub(super) fn lines(&self) -> Result<Csr<'_, i64, T>> {
        Ok(Csr::new(
            self.width,
            &self.offsets,
            &self.indices,
            &self.values,
        )?)
    }
}

/// Runs `$body` with `$lines` standing for the lines of a group, whole if they are to be, else of its
/// one piece as they lie.
macro_rules! with_group {
    ($pieces:expr, $blocks:expr, $whole:expr, $T:ty, $lines:ident => $body:expr) => {{
        let joined = if $whole {
            $crate::pass::joined::Joined::<$T>::of(&$pieces, $blocks)?
        } else {
            None
        };
        match joined {
            Some(joined) => {
                let $lines = joined.lines()?;
                $body
            }
            None => outcore_matrix::sparse::with_lines!($pieces[0], $blocks, $T, $lines => $body),
        }
    }};
}
pub(super) use with_group;
