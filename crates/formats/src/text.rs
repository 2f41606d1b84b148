//! Words of raw text, with one document a line or one a text.
//!
//! A word is one of scikit-learn's `CountVectorizer`: in the lower-case text, every run of two or
//! more word characters (`\w\w+`: letters, numbers and `_` of Unicode). Lines of tab-separated
//! columns can have the text in one and a label in another.
//!
//! Chunks are parsed independently: each has its own list of words. [`Vocabulary::merge`] numbers
//! them in order, so that numbers depend on the text alone:
//!
//! ```
//! use outcore_formats::{Batch, Chunk, Vocabulary};
//! use outcore_formats::text::{Documents, Tokenizer};
//!
//! let tokenizer = Tokenizer::default();
//! let (mut vocabulary, mut numbers, mut batch) = (Vocabulary::default(), Vec::new(), Batch::default());
//! let mut documents = Documents::default();
//! tokenizer.parse(&Chunk::new("demo", b"The fox, the\nlazy fox".to_vec()), &mut documents)?;
//! vocabulary.merge(documents.words(), &mut numbers)?;
//! documents.rows(&numbers, &[], &mut batch);
//! assert_eq!(vocabulary.iter().collect::<Vec<_>>(), ["the", "fox", "lazy"]);
//! assert_eq!(batch.row(0), (&[0, 1][..], &[2.0, 1.0][..]));
//! # Ok::<(), outcore_formats::Error>(())
//! ```

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::number::{Cursor, Parsed};
use crate::{Batch, Chunk, Error, Result, Vocabulary};

/// Definition of the words of a line.
#[derive(Clone)]
pub struct Tokenizer {
    /// Least number of characters of a word.
    pub minimum_length: usize,
    /// Words that are left out, in lower case.
    pub stop_words: Vocabulary,
    /// Range of the number of neighbouring words in an n-gram: `1..=2` gives words, and pairs of
    /// words with a blank between them. At least 1.
    pub ngrams: RangeInclusive<usize>,
    /// Column of the text, from 0, in lines of tab-separated columns; `None`: the whole line.
    pub text_column: Option<usize>,
    /// Column of the label.
    pub label_column: Option<usize>,
    /// Whether a chunk is one document, in which line ends only separate words
    /// ([`Lines::whole`](crate::Lines::whole)). There are no columns then.
    pub whole: bool,
}

impl Default for Tokenizer {
    /// scikit-learn's `CountVectorizer()` on whole lines.
    fn default() -> Tokenizer {
        let (text_column, label_column) = (None, None);
        Tokenizer {
            minimum_length: 2,
            stop_words: Vocabulary::default(),
            ngrams: 1..=1,
            text_column,
            label_column,
            whole: false,
        }
    }
}

/// The words of the lines of a chunk, with numbers of their own. Reused from chunk to chunk.
///
/// About twice as large as a chunk of English words; n-grams multiply it. [`bytes`](Self::bytes)
/// returns its size.
#[derive(Clone, Default)]
pub struct Documents {
    words: Vocabulary,
    labels: Vocabulary,
    /// First entry of every line, and the number of entries.
    offsets: Vec<usize>,
    /// Distinct words of a line, in order of first appearance, with their counts.
    entries: Vec<(u32, u32)>,
    row_labels: Vec<u32>,
    /// For every word the last line that contains it, and the entry there.
    last_seen: Vec<(usize, usize)>,
    lower_case: String,
    kept: Vec<(usize, usize)>,
    ngram: String,
}

impl Tokenizer {
    /// Reads the words of a chunk into `documents`.
    ///
    /// Cost: one pass over the text. Errors: [`Error::Line`] for a line that is not UTF-8 or lacks
    /// a column.
    pub fn parse(&self, chunk: &Chunk, documents: &mut Documents) -> Result<()> {
        if *self.ngrams.start() == 0 || self.ngrams.is_empty() {
            let reason = format!(
                "n-grams of {} to {} words: from 1 word on",
                self.ngrams.start(),
                self.ngrams.end()
            );
            return Err(Error::unsupported(&chunk.object, reason));
        }
        documents.clear();
        chunk.parsed(|text| self.parse_lines(text, documents))
    }

