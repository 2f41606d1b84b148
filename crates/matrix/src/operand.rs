//! What an operation reads: a matrix on SSD, or one in the caller's memory.

use std::ops::Range;

use outcore_core::panels::panels_that_fit;
use outcore_core::{DType, RealType, Result};
use outcore_device::Shared;
use outcore_engine::{ExtentRef, Plan};

use crate::array::Array;
use crate::decoders::decoder_of;
use crate::layout::{Layout, Tile};

/// A matrix that an operation reads: on SSD, or in memory where it fits.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let stored = Operand::from(&x);
/// let memory = Operand::Memory {
///     bytes: shared(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
///     dtype: RealType::F32,
///     rows: 3,
///     cols: 2,
///     row_stride: 2,
///     col_stride: 1,
/// };
/// for operand in [&stored, &memory] {
///     assert_eq!((operand.rows(), operand.cols(), operand.shape()), (3, 2, vec![3, 2]));
///     assert_eq!((operand.dtype(), operand.real()?, operand.bytes()), (DType::F32, RealType::F32, 24));
///     assert_eq!(operand.t().shape(), [2, 3]);
///     assert!(operand.layout().by_rows() && !operand.is_vector());
///     assert_eq!(operand.panels(1 << 20), [0..3]);
///     println!("{}: {} of {} bytes wait", operand.name(), operand.waiting_bytes(), operand.frame_bytes(0..3, 0..2));
/// }
/// assert!(stored.is_stored() && !memory.is_stored());
/// assert_eq!((stored.stored_bytes(), memory.stored_bytes()), (24, 0));
/// assert_eq!(memory.panels_beside(1 << 10, 1 << 10).len(), 3);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub enum Operand {
    /// On SSD.
    Stored(Array),
    /// In the caller's memory.
    Memory {
        /// The bytes from the first to the last element.
        bytes: Shared,
        /// Type of the elements.
        dtype: RealType,
        /// Rows.
        rows: u64,
        /// Columns.
        cols: u64,
        /// Elements from one row to the next.
        row_stride: u64,
        /// Elements from one column to the next; this or `row_stride` is 1.
        col_stride: u64,
    },
}

impl From<Array> for Operand {
    fn from(array: Array) -> Operand {
        Operand::Stored(array)
    }
}

impl From<&Array> for Operand {
    fn from(array: &Array) -> Operand {
        Operand::Stored(array.clone())
    }
}

impl Operand {
    /// Rows.
    pub fn rows(&self) -> u64 {
        self.layout().rows
    }

    /// Columns.
    pub fn cols(&self) -> u64 {
        self.layout().cols
    }

    /// As of an array; what is in memory is a matrix.
    pub fn shape(&self) -> Vec<u64> {
        match self {
            Operand::Stored(array) => array.shape(),
            Operand::Memory { rows, cols, .. } => vec![*rows, *cols],
        }
    }

    /// Type of the elements as they are stored.
    pub fn dtype(&self) -> DType {
        match self {
            Operand::Stored(array) => array.dtype(),
            Operand::Memory { dtype, .. } => DType::from(*dtype),
        }
    }

    /// The type that operations compute in with its elements.
    ///
    /// # Errors
    /// As of [`Array::real`].
    pub fn real(&self) -> Result<RealType> {
        match self {
            Operand::Stored(array) => array.real(),
            Operand::Memory { dtype, .. } => Ok(*dtype),
        }
    }

    /// Bytes of an element while operations compute with it.
    fn loaded_element_bytes(&self) -> u64 {
        let dtype = self.dtype();
        decoder_of(dtype).map_or(1, |decoder| decoder.factor as u64) * dtype.bytes()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        match self {
            Operand::Stored(array) => array.name(),
            Operand::Memory { .. } => "array in memory",
        }
    }

