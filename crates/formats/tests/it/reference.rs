//! The fast parsers against plain ones that split at blanks, with results independent of how the
//! text is cut.

use outcore_formats::libsvm::{self, Base, LabelKind};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{Batch, Chunk, Lines, Position, Source, Vocabulary};
use proptest::prelude::*;

/// Label, then columns and values in order; `None` for a line that is no row.
fn reference_row(line: &str) -> Option<(f64, Vec<(u64, f64)>)> {
    let mut tokens = line.split('#').next()?.split_whitespace();
    let label = tokens.next()?.parse().ok()?;
    let entry = |token: &str| {
        token
            .split_once(':')
            .map(|(index, value)| (index.parse::<u64>().unwrap(), value.parse().unwrap()))
    };
    let mut entries: Vec<(u64, f64)> = tokens.filter_map(entry).collect();
    entries.sort_by_key(|entry| entry.0);
    Some((label, entries))
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        "1",
        "-?[0-9]{1,3}",
        "[-+]?[0-9]{0,12}\\.[0-9]{1,18}",
        "[0-9]{1,3}(\\.[0-9]{1,3})?[eE]-?[0-9]{1,2}"
    ]
}

/// Lines as they occur in practice: blanks of all kinds, comments, features in any order.
fn line() -> impl Strategy<Value = String> {
    let entries = proptest::collection::hash_map(0_u64..10_000_000_000, number(), 0..6);
    (number(), entries, "[ \t]{1,2}", "( ?#[a-z:1 ]{0,5})?\r?").prop_map(
        |(label, entries, blank, end)| {
            let entries: String = entries
                .iter()
                .map(|(index, value)| format!("{blank}{index}:{value}"))
                .collect();
            label + &entries + &end
        },
    )
}

proptest! {
    #[test]
    fn libsvm_rows_are_those_of_a_plain_parser(lines in proptest::collection::vec(prop_oneof![9 => line(), 1 => "[ \t]{0,2}(#[a-z ]{0,3})?"], 0..20)) {
        let text = lines.join("\n");
        let mut batch = Batch::default();
        libsvm::parse(&Chunk::new("x", text.into_bytes()), Base::Zero, LabelKind::One, &mut batch).unwrap();
        let expected: Vec<_> = lines.iter().filter_map(|line| reference_row(line)).collect();
        prop_assert_eq!(batch.rows(), expected.len());
        for (row, (label, entries)) in expected.into_iter().enumerate() {
            let (indices, values) = batch.row(row);
            prop_assert_eq!(batch.labels[row], label);
            prop_assert_eq!(indices.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>(), entries);
        }
    }

    #[test]
    fn numbers_of_words_do_not_depend_on_how_the_text_is_cut(text in "([a-cA-Cß ]{0,6}\n){0,12}", chunk_bytes in 1_usize..60) {
        let count = |chunk_bytes| {
            let (mut vocabulary, mut numbers, mut documents, mut batch) = (Vocabulary::default(), Vec::new(), Documents::default(), Batch::default());
            let mut lines = Lines::new(Source::open("x", text.as_bytes()).unwrap(), Position::START, chunk_bytes, 1000);
            let (mut chunk, mut rows) = (Chunk::default(), Vec::new());
            while lines.next(&mut chunk).unwrap() {
                Tokenizer { minimum_length: 1, ngrams: 1..=2, ..Tokenizer::default() }.parse(&chunk, &mut documents).unwrap();
                vocabulary.merge(documents.words(), &mut numbers).unwrap();
                documents.rows(&numbers, &[], &mut batch);
                rows.extend((0..batch.rows()).map(|row| (batch.row(row).0.to_vec(), batch.row(row).1.to_vec())));
            }
            (vocabulary.iter().map(String::from).collect::<Vec<_>>(), rows)
        };
        prop_assert_eq!(count(chunk_bytes), count(10_000));
    }

    #[test]
    fn counts_are_those_of_a_plain_tokenizer(text in "[a-cA-C0_ßΣσİ\u{301}中'. -]{0,40}") {
        let mut documents = Documents::default();
        Tokenizer::default().parse(&Chunk::new("x", format!("{text}\n").into_bytes()), &mut documents).unwrap();
        let (mut vocabulary, mut numbers, mut batch) = (Vocabulary::default(), Vec::new(), Batch::default());
        vocabulary.merge(documents.words(), &mut numbers).unwrap();
        documents.rows(&numbers, &[], &mut batch);
        let (indices, values) = batch.row(0);
        let lower = text.to_lowercase();
        // Accents are marks, which are no word characters.
        let is_mark = |character: char| matches!(character, '\u{301}' | '\u{307}');
        let is_word = |character: char| (character.is_alphanumeric() || character == '_') && !is_mark(character);
        let words = lower.split(|character| !is_word(character)).filter(|word| word.chars().count() >= 2);
        let mut expected: Vec<(&str, f64)> = Vec::new();
        for word in words {
            match expected.iter_mut().find(|entry| entry.0 == word) {
                Some(entry) => entry.1 += 1.0,
                None => expected.push((word, 1.0)),
            }
        }
        prop_assert_eq!(indices.iter().map(|&index| vocabulary.word(index)).zip(values.iter().copied()).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn columns_of_a_table_and_words_of_another_vocabulary_are_taken() {
    let tokenizer = Tokenizer {
        text_column: Some(1),
        label_column: Some(0),
        stop_words: ["the"].into_iter().collect(),
        ..Tokenizer::default()
    };
    let (mut documents, mut batch, mut numbers, mut label_numbers) = (
        Documents::default(),
        Batch::default(),
        Vec::new(),
        Vec::new(),
    );
    tokenizer
        .parse(
            &Chunk::new("x", b"b\tthe fox THE dog\r\na\tfox\nb\t\n".to_vec()),
            &mut documents,
        )
        .unwrap();
    let vocabulary: Vocabulary = ["cat", "fox"].into_iter().collect();
    let mut labels = Vocabulary::default();
    vocabulary.look_up(documents.words(), &mut numbers);
    labels
        .merge(documents.labels(), &mut label_numbers)
        .unwrap();
    documents.rows(&numbers, &label_numbers, &mut batch);
    assert_eq!(
        (&batch.offsets[..], &batch.indices[..], &batch.labels[..]),
        (&[0, 1, 2, 2][..], &[1, 1][..], &[0.0, 1.0, 0.0][..])
    );
    assert_eq!(labels.iter().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((documents.len(), documents.words().len()), (3, 2));
}
