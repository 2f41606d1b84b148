//! Members of tar archives: what headers say, and which sample a member belongs to. Pure.
//!
//! ```text
//!   header   name 100 | mode, owner, group 24 | size 12 | time 12 | checksum 8 | type 1 | link 100 | "ustar" 6 | .. | prefix 155 | ..
//!   type     0, NUL, 7 a file; 1, 2 a link; 3 to 6 devices, folders, pipes; x what is told of the next member (pax); g of all behind it;
//!            L its name, K what it links to (GNU); S a file with holes, whose places lie in blocks of their own behind the header
//! ```
//!
//! Sources: POSIX.1-2017, pax; the GNU tar manual, "Basic Tar Format" and "Storing Sparse Files".
//!
//! Headers are read the same way in order, where only some of the archive is in memory, and in the
//! bytes of a sample ([`Feed`]). Samples are WebDataset's: the key is a name up to the first dot
//! behind its folders, the field what is behind that dot, in lower case. Names without a dot, or
//! that begin with one, and `__meta__` are of no sample. Files with holes and links are refused
//! where they are wanted: their bytes are not in the member.

use std::borrow::Cow;
use std::ops::Range;

use super::{Fault, Found, numbers, quoted, shown};
use crate::schema::{Field, Kind};

pub(crate) const BLOCK: u64 = 512;
/// What extended headers may have; longer ones are more likely damage.
const EXTENDED_MOST: u64 = 16 << 20;
const MAGIC: Range<usize> = 257..262;

/// Where headers and members come from, one behind the other.
pub(crate) trait Feed {
    type Error;

    /// The next header, behind the padding of the last member; none at the end.
    fn block(&mut self) -> Result<Option<Range<usize>>, Self::Error>;

    /// The bytes behind, of something.
    fn take(&mut self, bytes: u64, what: &dyn Fn() -> String) -> Result<Range<usize>, Self::Error>;

    /// Bytes that were taken.
    fn get(&self, range: Range<usize>) -> &[u8];

    /// Which byte is next.
    fn at(&self) -> u64;

    fn fail(&self, fault: Fault) -> Self::Error;
}

/// What is told of a member.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) name: Vec<u8>,
    pub(crate) what: What,
    /// That follow, without their padding.
    pub(crate) bytes: u64,
    /// Where it begins, with what is told of it before, in memory and in the archive.
    pub(crate) begin: usize,
    pub(crate) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    File,
    /// Something that looks like a file, but has its bytes in another way: words about it.
    NoFile(&'static str),
    /// A folder, or the like.
    Other,
}

