//! Names of types and orders, as Python gives them.

use outcore::{DType, Error, Order, RealType};
use pyo3::prelude::*;

use crate::error::to_python;

pub(crate) fn type_of(name: &str) -> PyResult<DType> {
    name.parse()
        .map_err(|what| to_python(Error::DType { what }))
}

/// A type that is computed with as it is.
pub(crate) fn real_of(name: &str) -> PyResult<RealType> {
    RealType::try_from(type_of(name)?).map_err(|what| to_python(Error::DType { what }))
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
