use proptest::prelude::*;

use super::*;

fn schema(fields: &[(&str, Kind)]) -> Schema {
    Schema::new(
        fields
            .iter()
            .map(|(name, kind)| Field {
                name: (*name).into(),
                kind: kind.clone(),
            })
            .collect(),
    )
    .unwrap()
}

fn array(dtype: &str, shape: &[Option<u64>]) -> Kind {
    Kind::Array {
        dtype: dtype.into(),
        shape: shape.to_vec(),
    }
}

fn refusal(form: Form, sample: &[u8], name: &str, kind: Kind) -> String {
    form.fields(sample, &schema(&[(name, kind)]))
        .unwrap_err()
        .to_string()
}

fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    message(
        1,
        &[message(1, name.as_bytes()), message(2, value)].concat(),
    )
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    message(
        2,
        &message(
            1,
            &numbers
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect::<Vec<u8>>(),
        ),
    )
}

fn record() -> Vec<u8> {
    let entries = [
        entry("image", &message(1, &message(1, b"picture"))),
        entry("box", &floats(&[1.0, 2.5])),
        entry(
            "label",
            &message(
                3,
                &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ),
        entry("ids", &message(3, &message(1, &[1, 0x80, 1]))),
        entry(
            "words",
            &message(1, &[message(1, b"a"), message(1, b"b")].concat()),
        ),
        entry("none", &[]),
    ];
    message(1, &entries.concat())
}

/// A context of one number; a list of two steps of two numbers, one of three steps of one, one of
/// words.
fn sequence() -> Vec<u8> {
    let steps = |steps: &[Vec<u8>]| {
        steps
            .iter()
            .flat_map(|step| message(1, step))
            .collect::<Vec<u8>>()
    };
    let lists = [
        entry("track", &steps(&[floats(&[1.0, 2.0]), floats(&[3.0, 4.0])])),
        entry(
            "tokens",
            &steps(&[
                message(3, &[8, 5]),
                message(3, &[8, 6]),
                message(3, &[8, 7]),
            ]),
        ),
        entry("words", &steps(&[message(1, &message(1, b"a"))])),
        entry("ragged", &steps(&[floats(&[1.0]), floats(&[1.0, 2.0])])),
    ];
    [
        message(1, &entry("label", &message(3, &[8, 3]))),
        message(2, &lists.concat()),
    ]
    .concat()
}

fn header(name: &[u8], size: usize, kind: u8) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name);
    header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    header[148..156].fill(b' ');
    header[156] = kind;
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

