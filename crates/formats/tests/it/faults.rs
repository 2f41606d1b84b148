//! Every fault of a text is found, and reported with its line and reason.

use outcore_formats::libsvm::{Base, LabelKind};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{
    Batch, Chunk, Error, Precision, Result, Triplets, bag_of_words, libsvm, matrix_market, xc,
};

use super::common::{for_each_chunk, lines};

#[test]
fn a_whole_text_is_one_document_with_words_across_lines() {
    let tokenizer = Tokenizer {
        whole: true,
        ngrams: 1..=2,
        ..Tokenizer::default()
    };
    let mut documents = Documents::default();
    for (text, words) in [
        ("", &[][..]),
        ("\n\n", &[]),
        (
            "\u{feff}Two\r\nwords\nTWO",
            &["two", "two words", "words", "words two"],
        ),
    ] {
        tokenizer.parse(&chunk(text), &mut documents).unwrap();
        assert_eq!(
            (
                documents.len(),
                documents.words().iter().collect::<Vec<_>>()
            ),
            (1, words.to_vec())
        );
    }
}

/// Checks the line, and that the reason contains these words.
fn check<T>(result: Result<T>, expected_line: u64, words: &str, text: &str) {
    match result.err() {
        Some(Error::Line { line, reason, .. }) => {
            assert_eq!(line, expected_line, "{text:?}: {reason}");
            assert!(reason.contains(words), "{text:?}: {reason}");
        }
        other => panic!("{text:?}: {other:?}"),
    }
}

fn chunk(text: &str) -> Chunk {
    Chunk::new("x", text.as_bytes().to_vec())
}

#[test]
fn libsvm_faults_are_named() {
    for (text, line, words) in [
        (
            "1 1:1\nx 1:1\n",
            2,
            "the label is expected to be a number, found 'x'",
        ),
        ("1 1:1\n\n# c\n1 1:nan\n", 4, "not finite"),
        ("1 1:-inf\n", 1, "not finite"),
        ("1 1:1e999\n", 1, "too large"),
        ("nan 1:1\n", 1, "not finite"),
        ("1 0:1\n", 1, "begin with 1"),
        ("1 -1:1\n", 1, "negative"),
        ("1 3:1 2:1 3:2\n", 1, "feature 3 is repeated"),
        ("1 99999999999999999999:1\n", 1, "larger than 2^63"),
        ("1 1\n", 1, "feature:value"),
        ("1 1:\n", 1, "the end of the line"),
        ("1 1: 2\n", 1, "a blank"),
        ("1 a:1\n", 1, "feature:value"),
        ("1 1:1x\n", 1, "'1x'"),
        ("1 1:1:1\n", 1, "feature:value"),
        ("1,2 1:1\n", 1, "several labels"),
        ("3:1 4:1\n", 1, "a label is expected"),
        ("1 qid:1 1:1\n1 1:1\n", 2, "no qid"),
        ("1 1:1\n1 qid:1 1:1\n", 2, "qid"),
        ("1 qid:1 qid:2\n", 1, "qid"),
        ("1 qid:-1\n", 1, "negative"),
    ] {
        check(
            libsvm::parse(
                &chunk(text),
                Base::One,
                LabelKind::One,
                &mut Batch::default(),
            ),
            line,
            words,
            text,
        );
    }
    for (text, words) in [
        ("1,x 1:1", "whole number"),
        ("1.5 1:1", "whole numbers"),
        ("-1 1:1", "negative"),
        ("1, 1:1", "a blank"),
        ("1,2,\n", "the end of the line"),
    ] {
        check(
            libsvm::parse(
                &chunk(text),
                Base::Zero,
                LabelKind::Many,
                &mut Batch::default(),
            ),
            1,
            words,
            text,
        );
    }
}

#[test]
fn columns_beyond_those_asked_for_are_named_with_the_number_asked_for() {
    for (base, finds_base, text, words) in [
        (
            Base::One,
            false,
            "1 3:1\n1 4:1\n",
            "feature 4 in data with 3 features, which begin with 1",
        ),
        (
            Base::Zero,
            false,
            "1 2:1\n1 3:1\n",
            "feature 3 in data with 3 features, which begin with 0",
        ),
        (
            Base::Zero,
            true,
            "1 3:1\n1 4:1\n",
            "feature 4 in data with 3 features",
        ),
    ] {
        let columns = Some(3);
        let options = libsvm::Options {
            base,
            labels: LabelKind::One,
            columns,
            finds_base,
            precision: Precision::Double,
        };
        check(
            libsvm::parse_as(&chunk(text), &options, &mut Batch::default()),
            2,
            words,
            text,
        );
    }
}

