//! Numbered words: each word once, in order of first appearance.
//!
//! ```text
//!   text   thequickfox..              words without gaps
//!   ends   3 8 11 ..                  where word i ends
//!   table  hash of a word -> i        4 bytes a word, and 1 of the hash
//! ```
//!
//! About 18 bytes a word besides its text.

use std::io::{self, Read, Write};
use std::mem::size_of;

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

use crate::error::shown;
use crate::{Chunk, Error, Lines, Result};

/// Words with numbers from 0. Numbers depend on the order of the words alone, not on threads or
/// hashes.
#[derive(Clone, Default)]
pub struct Vocabulary {
    text: String,
    ends: Vec<u64>,
    table: HashTable<u32>,
    hashes: DefaultHashBuilder,
}

impl Vocabulary {
    /// The result of [`look_up`](Self::look_up) for an unknown word.
    pub const UNKNOWN: u64 = u64::MAX;
    const LARGEST: u64 = u32::MAX as u64;

    /// Number of words.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Whether it has no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The word of a number. Panics if there is none.
    #[must_use]
    pub fn word(&self, number: u64) -> &str {
        let number = number as usize;
        let start = if number == 0 {
            0
        } else {
            self.ends[number - 1]
        };
        &self.text[start as usize..self.ends[number] as usize]
    }

    /// All words in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|number| self.word(number))
    }

    /// The number of a word.
    #[must_use]
    pub fn number(&self, word: &str) -> Option<u64> {
        self.find(self.hashes.hash_one(word.as_bytes()), word)
            .map(u64::from)
    }

    fn find(&self, hash: u64, word: &str) -> Option<u32> {
        self.table
            .find(hash, |&number| self.word(u64::from(number)) == word)
            .copied()
    }

    /// The number of a word, which is added if it is new. The caller has reserved room for it (see
    /// [`merge`](Self::merge)).
    #[inline]
    pub(crate) fn number_or_insert(&mut self, word: &str) -> u32 {
        let hash = self.hashes.hash_one(word.as_bytes());
        self.find(hash, word)
            .unwrap_or_else(|| self.insert(hash, word))
    }

    fn insert(&mut self, hash: u64, word: &str) -> u32 {
        let number = self.ends.len() as u32;
        self.text.push_str(word);
        self.ends.push(self.text.len() as u64);
        let Vocabulary {
            text,
            ends,
            table,
            hashes,
        } = self;
        table.insert_unique(hash, number, |&other| {
            let start = if other == 0 {
                0
            } else {
                ends[other as usize - 1]
            };
            hashes.hash_one(&text.as_bytes()[start as usize..ends[other as usize] as usize])
        });
        number
    }

    /// Adds the new words of a chunk, in their order, and returns the number of each word. Merging
    /// chunks in the order of the text numbers words like one pass over the text.
    ///
    /// Errors: [`Error::Unsupported`] beyond 2^32 - 1 words.
    pub fn merge(&mut self, words: &Vocabulary, numbers: &mut Vec<u64>) -> Result<()> {
        if self.len() + words.len() > Self::LARGEST {
            return Err(Error::unsupported(
                "vocabulary",
                "more than 2^32 - 1 different words",
            ));
        }
        let Growth { text, ends, table } = self.growth(words);
        self.text
            .reserve_exact(text.unwrap_or(0).saturating_sub(self.text.len()));
        self.ends
            .reserve_exact(ends.unwrap_or(0).saturating_sub(self.ends.len()));
        if table.is_some() {
            let Vocabulary {
                text,
                ends,
                table,
                hashes,
            } = self;
            table.reserve(words.ends.len(), |&other| {
                let start = if other == 0 {
                    0
                } else {
                    ends[other as usize - 1]
                };
                hashes.hash_one(&text.as_bytes()[start as usize..ends[other as usize] as usize])
            });
        }
        numbers.clear();
        numbers.extend(
            words
                .iter()
                .map(|word| u64::from(self.number_or_insert(word))),
        );
        Ok(())
    }

    /// The number of each word of a chunk, [`Self::UNKNOWN`] for unknown ones: for data with the
    /// columns of other data.
    pub fn look_up(&self, words: &Vocabulary, numbers: &mut Vec<u64>) {
        numbers.clear();
        numbers.extend(
            words
                .iter()
                .map(|word| self.number(word).unwrap_or(Self::UNKNOWN)),
        );
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.capacity()
            + self.ends.capacity() * size_of::<u64>()
            + self.table.allocation_size()
    }

    /// Upper bound of the memory while it [`merge`](Self::merge)s these words, bytes: a table that
    /// grows exists twice for a moment.
    #[must_use]
    pub fn bytes_to_merge(&self, words: &Vocabulary) -> usize {
        let Growth { text, ends, table } = self.growth(words);
        self.bytes() + text.unwrap_or(0) + ends.unwrap_or(0) * size_of::<u64>() + table.unwrap_or(0)
    }

    /// The tables that have to grow if all words are new. They grow by at least a quarter, so that
    /// growing costs a constant number of copies a word.
    fn growth(&self, words: &Vocabulary) -> Growth {
        let grown =
            |held: usize, needed: usize| (needed > held).then(|| needed.max(held + held / 4));
        Growth {
            text: grown(self.text.capacity(), self.text.len() + words.text.len()),
            ends: grown(self.ends.capacity(), self.ends.len() + words.ends.len()),
            table: grown(self.table.capacity(), self.ends.len() + words.ends.len()).map(|_| {
                // The table keeps an eighth free and has a power of two of slots, of 4 + 1 bytes,
                // plus a constant.
                let words = (self.ends.len() + words.ends.len()).max(self.table.capacity() + 1);
                (words * 8).div_ceil(7).next_power_of_two() * 5 + 64
            }),
        }
    }

    /// Removes the words and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.table.clear();
    }

    /// Writes one word a line.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.iter().try_for_each(|word| {
            out.write_all(word.as_bytes())?;
            out.write_all(b"\n")
        })
    }

    /// Reads one word a line, until the text ends. A repeated word is an error.
    pub fn read<R: Read>(lines: &mut Lines<R>) -> Result<Vocabulary> {
        let mut vocabulary = Vocabulary::default();
        let mut chunk = Chunk::default();
        while lines.next(&mut chunk)? {
            vocabulary.add_lines(&chunk)?;
        }
        Ok(vocabulary)
    }

    fn add_lines(&mut self, chunk: &Chunk) -> Result<()> {
        chunk.parsed(|mut text| {
            let whole = text.utf8()?;
            for line in whole.split_inclusive('\n') {
                let word = line.trim_end_matches(['\n', '\r']);
                let hash = self.hashes.hash_one(word.as_bytes());
                if let Some(number) = self.find(hash, word) {
                    let word = shown(word);
                    return Err(text.fault(format!(
                        "the word '{word}' is repeated; it has number {number} (from 0)"
                    )));
                }
                if self.len() == Self::LARGEST {
                    return Err(text.fault("more than 2^32 - 1 words"));
                }
                self.insert(hash, word);
                text.at += line.len();
            }
            Ok(())
        })
    }
}

