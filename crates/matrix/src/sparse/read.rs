//! Sparse matrices as arrays in memory.

use std::ops::Range;

use outcore_core::panels::cut;
use outcore_core::{DType, Error, Job, MemorySplit, RealType, Result, with_real};
use outcore_device::Buf;
use outcore_engine::{Plan, Task};
use outcore_kernels::{Lines, Real};

use super::{BackedVector, Form, Sparse, with_lines};

/// The arrays of a sparse matrix in memory.
#[derive(Debug)]
pub struct SparseBufs {
    /// int64, lines + 1.
    pub offsets: Buf,
    /// As they are stored, one an entry.
    pub indices: Buf,
    /// One an entry.
    pub values: Buf,
}

impl Sparse {
    /// Reads the view into memory: offsets counted from its first entry (int64), indices as they
    /// are stored, and values, one where none are stored. Holds the results besides the budget.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let read = a.read()?.run()?;
    /// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read.offsets), [0, 2, 3]);
    /// assert_eq!(bytemuck::cast_slice::<u8, i32>(&read.indices), [0, 2, 1]);
    /// assert_eq!(bytemuck::cast_slice::<u8, f32>(&read.values), [1.0, 2.0, 3.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`]; those of reading.
    pub fn read(&self) -> Result<Job<SparseBufs>> {
        let lines = self.lines() as usize;
        let buf = |bytes: u64| {
            Buf::anonymous(bytes as usize).map_err(|source| Error::NoMemory { bytes, source })
        };
        let bufs = SparseBufs {
            offsets: buf(8 * (lines as u64 + 1))?,
            indices: buf(self.nonzeros() * self.index_element().bytes())?,
            values: buf(self.nonzeros() * self.dtype().bytes())?,
        };
        self.read_into(bufs)
    }

