//! What parsers of foreign formats say, as errors of the library.

use crate::error::Error;
use crate::format::FormatError;

impl From<outcore_formats::Error> for Error {
    fn from(error: outcore_formats::Error) -> Error {
        use outcore_formats::Error as Foreign;
        let reason_of_counts = |what: &str, expected, seen, more| {
            format!(
                "the header says {expected} {what}, the file has {}{seen}",
                if more { "at least " } else { "" }
            )
        };
        match error {
            Foreign::Line {
                object,
                line,
                column,
                reason,
            } => Error::Line {
                object,
                line,
                column,
                reason,
            },
            Foreign::Entry {
                object,
                entry,
                reason,
            } => FormatError::Corrupt {
                object,
                offset: 0,
                reason: format!("entry {entry}: {reason}"),
            }
            .into(),
            Foreign::Corrupt {
                object,
                offset,
                reason,
            } => FormatError::Corrupt {
                object,
                offset,
                reason,
            }
            .into(),
            Foreign::Counts {
                object,
                what,
                expected,
                seen,
                more,
            } => FormatError::Corrupt {
                object,
                offset: 0,
                reason: reason_of_counts(what, expected, seen, more),
            }
            .into(),
            Foreign::Room {
                object,
                what,
                expected,
                text_bytes,
                most,
            } => {
                let reason = format!(
                    "the header says {expected} {what}, but {text_bytes} bytes of text have room for {most} at most"
                );
                FormatError::Corrupt {
                    object,
                    offset: 0,
                    reason,
                }
                .into()
            }
            Foreign::Unsupported { object, reason } => {
                FormatError::Unsupported { object, reason }.into()
            }
            // What stands behind the reader has its own errors, which pass through unchanged.
            Foreign::Io { object, source } => match source.downcast::<Error>() {
                Ok(own) => own,
                Err(source) => Error::of_io(object, source),
            },
            other => Error::Failed {
                what: other.to_string(),
            },
        }
    }
}