#[test]
fn values_beyond_float32_are_named_where_float32_is_asked_for() {
    // The smallest decimal number that is rounded to infinity, and the largest that is not.
    let (beyond, within) = ("3.4028235677973366e38", "-3.4028235677973362e38");
    let libsvm = |value: &str, precision| {
        let (base, labels) = (Base::One, LabelKind::One);
        let options = libsvm::Options {
            base,
            labels,
            columns: None,
            finds_base: false,
            precision,
        };
        libsvm::parse_as(
            &chunk(&format!("1e300 1:1\n1 1:{value}\n")),
            &options,
            &mut Batch::default(),
        )
    };
    let mtx = |value: &str, precision| {
        let text = format!("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {value}\n");
        let mut lines = lines(text.as_bytes());
        let header = matrix_market::Header::read(&mut lines)?;
        for_each_chunk(&mut lines, |chunk| {
            matrix_market::parse(chunk, &header, precision, &mut Triplets::default())
        })
    };
    let xc = |value: &str, precision| {
        let text = format!("1 1 1\n0 0:{value}\n");
        let mut lines = lines(text.as_bytes());
        let header = xc::Header::read(&mut lines)?;
        for_each_chunk(&mut lines, |chunk| {
            xc::parse(chunk, &header, precision, &mut Batch::default())
        })
    };
    type Read<'a> = &'a dyn Fn(&str, Precision) -> Result<()>;
    for (read, line) in [(&libsvm as Read<'_>, 2), (&mtx, 3), (&xc, 2)] {
        check(
            read(beyond, Precision::Single),
            line,
            "is beyond float32; import it as float64",
            beyond,
        );
        check(
            read(&format!("1{}", "0".repeat(200)), Precision::Single),
            line,
            "000...' is beyond float32",
            "long",
        );
        assert!(read(within, Precision::Single).is_ok());
        assert!(read(beyond, Precision::Double).is_ok());
    }
}

#[test]
fn a_row_of_a_chunk_is_found_again_by_its_line() {
    let mut chunk = chunk("# c\n1 1:1\n\n \t\r\n 2\n#\n3 1:2 # x\n4");
    chunk.position.line = 10;
    assert_eq!(
        [0, 1, 2, 3].map(|row| libsvm::line_of(&chunk, row)),
        [11, 14, 16, 17]
    );
}

#[test]
fn a_header_that_claims_more_than_the_text_has_room_for_is_refused() {
    let header = matrix_market::Header::read(&mut lines(
        b"%%MatrixMarket matrix coordinate real general\n9 9 3\n",
    ))
    .unwrap();
    let tally = header.tally("x");
    assert!(tally.check_room(17, header.least_line_bytes()).is_ok());
    let error = tally
        .check_room(16, header.least_line_bytes())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "x: the header says 3 entries, but 16 bytes of text have room for 2 at most"
    );
}

#[test]
fn a_mark_of_utf8_before_a_text_is_passed_over() {
    let mut batch = Batch::default();
    libsvm::parse(
        &chunk("\u{feff}1 1:2\n"),
        Base::One,
        LabelKind::One,
        &mut batch,
    )
    .unwrap();
    assert_eq!(
        (&batch.labels[..], &batch.values[..]),
        (&[1.0][..], &[2.0][..])
    );
    assert!(
        read_mtx("\u{feff}%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\n").is_ok()
    );
    assert_eq!(read_xc("\u{feff}1 1 1\n0 0:1\n").unwrap(), 1);
    let mut later = chunk("\u{feff}1 1:2\n");
    later.position.byte = 10;
    check(
        libsvm::parse(&later, Base::One, LabelKind::One, &mut batch),
        1,
        "the label",
        "not at the beginning",
    );
}

#[test]
fn the_column_of_a_fault_is_where_the_token_begins() {
    let error = libsvm::parse(
        &chunk("1 1:1\r\n1 1:1 2:x 3:1\n"),
        Base::One,
        LabelKind::One,
        &mut Batch::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "x, line 2, column 9: the value is expected to be a number, found 'x'"
    );
}