/// The file of words beside a matrix: one a line, as many as the matrix has columns, with any line
/// ends. Empty lines at its end are ignored; words may be repeated, since they only name columns.
pub struct WordLines {
    object: String,
    columns: u64,
    words: u64,
    /// First of the empty lines read last.
    blank: Option<u64>,
}

impl WordLines {
    /// `object` is the file's name in errors.
    #[must_use]
    pub fn new(object: &str, columns: u64) -> WordLines {
        WordLines {
            object: object.into(),
            columns,
            words: 0,
            blank: None,
        }
    }

    /// The words of a chunk as text, one a line with a newline behind each, in place of the content
    /// of `out`.
    ///
    /// Errors: [`Error::Line`] for text that is not UTF-8, and for an empty line before a word;
    /// [`Error::Unsupported`] for too many words.
    pub fn read(&mut self, chunk: &Chunk, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        chunk.parsed(|mut text| {
            let whole = text.utf8()?;
            for (line, number) in whole.split_inclusive('\n').zip(chunk.position.line..) {
                let word = line.strip_suffix('\n').unwrap_or(line);
                let word = word.strip_suffix('\r').unwrap_or(word);
                if word.is_empty() {
                    self.blank.get_or_insert(number);
                } else if let Some(blank) = self.blank {
                    return Err(text.fault(format!(
                        "a word after line {blank}, which is empty: every column needs a word"
                    )));
                } else {
                    out.extend_from_slice(word.as_bytes());
                    out.push(b'\n');
                    self.words += 1;
                }
                text.at += line.len();
            }
            Ok(())
        })?;
        match self.words > self.columns {
            true => Err(self.error(" or more")),
            false => Ok(()),
        }
    }

    /// Called at the end of the file. Errors: [`Error::Unsupported`] for too few words.
    pub fn finish(self) -> Result<()> {
        if self.words < self.columns {
            Err(self.error(""))
        } else {
            Ok(())
        }
    }

