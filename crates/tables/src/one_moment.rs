//! Tables opened as they were at one moment, whatever is committed meanwhile.

use std::path::PathBuf;

use outcore_core::{Error, Result, Session};

use crate::table::{Opening, Table};

/// Each time at least one table had a new version; to make one durable takes longer than to open it.
const TRIES: usize = 100;

impl Table {
    /// Opens tables as they were at one moment: of those that are committed together while this goes on, all
    /// have the versions before a commit or all those after it.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// use outcore_tables::{Opening, RowEncoding, Table, write_packed};
    ///
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// let paths = ["items", "users"].map(|name| folder.path().join(name));
    /// for path in &paths {
    ///     write_packed(&session, path, 2, 1, RowEncoding::F32, [[1.0], [2.0]])?;
    /// }
    /// let tables = Table::open_all(&session, &paths.map(|path| (vec![path], Opening::default())))?;
    /// assert_eq!(tables[1].rows(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Table::open); [`Error::Failed`] where new versions come faster than they are opened.
    pub fn open_all(session: &Session, tables: &[(Vec<PathBuf>, Opening)]) -> Result<Vec<Table>> {
        let mut opened: Vec<Option<Table>> = vec![None; tables.len()];
        for _ in 0..TRIES {
            // Each was the last version when it was opened. Where none has changed once all are open, all were
            // so at one moment.
            let mut is_one_moment = true;
            for (table, (paths, opening)) in opened.iter_mut().zip(tables) {
                let is_last = table.as_ref().map_or(Ok(false), Table::is_last)?;
                if !is_last {
                    is_one_moment = false;
                    // What it holds of the budget is free for the next version.
                    *table = None;
                    *table = Some(Table::open(session, paths, opening)?);
                }
            }
            if is_one_moment {
                return Ok(opened.into_iter().flatten().collect());
            }
        }
        let names: Vec<&str> = opened.iter().flatten().map(Table::name).collect();
        Err(Error::Failed {
            what: format!(
                "{}: new versions are committed faster than all of them are opened",
                names.join(", ")
            ),
        })
    }
}
