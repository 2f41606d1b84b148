//! How to cut a product C = A B to the memory: pure arithmetic.
//!
//! A *super tile* of C stays in memory while A and B pass by in *layers* of `depth`; within a
//! layer, blocks of C are the tasks. Reads are |A| once for each column of super tiles and |B| once
//! for each row of them, so near-square super tiles as large as memory allows move fewest bytes: at
//! most 2mnk/sqrt(M) + mn elements in the limit, which no order of computation can improve on
//! (Smith, Lowery, Langou, van de Geijn, arXiv:1702.02017). Bytes are not all: a layer that cuts
//! rows short costs one request for each, so an operand may be cheaper to repack into scratch
//! first. The choice is the least expected time on a device of ordinary speed.

use std::ops::Range;

use outcore_core::MemorySplit;
use outcore_core::file::FILE_BLOCK_BYTES;
use outcore_kernels::{Blas, gemm_scratch_bytes};

/// Assumed of the device: bytes and requests a second, and core seconds a request.
const DEVICE_BYTES_PER_S: f64 = 1.2e9;
const DEVICE_REQUESTS_PER_S: f64 = 8e4;
const REQUEST_CORE_S: f64 = 6e-6;
/// What a write to a new file costs in reads of the same size: the file system marks every piece as
/// written.
pub(crate) const WRITE_REQUESTS: f64 = 3.0;
/// A write to a new file that shares a block of the file system with its neighbour: ext4 lets one
/// at a time in. They come when a super tile is done, and loads that need its memory wait for them.
const SHARING_WRITE_S: f64 = 1e-4;
/// Assumed of one core, f32.
const CORE_FLOPS: f64 = 1.5e11;
/// Times this close are the same.
pub(crate) const HARDLY_LONGER: f64 = 1.06;
/// Largest single request.
const REQUEST_BYTES: u64 = 1 << 20;
/// Sides of the blocks that tasks compute, at most: square, or wide, which makes rows of B and C
/// longer.
const BLOCKS: [[u64; 2]; 2] = [[2048, 2048], [1024, 4096]];

/// What is to be cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// The order of sums follows from the cut, and the cut from all of it, free or reserved.
    pub(crate) memory: MemorySplit,
    pub(crate) threads: u64,
    /// The BLAS that multiplies blocks.
    pub(crate) blas: &'a Blas,
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// C is read before it is written.
    pub(crate) c_read: bool,
    /// Rows of C follow each other and begin inside blocks of the file system, so that only whole
    /// ones are written fast.
    pub(crate) c_dense: bool,
    /// Bytes that A and B have in common.
    pub(crate) shared: u64,
}

impl Problem<'_> {
    /// Bytes that a task holds beside its blocks.
    fn scratch_bytes(&self, rows: u64, cols: u64, depth: u64) -> u64 {
        let bytes = if self.element == 4 {
            gemm_scratch_bytes::<f32>
        } else {
            gemm_scratch_bytes::<f64>
        };
        bytes(rows as usize, cols as usize, depth as usize, self.blas) as u64
    }
}

/// How an operand lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// On a device, else in memory.
    pub(crate) stored: bool,
    /// Bytes of an element there.
    pub(crate) element: u64,
    /// Elements along the depth are neighbours.
    pub(crate) depth_contiguous: bool,
}

/// The cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tiling {
    /// Super tile.
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    /// Layer.
    pub(crate) depth: u64,
    /// Block of C.
    pub(crate) block_rows: u64,
    pub(crate) block_cols: u64,
    pub(crate) repack_a: bool,
    pub(crate) repack_b: bool,
    /// Bytes that this is expected to move.
    pub(crate) bytes: f64,
}

/// The depth of a layer, of a super tile that takes them in order or backwards: every second one
/// does, so that what was used last is used first.
pub(crate) fn layer_of(k: u64, depth: u64, layer: u64, backwards: bool) -> Range<u64> {
    let layers = k.div_ceil(depth).max(1);
    assert!(layer < layers, "layer {layer} of {layers}");
    let at = depth * if backwards { layers - 1 - layer } else { layer };
    at..k.min(at + depth)
}

/// Among the cuts that take hardly longer than the fastest, the one that moves fewest bytes; with
/// too little memory for any, the smallest. Where there is one, a cut whose single blocks fit half
/// of the memory: others may have as much of it.
pub(crate) fn choose(problem: &Problem<'_>) -> Tiling {
    let tiling = choose_from(problem, true)
        .or_else(|| choose_from(problem, false))
        .unwrap_or_else(|| smallest(problem));
    let Tiling {
        rows, cols, depth, ..
    } = tiling;
    assert!(rows > 0 && cols > 0 && depth > 0, "{problem:?}: {tiling:?}");
    assert!(tiling.block_rows > 0 && tiling.block_cols > 0, "{tiling:?}");
    tiling
}