    fn parse_lines(&self, mut text: Cursor, documents: &mut Documents) -> Parsed<()> {
        let mut rest = text.utf8()?;
        if self.whole {
            documents.add(rest, self);
            return Ok(());
        }
        while !rest.is_empty() {
            let length = memchr::memchr(b'\n', rest.as_bytes()).map_or(rest.len(), |end| end + 1);
            let (line, after) = rest.split_at(length);
            let line = line.strip_suffix('\n').unwrap_or(line);
            let line = line.strip_suffix('\r').unwrap_or(line);
            let column = |column: usize| {
                let missing = || {
                    text.fault(format!(
                        "column {} is expected, the line has {}",
                        column + 1,
                        line.split('\t').count()
                    ))
                };
                line.split('\t').nth(column).ok_or_else(missing)
            };
            if let Some(label) = self.label_column {
                let label = documents.labels.number_or_insert(column(label)?);
                documents.row_labels.push(label);
            }
            documents.add(self.text_column.map_or(Ok(line), column)?, self);
            text.at += length;
            rest = after;
        }
        Ok(())
    }
}

impl Documents {
    fn clear(&mut self) {
        self.words.clear();
        self.labels.clear();
        self.offsets.clear();
        self.offsets.push(0);
        self.entries.clear();
        self.row_labels.clear();
        self.last_seen.clear();
    }

    /// Number of documents: the lines of the chunk.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether it has no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk's own list of words.
    #[must_use]
    pub fn words(&self) -> &Vocabulary {
        &self.words
    }

    /// The chunk's own list of labels.
    #[must_use]
    pub fn labels(&self) -> &Vocabulary {
        &self.labels
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Documents {
            words,
            labels,
            offsets,
            entries,
            row_labels,
            last_seen,
            lower_case,
            kept,
            ngram,
        } = self;
        let pairs = last_seen.capacity() + kept.capacity();
        let eights = offsets.capacity() + entries.capacity() + 2 * pairs;
        words.bytes()
            + labels.bytes()
            + 8 * eights
            + 4 * row_labels.capacity()
            + lower_case.capacity()
            + ngram.capacity()
    }

    /// The documents as rows: counts of words by the numbers of [`Vocabulary::merge`] or
    /// [`Vocabulary::look_up`], without unknown words. Labels become the numbers in
    /// `label_numbers`, -1 if unknown.
    pub fn rows(&self, numbers: &[u64], label_numbers: &[u64], batch: &mut Batch) {
        batch.clear(self.len(), self.entries.len());
        for ends in self.offsets.windows(2) {
            let (mut ascending, mut lowest_next) = (true, 0);
            for &(word, count) in &self.entries[ends[0]..ends[1]] {
                let number = numbers[word as usize];
                if number != Vocabulary::UNKNOWN {
                    ascending &= number >= lowest_next;
                    lowest_next = number + 1;
                    batch.indices.push(number);
                    batch.values.push(f64::from(count));
                }
            }
            batch
                .end_row(ascending)
                .expect("different words have different numbers");
        }
        let label = |&label: &u32| match label_numbers[label as usize] {
            Vocabulary::UNKNOWN => -1.0,
            number => number as f64,
        };
        batch.labels.extend(self.row_labels.iter().map(label));
    }

    fn add(&mut self, text: &str, tokenizer: &Tokenizer) {
        let mut lower_case = std::mem::take(&mut self.lower_case);
        if text.is_ascii() {
            lower_case.clear();
            lower_case.push_str(text);
            lower_case.make_ascii_lowercase();
            self.add_words(ascii_words(&lower_case), &lower_case, tokenizer);
        } else {
            // The whole line at once: the lower case of a capital sigma depends on what follows it.
            lower_case = text.to_lowercase();
            self.add_words(words(&lower_case), &lower_case, tokenizer);
        }
        self.lower_case = lower_case;
        self.offsets.push(self.entries.len());
    }