fn archive(members: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, data) in members {
        bytes.extend(header(name, data.len(), *kind));
        bytes.extend(*data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

fn members() -> Vec<u8> {
    archive(&[
        (b"a/key.cls", b'0', b"-12\n"),
        (b"././@LongLink", b'L', b"a/b.c/key.left.png\0"),
        (b"a/b.c/", b'0', b"pixels"),
        (b"ignored", b'x', b"19 path=a/key.json\n"),
        (b"short", b'0', b"{}"),
    ])
}

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    [
        b"\x93NUMPY\x01\0",
        &(header.len() as u16).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat()
}

#[test]
fn a_record_has_its_features() {
    let kinds = [
        ("label", array("<i8", &[])),
        ("image", Kind::Bytes),
        ("box", array("<f4", &[Some(2)])),
        ("ids", array("<i8", &[None])),
        ("none", array("<i2", &[None])),
    ];
    let record = record();
    let found = Form::TfRecord.fields(&record, &schema(&kinds)).unwrap();
    assert_eq!(found[0][..], (-1i64).to_le_bytes());
    assert_eq!(found[1], &b"picture"[..]);
    assert_eq!(found[2], [1.0f32, 2.5].map(f32::to_le_bytes).concat());
    assert_eq!(found[3], [2u64, 1, 128].map(u64::to_le_bytes).concat());
    assert_eq!(found[4], 0u64.to_le_bytes().to_vec());
    let refusal = |name, kind| refusal(Form::TfRecord, &record, name, kind);
    assert_eq!(refusal("mask", Kind::Bytes), "it has no 'mask'");
    assert_eq!(
        refusal("ids", Kind::Bytes),
        "'ids' is a list of int64, where every sample has bytes"
    );
    let varies = "'box' has shape (2,), where every sample has (3,); fields={'box': ('float32', (None,)), ...} lets it vary";
    assert_eq!(refusal("box", array("<f4", &[Some(3)])), varies);
    assert!(refusal("box", array("<f4", &[])).contains("where every sample has ();"));
    assert!(refusal("words", Kind::Bytes).starts_with("'words' is a list of 2 byte strings"));
    assert!(
        refusal("box", array("<i8", &[None]))
            .contains("'box' has dtype float32, where every sample has int64")
    );
    assert!(
        refusal("ids", array("|i1", &[None]))
            .contains("'ids' has 128, which is out of the range of int8")
    );
}

#[test]
fn features_are_guessed_in_the_order_of_their_names() {
    let [image, label] = [
        entry("image", &message(1, &message(1, b"x"))),
        entry("label", &message(3, &[8, 1])),
    ];
    let wanted = [
        ("box", array("<f4", &[Some(2)])),
        ("image", Kind::Bytes),
        ("label", array("<i8", &[])),
    ];
    for entries in [[&label[..], &image], [&image, &label]] {
        let record = message(
            1,
            &[&entries.concat()[..], &entry("box", &floats(&[1.0, 2.0]))].concat(),
        );
        assert_eq!(
            Form::TfRecord.guess(&record).unwrap(),
            schema(&wanted).fields
        );
    }
    assert_eq!(Form::TfRecord.guess(&[]).unwrap(), []);
    assert!(
        matches!(Form::TfRecord.guess(&record()), Err(Fault::Unfit(why)) if why.starts_with("'none' has no value"))
    );
    let words = message(
        1,
        &entry(
            "words",
            &message(1, &[message(1, b"a"), message(1, b"b")].concat()),
        ),
    );
    assert!(
        matches!(Form::TfRecord.guess(&words), Err(Fault::Unsupported(why)) if why.starts_with("'words' is a list of 2"))
    );
    assert_eq!(
        Form::TfRecord
            .beyond(&record(), &schema(&[("image", Kind::Bytes)]).fields)
            .unwrap()
            .as_deref(),
        Some("box")
    );
}

#[test]
fn feature_lists_are_arrays_over_steps() {
    let sequence = sequence();
    let kinds = [
        ("track", array("<f4", &[None, Some(2)])),
        ("tokens", array("<i4", &[None])),
        ("label", array("<i8", &[])),
    ];
    let found = Form::TfRecord.fields(&sequence, &schema(&kinds)).unwrap();
    assert_eq!(
        found[0],
        [
            &2u64.to_le_bytes()[..],
            &[1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()
        ]
        .concat()
    );
    assert_eq!(
        found[1],
        [
            &3u64.to_le_bytes()[..],
            &[5i32, 6, 7].map(i32::to_le_bytes).concat()
        ]
        .concat()
    );
    let several = Form::TfRecord
        .fields(
            &sequence,
            &schema(&[("track", array("<f4", &[Some(2), Some(1), None]))]),
        )
        .unwrap();
    assert_eq!(several[0][..8], 2u64.to_le_bytes());
    for (name, kind, why) in [
        (
            "words",
            array("<f4", &[None]),
            "'words' is a feature list of byte strings",
        ),
        (
            "ragged",
            array("<f4", &[None]),
            "'ragged' is a feature list whose step 0 has 1 numbers and step 1 2",
        ),
        (
            "track",
            array("<f4", &[None]),
            "'track' has shape (2, 2), where every sample has (None,)",
        ),
        (
            "track",
            array("<f4", &[None, Some(3)]),
            "'track' has shape (2, 2)",
        ),
    ] {
        let found = refusal(Form::TfRecord, &sequence, name, kind);
        assert!(found.starts_with(why), "{found}");
    }
    let lists = message(
        2,
        &entry(
            "track",
            &[
                message(1, &floats(&[1.0, 2.0])),
                message(1, &floats(&[3.0, 4.0])),
            ]
            .concat(),
        ),
    );
    assert_eq!(
        Form::TfRecord.guess(&lists).unwrap(),
        schema(&[("track", array("<f4", &[None, Some(2)]))]).fields
    );
    let both = [message(1, &entry("track", &floats(&[1.0]))), lists].concat();
    assert!(
        refusal(Form::TfRecord, &both, "track", array("<f4", &[None]))
            .contains("a feature list too")
    );
}

#[test]
fn members_of_a_key_are_its_fields() {
    let kinds = [
        ("left.png", Kind::Bytes),
        ("cls", array("<i8", &[])),
        ("json", Kind::Text),
    ];
    let members = members();
    let found = Form::Tar.fields(&members, &schema(&kinds)).unwrap();
    assert_eq!(found, [&b"pixels"[..], &(-12i64).to_le_bytes(), b"{}"]);
    // Without the padding behind the last one.
    assert_eq!(
        Form::Tar
            .fields(&members[..members.len() - 510], &schema(&kinds))
            .unwrap()[2],
        &b"{}"[..]
    );
    assert!(
        Form::Tar
            .fields(&members[..members.len() - 511], &schema(&kinds))
            .is_err()
    );
    assert!(refusal(Form::Tar, &members, "txt", Kind::Text).starts_with("it has no 'txt'"));
    let guessed = [
        ("cls", array("<i8", &[])),
        ("left.png", Kind::Bytes),
        ("json", Kind::Text),
    ];
    assert_eq!(Form::Tar.guess(&members).unwrap(), schema(&guessed).fields);
    let mut damaged = members.clone();
    damaged[600] ^= 1; // Padding.
    assert!(Form::Tar.fields(&damaged, &schema(&kinds)).is_ok());
    damaged[4] ^= 1;
    assert!(matches!(
        Form::Tar.fields(&damaged, &schema(&kinds)),
        Err(Fault::Damaged { at: 0, .. })
    ));
}

#[test]
fn names_are_keys_and_fields_as_webdataset_has_them() {
    let parts = |name: &'static str| {
        tar::key_of(name.as_bytes())
            .map(|(key, field)| [key, field].map(|part| String::from_utf8_lossy(part)))
    };
    for (name, key, field) in [
        ("a/b.c/1.left.png", "a/b.c/1", "left.png"),
        ("./1.JPG", "./1", "JPG"),
        ("a__/1.x", "a__/1", "x"),
        ("__1.x", "__1", "x"),
    ] {
        assert_eq!(parts(name).unwrap(), [key, field]);
    }
    for name in [
        "README",
        "a/README",
        ".x",
        "a/._1.jpg",
        "a.b/",
        "1.",
        "__meta__.json",
        "__meta__/1.json",
        "./__meta__/1.json",
        "",
    ] {
        assert_eq!(parts(name), None, "{name}");
    }
    let upper = archive(&[(b"1.JPG", b'0', b"A"), (b"1.Left.PNG", b'0', b"B")]);
    let found = Form::Tar
        .fields(
            &upper,
            &schema(&[("left.png", Kind::Bytes), ("jpg", Kind::Bytes)]),
        )
        .unwrap();
    assert_eq!(found, [&b"B"[..], b"A"]);
    // As datasets have it that were made when the case of fields was kept.
    assert_eq!(
        Form::Tar
            .fields(&upper, &schema(&[("JPG", Kind::Bytes)]))
            .unwrap(),
        [&b"A"[..]]
    );
    let twice = archive(&[(b"1.JPG", b'0', b"A"), (b"1.jpg", b'0', b"B")]);
    assert!(matches!(
        Form::Tar.guess(&twice),
        Err(Fault::Damaged { at: 1024, .. })
    ));
    assert!(refusal(Form::Tar, &twice, "jpg", Kind::Bytes).contains("its field 'jpg' comes twice"));
}

#[test]
fn members_without_their_bytes_are_refused_where_they_are_wanted() {
    let sparse =
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n25 GNU.sparse.name=1.jpg\n".as_slice();
    let other_sparse = b"25 GNU.sparse.size=10000\n".as_slice();
    let mut old = header(b"1.jpg", 3, b'S');
    old[482] = 1;
    let sum: u32 = old[..148]
        .iter()
        .chain(&old[156..])
        .map(|&byte| u32::from(byte))
        .sum::<u32>()
        + 256;
    old[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let old = [&old[..], &[1; 504], &[0; 8], b"abc", &[0; 509]].concat();
    for (what, members) in [
        (
            "sparse",
            archive(&[
                (b"x", b'x', sparse),
                (b"GNUSparseFile.1/1.jpg", b'0', b"abc"),
            ]),
        ),
        (
            "sparse",
            archive(&[(b"x", b'x', other_sparse), (b"1.jpg", b'0', b"abc")]),
        ),
        ("sparse", old),
        ("hard link", archive(&[(b"1.jpg", b'1', b"")])),
        ("symbolic link", archive(&[(b"1.jpg", b'2', b"")])),
        ("another volume", archive(&[(b"1.jpg", b'M', b"abc")])),
    ] {
        let members = [members, archive(&[(b"1.cls", b'0', b"7")])].concat();
        let found = refusal(Form::Tar, &members, "jpg", Kind::Bytes);
        assert!(found.contains(what) && found.contains("'1.jpg'"), "{found}");
        assert!(Form::Tar.guess(&members).is_err());
        let other = Form::Tar
            .fields(&members, &schema(&[("cls", array("<i8", &[]))]))
            .unwrap();
        assert_eq!(other[0][..], 7i64.to_le_bytes());
    }
    let of_all = archive(&[(b"g", b'g', b"14 path=a.txt\n"), (b"1.cls", b'0', b"7")]);
    assert!(refusal(Form::Tar, &of_all, "cls", Kind::Bytes).contains("'path' of all members"));
    let comment = archive(&[(b"g", b'g', b"13 comment=x\n"), (b"1.cls", b'0', b"7")]);
    assert!(
        Form::Tar
            .fields(&comment, &schema(&[("cls", Kind::Bytes)]))
            .is_ok()
    );
}

#[test]
fn members_are_what_fields_say() {
    let members = archive(&[
        (b"1.cls", b'0', b" 300 "),
        (b"1.txt", b'0', b"caf\xe9"),
        (b"1.score", b'0', b"0.5"),
    ]);
    let of = |name, kind| {
        Form::Tar
            .fields(&members, &schema(&[(name, kind)]))
            .map(|found| found[0].to_vec())
    };
    assert_eq!(of("cls", Kind::Text).unwrap(), b" 300 ");
    assert_eq!(of("cls", array("<u2", &[])).unwrap(), 300u16.to_le_bytes());
    assert_eq!(of("cls", array("<f8", &[])).unwrap(), 300f64.to_le_bytes());
    assert_eq!(
        of("score", array("<f4", &[])).unwrap(),
        0.5f32.to_le_bytes()
    );
    assert_eq!(of("txt", Kind::Bytes).unwrap(), b"caf\xe9");
    let refusal = |name, kind| refusal(Form::Tar, &members, name, kind);
    assert!(refusal("txt", Kind::Text).contains("fields={'txt': 'bytes', ...}"));
    assert!(
        refusal("score", array("<i8", &[]))
            .contains("'1.score' is no number of int64: '0.5'; fields={'score': 'text', ...}")
    );
    assert!(refusal("cls", array("|u1", &[])).contains("out of the range of uint8"));
    assert!(refusal("txt", array("<f4", &[None])).contains("is no array of NumPy"));
}

#[test]
fn arrays_of_numpy_are_little_endian_and_by_rows() {
    let numbers: [i16; 6] = [1, 2, 3, 4, 5, 6];
    let (little, big) = (
        numbers.map(i16::to_le_bytes).concat(),
        numbers.map(i16::to_be_bytes).concat(),
    );
    let by_columns = [1i16, 4, 2, 5, 3, 6].map(i16::to_be_bytes).concat();
    for (descr, fortran, data) in [
        ("<i2", "False", &little),
        (">i2", "False", &big),
        (">i2", "True", &by_columns),
    ] {
        let npy = npy(
            &format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': (2, 3), }}"),
            data,
        );
        let members = archive(&[(b"1.x.npy", b'0', &npy)]);
        assert_eq!(
            Form::Tar.guess(&members).unwrap(),
            schema(&[("x.npy", array("<i2", &[Some(2), Some(3)]))]).fields
        );
        let found = |dtype, shape: &[Option<u64>]| {
            Form::Tar
                .fields(&members, &schema(&[("x.npy", array(dtype, shape))]))
                .map(|found| found[0].to_vec())
        };
        assert_eq!(found("<i2", &[Some(2), Some(3)]).unwrap(), little);
        assert_eq!(
            found("<f2", &[Some(2), Some(3)]).unwrap()[..4],
            [0, 0x3c, 0, 0x40]
        );
        let varying = found("<c8", &[None, Some(3)]).unwrap();
        assert_eq!(
            varying[..20],
            [
                &2u64.to_le_bytes()[..],
                &1f32.to_le_bytes(),
                &0f32.to_le_bytes(),
                &2f32.to_le_bytes()
            ]
            .concat()
        );
        assert!(found("|b1", &[None, None]).is_err());
        let why = refusal(Form::Tar, &members, "x.npy", array("<i2", &[Some(3), None]));
        assert!(
            why.contains("has shape (2, 3), where every sample has (3, None)")
                && why.contains("('int16', (None, None))"),
            "{why}"
        );
    }
    let of = |npy: Vec<u8>| {
        Form::Tar
            .guess(&archive(&[(b"1.npy", b'0', &npy)]))
            .unwrap_err()
    };
    assert!(matches!(
        of(b"what".to_vec()),
        Fault::Damaged { at: 512, .. }
    ));
    assert!(matches!(
        of(npy(
            "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }",
            b"12345"
        )),
        Fault::Damaged { .. }
    ));
    assert!(matches!(
        of(npy(
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
            b"1"
        )),
        Fault::Unsupported(_)
    ));
}

#[test]
fn a_tensor_is_its_elements() {
    let bytes = [0; 24];
    assert_eq!(
        Form::Safetensors
            .fields(&bytes, &schema(&[("x", array("<f4", &[Some(2), Some(3)]))]))
            .unwrap()[0][..],
        bytes
    );
    let varying = Form::Safetensors
        .fields(&bytes, &schema(&[("x", array("<f4", &[None, Some(3)]))]))
        .unwrap();
    assert_eq!(varying[0], [&2u64.to_le_bytes(), &bytes[..]].concat());
    assert!(
        Form::Safetensors
            .fields(&bytes, &schema(&[("x", array("<f4", &[None, Some(5)]))]))
            .is_err()
    );
    assert!(
        Form::Safetensors
            .fields(&bytes, &schema(&[("x", array("<f4", &[None, None]))]))
            .is_err()
    );
}

#[test]
fn the_header_of_tensors_tells_of_them_in_the_order_of_their_bytes() {
    let header = r#"{"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},"__metadata__":{"x":"y"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
    let found = tensors::parse(header.as_bytes(), 100).unwrap();
    assert_eq!(
        found
            .iter()
            .map(|tensor| (&tensor.name[..], tensor.first, tensor.end))
            .collect::<Vec<_>>(),
        [("a", 100, 108), ("b", 108, 112)]
    );
    let field = |kind| Field {
        name: "tensor".into(),
        kind,
    };
    assert_eq!(
        tensors::value(&found[1], &field(Kind::Bytes), b"1234", true).unwrap(),
        &b"1234"[..]
    );
    assert!(
        tensors::value(&found[1], &field(array("<f4", &[Some(2)])), b"1234", false)
            .unwrap_err()
            .to_string()
            .contains("BF16")
    );
    let one = [1f32, 2.0].map(f32::to_le_bytes).concat();
    let wide = tensors::value(&found[0], &field(array("<f8", &[None, None])), &one, false).unwrap();
    assert_eq!(
        wide,
        [
            &1u64.to_le_bytes()[..],
            &2u64.to_le_bytes(),
            &1f64.to_le_bytes(),
            &2f64.to_le_bytes()
        ]
        .concat()
    );
    assert!(
        tensors::value(
            &found[0],
            &field(array("<f8", &[None, Some(2)])),
            &one,
            true
        )
        .unwrap_err()
        .to_string()
        .contains("pack")
    );
    for wrong in [
        header.replace("[8,12]", "[7,11]"),
        header.replace("[1,2]", "[1,3]"),
        header.replace("[0,8]", "[-8,0]"),
        "[]".into(),
    ] {
        assert!(
            matches!(
                tensors::parse(wrong.as_bytes(), 100),
                Err(Fault::Damaged { .. })
            ),
            "{wrong}"
        );
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_sample_or_refused(edits in proptest::collection::vec((0usize..4096, any::<u8>()), 1..8), cut in 0usize..4096) {
        let kinds = [("image", Kind::Bytes), ("box", array("<f4", &[None])), ("track", array("<f4", &[None, None])), ("ids", array("<i8", &[None])), ("x.npy", array("<f4", &[None]))];
        for (form, mut bytes) in [(Form::TfRecord, record()), (Form::TfRecord, sequence()), (Form::Tar, members())] {
            for &(at, byte) in &edits {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut.max(1));
            for kind in &kinds {
                let _ = form.fields(&bytes, &schema(std::slice::from_ref(kind)));
            }
            let _ = (form.guess(&bytes), form.beyond(&bytes, &[]));
        }
    }

    #[test]
    fn any_array_is_one_or_refused(edits in proptest::collection::vec((0usize..4096, any::<u8>()), 0..4), data in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut npy = npy("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }", &data);
        for &(at, byte) in &edits {
            let at = at % npy.len();
            npy[at] = byte;
        }
        let members = archive(&[(b"1.x.npy", b'0', &npy)]);
        if let Ok(fields) = Form::Tar.guess(&members) {
            prop_assert!(Form::Tar.fields(&members, &Schema::new(fields).unwrap()).is_ok());
        }
    }
}