fn choose_from(problem: &Problem<'_>, in_half: bool) -> Option<Tiling> {
    let mut judged = Vec::new();
    for rows in sides(problem.m) {
        for cols in sides(problem.n) {
            for depth in depths(problem.k) {
                for repack in [[false, false], [true, false], [false, true], [true, true]] {
                    judged.extend(BLOCKS.iter().filter_map(|&block| {
                        judge(problem, [rows, cols, depth], block, repack, in_half)
                    }));
                }
            }
        }
    }
    let fastest = judged
        .iter()
        .map(|(cost, _)| *cost)
        .fold(f64::INFINITY, f64::min);
    let near = judged
        .into_iter()
        .filter(|(cost, _)| *cost <= HARDLY_LONGER * fastest);
    let least = near.min_by(|(a_cost, a), (b_cost, b)| {
        (a.bytes, a_cost)
            .partial_cmp(&(b.bytes, b_cost))
            .expect("costs are numbers")
    });
    least.map(|(_, tiling)| tiling)
}

/// Bytes that a super tile, or a part of it, holds: itself, a whole layer of B, two blocks of A
/// that tasks use now, and two on their way.
fn held_bytes(p: &Problem<'_>, rows: u64, cols: u64, depth: u64, block_rows: u64) -> u64 {
    let layer = |side: &Side, length: u64| {
        if side.stored {
            length * depth * p.element
        } else {
            0
        }
    };
    rows * cols * p.element
        + layer(&p.b, cols)
        + layer(&p.a, block_rows) * (rows.div_ceil(block_rows).min(3) + 1)
}

/// Rows and columns of a super tile, in whole blocks, that fit memory of which others have some:
/// those that read least, one block at least.
pub(crate) fn fit(p: &Problem<'_>, tiling: &Tiling, free: &MemorySplit) -> [u64; 2] {
    let &Tiling {
        rows,
        cols,
        depth,
        block_rows,
        block_cols,
        ..
    } = tiling;
    if free.left() >= p.memory.left() {
        return [rows, cols];
    }
    let room = free.product_bytes(p.scratch_bytes(block_rows, block_cols, depth));
    let sides = |whole: u64, block: u64| {
        (1..=whole.div_ceil(block)).map(move |count| (count * block).min(whole))
    };
    let fitting = sides(rows, block_rows).flat_map(|rows| {
        let widest = sides(cols, block_cols)
            .rfind(|&cols| held_bytes(p, rows, cols, depth, block_rows) <= room);
        widest.map(|cols| [rows, cols])
    });
    let reads = |&[rows, cols]: &[u64; 2]| {
        let passes = |side: &Side, length: u64| {
            if side.stored {
                1.0 / length as f64
            } else {
                0.0
            }
        };
        passes(&p.a, cols) + passes(&p.b, rows)
    };
    fitting
        .min_by(|one, other| reads(one).total_cmp(&reads(other)))
        .unwrap_or([block_rows, block_cols])
}

fn smallest(problem: &Problem<'_>) -> Tiling {
    let side = |end: u64| end.clamp(1, 64);
    Tiling {
        rows: side(problem.m),
        cols: side(problem.n),
        depth: side(problem.k),
        block_rows: side(problem.m),
        block_cols: side(problem.n),
        repack_a: false,
        repack_b: false,
        bytes: 0.0,
    }
}

