//! The tiled form of a sparse matrix, where it takes fewer bytes.
//!
//! Cost: reads A twice, the second time with its values, and writes the result. The first pass
//! sizes the tiles; what they come to decides whether the second is made.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outcore_core::format::Vector;
use outcore_core::{DType, Error, Job, MemorySplit, Result, Session, Stage, StoredFile, with_real};
use outcore_device::Locked;
use outcore_engine::{Block, Plan, Region, Task};
use outcore_kernels::{Lines, Real};
use outcore_store::{NewObjects, locate};

use super::create::header;
use super::tiles::{ALIGNMENT, BAND, NUMBERS, TileSpec, Tiled};
use super::{Piece, PieceBlocks, Sparse, SparseShape, names, whole_lines, with_lines};
use crate::sparse::format::{Description, Entries};

/// Bytes of A that make a block.
const BLOCK_BYTES: u64 = 256 << 10;
/// What tiles must take less than, in parts of what arrays take.
const PAYS: f64 = 0.8;

/// A in tiles, in a new folder or in scratch; nothing where tiles would not take four fifths of the
/// bytes, or cannot hold A: because a line is too long to be read at once, or has two entries of
/// one minor index.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_matrix::sparse::compress;
///
/// // 100 rows of 1000 ones each
/// let offsets: Vec<i64> = (0..=100).map(|row| 1000 * row).collect();
/// let indices: Vec<i32> = (0..100_000).map(|entry| entry % 1000).collect();
/// let (offsets, indices) = ((DType::I64, shared(&offsets)), (DType::I32, shared(&indices)));
/// let a = Sparse::in_memory(&session, Compressed::Rows, [100, 1000], offsets, indices, None)?;
/// let tiled = compress(&session, &a, None)?.run()?.expect("two bytes an entry instead of four");
/// assert!(tiled.is_tiled() && tiled.nbytes() < a.nbytes());
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`]; what keeps the output from being made.
pub fn compress(
    session: &Session,
    a: &Sparse,
    out: Option<PathBuf>,
) -> Result<Job<Option<Sparse>>> {
    with_real!(a.real(), T => plan::<T>(session, a, out))
}

/// Tiles of one block, not yet placed.
type Sized = Arc<Mutex<Option<Vec<TileSpec>>>>;

fn plan<T: Real>(
    session: &Session,
    a: &Sparse,
    out: Option<PathBuf>,
) -> Result<Job<Option<Sparse>>> {
    let (plan, sizes, blocks) = sizing::<T>(session, a);
    let (session, a) = (session.clone(), a.clone());
    Job::driven(&session.clone(), vec![plan], move |stage, plans| {
        for plan in plans {
            stage.run(plan, 0.4)?;
        }
        let Some(tiles) = placed::<T>(&sizes, &a) else {
            return Ok(None);
        };
        let Some(path) = out else {
            let (file, numbers) = write::<T>(&session, stage, &a, &blocks, tiles, None, 1.0)?;
            let shape = SparseShape::of(&a);
            let sides = [shape.lines, shape.width];
            let tiled = Tiled::new("scratch", &numbers, file, shape.real, sides, shape.entries)?;
            return Sparse::tiled(
                &session,
                None,
                shape.format,
                sides,
                shape.real,
                shape.entries,
                tiled,
            )
            .map(Some);
        };
        let (store, name) = locate(&path)?;
        let mut objects = store.create_together(&name, &names::ALL)?;
        write::<T>(
            &session,
            stage,
            &a,
            &blocks,
            tiles,
            Some((&mut *objects, &path)),
            1.0,
        )?;
        objects.commit()?;
        Sparse::open_until(&session, path, &|| stage.is_cancelled()).map(Some)
    })
}

/// Puts A in tiles into a folder that is being made, where they pay: whether they do.
///
/// # Errors
/// As [`compress`].
pub fn compress_within(
    session: &Session,
    stage: &mut Stage,
    a: &Sparse,
    objects: &mut dyn NewObjects,
    path: &Path,
) -> Result<bool> {
    with_real!(a.real(), T => {
        let ((plan, sizes, blocks), fraction) = (sizing::<T>(session, a), stage.fraction());
        stage.run(plan, fraction)?;
        let Some(tiles) = placed::<T>(&sizes, a) else { return Ok(false) };
        write::<T>(session, stage, a, &blocks, tiles, Some((objects, path)), fraction)?;
        Ok(true)
    })
}

/// What finds out how large tiles are, what it finds, and the pieces of each block.
fn sizing<T: Real>(session: &Session, a: &Sparse) -> (Plan, Vec<Sized>, Vec<Vec<Piece>>) {
    let split = MemorySplit::new(session).of_free();
    let share = BLOCK_BYTES.min(split.step_bytes());
    let blocks = whole_lines(&a.pieces(share, |lines| if lines > BAND { share } else { 0 }));
    let most = split.block_of_rows_bytes();
    let holds = blocks.iter().all(|block| {
        let lines = block[0].lines();
        lines.end - lines.start <= BAND
            && block.iter().map(|piece| a.bytes_of(piece)).sum::<u64>() <= most
    });
    let mut plan = Plan::new(format!("size the tiles of {}", a.name()));
    plan.bound(a.stored_bytes());
    let sizes: Vec<Sized> = blocks.iter().map(|_| Sized::default()).collect();
    for (block, size) in blocks.iter().zip(&sizes).filter(|_| holds) {
        let (read, size, lines) = (
            BlockRead::declare(a, block),
            Arc::clone(size),
            block[0].lines(),
        );
        let task = read.task(&mut plan, a, block, "size");
        plan.task(task.run(move |cx| {
            let specs = read
                .bands::<T>(cx.blocks)?
                .map(|bands| bands.specs(lines.start, lines.end - lines.start));
            *size.locked() = specs;
            Ok(())
        }));
    }
    (plan, sizes, blocks)
}

/// How a task reads a block: pieces that follow each other, of which each is some whole lines or a
/// part of one.
struct BlockRead(Vec<PieceBlocks>);

impl BlockRead {
    fn declare(a: &Sparse, block: &[Piece]) -> BlockRead {
        BlockRead(block.iter().map(|piece| a.blocks(piece)).collect())
    }

    fn task(&self, plan: &mut Plan, a: &Sparse, block: &[Piece], name: &'static str) -> Task {
        let entries: u64 = block.iter().map(Piece::entries).sum();
        // Bands are made beside, whose vectors grow by doubling, and a line is sorted.
        let task = Task::new(name).flops(entries).held(32 * entries as usize);
        block
            .iter()
            .flat_map(|piece| a.regions(plan, piece))
            .fold(task, Task::read)
    }

    fn count(&self) -> usize {
        self.0.iter().map(PieceBlocks::count).sum()
    }

    fn bands<T: Real>(&self, mut blocks: &[Block]) -> Result<Option<Bands<T>>> {
        let mut bands = Bands::default();
        // Whole lines in one piece, or one line in several.
        for piece in &self.0 {
            let (here, rest) = blocks.split_at(piece.count());
            blocks = rest;
            with_lines!(piece, here, T, a => a.each_line(|line, row| row.each(|place, value| bands.put(line, place, value))));
        }
        Ok(bands.done())
    }
}

/// Tiles in their places, block after block, if they pay.
fn placed<T: Real>(sizes: &[Sized], a: &Sparse) -> Option<Vec<Vec<TileSpec>>> {
    if a.nonzeros() == 0 {
        return None;
    }
    let (value_bytes, mut offset) = (size_of::<T>() as u64, 0);
    let mut blocks = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut tiles = size.locked().take()?;
        for tile in &mut tiles {
            tile.offset = offset;
            offset = tile.end(value_bytes);
        }
        blocks.push(tiles);
    }
    let described = 8 * (NUMBERS * blocks.iter().map(Vec::len).sum::<usize>()) as u64;
    ((offset + described) as f64 <= PAYS * a.nbytes() as f64).then_some(blocks)
}

/// Writes tiles to scratch, or into a folder with what describes them: where they are, and what
/// does.
fn write<T: Real>(
    session: &Session,
    stage: &mut Stage,
    a: &Sparse,
    blocks: &[Vec<Piece>],
    tiles: Vec<Vec<TileSpec>>,
    objects: Option<(&mut dyn NewObjects, &Path)>,
    reached: f64,
) -> Result<(Arc<StoredFile>, Vec<i64>)> {
    let value_bytes = size_of::<T>() as u64;
    let all: Vec<TileSpec> = tiles.iter().flatten().copied().collect();
    let len = all.last().map_or(0, |tile| tile.end(value_bytes));
    let numbers: Vec<i64> = all.iter().flat_map(TileSpec::numbers).collect();
    let mut plan = Plan::new(format!("tile {}", a.name()));
    let file = match objects {
        None => session.scratch_file(None, len)?,
        Some((objects, path)) => {
            let mut make = |name: &str, len| -> Result<_> {
                Ok(Arc::new(session.device_file(
                    path.join(name).display().to_string(),
                    objects.create(name, len)?,
                )))
            };
            let vector = Vector::new(DType::I64, numbers.len() as u64);
            let tiles = make(names::TILES, vector.file_bytes())?;
            let mut bytes = vector.header_by_rows(NUMBERS as u64);
            bytes.extend_from_slice(bytemuck::cast_slice(&numbers));
            header(&mut plan, tiles.extent(), bytes);
            let text = Description {
                layout: Entries::Tiled,
                ..SparseShape::of(a).description()
            }
            .text()
            .into_bytes();
            header(
                &mut plan,
                make(names::DESCRIPTION, text.len() as u64)?.extent(),
                text,
            );
            make(names::ENTRIES, len)?
        }
    };
    let extent = plan.extent(file.extent());
    for (block, tiles) in blocks.iter().zip(tiles) {
        let (Some(first), Some(last)) = (tiles.first(), tiles.last()) else {
            continue;
        };
        let begin = first.offset;
        let region = Region::span(extent, begin, last.end(value_bytes) - begin);
        let read = BlockRead::declare(a, block);
        let task = read.task(&mut plan, a, block, "tile").write(region);
        plan.task(task.run(move |cx| {
            let (blocks, written) = cx.blocks.split_at_mut(read.count());
            let into = written[0].bytes_mut();
            into.fill(0);
            let changed = || Error::Failed {
                what: "entries have changed since they were counted".into(),
            };
            read.bands::<T>(blocks)?
                .ok_or_else(changed)?
                .fill(&tiles, begin, into);
            Ok(())
        }));
    }
    plan.bound(a.stored_bytes() + len);
    stage.run(plan, reached)?;
    Ok((file, numbers))
}

/// The entries of a block, by band and line, in order.
struct Bands<T> {
    bands: Vec<(u64, Band<T>)>,
    /// The line that comes in, and its entries.
    line: usize,
    entries: Vec<(usize, T)>,
    /// A line has two entries of one minor index.
    has_twins: bool,
}

struct Band<T> {
    lines: Vec<u16>,
    /// Less one.
    counts: Vec<u16>,
    places: Vec<u16>,
    values: Vec<T>,
}

impl<T> Default for Bands<T> {
    fn default() -> Bands<T> {
        Bands {
            bands: Vec::new(),
            line: 0,
            entries: Vec::new(),
            has_twins: false,
        }
    }
}

impl<T: Real> Bands<T> {
    /// The next entry; lines come in order.
    fn put(&mut self, line: usize, place: usize, value: T) {
        if line != self.line {
            self.end_line();
            self.line = line;
        }
        self.entries.push((place, value));
    }

    fn end_line(&mut self) {
        // Most lines are in order as they come.
        if self.entries.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            self.entries.sort_by_key(|entry| entry.0);
            self.has_twins |= self.entries.windows(2).any(|pair| pair[0].0 == pair[1].0);
        }
        for some in self
            .entries
            .chunk_by(|one, other| one.0 as u64 / BAND == other.0 as u64 / BAND)
        {
            let number = some[0].0 as u64 / BAND;
            let at = self
                .bands
                .binary_search_by_key(&number, |(band, _)| *band)
                .unwrap_or_else(|at| {
                    self.bands.insert(
                        at,
                        (
                            number,
                            Band {
                                lines: Vec::new(),
                                counts: Vec::new(),
                                places: Vec::new(),
                                values: Vec::new(),
                            },
                        ),
                    );
                    at
                });
            let band = &mut self.bands[at].1;
            band.lines.push(self.line as u16);
            band.counts.push((some.len() - 1) as u16);
            band.places
                .extend(some.iter().map(|entry| (entry.0 as u64 % BAND) as u16));
            band.values.extend(some.iter().map(|entry| entry.1));
        }
        self.entries.clear();
    }

    /// Nothing where a line has two entries of one minor index.
    fn done(mut self) -> Option<Bands<T>> {
        self.end_line();
        (!self.has_twins).then_some(self)
    }

    fn specs(&self, first_line: u64, block_lines: u64) -> Vec<TileSpec> {
        let spec = |(number, band): &(u64, Band<T>)| TileSpec {
            first_line,
            block_lines,
            band: *number,
            offset: 0,
            lines: band.lines.len() as u64,
            entries: band.places.len() as u64,
            has_values: band.values.iter().any(|value| *value != T::ONE),
        };
        self.bands.iter().map(spec).collect()
    }

    /// Into the bytes of the block, which begin at `begin` in the file.
    fn fill(&self, tiles: &[TileSpec], begin: u64, into: &mut [u8]) {
        for ((_, band), tile) in self.bands.iter().zip(tiles) {
            let (at, len) = (
                (tile.offset - begin) as usize,
                tile.bytes(size_of::<T>() as u64) as usize,
            );
            let [lines, counts, places, values] = tile.split_mut(&mut into[at..at + len]);
            lines.copy_from_slice(bytemuck::cast_slice(&band.lines));
            counts.copy_from_slice(bytemuck::cast_slice(&band.counts));
            places.copy_from_slice(bytemuck::cast_slice(&band.places));
            if tile.has_values {
                values.copy_from_slice(bytemuck::cast_slice(&band.values));
            }
        }
    }
}

const _: () = assert!(
    ALIGNMENT.is_multiple_of(8),
    "values are aligned as far as their tile is"
);