    /// The transpose.
    #[must_use]
    pub fn t(&self) -> Operand {
        match self.clone() {
            Operand::Stored(array) => Operand::Stored(array.transposed()),
            Operand::Memory {
                bytes,
                dtype,
                rows,
                cols,
                row_stride,
                col_stride,
            } => Operand::Memory {
                bytes,
                dtype,
                rows: cols,
                cols: rows,
                row_stride: col_stride,
                col_stride: row_stride,
            },
        }
    }

    /// How its elements lie.
    pub fn layout(&self) -> Layout {
        match self {
            Operand::Stored(array) => array.layout(),
            &Operand::Memory {
                rows,
                cols,
                row_stride,
                col_stride,
                dtype,
                ..
            } => Layout {
                offset: 0,
                rows,
                cols,
                row_stride,
                col_stride,
                element: dtype.bytes() as u64,
            },
        }
    }

    /// Bytes of the budget that a part of it takes.
    pub fn frame_bytes(&self, rows: Range<u64>, cols: Range<u64>) -> u64 {
        let Operand::Stored(array) = self else {
            return 0;
        };
        array.frame_bytes(rows, cols)
    }

    /// Its rows in panels that take at most `panel_bytes` bytes of frames, or one row.
    pub fn panels(&self, panel_bytes: u64) -> Vec<Range<u64>> {
        self.panels_beside(0, panel_bytes)
    }

    /// The same with `row_bytes` bytes of something else beside each row.
    pub fn panels_beside(&self, row_bytes: u64, panel_bytes: u64) -> Vec<Range<u64>> {
        let bytes_each = self.cols() * self.loaded_element_bytes() + row_bytes;
        let panels = panels_that_fit(self.rows(), bytes_each, panel_bytes, |rows| {
            self.frame_bytes(rows, 0..self.cols())
        });
        let rows = panels.last().map_or(0, |last| last.end);
        assert_eq!(rows, self.rows(), "every row is in a panel");
        panels
    }

    /// Whether it lies on SSD.
    pub fn is_stored(&self) -> bool {
        matches!(self, Operand::Stored(_))
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.rows() * self.cols() * self.dtype().bytes()
    }

    /// Bytes of its elements if they lie on SSD, else none.
    pub fn stored_bytes(&self) -> u64 {
        if self.is_stored() { self.bytes() } else { 0 }
    }

    /// Bytes of the budget that all of it takes, row by row.
    pub fn waiting_bytes(&self) -> u64 {
        if self.layout().by_rows() {
            self.frame_bytes(0..self.rows(), 0..self.cols())
        } else {
            self.rows() * self.cols() * self.loaded_element_bytes()
        }
    }

    /// A part of it, as tasks declare it.
    pub fn tile(&self, extent: ExtentRef, rows: Range<u64>, cols: Range<u64>) -> Tile {
        self.layout().tile(extent, rows, cols)
    }

    /// Whether it has one dimension.
    pub fn is_vector(&self) -> bool {
        self.shape().len() == 1
    }

    /// The operand as an extent of a plan, whose tasks find elements of its [real](Operand::real)
    /// type.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_engine::{Plan, Region, Task};
    ///
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let operand = Operand::from(&x);
    /// let mut plan = Plan::new("look");
    /// let extent = operand.extent(&mut plan);
    /// let tile = operand.tile(extent, 1..2, 0..2);
    /// plan.task(Task::new("row").read(tile.region).run(move |cx| {
    ///     assert_eq!(tile.of::<f32>(&cx.blocks[0])?[(0, 1)], 4.0);
    ///     Ok(())
    /// }));
    /// session.run_until(plan, &|| false)?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn extent(&self, plan: &mut Plan) -> ExtentRef {
        match self {
            Operand::Stored(array) => match decoder_of(array.dtype()) {
                Some(decoder) => plan.decoded(array.extent(), decoder),
                None => plan.extent(array.extent()),
            },
            Operand::Memory { bytes, .. } => plan.resident("array in memory", bytes.clone()),
        }
    }
}