/// Sides of super tiles worth a look: equal parts of the whole, in multiples of 16 where they are
/// parts.
fn sides(end: u64) -> Vec<u64> {
    let parts = (1..=24).map(|parts| part(end, parts));
    let small = [16384, 8192, 4096, 2048, 1024, 512, 256, 128, 64]
        .into_iter()
        .map(|side: u64| part(end, end.div_ceil(side)));
    let mut all: Vec<u64> = parts.chain(small).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn part(end: u64, parts: u64) -> u64 {
    match parts {
        0 | 1 => end.max(1),
        _ => end
            .div_ceil(parts)
            .next_multiple_of(16)
            .clamp(1, end.max(1)),
    }
}

fn depths(k: u64) -> Vec<u64> {
    let mut all: Vec<u64> = [128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192, k]
        .into_iter()
        .map(|depth| depth.clamp(1, k.max(1)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Expected seconds of a cut, where it fits the memory.
fn judge(
    p: &Problem<'_>,
    [rows, cols, depth]: [u64; 3],
    block: [u64; 2],
    [repack_a, repack_b]: [bool; 2],
    in_half: bool,
) -> Option<(f64, Tiling)> {
    if (repack_a && !repackable(&p.a, p.k, depth, p.m, rows))
        || (repack_b && !repackable(&p.b, p.k, depth, p.n, cols))
    {
        return None;
    }
    let (block_rows, block_cols) = blocks(p, rows, cols, block);
    // Blocks lie on one grid, whichever super tile they belong to.
    let rows = rows.next_multiple_of(block_rows).min(p.m.max(1));
    let cols = cols.next_multiple_of(block_cols).min(p.n.max(1));
    let layer = |side: &Side, length: u64| {
        if side.stored {
            length * depth * p.element
        } else {
            0
        }
    };
    let (held, scratch) = (
        held_bytes(p, rows, cols, depth, block_rows),
        p.scratch_bytes(block_rows, block_cols, depth),
    );
    let memory = p.memory.product_bytes(scratch);
    let half = p.memory.half().product_bytes(scratch);
    if held > memory || (in_half && held_bytes(p, block_rows, block_cols, depth, block_rows) > half)
    {
        return None;
    }
    let (row_tiles, col_tiles) = (p.m.div_ceil(rows) as f64, p.n.div_ceil(cols) as f64);
    let spare = memory - held;
    let traffic = |side: &Side, whole: u64, passes: f64| match side.stored {
        false => 0.0,
        // An operand that fits beside all else is read once.
        true if whole <= spare => whole as f64,
        true => whole as f64 * passes,
    };
    let (a_whole, b_whole) = (p.m * p.k * p.element, p.k * p.n * p.element);
    let (a_bytes, b_bytes) = (
        traffic(&p.a, a_whole, col_tiles),
        traffic(&p.b, b_whole, row_tiles),
    );
    let c_bytes = (p.m * p.n * p.element) as f64 * if p.c_read { 2.0 } else { 1.0 };
    let mut bytes = a_bytes + b_bytes + c_bytes;
    let requests = a_bytes / request(&p.a, repack_a, depth, block_rows, p.k, p.m)
        + b_bytes / request(&p.b, repack_b, depth, block_cols, p.k, p.n)
        + WRITE_REQUESTS * c_bytes / ((block_cols * p.element).min(REQUEST_BYTES) as f64);
    // What is repacked before the first layer, read and written: a band, or where bands lie across,
    // a layer.
    let layers = p.k.div_ceil(depth.max(1)) as f64;
    let mut before_first = 0.0;
    for (repack, side, whole, bands) in [
        (repack_a, &p.a, a_whole, row_tiles),
        (repack_b, &p.b, b_whole, col_tiles),
    ] {
        if repack {
            bytes += 2.0 * whole as f64;
            before_first += 2.0 * whole as f64 / if side.depth_contiguous { bands } else { layers };
        }
    }
    let flops = 2.0 * p.m as f64 * p.n as f64 * p.k as f64 * (p.element as f64 / 4.0);
    let work = CutCost {
        flops,
        block: [block_rows, block_cols, depth.min(p.k)],
        bytes,
        requests,
        threads: p.threads,
    };
    // What does not overlap: the first blocks in.
    let first = layer(&p.a, block_rows) + layer(&p.b, block_cols);
    // What the next layer does not find room for while this one is in use, of memory that the
    // engine keeps free.
    let room = p.memory.product_ahead_bytes(scratch) + spare;
    let steps = row_tiles * col_tiles * layers;
    let late = if b_bytes > b_whole as f64 {
        layer(&p.b, cols).saturating_sub(room) as f64 * steps
    } else {
        0.0
    };
    let alone = (before_first + first as f64 + late) / DEVICE_BYTES_PER_S;
    let shares = block_cols < p.n
        && (p.c_dense || !(block_cols * p.element).is_multiple_of(FILE_BLOCK_BYTES));
    let sharing = if shares {
        (p.m * p.n.div_ceil(block_cols)) as f64 * SHARING_WRITE_S
    } else {
        0.0
    };
    let cost = work.seconds() + alone + sharing;
    Some((
        cost,
        Tiling {
            rows,
            cols,
            depth,
            block_rows,
            block_cols,
            repack_a,
            repack_b,
            bytes,
        },
    ))
}

/// What a cut does, all in all.
pub(crate) struct CutCost {
    /// As of f32: a double counts twice.
    pub(crate) flops: f64,
    /// Rows, columns and depth of what a task multiplies.
    pub(crate) block: [u64; 3],
    pub(crate) bytes: f64,
    pub(crate) requests: f64,
    pub(crate) threads: u64,
}

impl CutCost {
    /// Expected time, device and cores side by side.
    pub(crate) fn seconds(&self) -> f64 {
        // Packing A costs as much as 40 columns of the product, packing B as 40 rows; reading and
        // writing the block of C, most of it beside the arithmetic, as a depth of 30.
        let overhead: f64 = self
            .block
            .iter()
            .zip([40.0, 40.0, 30.0])
            .map(|(&side, cost)| cost / side.max(1) as f64)
            .sum();
        let compute = (self.flops / CORE_FLOPS * (1.0 + overhead) + self.requests * REQUEST_CORE_S)
            / self.threads.min(2) as f64;
        let device = (self.bytes / DEVICE_BYTES_PER_S).max(self.requests / DEVICE_REQUESTS_PER_S);
        compute.max(device) + 0.05 * compute.min(device)
    }
}

/// Only an operand on a device whose runs a block would cut is worth a repack.
fn repackable(side: &Side, k: u64, depth: u64, long: u64, length: u64) -> bool {
    side.stored
        && if side.depth_contiguous {
            depth < k
        } else {
            length < long
        }
}

/// Bytes of a request for a block of an operand.
fn request(side: &Side, repacked: bool, depth: u64, length: u64, k: u64, long: u64) -> f64 {
    let (run, runs_end, other) = if side.depth_contiguous {
        (depth, k, length)
    } else {
        (length, long, depth)
    };
    let elements = if repacked || run >= runs_end {
        run * other
    } else {
        run
    };
    (elements * side.element).clamp(1, REQUEST_BYTES) as f64
}

/// Blocks of at most `most_rows` rows and `most_cols` columns, smaller where threads would be idle:
/// first where that cuts no run short.
fn blocks(p: &Problem<'_>, rows: u64, cols: u64, [most_rows, most_cols]: [u64; 2]) -> (u64, u64) {
    let cut = |length: u64, target: u64| {
        length
            .div_ceil(length.div_ceil(target).max(1))
            .next_multiple_of(16)
            .clamp(1, length.max(1))
    };
    let enough = p.threads.max(2);
    if p.c_dense && cols == p.n && cols > most_cols {
        return (cut(rows, (rows / enough).clamp(1, most_rows)), cols);
    }
    let (mut block_rows, mut block_cols) = (cut(rows, most_rows), cut(cols, most_cols));
    while rows.div_ceil(block_rows) * cols.div_ceil(block_cols) < enough
        && block_rows.max(block_cols) > 128
    {
        // Rows of C that are whole share no sectors, and cut no run of an operand whose depth is
        // contiguous.
        let rows_first =
            p.a.depth_contiguous || (!p.b.depth_contiguous && block_rows >= block_cols);
        match if rows_first {
            block_rows > 128
        } else {
            block_cols <= 128
        } {
            true => block_rows = cut(rows, block_rows / 2),
            false => block_cols = cut(cols, block_cols / 2),
        }
    }
    (block_rows, block_cols)
}

/// Least bytes that any plan for a product moves: every byte of the operands once, and the bound
/// for this memory. Operands that have bytes in common may be as good as one, whose product with
/// itself needs half of the arithmetic (see `syrk`).
pub(crate) fn bound_bytes(p: &Problem<'_>) -> u64 {
    let (m, n, k) = (p.m as f64, p.n as f64, p.k as f64);
    // In elements of the result; those of an operand that is decoded have fewer bytes.
    let stored = |side: &Side, elements: f64| match side.stored {
        true => elements * side.element as f64 / p.element as f64,
        false => 0.0,
    };
    let is_decoded = p.a.element != p.element || p.b.element != p.element;
    let shared = (p.shared / p.element) as f64;
    let compulsory = stored(&p.a, m * k) + stored(&p.b, k * n) - shared
        + m * n * if p.c_read { 2.0 } else { 1.0 };
    let memory = (p.memory.left() / p.element) as f64;
    let passes = if p.shared == 0 {
        2.0 / memory.sqrt()
    } else {
        1.0 / (2.0 * memory).sqrt()
    };
    let streamed = if p.a.stored && p.b.stored && !is_decoded {
        m * n * k * passes + m * n
    } else {
        0.0
    };
    // The bound holds where the operands do not fit.
    let fits = m * k + k * n - shared + m * n <= memory;
    ((if fits {
        compulsory
    } else {
        compulsory.max(streamed)
    }) * p.element as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cube(side: u64, budget: u64) -> Problem<'static> {
        let stored = |depth_contiguous| Side {
            stored: true,
            element: 4,
            depth_contiguous,
        };
        Problem {
            m: side,
            n: side,
            k: side,
            element: 4,
            memory: MemorySplit::of(budget),
            threads: 8,
            blas: &Blas::Builtin,
            a: stored(true),
            b: stored(false),
            c_read: false,
            c_dense: false,
            shared: 0,
        }
    }

    /// Blocks and layers decide in which order elements are added up.
    #[test]
    fn less_memory_that_is_free_leaves_blocks_and_layers_as_they_are() {
        // Of less, half has no room for the smallest blocks and the scratch that a product needs on
        // some CPUs.
        for budget in [12u64 << 20, 24 << 20, 64 << 20, 512 << 20] {
            let problem = cube(6000, budget);
            let tiling = choose(&problem);
            let whole = fit(&problem, &tiling, &problem.memory);
            assert_eq!(whole, [tiling.rows, tiling.cols]);
            for free in [budget / 4 * 3, budget / 2].map(MemorySplit::of) {
                let [rows, cols] = fit(&problem, &tiling, &free);
                assert!(
                    rows.is_multiple_of(tiling.block_rows) || rows == tiling.rows,
                    "{tiling:?}: {rows}"
                );
                assert!(
                    cols.is_multiple_of(tiling.block_cols) || cols == tiling.cols,
                    "{tiling:?}: {cols}"
                );
                let scratch =
                    problem.scratch_bytes(tiling.block_rows, tiling.block_cols, tiling.depth);
                let held = held_bytes(&problem, rows, cols, tiling.depth, tiling.block_rows);
                assert!(
                    held <= free.product_bytes(scratch),
                    "{tiling:?} in {free:?}: {rows} x {cols}"
                );
            }
        }
    }

    #[test]
    fn bytes_of_an_operand_that_is_both_sides_count_once() {
        let problem = cube(1000, 64 << 20);
        assert_eq!(bound_bytes(&problem), 3 * 4_000_000);
        assert_eq!(
            bound_bytes(&Problem {
                shared: 4_000_000,
                ..problem
            }),
            2 * 4_000_000
        );
        // Never more than a plan for the symmetric product moves.
        let large = Problem {
            shared: 4 << 28,
            ..cube(16384, 64 << 20)
        };
        let elements = 16384f64.powi(3) / (2.0 * (16 << 20) as f64).sqrt() + 16384f64.powi(2);
        assert_eq!(bound_bytes(&large), (elements * 4.0) as u64);
    }

    #[test]
    fn what_fits_is_read_once() {
        let tiling = choose(&cube(1024, 64 << 20));
        assert_eq!(tiling.bytes, 3.0 * 1024.0 * 1024.0 * 4.0, "{tiling:?}");
    }

    #[test]
    fn a_large_product_moves_little_more_than_the_bound() {
        for (memory, most) in [(64u64 << 20, 1.8), (512 << 20, 1.35)] {
            let problem = cube(16384, memory);
            let tiling = choose(&problem);
            let repack = [tiling.repack_a, tiling.repack_b]
                .iter()
                .filter(|&&repack| repack)
                .count() as f64
                * 2.0
                * 1.1e9;
            let ratio = (tiling.bytes - repack) / bound_bytes(&problem) as f64;
            assert!(ratio < most, "{tiling:?} moves {ratio} times the bound");
        }
    }

    #[test]
    fn rows_of_an_unaligned_result_stay_whole() {
        let problem = Problem {
            m: 15001,
            n: 14999,
            k: 15013,
            c_dense: true,
            ..cube(1, 512 << 20)
        };
        let tiling = choose(&problem);
        assert_eq!(
            (tiling.cols, tiling.block_cols),
            (14999, 14999),
            "{tiling:?}"
        );
        assert!(
            tiling.bytes < 1.5 * bound_bytes(&problem) as f64,
            "{tiling:?}"
        );
    }

    #[test]
    fn every_cut_stays_within_memory() {
        for (m, n, k) in [
            (1, 1, 1),
            (5, 100_000, 3),
            (100_000, 5, 7000),
            (3001, 2999, 17),
            (64, 64, 1_000_000),
        ] {
            let problem = Problem {
                m,
                n,
                k,
                ..cube(1, 4 << 20)
            };
            let tiling = choose(&problem);
            assert!(tiling.rows * tiling.cols * 4 <= 4 << 20, "{tiling:?}");
            assert!(tiling.rows >= 1 && tiling.rows <= m && tiling.cols <= n && tiling.depth <= k);
        }
    }
}
