//! Errors of look-ups, by table and row.

use outcore_core::Error;

/// What kept a row from being read, with its table and number.
pub(crate) fn of_row(table: &str, row: u64, error: &Error) -> Error {
    let what = format!("row {row} of {table}: {error}");
    match error {
        Error::Device { source, .. } => {
            let source = match source.raw_os_error() {
                Some(number) => std::io::Error::from_raw_os_error(number),
                None => std::io::Error::new(source.kind(), source.to_string()),
            };
            Error::Device {
                object: format!("row {row} of {table}"),
                source,
            }
        }
        Error::Format(outcore_core::FormatError::Corrupt {
            object,
            offset,
            reason,
        }) => outcore_core::format::corrupt(
            object,
            *offset as usize,
            format!("{reason}, which row {row} of {table} needs"),
        )
        .into(),
        _ => Error::Failed { what },
    }
}