#[test]
fn libsvm_rows_are_read_in_all_the_ways_they_are_written() {
    let text = "# head\n\n+1\t3:.5  1:-2e1 #c\r\n-1.5 \n  0 qid:0\n2 2:1";
    let rows = text.replace(" qid:0", "");
    let mut batch = Batch::default();
    libsvm::parse(&chunk(&rows), Base::One, LabelKind::One, &mut batch).unwrap();
    assert_eq!(batch.offsets, [0, 2, 2, 2, 3]);
    assert_eq!(batch.indices, [0, 2, 1]);
    assert_eq!(batch.values, [-20.0, 0.5, 1.0]);
    assert_eq!(batch.labels, [1.0, -1.5, 0.0, 2.0]);
    assert_eq!(batch.index_range(), Some((0, 2)));
    assert!(!batch.is_binary());
    libsvm::parse(
        &chunk("3,1,3\n 2:1\n0 1:1\n"),
        Base::Zero,
        LabelKind::Many,
        &mut batch,
    )
    .unwrap();
    assert_eq!(
        (
            batch.row_labels(0),
            batch.row_labels(1),
            batch.row_labels(2)
        ),
        (&[1, 3][..], &[][..], &[0][..])
    );
    assert!(batch.is_binary() && batch.labels.is_empty());
    libsvm::parse(&chunk(""), Base::Zero, LabelKind::One, &mut batch).unwrap();
    assert_eq!((batch.rows(), batch.index_range()), (0, None));
}

fn read_xc(text: &str) -> Result<usize> {
    let mut lines = lines(text.as_bytes());
    let header = xc::Header::read(&mut lines)?;
    let (mut batch, mut tally, mut rows) = (Batch::default(), header.tally("x"), 0);
    for_each_chunk(&mut lines, |chunk| {
        xc::parse(chunk, &header, Precision::Double, &mut batch)?;
        rows += batch.rows();
        tally.add(batch.rows() as u64)
    })?;
    tally.finish()?;
    Ok(rows)
}

#[test]
fn xc_faults_are_named() {
    check(read_xc("2 3\n"), 1, "the number of labels", "short header");
    check(
        read_xc("2 3 4 5\n"),
        1,
        "more than expected in the line",
        "long header",
    );
    check(
        read_xc("2 3 4\n0 0:1\n4 1:1\n"),
        3,
        "label 4 in data with 4 labels",
        "label",
    );
    check(
        read_xc("2 3 4\n0 0:1\n1 3:1\n"),
        3,
        "feature 3 in data with 3 features",
        "feature",
    );
    check(
        read_xc("1 3 4\n 2\n"),
        2,
        "feature:value is expected, found '2'",
        "label after a blank",
    );
    check(
        read_xc("1 3 4\n0 1:1 1:2\n"),
        2,
        "feature 1 is repeated",
        "twice",
    );
    assert!(matches!(read_xc(""), Err(Error::Corrupt { .. })));
    assert!(matches!(
        read_xc("2 3 4\n0 0:1\n"),
        Err(Error::Counts {
            expected: 2,
            seen: 1,
            more: false,
            ..
        })
    ));
    assert!(matches!(
        read_xc("1 3 4\n0 0:1\n0 0:1\n"),
        Err(Error::Counts {
            expected: 1,
            seen: 2,
            more: true,
            ..
        })
    ));
    assert_eq!(read_xc("3 3 4\n0 0:1\n 1:1\n\n").unwrap(), 3);
}

fn read_mtx(text: &str) -> Result<()> {
    let mut lines = lines(text.as_bytes());
    let header = matrix_market::Header::read(&mut lines)?;
    let (mut triplets, mut tally) = (Triplets::default(), header.tally("x"));
    for_each_chunk(&mut lines, |chunk| {
        matrix_market::parse(chunk, &header, Precision::Double, &mut triplets)?;
        tally.add(triplets.entries)
    })?;
    tally.finish()
}

