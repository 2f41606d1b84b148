//! Errors of look-ups, by table and row.

use outcore_core::{Error, FormatError};

/// What kept a row from being read, with its table and number.
pub(crate) fn of_row(table: &str, row: u64, error: &Error) -> Error {
    let what = format!("row {row} of {table}");
    match (error, error.again()) {
        (_, Error::Device { object, source }) => Error::Device {
            object: match object.is_empty() || table.contains(&object) {
                true => what,
                false => format!("{what}, in {object}"),
            },
            source,
        },
        (
            Error::Format(FormatError::Corrupt {
                object,
                offset,
                reason,
            }),
            _,
        ) => Error::Format(FormatError::Corrupt {
            object: object.clone(),
            offset: *offset,
            reason: format!("{reason}, which {what} needs"),
        }),
        (other, _) => Error::Failed {
            what: format!("{what}: {other}"),
        },
    }
}
