//! The packed table: one file of pages. Pure.
//!
//! Rows never straddle a page, so that a row is one read, and each page has a checksum of its own.
//!
//! ```text
//!   byte 0                 4096             4096 + page_bytes
//!   | header              | page 0           | page 1 ...   | pages of replicas | placement, where there is one |
//!
//!   header     "outcore table\n" | 2 zeros | length of the JSON, u32 | JSON | zeros | CRC-32C of all before it, u32
//!   page       row | row | ... | zeros | CRC-32C of all before it, u32
//!   row        its elements, as its encoding has them | its state for training (`state_bytes`)
//!   placement  slot of each row, u32 | row in each slot of the pages of replicas, u32 | CRC-32C of them, u32
//! ```
//!
//! All numbers are little-endian. Row r lies in slot r, or where the placement says; slot s lies in page
//! s / rows_a_page. Pages of replicas, of a table with a placement, have rows once more.

use outcore_core::FormatError;
use outcore_core::format::corrupt;
use outcore_kernels::embedding::RowEncoding;
use serde::{Deserialize, Serialize};

use crate::placement::Slots;

/// Bytes of the header, and what pages are multiples of.
pub(crate) const PAGE_BYTES: usize = 4096;
const MAGIC: &[u8; 16] = b"outcore table\n\0\0";
const SUM_BYTES: usize = 4;
const VERSION: u32 = 1;
/// Numbers of a placement that are written at once.
const PART_LEN: usize = 1 << 14;
/// In a slot of a page of replicas that has none.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    version: u32,
    pub(crate) rows: u64,
    pub(crate) dim: usize,
    encoding: String,
    #[serde(default)]
    pub(crate) state_bytes: usize,
    pub(crate) page_bytes: usize,
    pub(crate) rows_a_page: u64,
    pub(crate) has_placement: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) replica_pages: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Where rows are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableLayout {
    pub(crate) header: Header,
    pub(crate) encoding: RowEncoding,
    /// Bytes of a row without its state.
    pub(crate) row_bytes: usize,
}

