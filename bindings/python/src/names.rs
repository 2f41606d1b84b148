//! Names of types and orders, as Python gives them.

use outcore::{DType, Error, Order};
use pyo3::prelude::*;

use crate::error::to_python;

pub(crate) fn type_of(name: &str) -> PyResult<DType> {
    match name {
        "float32" => Ok(DType::F32),
        "float64" => Ok(DType::F64),
        _ => Err(to_python(Error::DType {
            what: format!("dtype {name} is neither float32 nor float64"),
        })),
    }
}

pub(crate) fn order_of(name: &str) -> PyResult<Order> {
    match name {
        "C" => Ok(Order::Row),
        "F" => Ok(Order::Column),
        _ => Err(to_python(Error::Value {
            what: format!("order must be 'C' (rows) or 'F' (columns), not {name:?}"),
        })),
    }
}
