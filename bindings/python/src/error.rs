//! The facade's errors as the exceptions of `outcore.errors`: one class a variant, its fields as
//! attributes.

use outcore::Error;
use outcore::format::FormatError;
use outcore::store::Error as StoreError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// The exception for an error. An error while it is made is returned in its place.
pub(crate) fn to_python(error: Error) -> PyErr {
    Python::attach(|py| exception(py, &error).unwrap_or_else(|trouble| trouble))
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    let name = describe(error, &fields)?;
    let class = py
        .import("outcore.errors")?
        .getattr(name)?
        .cast_into::<PyType>()?;
    Ok(PyErr::from_value(
        class.call((error.to_string(),), Some(&fields))?,
    ))
}

/// The name of the class; its fields go into `fields`.
fn describe(error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        Error::Shape { .. } => "ShapeError",
        Error::DType { .. } => "DTypeError",
        Error::Value { .. } => "ArgumentError",
        Error::OverBudget {
            needed,
            available,
            budget,
            ..
        } => {
            fields.set_item("needed", needed)?;
            fields.set_item("available", available)?;
            fields.set_item("budget", budget)?;
            "OverBudgetError"
        }
        Error::OverCap { needed, taken, cap } => {
            fields.set_item("needed", needed)?;
            fields.set_item("available", cap.saturating_sub(*taken))?;
            fields.set_item("budget", cap)?;
            "OverBudgetError"
        }
        Error::OverPart { needed, budget } => {
            fields.set_item("needed", needed)?;
            fields.set_item("available", budget)?;
            fields.set_item("budget", budget)?;
            "OverBudgetError"
        }
        Error::Format(error) => describe_format(error, fields)?,
        Error::Line {
            object,
            line,
            column,
            reason,
        } => {
            fields.set_item("object", object)?;
            fields.set_item("line", line)?;
            fields.set_item("column", column)?;
            fields.set_item("reason", reason)?;
            "BadLineError"
        }
        Error::Store(error) => describe_store(error, fields)?,
        Error::Device { object, source } => {
            fields.set_item("object", object)?;
            fields.set_item("errno", source.raw_os_error().or_else(|| number(source)))?;
            "DeviceError"
        }
        Error::NotFinite {
            object,
            row,
            column,
        } => {
            fields.set_item("object", object)?;
            fields.set_item("row", row)?;
            fields.set_item("column", column)?;
            "NotFiniteError"
        }
        Error::Blas { .. } => "BlasError",
        Error::NoMemory { bytes, .. } => {
            fields.set_item("needed", bytes)?;
            "NoMemoryError"
        }
        Error::Lent { .. } => "LentError",
        Error::Rank { rank, source } => {
            fields.set_item("rank", rank)?;
            describe(source, fields)?
        }
        Error::Cancelled => "CancelledError",
        Error::Closed => "ClosedError",
        _ => "FailedError",
    })
}

fn describe_format(error: &FormatError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        FormatError::Corrupt { object, offset, .. } => {
            fields.set_item("object", object)?;
            fields.set_item("offset", offset)?;
            "CorruptError"
        }
        FormatError::Unsupported { object, .. } => {
            fields.set_item("object", object)?;
            "UnsupportedError"
        }
        FormatError::Truncated {
            object,
            expected,
            actual,
        } => {
            fields.set_item("object", object)?;
            fields.set_item("expected", expected)?;
            fields.set_item("actual", actual)?;
            "TruncatedError"
        }
    })
}

fn describe_store(error: &StoreError, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let (object, class) = match error {
        StoreError::Name { name, .. } => (name, "ObjectNameError"),
        StoreError::Missing { object } => (object, "MissingError"),
        StoreError::NotAFile { object, .. } => (object, "NotAFileError"),
        StoreError::NotAFolder { object } => (object, "NotAFolderError"),
        StoreError::Denied { object, .. } => (object, "DeniedError"),
        StoreError::ReadOnly { object, .. } => (object, "ReadOnlyError"),
        StoreError::NoSpace {
            object,
            needed,
            free,
        } => {
            fields.set_item("needed", needed)?;
            fields.set_item("free", free)?;
            (object, "NoSpaceError")
        }
        StoreError::Full {
            object,
            needed,
            free,
            ..
        } => {
            fields.set_item("needed", needed)?;
            fields.set_item("free", free)?;
            (object, "NoSpaceError")
        }
        StoreError::TooLarge {
            object,
            needed,
            limit,
        } => {
            fields.set_item("needed", needed)?;
            fields.set_item("limit", limit)?;
            (object, "FileTooLargeError")
        }
        StoreError::Corrupt { object, offset, .. } => {
            fields.set_item("offset", offset)?;
            (object, "CorruptError")
        }
        StoreError::Unformatted { object, .. } => (object, "UnsupportedError"),
        StoreError::Locked { object } => (object, "LockedError"),
        StoreError::Unfinished { object } => (object, "InterruptedWriteError"),
        StoreError::Exists { object } | StoreError::Foreign { object, .. } => {
            (object, "ExistsError")
        }
        StoreError::NotAStream { object } => (object, "NotAFileError"),
        StoreError::Interrupted { object } => (object, "InterruptedWriteError"),
        StoreError::TmpfsScratch { folder } => (folder, "TmpfsScratchError"),
        StoreError::Io { object, source, .. } => {
            fields.set_item("errno", source.raw_os_error())?;
            (object, "FileError")
        }
        _ => return Ok("FailedError"),
    };
    fields.set_item("object", object)?;
    Ok(class)
}

/// The error of an argument that cannot be.
pub(crate) fn argument(what: impl Into<String>) -> PyErr {
    to_python(Error::Value { what: what.into() })
}

/// The error number for kinds of errors that a caller distinguishes.
fn number(error: &std::io::Error) -> Option<i32> {
    use std::io::ErrorKind;
    Some(match error.kind() {
        ErrorKind::NotFound => 2,
        ErrorKind::PermissionDenied => 13,
        ErrorKind::FileTooLarge => 27,
        ErrorKind::StorageFull => 28,
        ErrorKind::ReadOnlyFilesystem => 30,
        ErrorKind::QuotaExceeded => 122,
        _ => return None,
    })
}