/// CRC-32C, as iSCSI has it.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl TableLayout {
    /// A layout for rows of `dim` elements; `None` for an encoding that cannot have that many.
    pub(crate) fn new(
        rows: u64,
        dim: usize,
        encoding: RowEncoding,
        state_bytes: usize,
        has_placement: bool,
    ) -> Option<TableLayout> {
        let row_bytes = encoding.row_bytes(dim)?;
        let record = row_bytes.checked_add(state_bytes)?;
        let page_bytes = record
            .checked_add(SUM_BYTES)?
            .checked_next_multiple_of(PAGE_BYTES)?;
        let rows_a_page = ((page_bytes - SUM_BYTES) / record.max(1)) as u64;
        let header = Header {
            version: VERSION,
            rows,
            dim,
            encoding: encoding.to_string(),
            state_bytes,
            page_bytes,
            rows_a_page,
            has_placement,
            replica_pages: 0,
        };
        let layout = TableLayout {
            header,
            encoding,
            row_bytes,
        };
        layout.checked_file_bytes().map(|_| layout)
    }

    /// With as many pages of replicas; `None` without a placement, and for more slots than 32 bits number.
    pub(crate) fn with_replicas(mut self, pages: u64) -> Option<TableLayout> {
        self.header.replica_pages = pages;
        let all = self.pages().checked_add(pages)?;
        let slots = all.checked_mul(self.header.rows_a_page)?;
        let is_possible = self.header.has_placement
            && slots < u64::from(NO_ROW)
            && self.checked_file_bytes().is_some();
        (pages == 0 || is_possible).then_some(self)
    }

    /// Bytes of a row with its state.
    pub(crate) fn record_bytes(&self) -> usize {
        self.row_bytes + self.header.state_bytes
    }

    /// Pages that have every row once; those of replicas follow them.
    pub(crate) fn pages(&self) -> u64 {
        self.header.rows.div_ceil(self.header.rows_a_page)
    }

    /// The first slot of the pages of replicas, and how many they have.
    pub(crate) fn replica_slots(&self) -> (u64, u64) {
        let Header {
            rows_a_page,
            replica_pages,
            ..
        } = self.header;
        (self.pages() * rows_a_page, replica_pages * rows_a_page)
    }

    /// Where a page begins.
    pub(crate) fn page_offset(&self, page: u64) -> u64 {
        PAGE_BYTES as u64 + page * self.header.page_bytes as u64
    }

    /// Where the placement begins, and its bytes.
    pub(crate) fn placement(&self) -> (u64, u64) {
        let bytes = match self.header.has_placement {
            true => (self.header.rows + self.replica_slots().1) * 4 + SUM_BYTES as u64,
            false => 0,
        };
        let pages = self.pages() + self.header.replica_pages;
        (self.page_offset(pages), bytes)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        let (offset, bytes) = self.placement();
        offset + bytes
    }

    fn checked_file_bytes(&self) -> Option<u64> {
        let pages = self.pages().checked_add(self.header.replica_pages)?;
        let slots = (self.header.replica_pages).checked_mul(self.header.rows_a_page)?;
        let numbers = self.header.rows.checked_add(slots)?.checked_mul(4)?;
        let bytes = pages.checked_mul(self.header.page_bytes as u64)?;
        bytes
            .checked_add(numbers)?
            .checked_add(2 * PAGE_BYTES as u64)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
    }

    /// Page and place in it, bytes, of a slot.
    pub(crate) fn find(&self, slot: u64) -> (u64, usize) {
        let (page, number) = (
            slot / self.header.rows_a_page,
            slot % self.header.rows_a_page,
        );
        (page, number as usize * self.record_bytes())
    }

    /// The header's page.
    pub(crate) fn header_page(&self) -> Vec<u8> {
        let json = serde_json::to_vec(&self.header).expect("numbers and names have no way to fail");
        let mut page = vec![0; PAGE_BYTES];
        page[..16].copy_from_slice(MAGIC);
        page[16..20].copy_from_slice(&(json.len() as u32).to_le_bytes());
        page[20..20 + json.len()].copy_from_slice(&json);
        seal(&mut page);
        page
    }

    /// What a header's page says of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// [`FormatError`], for what is damaged, truncated or of another version.
    pub(crate) fn parse(
        object: &str,
        page: &[u8],
        file_bytes: u64,
    ) -> Result<TableLayout, FormatError> {
        let wrong = |offset, reason: &str| {
            corrupt(object, offset, format!("the header of a table: {reason}"))
        };
        if page.len() < PAGE_BYTES {
            return Err(wrong(page.len(), "it is cut off"));
        }
        if !is_sound(&page[..PAGE_BYTES]) {
            return Err(wrong(0, "its checksum does not match"));
        }
        let len = u32::from_le_bytes(page[16..20].try_into().expect("four bytes")) as usize;
        let json = page[20..PAGE_BYTES - SUM_BYTES]
            .get(..len)
            .ok_or_else(|| wrong(16, "it is longer than a page"))?;
        let header: Header =
            serde_json::from_slice(json).map_err(|error| wrong(20, &error.to_string()))?;
        let layout = TableLayout::of(object, header)?;
        match layout.file_bytes() <= file_bytes {
            true => Ok(layout),
            false => Err(FormatError::Truncated {
                object: object.to_owned(),
                expected: layout.file_bytes(),
                actual: file_bytes,
            }),
        }
    }

    /// The layout that a header describes.
    ///
    /// # Errors
    /// As [`parse`](TableLayout::parse).
    pub(crate) fn of(object: &str, header: Header) -> Result<TableLayout, FormatError> {
        let wrong = |reason: &str| corrupt(object, 20, format!("the header of a table: {reason}"));
        if header.version != VERSION {
            return Err(FormatError::Unsupported {
                object: object.to_owned(),
                reason: format!(
                    "a table of version {}, where {VERSION} is known",
                    header.version
                ),
            });
        }
        let encoding: RowEncoding = header
            .encoding
            .parse()
            .map_err(|_| wrong(&format!("rows of '{}'", header.encoding)))?;
        TableLayout::new(
            header.rows,
            header.dim,
            encoding,
            header.state_bytes,
            header.has_placement,
        )
        .and_then(|layout| layout.with_replicas(header.replica_pages))
        .filter(|layout| layout.header == header)
        .ok_or_else(|| wrong("its numbers contradict each other"))
    }
}

