//! Elements as values of Rust, and parts of arrays as tasks of one's own declare them.

use std::ops::Range;

use bytemuck::Pod;
use outcore_core::panels::panels_that_fit;
use outcore_core::{DType, Error, MemorySplit, Result};
use outcore_device::Buf;
use outcore_engine::Plan;

use crate::array::Array;
use crate::layout::Tile;
use crate::output::Target;

/// A type of Rust that arrays have as elements.
pub trait Element: Pod {
    /// Its name in files.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! {
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f32 => F32,
    f64 => F64,
}

impl Array {
    /// All elements, row after row, in memory besides the budget.
    ///
    /// ```
    /// # use outcore_core::{DType, Order, Session, Settings};
    /// # use outcore_matrix::Array;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let scratch = Some(folder.path().join("scratch"));
    /// # let session = Session::new(Settings { scratch, ..Settings::default() })?;
    /// let array = Array::create(&session, folder.path().join("x.npy"), DType::F32, &[2, 2], Order::Row)?;
    /// array.copy_from_slice(&[1.0f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(array.t().to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for an array of another type; those of [`read`](Array::read).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>()?;
        let bytes = self.read()?.run()?;
        let mut values = vec![T::zeroed(); (self.rows() * self.cols()) as usize];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes[..self.nbytes() as usize]);
        Ok(values)
    }

    /// Writes all elements in place, row after row.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// x.copy_from_slice(&[6.0f32, 5.0, 4.0, 3.0, 2.0, 1.0])?;
    /// assert_eq!(x.slice(0..1, 0..2)?.to_vec::<f32>()?, [6.0, 5.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for an array of another type, [`Error::Shape`] for another number of
    /// elements; those of [`write`](Array::write).
    pub fn copy_from_slice<T: Element>(&self, values: &[T]) -> Result<()> {
        self.check_element::<T>()?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.len() as u64 != self.nbytes() {
            return Err(Error::shape(format!(
                "{} has shape {:?}, the values are {}",
                self.name(),
                self.shape(),
                values.len()
            )));
        }
        let mut buf = Buf::anonymous(bytes.len().max(1)).map_err(|source| Error::NoMemory {
            bytes: bytes.len() as u64,
            source,
        })?;
        buf[..bytes.len()].copy_from_slice(bytes);
        self.write(buf.freeze())?.run()
    }

    fn check_element<T: Element>(&self) -> Result<()> {
        match self.dtype() == T::DTYPE {
            true => Ok(()),
            false => Err(Error::DType {
                what: format!("{} is {}, not {}", self.name(), self.dtype(), T::DTYPE),
            }),
        }
    }

    /// A part of it, for a task that reads it: `tile.region` is what the task declares, and
    /// [`Tile::of`] the elements that it finds there, those of the file.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::{Plan, Task};
    ///
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let mut plan = Plan::new("look");
    /// let tile = x.region(&mut plan, 1..3, 0..2)?;
    /// plan.task(Task::new("last rows").read(tile.region).run(move |cx| {
    ///     assert_eq!(tile.of::<f32>(&cx.blocks[0])?[(1, 0)], 5.0);
    ///     Ok(())
    /// }));
    /// session.run_until(plan, &|| false)?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for rows and columns that are not all there.
    pub fn region(&self, plan: &mut Plan, rows: Range<u64>, cols: Range<u64>) -> Result<Tile> {
        let part = self.slice(rows, cols)?;
        let extent = plan.extent(self.extent());
        Ok(part.layout().tile(extent, 0..part.rows(), 0..part.cols()))
    }

    /// Its rows in panels of which several fit the memory that is free at once, with `row_bytes`
    /// bytes of something else beside each row.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let x = Array::temporary(&session, DType::F32, &[100_000, 100], Order::Row)?;
    /// let panels = x.panels(0);
    /// assert!(panels.len() > 1);
    /// assert_eq!((panels[0].start, panels.last().unwrap().end), (0, 100_000));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn panels(&self, row_bytes: u64) -> Vec<Range<u64>> {
        let share = MemorySplit::new(self.session()).moved_panel_bytes();
        let bytes_each = self.cols() * self.dtype().bytes() + row_bytes;
        panels_that_fit(self.rows(), bytes_each, share, |rows| {
            let count = rows.end - rows.start;
            let region = self
                .layout()
                .tile(
                    Plan::new("panels").extent(self.extent()),
                    rows,
                    0..self.cols(),
                )
                .region;
            region.frame_bytes(u64::from(self.extent().sector())) + count * row_bytes
        })
    }
}

impl Target {
    /// A part of the result, for a task that writes it: `tile.region` is what the task declares, and
    /// [`Tile::of_mut`] the elements there.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows and columns that are not all there.
    pub fn region(&self, plan: &mut Plan, rows: Range<u64>, cols: Range<u64>) -> Result<Tile> {
        let part = self.array.slice(rows, cols)?;
        let extent = plan.extent(&self.extent);
        Ok(part.layout().tile(extent, 0..part.rows(), 0..part.cols()))
    }
}