    #[inline(always)]
    fn add_words(&mut self, words: impl Iterator<Item = Word>, text: &str, tokenizer: &Tokenizer) {
        let long_enough = words.filter(|word| word.characters >= tokenizer.minimum_length);
        let stop_words = &tokenizer.stop_words;
        let kept = long_enough.filter(|word| {
            stop_words.is_empty() || stop_words.number(&text[word.start..word.end]).is_none()
        });
        if tokenizer.ngrams == (1..=1) {
            kept.for_each(|word| self.count(&text[word.start..word.end]));
        } else {
            self.kept.clear();
            self.kept.extend(kept.map(|word| (word.start, word.end)));
            self.count_ngrams(text, &tokenizer.ngrams);
        }
    }

    fn count_ngrams(&mut self, text: &str, lengths: &RangeInclusive<usize>) {
        let (kept, mut ngram) = (
            std::mem::take(&mut self.kept),
            std::mem::take(&mut self.ngram),
        );
        for first in 0..kept.len() {
            ngram.clear();
            for (position, &(start, end)) in kept[first..].iter().take(*lengths.end()).enumerate() {
                if position > 0 {
                    ngram.push(' ');
                }
                ngram.push_str(&text[start..end]);
                if lengths.contains(&(position + 1)) {
                    self.count(&ngram);
                }
            }
        }
        (self.kept, self.ngram) = (kept, ngram);
    }

    #[inline(always)]
    fn count(&mut self, word: &str) {
        let number = self.words.number_or_insert(word);
        let line = self.offsets.len();
        if number as usize == self.last_seen.len() {
            self.last_seen.push((0, 0));
        }
        let seen = &mut self.last_seen[number as usize];
        if seen.0 == line {
            self.entries[seen.1].1 += 1;
        } else {
            *seen = (line, self.entries.len());
            self.entries.push((number, 1));
        }
    }
}

/// Bytes of a line.
struct Word {
    start: usize,
    end: usize,
    characters: usize,
}

fn ascii_words(text: &str) -> impl Iterator<Item = Word> {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| ASCII_WORD[*byte as usize];
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(is_word)?;
        let end = bytes[start..]
            .iter()
            .position(|byte| !is_word(byte))
            .map_or(bytes.len(), |length| start + length);
        at = end;
        Some(Word {
            start,
            end,
            characters: end - start,
        })
    })
}

fn words(text: &str) -> impl Iterator<Item = Word> {
    let mut rest = text.char_indices();
    std::iter::from_fn(move || {
        let (start, _) = rest.find(|&(_, character)| is_word_character(character))?;
        let mut characters = 1;
        for (at, character) in rest.by_ref() {
            if !is_word_character(character) {
                return Some(Word {
                    start,
                    end: at,
                    characters,
                });
            }
            characters += 1;
        }
        Some(Word {
            start,
            end: text.len(),
            characters,
        })
    })
}

static ASCII_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_';
        byte += 1;
    }
    table
};

/// Python's `\w`: `str.isalnum()` or `_`.
fn is_word_character(character: char) -> bool {
    match character as usize {
        code @ 0..128 => ASCII_WORD[code],
        code @ 128..0x1_0000 => BASIC_PLANE[code / 64] >> (code % 64) & 1 == 1,
        _ => is_letter_or_number(character),
    }
}

fn is_letter_or_number(character: char) -> bool {
    matches!(
        character.general_category_group(),
        GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number
    )
}

/// A bit for every character below 2^16: a search in the tables of Unicode takes ten times as long.
static BASIC_PLANE: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut bits = vec![0; 0x1_0000 / 64];
    for character in ('\u{80}'..='\u{ffff}').filter(|&character| is_letter_or_number(character)) {
        bits[character as usize / 64] |= 1 << (character as usize % 64);
    }
    bits
});