/// Whether a file begins as a packed table.
pub(crate) fn is_packed(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Puts the checksum at the end of a page.
pub(crate) fn seal(page: &mut [u8]) {
    let (bytes, sum) = page.split_at_mut(page.len() - SUM_BYTES);
    sum.copy_from_slice(&checksum(bytes).to_le_bytes());
}

/// Whether the checksum at the end of a page is that of its bytes.
pub(crate) fn is_sound(page: &[u8]) -> bool {
    let (bytes, sum) = page.split_at(page.len() - SUM_BYTES);
    sum == checksum(bytes).to_le_bytes()
}

/// The bytes of a placement, part by part: the slot of each row, and the row in each slot of the pages of replicas.
pub(crate) fn placement_parts<'a>(
    slots: &'a [u32],
    replicas: &'a [u32],
) -> impl Iterator<Item = Vec<u8>> + 'a {
    let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let numbers = slots.chunks(PART_LEN).chain(replicas.chunks(PART_LEN));
    let mut parts = numbers.map(Some).chain([None]);
    std::iter::from_fn(move || {
        Some(match parts.next()? {
            Some(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                sum.update(&bytes);
                bytes
            }
            None => (sum.finalize() as u32).to_le_bytes().to_vec(),
        })
    })
}

/// Where rows lie, from the bytes of a placement.
///
/// # Errors
/// [`FormatError::Corrupt`] where the slots are no permutation, or rows are not there.
pub(crate) fn parse_placement(
    object: &str,
    bytes: &[u8],
    layout: &TableLayout,
) -> Result<Slots, FormatError> {
    let (offset, _) = layout.placement();
    let wrong = |reason: &str| {
        corrupt(
            object,
            offset as usize,
            format!("the placement of rows: {reason}"),
        )
    };
    if !is_sound(bytes) {
        return Err(wrong("its checksum does not match"));
    }
    let (rows, content) = (layout.header.rows, &bytes[..bytes.len() - SUM_BYTES]);
    let (slots, replicas) = content.split_at(rows as usize * 4);
    let slots: Vec<u32> = numbers(slots).collect();
    if !is_permutation(slots.iter().map(|&slot| u64::from(slot)), rows as usize) {
        return Err(wrong("two rows share a slot"));
    }
    if let Some(row) = numbers(replicas).find(|&row| row != NO_ROW && u64::from(row) >= rows) {
        return Err(wrong(&format!("a replica of row {row} of {rows}")));
    }
    let (first, _) = layout.replica_slots();
    let replicas = numbers(replicas)
        .zip(first as u32..)
        .filter(|(row, _)| *row != NO_ROW);
    Ok(Slots::new(layout.header.rows_a_page as u32, slots).with_replicas(replicas))
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().copied().map(u32::from_le_bytes)
}