    fn error(&self, more: &str) -> Error {
        Error::unsupported(
            &self.object,
            format!("{}{more} words for {} columns", self.words, self.columns),
        )
    }
}

/// New capacities of the growing tables; for the hash table its bytes.
struct Growth {
    text: Option<usize>,
    ends: Option<usize>,
    table: Option<usize>,
}

impl<'a> FromIterator<&'a str> for Vocabulary {
    /// Repeated words keep their first number.
    fn from_iter<I: IntoIterator<Item = &'a str>>(words: I) -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        words.into_iter().for_each(|word| {
            vocabulary.number_or_insert(word);
        });
        vocabulary
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Position, Source};

    fn read(text: &[u8]) -> Result<Vocabulary> {
        Vocabulary::read(&mut Lines::new(
            Source::open("x", text)?,
            Position::START,
            8,
            100,
        ))
    }

    #[test]
    fn words_are_written_and_read_back() {
        let vocabulary: Vocabulary = ["b", "a", "b", "ärger", "", "c"].into_iter().collect();
        let mut out = Vec::new();
        vocabulary.write(&mut out).unwrap();
        assert_eq!(out, "b\na\närger\n\nc\n".as_bytes());
        let back = read(&out).unwrap();
        assert_eq!(
            back.iter().collect::<Vec<_>>(),
            ["b", "a", "ärger", "", "c"]
        );
        assert_eq!((back.number("ärger"), back.number("d")), (Some(2), None));
    }

    #[test]
    fn a_word_that_is_there_twice_or_is_no_text_is_named_by_its_line() {
        assert!(matches!(
            read(b"a\nb\r\nc\nb\n"),
            Err(Error::Line { line: 4, .. })
        ));
        assert!(matches!(
            read(b"a\nb\nc\n\xff\n"),
            Err(Error::Line {
                line: 4,
                column: 1,
                ..
            })
        ));
    }

    fn words_of(text: &[u8], columns: u64) -> Result<String> {
        let mut lines = Lines::new(Source::open("words", text)?, Position::START, 8, 100);
        let (mut words, mut chunk) = (WordLines::new("words", columns), Chunk::default());
        let (mut all, mut some) = (Vec::new(), Vec::new());
        while lines.next(&mut chunk)? {
            words.read(&chunk, &mut some)?;
            all.append(&mut some);
        }
        words.finish()?;
        Ok(String::from_utf8(all).unwrap())
    }

    #[test]
    fn words_beside_a_matrix_end_where_their_lines_do() {
        let three = "a\nbb\nä c\n";
        for text in [
            "a\nbb\nä c",
            "a\nbb\nä c\n",
            "a\r\nbb\r\nä c\r\n",
            "\u{feff}a\nbb\nä c\n\n\r\n\n\n\n\n\n\n\n\n",
        ] {
            assert_eq!(words_of(text.as_bytes(), 3).unwrap(), three);
        }
        assert_eq!(words_of(b"\n\n", 0).unwrap(), "");
        for (text, columns, words) in [
            (
                &b"a\nb\n"[..],
                3,
                "words: not supported: 2 words for 3 columns",
            ),
            (b"a\nb\nc\nd\n", 3, "4 or more words for 3 columns"),
            (
                b"a\nb\ncaf\xe9\n",
                3,
                "words, line 3, column 4: the byte 0xe9 is not UTF-8",
            ),
            (
                b"a\nbbbbbbbb\n\n\nc\n",
                3,
                "words, line 5, column 1: a word after line 3, which is empty",
            ),
        ] {
            let error = words_of(text, columns).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn merging_in_order_numbers_words_as_one_pass_does(chunks: Vec<Vec<[char; 2]>>) {
            let chunks: Vec<Vec<String>> = chunks.iter().map(|words| words.iter().map(|word| word.iter().collect()).collect()).collect();
            let (mut vocabulary, mut numbers) = (Vocabulary::default(), Vec::new());
            for words in &chunks {
                let local: Vocabulary = words.iter().map(String::as_str).collect();
                let bound = vocabulary.bytes_to_merge(&local);
                vocabulary.merge(&local, &mut numbers).unwrap();
                prop_assert!(vocabulary.bytes() <= bound);
                for (word, &number) in local.iter().zip(&numbers) {
                    prop_assert_eq!(vocabulary.word(number), word);
                }
                let mut again = Vec::new();
                vocabulary.look_up(&local, &mut again);
                prop_assert_eq!(&again, &numbers);
            }
            let whole: Vocabulary = chunks.iter().flatten().map(String::as_str).collect();
            prop_assert!(vocabulary.iter().eq(whole.iter()));
        }
    }
}