    /// The same into the caller's memory, of exactly the right lengths.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_matrix::SparseBufs;
    ///
    /// let (offsets, indices, values) = (Buf::anonymous(24)?, Buf::anonymous(12)?, Buf::anonymous(12)?);
    /// let read = a.read_into(SparseBufs { offsets, indices, values })?.run()?;
    /// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read.offsets), [0, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for others.
    pub fn read_into(&self, into: SparseBufs) -> Result<Job<SparseBufs>> {
        let wanted = [
            8 * (self.lines() + 1),
            self.nonzeros() * self.index_element().bytes(),
            self.nonzeros() * self.dtype().bytes(),
        ];
        if [&into.offsets, &into.indices, &into.values].map(|buf| buf.len() as u64) != wanted {
            return Err(Error::shape(format!(
                "{} needs arrays of {wanted:?} bytes",
                self.name()
            )));
        }
        let mut plan = Plan::new(format!("read {}", self.name()));
        let [
            (offsets, mut offsets_rest),
            (indices, mut indices_rest),
            (values, mut values_rest),
        ] = [into.offsets.lend(), into.indices.lend(), into.values.lend()];
        match &self.parts.form {
            Form::Tiled(_) => {
                with_real!(self.real(), T => {
                    self.decoded::<T>(&mut plan, [&mut offsets_rest, &mut indices_rest, &mut values_rest]);
                });
            }
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                self.copy_offsets(&mut plan, offsets, &mut offsets_rest);
                let size = self.index_element().bytes();
                let plainly = |from: &[u8], _: DType, to: &mut [u8]| to.copy_from_slice(from);
                self.copies(
                    &mut plan,
                    indices,
                    self.entries.clone(),
                    size,
                    &mut indices_rest,
                    plainly,
                );
                match (values, self.real()) {
                    (Some(part), real) => {
                        self.copies(
                            &mut plan,
                            part,
                            self.entries.clone(),
                            real.bytes() as u64,
                            &mut values_rest,
                            plainly,
                        );
                    }
                    _ if values_rest.is_empty() => {}
                    (None, RealType::F32) => {
                        bytemuck::cast_slice_mut::<u8, f32>(&mut values_rest).fill(1.0)
                    }
                    (None, RealType::F64) => {
                        bytemuck::cast_slice_mut::<u8, f64>(&mut values_rest).fill(1.0)
                    }
                }
            }
        }
        drop((offsets_rest, indices_rest, values_rest));
        plan.bound(self.stored_bytes());
        let taken = |_| Error::Failed {
            what: "a task still holds memory of the result".into(),
        };
        Job::new(&self.session, vec![plan], move |_| {
            let [offsets, indices, values] =
                [offsets, indices, values].map(|whole| whole.reclaim().map_err(taken));
            Ok(SparseBufs {
                offsets: offsets?,
                indices: indices?,
                values: values?,
            })
        })
    }

    /// Offsets, counted from the view's first entry.
    fn copy_offsets(&self, plan: &mut Plan, part: &BackedVector, into: &mut Buf) {
        let base = self.entries.start as i64;
        self.copies(
            plan,
            part,
            self.lines.start..self.lines.end + 1,
            8,
            into,
            move |from, element, to| {
                let to = bytemuck::cast_slice_mut::<u8, i64>(to);
                match element {
                    DType::I32 => {
                        to.iter_mut()
                            .zip(bytemuck::cast_slice::<u8, i32>(from))
                            .for_each(|(to, &from)| *to = i64::from(from));
                    }
                    _ => to.copy_from_slice(bytemuck::cast_slice(from)),
                }
                to.iter_mut()
                    .for_each(|offset| *offset = offset.wrapping_sub(base));
            },
        );
    }

    /// Tasks that put entries of tiles behind each other, line after line.
    fn decoded<T: Real>(&self, plan: &mut Plan, [offsets, indices, values]: [&mut Buf; 3]) {
        let (size, base) = (self.index_element().bytes() as usize, self.entries.start);
        for piece in self.pieces(MemorySplit::new(&self.session).block_bytes(u64::MAX), |_| 0) {
            let (lines, entries) = (piece.lines(), piece.entries() as usize);
            let last = lines.end == self.lines();
            let mut offsets =
                offsets.split_to(8 * (lines.end - lines.start + u64::from(last)) as usize);
            let (mut indices, mut values) = (
                indices.split_to(entries * size),
                values.split_to(entries * size_of::<T>()),
            );
            let (blocks, first) = (self.blocks(&piece), piece.first_entry() - base);
            let task = self
                .regions(plan, &piece)
                .into_iter()
                .fold(Task::new("decode"), Task::read);
            plan.task(task.run(move |cx| {
                let into = if values.is_empty() { &mut [] } else { bytemuck::cast_slice_mut::<u8, T>(&mut values) };
                let found = with_lines!(blocks, cx.blocks, T, a => in_lines(a, |at, _, place, value| {
                    let index = &mut indices[at * size..(at + 1) * size];
                    index.copy_from_slice(&(place as u64).to_le_bytes()[..size]);
                    into[at] = value;
                }));
                let offsets = bytemuck::cast_slice_mut::<u8, i64>(&mut offsets);
                offsets.iter_mut().zip(found).for_each(|(offset, at)| *offset = (first + at) as i64);
                Ok(())
            }));
        }
        if self.lines() == 0 {
            bytemuck::cast_slice_mut::<u8, i64>(offsets).fill(0);
        }
    }

    /// Tasks that copy a range of an array into memory.
    fn copies(
        &self,
        plan: &mut Plan,
        part: &BackedVector,
        range: Range<u64>,
        size: u64,
        into: &mut Buf,
        copy: impl Fn(&[u8], DType, &mut [u8]) + Clone + Send + 'static,
    ) {
        let (extent, element) = (part.extent(plan), part.vector.element);
        let at_once = MemorySplit::new(&self.session).block_bytes(1 << 20) / size;
        for range in cut(range, at_once)
            .into_iter()
            .filter(|range| !range.is_empty())
        {
            let mut piece = into.split_to(((range.end - range.start) * size) as usize);
            let copy = copy.clone();
            plan.task(
                Task::new("read")
                    .read(part.region(extent, range))
                    .run(move |cx| {
                        copy(cx.blocks[0].bytes(), element, &mut piece);
                        Ok(())
                    }),
            );
        }
    }
}

/// Calls `f` with the number, line, minor index and value of each entry, numbered line after line;
/// returns the number of the first of each line, and of all.
///
/// ```
/// use outcore_kernels::Csr;
/// use outcore_matrix::sparse::in_lines;
///
/// // [[1, 0, 2], [0, 3, 0]]
/// let a = Csr::<i32, f32>::new(3, &[0, 2, 3], &[0, 2, 1], &[1.0, 2.0, 3.0]).unwrap();
/// let mut entries = Vec::new();
/// let begins = in_lines(a, |_, line, place, value| entries.push((line, place, value)));
/// assert_eq!(begins, [0, 2, 3]);
/// assert_eq!(entries, [(0, 0, 1.0), (0, 2, 2.0), (1, 1, 3.0)]);
/// ```
pub fn in_lines<T: Real>(a: impl Lines<T>, mut f: impl FnMut(usize, usize, usize, T)) -> Vec<u64> {
    let mut offsets = vec![0; a.lines() + 1];
    a.each_line(|line, entries| offsets[line + 1] += entries.len() as u64);
    (0..a.lines()).for_each(|line| offsets[line + 1] += offsets[line]);
    let mut next = offsets.clone();
    a.each_line(|line, entries| {
        entries.each(|place, value| {
            f(next[line] as usize, line, place, value);
            next[line] += 1;
        });
    });
    offsets
}