/// Whether these are all numbers below `count`, each once.
pub(crate) fn is_permutation(numbers: impl ExactSizeIterator<Item = u64>, count: usize) -> bool {
    let mut seen = vec![false; count];
    let mut is_new = |number: u64| {
        usize::try_from(number)
            .ok()
            .and_then(|number| seen.get_mut(number))
            .is_some_and(|seen| !std::mem::replace(seen, true))
    };
    numbers.len() == count && { numbers }.all(&mut is_new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(rows: u64, dim: usize) -> TableLayout {
        TableLayout::new(rows, dim, RowEncoding::F32, 0, false).unwrap()
    }

    #[test]
    fn rows_never_straddle_a_page() {
        for dim in [1, 7, 32, 64, 1023, 1024, 3000] {
            let layout = layout(100, dim);
            let row = 4 * dim;
            for slot in 0..100 {
                let (page, at) = layout.find(slot);
                assert!(
                    page < layout.pages() && at + row + SUM_BYTES <= layout.header.page_bytes,
                    "{dim} {slot}"
                );
            }
            assert_eq!(layout.file_bytes(), layout.page_offset(layout.pages()));
        }
        assert_eq!(layout(100, 32).header.rows_a_page, 31);
        assert_eq!(layout(100, 1023).header.page_bytes, 4096);
        assert_eq!(layout(100, 1024).header.page_bytes, 8192);
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let layout = layout(1000, 64);
        let page = layout.header_page();
        assert!(is_packed(&page));
        assert_eq!(
            TableLayout::parse("t", &page, layout.file_bytes()).unwrap(),
            layout
        );
        assert!(matches!(
            TableLayout::parse("t", &page, layout.file_bytes() - 1),
            Err(FormatError::Truncated { .. })
        ));
        assert!(TableLayout::parse("t", &page[..100], 1 << 20).is_err());
        for byte in 0..page.len() {
            let mut damaged = page.clone();
            damaged[byte] ^= 16;
            assert!(
                TableLayout::parse("t", &damaged, 1 << 30).is_err(),
                "byte {byte}"
            );
        }
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let good = layout(1000, 64);
        let change = |change: &dyn Fn(&mut Header)| {
            let mut bad = good.clone();
            change(&mut bad.header);
            TableLayout::parse("t", &bad.header_page(), 1 << 40).is_ok()
        };
        assert!(change(&|_| ()));
        assert!(!change(&|header| header.rows_a_page = 0));
        assert!(!change(&|header| header.rows = u64::MAX));
        assert!(!change(&|header| header.dim = usize::MAX));
        assert!(!change(&|header| header.page_bytes = 0));
        assert!(!change(&|header| header.encoding = "int3".into()));
        assert!(!change(&|header| header.version = 2));
        assert!(!change(&|header| header.state_bytes = usize::MAX));
    }

    #[test]
    fn a_placement_is_a_permutation() {
        let layout = TableLayout::new(3, 500, RowEncoding::F32, 0, true).unwrap();
        let bytes = |slots: &[u32]| placement_parts(slots, &[]).flatten().collect::<Vec<u8>>();
        let parsed = |slots: &[u32]| parse_placement("t", &bytes(slots), &layout);
        assert_eq!(parsed(&[2, 0, 1]).unwrap().of_rows, [2, 0, 1]);
        for bad in [&[0, 0, 1][..], &[0, 1, 3]] {
            assert!(parsed(bad).is_err());
        }
        let mut damaged = bytes(&[2, 0, 1]);
        damaged[0] = 1;
        assert!(parse_placement("t", &damaged, &layout).is_err());
    }

    #[test]
    fn replicas_are_in_pages_after_those_of_all_rows() {
        let layout = TableLayout::new(3, 500, RowEncoding::F32, 0, true).unwrap();
        assert_eq!((layout.header.rows_a_page, layout.pages()), (2, 2));
        let plain = layout.clone().with_replicas(0).unwrap();
        assert_eq!(plain, layout);
        let layout = layout.with_replicas(2).unwrap();
        let (offset, bytes) = layout.placement();
        assert_eq!((offset, bytes), (4096 * 5, 4 * (3 + 4) + SUM_BYTES as u64));
        let found = TableLayout::parse("t", &layout.header_page(), layout.file_bytes()).unwrap();
        assert_eq!(found, layout);
        assert!(TableLayout::parse("t", &layout.header_page(), layout.file_bytes() - 1).is_err());

        let parsed = |replicas: &[u32]| {
            let bytes: Vec<u8> = placement_parts(&[2, 0, 1], replicas).flatten().collect();
            parse_placement("t", &bytes, &layout)
        };
        let slots = [(2, 4), (0, 5), (0, 6)].into_iter();
        let expected = Slots::new(2, vec![2, 0, 1]).with_replicas(slots);
        assert_eq!(parsed(&[2, 0, 0, NO_ROW]).unwrap(), expected);
        assert!(parsed(&[2, 0, 3, NO_ROW]).is_err());

        let without = TableLayout::new(3, 500, RowEncoding::F32, 0, false).unwrap();
        assert!(without.with_replicas(1).is_none());
        for pages in [u64::MAX, u64::MAX / 4096, 1 << 31] {
            assert!(plain.clone().with_replicas(pages).is_none(), "{pages}");
            let mut bad = layout.clone();
            bad.header.replica_pages = pages;
            assert!(TableLayout::parse("t", &bad.header_page(), i64::MAX as u64).is_err());
        }
    }
}
