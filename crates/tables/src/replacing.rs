//! Other tables take the place of those that are served, while look-ups go on.

use std::sync::atomic::Ordering;

use outcore_core::{Error, Result};

use crate::served::Served;
use crate::set::TableSet;
use crate::table::Table;

impl TableSet {
    /// Has look-ups that begin from now on use another table of the same shape under this number; those that
    /// go on finish with the one that they began with. Rows that both versions of one table have alike
    /// stay in memory, and those that are to stay whatever comes are read anew.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
    /// # write_packed(&session, &before, 2, 1, RowEncoding::F32, [[1.0], [2.0]])?;
    /// # write_packed(&session, &after, 2, 1, RowEncoding::F32, [[3.0], [4.0]])?;
    /// let table = Table::open(&session, &[before], &Opening::default())?;
    /// let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// set.replace(0, Table::open(&session, &[after.clone()], &Opening::default())?)?;
    /// assert_eq!(set.table(0).name(), after.to_str().unwrap());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a table of another shape or encoding, [`Error::Value`] for one that is
    /// written.
    pub fn replace(&self, number: usize, table: Table) -> Result<()> {
        self.replace_all(vec![(number, table)])
    }

    /// The same of several tables at once, such as the versions of a commit that
    /// [`open_all`](Table::open_all) opens: a look-up uses all of them or none.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let tables = ["items", "users"].map(|name| (vec![folder.path().join(name)], Opening::default()));
    /// # for (paths, _) in &tables {
    /// #     write_packed(&session, &paths[0], 2, 1, RowEncoding::F32, [[1.0], [2.0]])?;
    /// # }
    /// let set = TableSet::new(&session, Table::open_all(&session, &tables)?, Serving::default())?;
    /// let versions = Table::open_all(&session, &tables)?;
    /// set.replace_all((0..).zip(versions).collect())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`replace`](TableSet::replace); no table is replaced then.
    pub fn replace_all(&self, tables: Vec<(usize, Table)>) -> Result<()> {
        let numbers: Vec<usize> = tables.iter().map(|(number, _)| *number).collect();
        let mut to_stay = Vec::new();
        self.inner.service.replace(tables, check, |before, table| {
            let id = self.inner.ids.fetch_add(1, Ordering::Relaxed);
            let is_same = |row| table.has_same(&before.table, row);
            to_stay.push(before.cache.changed().serve(id, &is_same));
            Served {
                id,
                table,
                ..before.clone()
            }
        })?;
        for (number, rows) in numbers.into_iter().zip(to_stay) {
            // One that cannot be read fails the look-ups that want it.
            let _ = self.keep(number, &rows, &mut || true);
        }
        Ok(())
    }
}

/// # Errors
/// As [`TableSet::replace`].
fn check(old: &Table, new: &Table) -> Result<()> {
    let shape = |table: &Table| {
        (
            table.rows(),
            table.dim(),
            table.encoding(),
            table.record_bytes(),
        )
    };
    if shape(old) != shape(new) {
        return Err(Error::shape(format!(
            "{} of {} x {} {} does not take the place of {} of {} x {} {}",
            new.name(),
            new.rows(),
            new.dim(),
            new.encoding(),
            old.name(),
            old.rows(),
            old.dim(),
            old.encoding()
        )));
    }
    match old.is_written() || new.is_written() {
        true => Err(Error::value(format!(
            "{}: a table that is written is not replaced",
            old.name()
        ))),
        false => Ok(()),
    }
}