#[test]
fn matrix_market_faults_are_named() {
    let general =
        |rest: &str| format!("%%MatrixMarket matrix coordinate real general\n% c\n{rest}");
    for (rest, line, words) in [
        ("2 2\n", 3, "the number of entries"),
        ("2 2 1\n0 1 1\n", 4, "row '0' of a matrix with 2"),
        ("2 2 1\n1 3 1\n", 4, "column '3' of a matrix with 2"),
        ("2 2 1\n1 -1 1\n", 4, "negative"),
        ("2 2 1\n1 1\n", 4, "the end of the line"),
        ("2 2 1\n1 1 inf\n", 4, "not finite"),
        ("2 2 1\n1 1 1 1\n", 4, "more than expected in the line"),
        (
            "2 2 1\n\n\n1.5 1 1\n",
            6,
            "row is expected to be a whole number, found '1.5'",
        ),
        (
            "2 2 1\n1 1.5\n",
            4,
            "column is expected to be a whole number, found '1.5'",
        ),
    ] {
        check(read_mtx(&general(rest)), line, words, rest);
    }
    assert!(matches!(
        read_mtx(&general("2 2 2\n1 1 1\n")),
        Err(Error::Counts {
            what: "entries",
            expected: 2,
            seen: 1,
            ..
        })
    ));
    assert!(matches!(
        read_mtx(&general("2 2 1\n1 1 1\n2 2 1\n")),
        Err(Error::Counts { more: true, .. })
    ));
    assert!(matches!(
        read_mtx(&general("% only comments\n")),
        Err(Error::Corrupt { .. })
    ));
    check(read_mtx("1 1 1\n"), 1, "banner", "no banner");
    check(
        read_mtx("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 0.5\n"),
        3,
        "whole numbers",
        "fraction",
    );
    check(
        read_mtx("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 1\n"),
        3,
        "diagonal",
        "diagonal",
    );
    check(
        read_mtx("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n"),
        2,
        "2 rows and 3 columns",
        "not square",
    );
    let long = "x".repeat(1000);
    for (banner, words) in [
        ("matrix array pattern general", "no values"),
        ("matrix coordinate complex general", "X.imag"),
        ("matrix coordinate real hermitian", "'hermitian'"),
        (
            &format!("matrix {long} real general"),
            "coordinate and array are read",
        ),
    ] {
        let error = read_mtx(&format!("%%MatrixMarket {banner}\n1 1 1\n")).unwrap_err();
        assert!(
            matches!(error, Error::Unsupported { .. }),
            "{banner}: {error}"
        );
        assert!(
            error.to_string().contains(words) && error.to_string().len() < 400,
            "{error}"
        );
    }
    let array = |rest: &str| {
        read_mtx(&format!(
            "%%MatrixMarket matrix array integer general\n{rest}"
        ))
    };
    check(
        array("2 2\n1\n2\n3 4\n"),
        5,
        "more than expected in the line",
        "two values in a line",
    );
    check(array("2 2\n1\n2\n0.5\n"), 5, "whole numbers", "fraction");
    check(
        array("99999999999 99999999999\n"),
        2,
        "more values than any file",
        "too large",
    );
    assert!(matches!(
        array("2 2\n1\n2\n3\n"),
        Err(Error::Counts {
            what: "values",
            expected: 4,
            seen: 3,
            ..
        })
    ));
    assert!(matches!(
        array("2 1\n1\n2\n3\n"),
        Err(Error::Counts { more: true, .. })
    ));
}

#[test]
fn bag_of_words_faults_are_named() {
    let read = |text: &str| {
        let mut lines = lines(text.as_bytes());
        let header = bag_of_words::Header::read(&mut lines)?;
        for_each_chunk(&mut lines, |chunk| {
            bag_of_words::parse(chunk, &header, &mut Triplets::default())
        })
    };
    for (text, line, words) in [
        ("2\nx\n", 2, "the number of words"),
        ("2\n3\n4 5\n", 3, "more than expected in the line"),
        ("2\n3\n1\n3 1 1\n", 4, "document '3'"),
        ("2\n3\n1\n1 0 1\n", 4, "word '0'"),
        ("2\n3\n1\n1 1 -1\n", 4, "negative"),
        ("2\n3\n1\n1 1 1.5\n", 4, "'.5' is more"),
    ] {
        check(read(text), line, words, text);
    }
    assert!(matches!(read("2\n3\n"), Err(Error::Corrupt { .. })));
}

#[test]
fn text_faults_are_named() {
    let tokenizer = Tokenizer {
        text_column: Some(2),
        ..Tokenizer::default()
    };
    let parse =
        |bytes: &[u8]| tokenizer.parse(&Chunk::new("x", bytes.to_vec()), &mut Documents::default());
    check(
        parse(b"a\tb\tc\na\tb\n"),
        2,
        "column 3 is expected, the line has 2",
        "column",
    );
    check(parse(b"a\tb\tc\na\tb\t\xff\n"), 2, "UTF-8", "encoding");
    let whole = Tokenizer {
        whole: true,
        ..Tokenizer::default()
    };
    check(
        whole.parse(
            &Chunk::new("x", b"a\nb\xff".to_vec()),
            &mut Documents::default(),
        ),
        2,
        "UTF-8",
        "encoding",
    );
    let none = Tokenizer {
        ngrams: 0..=1,
        ..Tokenizer::default()
    };
    assert!(matches!(
        none.parse(&Chunk::default(), &mut Documents::default()),
        Err(Error::Unsupported { .. })
    ));
}
