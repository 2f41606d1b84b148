//! The formats from the inside: every refusal has its words, and no bytes make them panic.

use proptest::prelude::*;

use super::*;

fn with_header(version: u8, text: &str) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend_from_slice(&[version, 0]);
    match version {
        1 => file.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes()),
        _ => file.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes()),
    }
    file.extend_from_slice(text.as_bytes());
    file
}

/// Of a dictionary whose data begin at a multiple of 64 bytes in a file that is long enough.
fn parse(dictionary: &str) -> Result<Dense, FormatError> {
    let padding = 64 - (10 + dictionary.len() + 1) % 64;
    let text = format!("{dictionary}{}\n", " ".repeat(padding));
    parse_npy("x.npy", &with_header(1, &text), u64::MAX)
}

fn reason(dictionary: &str) -> String {
    parse(dictionary).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back() {
    for dtype in DType::ALL {
        for order in [Order::Row, Order::Column] {
            for shape in [
                &[7][..],
                &[0],
                &[3, 4],
                &[0, 4],
                &[4, 0],
                &[1 << 40, 1 << 10],
            ] {
                let (dense, header) = npy("x.npy", dtype, shape, order).unwrap();
                assert_eq!(header.len(), HEAD_BYTES);
                assert_eq!(npy_head_bytes("x.npy", &header[..12]), Ok(HEAD_BYTES));
                let read = parse_npy("x.npy", &header, dense.file_bytes()).unwrap();
                assert_eq!(read, dense);
                assert_eq!(read.shape, shape);
                assert!(read.is_compact());
                assert_eq!(read.file_bytes(), 4096 + read.element_bytes());
            }
        }
    }
}

#[test]
fn all_versions_and_spellings_of_a_header_are_read() {
    let text = "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 5), }\n";
    for (version, start) in [(1, 10), (2, 12), (3, 12)] {
        let padded = format!("{text:>width$}", width = 128 - start);
        let dense = parse_npy("x.npy", &with_header(version, &padded), 1 << 20).unwrap();
        assert_eq!((dense.rows, dense.cols, dense.data_offset), (3, 5, 128));
        assert_eq!((dense.order, dense.leading_dimension), (Order::Column, 3));
        assert_eq!(dense.file_bytes(), 128 + 15 * 8);
    }
    for spelling in [
        "{'shape':(3,),'fortran_order':False,'descr':'<f4'}",
        "{\"descr\": \"<f4\", 'fortran_order': True, 'shape': (3L,)}",
        "{\n'descr' : '=f4' ,\t'fortran_order': False, 'shape': ( 3 , ), }",
    ] {
        let dense = parse(spelling).unwrap();
        assert_eq!((dense.shape.len(), dense.rows, dense.cols), (1, 3, 1));
        assert_eq!((dense.order, dense.leading_dimension), (Order::Row, 1));
    }
}

#[test]
fn what_we_do_not_compute_with_is_named() {
    let with = |descr: &str, shape: &str| {
        reason(&format!(
            "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
        ))
    };
    for (descr, shape, part) in [
        ("'>f4'", "(3,)", "big-endian dtype '>f4'"),
        ("'|O'", "(3,)", "Python objects"),
        (
            "'<M8[s]'",
            "(3,)",
            "dtype '<M8[s]', where numbers are needed",
        ),
        ("'<U3'", "(3,)", "dtype '<U3'"),
        ("'<f16'", "(3,)", "longdouble"),
        ("'|V2'", "(3,)", "void (dtype '|V2')"),
        ("[('a', '<f4'), ('b', '<f8')]", "(3,)", "records"),
        ("'<f4'", "()", "0 dimensions, where 1 or more are possible"),
        ("'<f4'", "(4294967296, 4294967296)", "larger than any file"),
        (
            "'<f4'",
            "(4, 4294967296, 4294967296)",
            "larger than any file",
        ),
        ("'<f4'", "(0, 18446744073709551615)", "larger than any file"),
    ] {
        let text = with(descr, shape);
        assert!(text.starts_with("x.npy: not supported: "), "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_is_corrupt_says_where() {
    for (dictionary, part) in [
        ("", "corrupt at byte 64: expected '{'"),
        (
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
            "byte 44: expected True or False",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
            "byte 61: expected a length",
        ),
        (
            "{'descr': '<f4', 'descr': '<f4'}",
            "byte 27: \"descr\" is there twice",
        ),
        ("{'what': 1}", "byte 11: unknown key \"what\""),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
            "text after the dictionary",
        ),
        ("{'descr': '<f4", "a string without an end"),
        ("{'descr': '<f4' 'shape': (3,)}", "expected '}'"),
    ] {
        let text = reason(dictionary);
        assert!(
            text.starts_with("x.npy: corrupt at byte ") && text.contains(part),
            "{text}"
        );
    }
    let missing = reason("{'descr': '<f4', 'shape': (3,)}");
    assert!(
        missing.contains("fortran_order and shape is missing"),
        "{missing}"
    );
}

#[test]
fn what_is_no_npy_or_ends_early_is_refused() {
    let (dense, header) = npy("x.npy", DType::F32, &[10, 10], Order::Row).unwrap();
    assert!(dense.check_len("x.npy", 4496).is_ok());
    assert!(parse_npy("x.npy", &header, 5000).is_ok(), "longer is fine");
    let short = parse_npy("x.npy", &header, 4495).unwrap_err();
    let text = "x.npy: truncated: 4496 bytes are needed, the file has 4495";
    assert_eq!(short.to_string(), text);
    for len in 0..HEAD_BYTES {
        let error = parse_npy("x.npy", &header[..len], len as u64);
        assert!(error.is_err(), "{len} bytes");
        assert!(
            parse_npy("x.npy", &header[..len], 1 << 20).is_err(),
            "{len} bytes"
        );
    }
    assert!(!is_npy(b"PK\x03\x04"));
    let error = parse_npy("x.npy", b"PK\x03\x04 a zip file", 1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "x.npy: corrupt at byte 0: it does not begin like a .npy file"
    );
    let error = parse_npy("x.npy", b"\x93NUMPY\x04\x00\x76\x00{", 1000).unwrap_err();
    assert_eq!(error.to_string(), "x.npy: not supported: version 4 of .npy");
    let error = parse_npy("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", u64::MAX).unwrap_err();
    assert!(error.to_string().contains("a header of 4294967295 bytes"));
}

#[test]
fn a_header_may_put_elements_between_their_multiples() {
    for (text, offset, shift) in [
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\n",
            66,
            2,
        ),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}\n",
            66,
            2,
        ),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}       \n",
            73,
            1,
        ),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}              \n",
            80,
            0,
        ),
    ] {
        let dense = parse_npy("x.npy", &with_header(1, text), 1000).unwrap();
        assert_eq!((dense.data_offset, dense.shift()), (offset, shift));
    }
}

