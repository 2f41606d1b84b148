//! The memory of NumPy arrays, lent to the engine without a copy.
//!
//! The array object is held until the last piece of the memory is dropped, on any thread; a drop on
//! a thread without the GIL is deferred until this module holds the GIL.

use std::ptr::NonNull;

use numpy::{
    PyArray1, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use outcore::{Buf, DType, Error, Memory, RealType};
use pyo3::prelude::*;

use crate::error::{argument, to_python};

/// Bytes of an array, kept alive by the array.
struct Adopted {
    pointer: NonNull<u8>,
    len: usize,
    _array: Py<PyUntypedArray>,
}

// SAFETY: the pointer is that of memory which the array object owns and keeps where it is for as
// long as it lives.
unsafe impl Send for Adopted {}
// SAFETY: as above.
unsafe impl Sync for Adopted {}

// SAFETY: NumPy's memory is valid, initialised and does not move while the array is referenced.
// Exclusive access is the caller's part: `destination` gets arrays that Python code has just made
// and not yet handed out, and operands are frozen, so that they are only read; a program that
// changes an operand during a computation gets an undefined result, as with every NumPy function
// that releases the GIL.
unsafe impl Memory for Adopted {
    fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// The first `len` bytes from the start of the array; its type has been checked.
pub(crate) fn adopt(array: &Bound<'_, PyUntypedArray>, len: usize) -> Buf {
    // SAFETY: it is an array, and its type makes no difference to where its first element is.
    let pointer = unsafe { array.cast_unchecked::<PyArrayDyn<u8>>() }.data();
    match NonNull::new(pointer) {
        Some(pointer) if len > 0 => Buf::new(Box::new(Adopted {
            pointer,
            len,
            _array: array.clone().unbind(),
        })),
        _ => Buf::default(),
    }
}

/// The element type of an array, if it is one of matrices.
pub(crate) fn element_type(array: &Bound<'_, PyUntypedArray>) -> PyResult<DType> {
    let own = array.dtype();
    let name: String = own.getattr("name")?.extract()?;
    DType::parse(&name)
        .filter(|dtype| dtype.name() == name && own.is_native_byteorder() != Some(false))
        .ok_or_else(|| {
            to_python(Error::DType {
                what: format!("dtype {own} is not supported"),
            })
        })
}

/// The element type of an array that is computed with as it is.
pub(crate) fn real_type(array: &Bound<'_, PyUntypedArray>) -> PyResult<RealType> {
    RealType::try_from(element_type(array)?).map_err(|what| to_python(Error::DType { what }))
}

/// The bytes of a C-contiguous array of integers, and their type.
pub(crate) fn integers(array: &Bound<'_, PyUntypedArray>) -> PyResult<(DType, Buf)> {
    let element = element_type(array)?;
    if ![DType::I32, DType::I64, DType::U16].contains(&element) {
        return Err(to_python(Error::DType {
            what: format!("dtype {element} is neither int32 nor int64"),
        }));
    }
    match array.is_c_contiguous() && array.is_aligned() {
        true => Ok((
            element,
            adopt(array, array.len() * element.bytes() as usize),
        )),
        false => Err(argument("the array is not C-contiguous and aligned")),
    }
}

/// The numbers of a vector of float64.
pub(crate) fn values_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<f64>> {
    match element_type(array)? {
        DType::F64 if array.is_c_contiguous() && array.is_aligned() => {
            let bytes = adopt(array, array.len() * size_of::<f64>());
            Ok(bytes
                .chunks_exact(8)
                .map(|bytes| f64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
                .collect())
        }
        _ => Err(argument("factors must be a contiguous vector of float64")),
    }
}

/// Fresh memory for a result: a C-contiguous array without other references.
pub(crate) fn destination(array: &Bound<'_, PyUntypedArray>) -> PyResult<Buf> {
    Ok(adopt(array, contiguous_bytes(array)?))
}

/// All bytes of a gap-free array of bytes.
pub(crate) fn bytes(array: &Bound<'_, PyArray1<u8>>) -> PyResult<Buf> {
    let len = array.len();
    match NonNull::new(array.data()) {
        _ if !array.is_c_contiguous() => Err(argument("the array of bytes has gaps")),
        Some(pointer) if len > 0 => {
            let _array = array.as_untyped().clone().unbind();
            Ok(Buf::new(Box::new(Adopted {
                pointer,
                len,
                _array,
            })))
        }
        _ => Ok(Buf::default()),
    }
}

/// The bytes of a C-contiguous array, read only.
pub(crate) fn source(array: &Bound<'_, PyUntypedArray>) -> PyResult<outcore::Shared> {
    Ok(adopt(array, contiguous_bytes(array)?).freeze())
}

fn contiguous_bytes(array: &Bound<'_, PyUntypedArray>) -> PyResult<usize> {
    let element = element_type(array)?.bytes() as usize;
    match array.is_c_contiguous() && array.is_aligned() {
        true => Ok(array.len() * element),
        false => Err(argument("the array is not C-contiguous and aligned")),
    }
}