/// What headers before that of a member tell of it.
#[derive(Default)]
struct Told {
    name: Option<Vec<u8>>,
    sparse_name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

/// The header of the next member, and all that is told of it; its bytes are still to be taken. None
/// at the end.
pub(crate) fn next_header<F: Feed>(feed: &mut F) -> Result<Option<Header>, F::Error> {
    let (mut told, mut first) = (Told::default(), None);
    loop {
        let Some(block) = feed.block()? else {
            return match first {
                None => Ok(None),
                Some((_, at)) => Err(feed.fail(Fault::damaged(
                    at,
                    "a header that tells of a member which does not come",
                ))),
            };
        };
        let at = feed.at() - BLOCK;
        let (begin, begin_at) = *first.get_or_insert((block.start, at));
        let raw = feed.get(block.clone());
        if !is_header(raw) {
            return Err(feed.fail(Fault::damaged(at, "a header whose checksum differs")));
        }
        let kind = raw[156];
        if !matches!(kind, b'L' | b'K' | b'x' | b'X' | b'g') {
            let header = header_of(raw, told).map_err(|why| feed.fail(Fault::damaged(at, why)))?;
            let mut more = kind == b'S' && raw[482] != 0;
            while more {
                let places = feed.take(BLOCK, &|| {
                    format!("the places of holes of {}", shown(&header.name))
                })?;
                more = feed.get(places)[504] != 0;
            }
            return Ok(Some(Header {
                begin,
                at: begin_at,
                ..header
            }));
        }
        let size = number(&raw[124..136]).filter(|&size| size <= EXTENDED_MOST);
        let Some(size) = size else {
            return Err(feed.fail(Fault::damaged(
                at,
                "an extended header without a length that may be",
            )));
        };
        let data = feed.take(size, &|| "an extended header".into())?;
        let extended = told.extend(kind, feed.get(data));
        extended.map_err(|fault| feed.fail(fault.within(at, "an extended header")))?;
    }
}

/// Whether a block has the checksum of a header. Some programs have summed signed bytes.
pub(crate) fn is_header(block: &[u8]) -> bool {
    const SUM: Range<usize> = 148..156;
    let Some(want) = block
        .get(SUM)
        .and_then(number)
        .filter(|_| block.len() as u64 == BLOCK)
    else {
        return false;
    };
    let spaces = 8 * u64::from(b' ');
    let sum = |block: &[u8]| block.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let high = |block: &[u8]| block.iter().filter(|&&byte| byte >= 0x80).count() as u64;
    let unsigned = sum(block) - sum(&block[SUM]) + spaces;
    want == unsigned || want.checked_add(256 * (high(block) - high(&block[SUM]))) == Some(unsigned)
}

/// Whether a block says that it is one of a tar archive.
pub(crate) fn has_magic(block: &[u8]) -> bool {
    block.get(MAGIC) == Some(b"ustar")
}

fn header_of(raw: &[u8], told: Told) -> Result<Header, String> {
    let kind = raw[156];
    let name = told
        .sparse_name
        .or(told.name)
        .unwrap_or_else(|| name_of(raw));
    let is_folder = kind == 0 && name.ends_with(b"/");
    let what = match kind {
        _ if is_folder => What::Other,
        b'0' | 0 | b'7' if told.sparse => {
            What::NoFile("is a sparse file, whose holes are told of beside its bytes")
        }
        b'0' | 0 | b'7' => What::File,
        b'S' => What::NoFile("is a sparse file, whose holes are told of beside its bytes"),
        b'1' => What::NoFile("is a hard link, which has its bytes in another member"),
        b'2' => What::NoFile("is a symbolic link, which has its bytes elsewhere"),
        b'M' => What::NoFile("is the end of a member of another volume"),
        _ => What::Other,
    };
    let has_bytes = !is_folder && !matches!(kind, b'1'..=b'6');
    let bytes = match told.size {
        _ if !has_bytes => 0,
        Some(size) => size,
        None => number(&raw[124..136]).ok_or_else(|| format!("{} has no size", shown(&name)))?,
    };
    Ok(Header {
        name,
        what,
        bytes,
        begin: 0,
        at: 0,
    })
}

/// Only POSIX has a prefix where GNU has times.
fn name_of(raw: &[u8]) -> Vec<u8> {
    let (name, prefix) = (until_zero(&raw[..100]), until_zero(&raw[345..500]));
    match &raw[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number in a header: octal digits, or where the highest bit is set, bytes.
fn number(text: &[u8]) -> Option<u64> {
    if text[0] & 0x80 != 0 {
        let (high, low) = text.split_at(text.len() - 8);
        let fits = match high {
            [] => false,
            [first, rest @ ..] => first & 0x7f == 0 && rest.iter().all(|&byte| byte == 0),
        };
        return fits.then(|| u64::from_be_bytes(low.try_into().expect("eight bytes")));
    }
    let digits = until_zero(text).trim_ascii();
    digits.iter().try_fold(0u64, |number, &digit| match digit {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

impl Told {
    fn extend(&mut self, kind: u8, data: &[u8]) -> Found<()> {
        match kind {
            b'L' => self.name = Some(until_zero(data).to_vec()),
            b'K' => {}
            _ => return self.records(kind == b'g', data),
        }
        Ok(())
    }

    /// Lines of length, key and value.
    fn records(&mut self, of_all: bool, data: &[u8]) -> Found<()> {
        let wrong = |rest: &[u8]| {
            Fault::damaged(
                0,
                format!("of no lines, {} bytes before its end", rest.len()),
            )
        };
        let mut rest = data;
        while !rest.is_empty() {
            let space = rest
                .iter()
                .position(|&byte| byte == b' ')
                .ok_or_else(|| wrong(rest))?;
            let len: usize = std::str::from_utf8(&rest[..space])
                .ok()
                .and_then(|len| len.parse().ok())
                .ok_or_else(|| wrong(rest))?;
            let line = rest
                .get(space + 1..len)
                .and_then(|line| line.strip_suffix(b"\n"))
                .ok_or_else(|| wrong(rest))?;
            let equals = line
                .iter()
                .position(|&byte| byte == b'=')
                .ok_or_else(|| wrong(rest))?;
            let (key, value) = (&line[..equals], &line[equals + 1..]);
            let is_of_one =
                matches!(key, b"path" | b"size" | b"linkpath") || key.starts_with(b"GNU.sparse.");
            if of_all && is_of_one {
                return Err(Fault::Unsupported(format!(
                    "tells {} of all members behind it",
                    shown(key)
                )));
            }
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| {
                        Fault::damaged(0, format!("with a size of {}", shown(value)))
                    })?);
                }
                b"GNU.sparse.name" => {
                    (self.sparse, self.sparse_name) = (true, Some(value.to_vec()))
                }
                b"SCHILY.realsize" => self.sparse = true,
                _ => self.sparse |= key.starts_with(b"GNU.sparse."),
            }
            rest = &rest[len..];
        }
        Ok(())
    }
}

/// Key and field of a member by its name, the field as it is written; none for what is of no
/// sample.
pub(crate) fn key_of(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = name
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |slash| slash + 1);
    let dot = file
        + name[file..]
            .iter()
            .position(|&byte| byte == b'.')
            .filter(|&dot| dot > 0)?;
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    (!field.is_empty() && !is_meta(key)).then_some((key, field))
}

/// Whether the first part of a path is `__something__`.
fn is_meta(key: &[u8]) -> bool {
    let key = key.strip_prefix(b"./").unwrap_or(key);
    let first = key.split(|&byte| byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// The name of a field.
pub(crate) fn field_name(field: &[u8]) -> String {
    String::from_utf8_lossy(field).to_lowercase()
}

/// Which of some names a field is: the one that is written so, else the one in lower case.
pub(crate) fn position<'a>(
    mut names: impl Iterator<Item = &'a str> + Clone,
    field: &[u8],
) -> Option<usize> {
    if let Some(at) = names.clone().position(|name| name.as_bytes() == field) {
        return Some(at);
    }
    if field
        .iter()
        .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
    {
        return None;
    }
    let lower = field_name(field);
    names.position(|name| name == lower)
}

/// The bytes of a sample.
struct Slice<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Feed for Slice<'_> {
    type Error = Fault;

    fn block(&mut self) -> Found<Option<Range<usize>>> {
        // The last member's padding may be missing.
        self.at = self
            .at
            .next_multiple_of(BLOCK as usize)
            .min(self.bytes.len());
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        self.take(BLOCK, &|| "a header".into()).map(Some)
    }

    fn take(&mut self, bytes: u64, what: &dyn Fn() -> String) -> Found<Range<usize>> {
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.at.checked_add(bytes))
            .filter(|&end| end <= self.bytes.len());
        let end =
            end.ok_or_else(|| Fault::damaged(self.at as u64, format!("ends within {}", what())))?;
        let start = std::mem::replace(&mut self.at, end);
        Ok(start..end)
    }