#[test]
fn types_without_a_byte_order_are_the_machines_own() {
    for (descr, dtype) in [
        ("f8", DType::F64),
        ("=f8", DType::F64),
        ("|f8", DType::F64),
        ("f4", DType::F32),
        ("float32", DType::F32),
    ] {
        let text =
            format!("{{\"descr\": \"{descr}\", \"fortran_order\": False, \"shape\": (40L,7L)}}");
        assert_eq!(parse(&text).unwrap().dtype, dtype, "{descr}");
    }
    let text = with_header(
        1,
        "{'descr': 'i8', 'fortran_order': False, 'shape': (3,)}\n",
    );
    assert_eq!(
        parse_npy_vector("x.npy", &text, 1000).unwrap().element,
        DType::I64
    );
}

#[test]
fn a_raw_file_is_what_its_sidecar_says() {
    let json = br#"{"dtype": "float32", "shape": [3, 4], "order": "column", "offset": 12, "leading_dimension": 5}"#;
    let dense = parse_sidecar("x.bin", json, 1000).unwrap();
    assert_eq!((dense.rows, dense.cols, dense.order), (3, 4, Order::Column));
    assert_eq!(dense.file_bytes(), 12 + (3 * 5 + 3) * 4);
    assert!(!dense.is_compact());
    assert_eq!(
        parse_sidecar("x.bin", sidecar(&dense).as_bytes(), 1000),
        Ok(dense)
    );

    let short = parse_sidecar("x.bin", br#"{"dtype": "f64", "shape": [3]}"#, 24).unwrap();
    assert_eq!(
        (short.shape.len(), short.order, short.data_offset),
        (1, Order::Row, 0)
    );
    assert_eq!(
        sidecar_path(Path::new("a/x.bin")),
        Path::new("a/x.bin.json")
    );
}

#[test]
fn a_sidecar_that_makes_no_sense_is_refused() {
    for (json, part) in [
        (
            r#"{"dtype": "f64", "shape": [3], "offset": 4}"#,
            "x.bin: truncated: 28 bytes are needed, the file has 24",
        ),
        (
            r#"{"dtype": "f64", "shape": [3, 4], "leading_dimension": 3}"#,
            "leading dimension of 3 is less than 4",
        ),
        (r#"{"dtype": "f64", "shape": []}"#, "0 dimensions"),
        (
            r#"{"dtype": "f64", "shape": [4]}"#,
            "x.bin: truncated: 32 bytes are needed, the file has 24",
        ),
        (
            r#"{"dtype": "int7", "shape": [4]}"#,
            "x.bin.json: corrupt at byte",
        ),
        (
            r#"{"dtype": "f64", "shape": [-4]}"#,
            "x.bin.json: corrupt at byte",
        ),
        (
            r#"{"dtype": "f64", "shape": [1], "odrer": "row"}"#,
            "unknown field `odrer`",
        ),
        (r#"{"shape": [1]}"#, "missing field `dtype`"),
        (
            r#"{"dtype": "f64", "shape": [1], "leading_dimension": 18446744073709551615}"#,
            "larger than any file",
        ),
        ("", "x.bin.json: corrupt at byte 0"),
    ] {
        let text = parse_sidecar("x.bin", json.as_bytes(), 24)
            .unwrap_err()
            .to_string();
        assert!(text.contains(part), "{text}");
    }
}

/// Whatever parsed has numbers that the rest of the library may add and multiply.
fn assert_sound(dense: &Dense, file_len: u64) {
    assert!(dense.file_bytes() <= file_len && dense.file_bytes() <= i64::MAX as u64);
    assert!(dense.data_offset + dense.element_bytes() <= i64::MAX as u64);
    assert!(
        dense.shift() <= dense.data_offset
            && (dense.data_offset - dense.shift()).is_multiple_of(dense.dtype.bytes())
    );
    assert_eq!(dense.shape.first(), Some(&dense.rows));
    let (_, line) = dense.lines();
    assert!(dense.leading_dimension >= line);
}

fn valid_file() -> impl Strategy<Value = Vec<u8>> {
    let descr = prop::sample::select(vec!["<f4", "<f4", "<f8", "<f8", ">f4", "|O"]);
    let length = prop_oneof![1 => any::<u64>(), 3 => 0..1000u64];
    let shape = prop::collection::vec(length, 0..4);
    (descr, any::<bool>(), shape, 1u8..=3).prop_map(|(descr, fortran, shape, version)| {
        let fortran = if fortran { "True" } else { "False" };
        let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
        let text =
            format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({shape}), }}");
        let width = if version == 1 { 117 } else { 115 };
        with_header(version, &format!("{text:<width$}\n"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn junk_never_panics(junk in prop::collection::vec(any::<u8>(), 0..200), file_len: u64) {
        let _ = parse_npy("x", &junk, file_len);
        let _ = npy_head_bytes("x", &junk);
        let _ = parse_sidecar("x", &junk, file_len);
    }

    #[test]
    fn mutated_headers_never_panic_and_what_parses_is_sound(
        file in valid_file(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        kept in any::<prop::sample::Index>(),
        cut: bool,
        file_len: u64,
    ) {
        let mut file = file;
        for (at, byte) in mutations {
            let at = at.index(file.len());
            // Half of them stay within what a header is written in, to get past the first
            // character.
            file[at] = if byte < 128 { b"{}()[]'\",:0123456789L \nTrueFalse<>|f"[usize::from(byte) % 36] } else { byte };
        }
        if cut {
            file.truncate(kept.index(file.len()));
        }
        if let Ok(dense) = parse_npy("x", &file, file_len) {
            assert_sound(&dense, file_len);
        }
    }

    #[test]
    fn descriptions_are_sound_or_refused(
        shape in prop::collection::vec(any::<u64>().prop_map(|x| x >> (x % 64)), 0..4),
        column: bool,
        offset in any::<u64>().prop_map(|x| x >> (x % 64)),
        leading in prop::option::of(any::<u64>().prop_map(|x| x >> (x % 64))),
    ) {
        let order = if column { Order::Column } else { Order::Row };
        if let Ok(dense) = raw("x", DType::F32, &shape, order, offset, leading) {
            assert_sound(&dense, u64::MAX);
            let again = parse_sidecar("x", sidecar(&dense).as_bytes(), u64::MAX);
            assert_eq!(again, Ok(dense));
        }
        let _ = npy("x", DType::F64, &shape, order);
    }
}
