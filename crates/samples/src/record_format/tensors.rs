//! What the tensors of a safetensors file are as fields. Pure.

use std::borrow::Cow;

use outcore_core::format::safetensors::{self, Tensor};

use super::{Fault, Found, cast_to, shown, with_extents};
use crate::schema::{Field, Kind, item_bytes};

/// The only field.
pub(crate) const FIELD: &str = "tensor";

/// NumPy's type for one of safetensors'.
fn numpy(dtype: &str) -> Option<&'static str> {
    let descr = safetensors::dtype(dtype)?.descr();
    item_bytes(descr).map(|_| descr)
}

/// The tensors of a header, in the order of their bytes, which begin at some byte of the file.
pub(crate) fn parse(header: &[u8], start: u64) -> Found<Vec<Tensor>> {
    safetensors::parse(header, start).map_err(|why| Fault::damaged(8, format!("its header: {why}")))
}

const AS_BYTES: &str = "fields={'tensor': 'bytes'} takes them as they are";

/// A tensor as the field; in place, a number has to lie there as it is.
pub(crate) fn value<'a>(
    tensor: &Tensor,
    field: &Field,
    bytes: &'a [u8],
    in_place: bool,
) -> Found<Cow<'a, [u8]>> {
    if field.name != FIELD {
        return Err(Fault::Unfit(format!(
            "it has no {:?}: the only field of tensors is 'tensor'",
            field.name
        )));
    }
    let Kind::Array { dtype, shape } = &field.kind else {
        return Ok(Cow::Borrowed(bytes));
    };
    let from = numpy(&tensor.dtype).ok_or_else(|| {
        Fault::Unsupported(format!(
            "it has dtype {}, which NumPy does not have; {AS_BYTES}",
            tensor.dtype
        ))
    })?;
    if in_place && from != dtype {
        return Err(Fault::Unfit(format!(
            "it has dtype {}, where every sample has {}; pack converts it",
            tensor.dtype, field.kind
        )));
    }
    if in_place && shape.iter().filter(|extent| extent.is_none()).count() > 1 {
        return Err(Fault::Unfit(format!(
            "in place it has more than one extent that varies; pack it, or {AS_BYTES}"
        )));
    }
    let value = cast_to(field, from, Cow::Borrowed(bytes))
        .and_then(|numbers| with_extents(field, &tensor.shape, numbers));
    value.map_err(|fault| fault.within(0, "it"))
}

/// What all tensors have in common, seen one after the other.
#[derive(Default)]
pub(crate) struct Common {
    /// Name and dtype of the first, and its shape, of which what others have otherwise varies.
    first: Option<(String, String, Vec<Option<u64>>)>,
}

impl Common {
    pub(crate) fn add(&mut self, tensor: &Tensor) -> Found<()> {
        let Tensor {
            name, dtype, shape, ..
        } = tensor;
        let Some((first, known, extents)) = &mut self.first else {
            self.first = Some((
                name.clone(),
                dtype.clone(),
                shape.iter().copied().map(Some).collect(),
            ));
            return Ok(());
        };
        if known != dtype || extents.len() != shape.len() {
            return Err(Fault::Unfit(format!(
                "tensors of one dtype and as many axes are samples with a field: {} is {known} of {} axes, {} is {dtype} of {} axes; \
                 {AS_BYTES}",
                shown(first.as_bytes()),
                extents.len(),
                shown(name.as_bytes()),
                shape.len(),
            )));
        }
        extents
            .iter_mut()
            .zip(shape)
            .filter(|(known, have)| **known != Some(**have))
            .for_each(|(known, _)| *known = None);
        Ok(())
    }

    /// The field that they are, if there are any.
    pub(crate) fn field(self, in_place: bool) -> Found<Option<Field>> {
        let Some((name, dtype, shape)) = self.first else {
            return Ok(None);
        };
        let known = numpy(&dtype).ok_or_else(|| {
            Fault::Unfit(format!(
                "{} has dtype {dtype}, which NumPy does not have; {AS_BYTES}",
                shown(name.as_bytes())
            ))
        })?;
        if in_place && shape.iter().filter(|extent| extent.is_none()).count() > 1 {
            return Err(Fault::Unfit(format!(
                "more than one axis of the tensors varies; pack them, or {AS_BYTES}"
            )));
        }
        Ok(Some(Field {
            name: FIELD.into(),
            kind: Kind::Array {
                dtype: known.into(),
                shape,
            },
        }))
    }
}