    fn get(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    fn at(&self) -> u64 {
        self.at as u64
    }

    fn fail(&self, fault: Fault) -> Fault {
        fault
    }
}

/// Does something with each member of a sample: what is told of it, its field as it is written, and
/// its bytes.
fn each<'a>(
    sample: &'a [u8],
    mut act: impl FnMut(&Header, &'a [u8], Range<usize>) -> Found<()>,
) -> Found<()> {
    let mut slice = Slice {
        bytes: sample,
        at: 0,
    };
    while let Some(header) = next_header(&mut slice)? {
        let data = slice.take(header.bytes, &|| shown(&header.name))?;
        if header.what != What::Other && key_of(&header.name).is_some() {
            act(&header, &sample[data.clone()], data)?;
        }
    }
    Ok(())
}

fn written(header: &Header) -> &[u8] {
    key_of(&header.name).map_or(&[], |(_, field)| field)
}

/// Refuses members whose bytes are not there.
fn check(header: &Header) -> Found<()> {
    match header.what {
        What::NoFile(why) => Err(Fault::Unsupported(format!(
            "{} {why}; fields= that leave it out pass it over",
            shown(&header.name)
        ))),
        What::File | What::Other => Ok(()),
    }
}

fn twice(header: &Header, field: &str) -> Fault {
    Fault::damaged(
        header.at,
        format!(
            "{}: its field {} comes twice",
            shown(&header.name),
            quoted(field)
        ),
    )
}

/// The fields of a sample, where it has them.
pub(super) fn fields<'a>(sample: &'a [u8], fields: &[Field]) -> Found<Vec<Option<Cow<'a, [u8]>>>> {
    let mut found = vec![None; fields.len()];
    each(sample, |header, data, place| {
        let Some(at) = position(fields.iter().map(|field| &field.name[..]), written(header)) else {
            return Ok(());
        };
        check(header)?;
        if found[at].is_some() {
            return Err(twice(header, &fields[at].name));
        }
        let value = numbers::member(&fields[at], data);
        found[at] =
            Some(value.map_err(|fault| fault.within(place.start as u64, shown(&header.name)))?);
        Ok(())
    })?;
    Ok(found)
}

/// What the members of a sample are by their endings, as WebDataset has them.
pub(super) fn guess(sample: &[u8]) -> Found<Vec<Field>> {
    let mut fields: Vec<Field> = Vec::new();
    each(sample, |header, data, place| {
        check(header)?;
        let name = field_name(written(header));
        if fields.iter().any(|field| field.name == name) {
            return Err(twice(header, &name));
        }
        let kind = match name.rsplit('.').next().unwrap_or_default() {
            "cls" | "cls2" | "index" | "id" => Kind::Array {
                dtype: "<i8".into(),
                shape: Vec::new(),
            },
            "txt" | "text" | "json" | "transcript" => Kind::Text,
            "npy" => numbers::kind_of_npy(data)
                .map_err(|fault| fault.within(place.start as u64, shown(&header.name)))?,
            _ => Kind::Bytes,
        };
        fields.push(Field { name, kind });
        Ok(())
    })?;
    Ok(fields)
}

/// The first field of a sample that is not among some.
pub(super) fn beyond(sample: &[u8], fields: &[Field]) -> Found<Option<String>> {
    let mut found = None;
    each(sample, |header, _, _| {
        if found.is_none()
            && position(fields.iter().map(|field| &field.name[..]), written(header)).is_none()
        {
            found = Some(field_name(written(header)));
        }
        Ok(())
    })?;
    Ok(found)
}
