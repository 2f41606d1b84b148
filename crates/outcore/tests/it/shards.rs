//! Shards of others: what is packed of them is what they point to, gone on with, damaged in any
//! place, or something else altogether.

use std::path::{Path, PathBuf};

use outcore::format::FormatError;
use outcore::samples::{
    Dataset, DatasetWriter, ExternalFiles, Field, Form, Kind, ShardOptions, Shards, WriterOptions,
};
use outcore::{Error, Session, Settings};
use outcore_store::checksum;
use proptest::prelude::*;

fn session(folder: &Path) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(4 << 20),
        scratch,
        threads: 1,
        ..Settings::default()
    })
    .unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, data) in members {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156..157].copy_from_slice(b"0");
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend(header);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn tfrecord(records: &[Vec<u8>]) -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        checksum(bytes)
            .rotate_right(15)
            .wrapping_add(0xa282_ead8)
            .to_le_bytes()
    };
    let record = |record: &Vec<u8>| {
        let len = (record.len() as u64).to_le_bytes();
        [&len[..], &masked(&len), record, &masked(record)].concat()
    };
    records.iter().flat_map(record).collect()
}

/// An example of one list of numbers, and one byte string.
fn example(numbers: &[u8], string: &[u8]) -> Vec<u8> {
    let message =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry = |name: &str, feature: Vec<u8>| {
        message(
            1,
            &[message(1, name.as_bytes()), message(2, &feature)].concat(),
        )
    };
    let entries = [
        entry("n", message(3, &message(1, numbers))),
        entry("s", message(1, &message(1, string))),
    ];
    message(1, &entries.concat())
}

fn safetensors(tensors: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut at = 0;
    let told = tensors.iter().map(|(name, data)| {
        let begin = at;
        at += data.len();
        format!(
            r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{at}]}}"#,
            data.len()
        )
    });
    let header = format!("{{{}}}", told.collect::<Vec<_>>().join(","));
    let data: Vec<u8> = tensors.iter().flat_map(|(_, data)| data.clone()).collect();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat()
}

/// What is to be read, and where to.
struct Case {
    session: Session,
    form: Form,
    files: Vec<PathBuf>,
    fields: Option<Vec<Field>>,
}

impl Case {
    fn shards(&self, in_place: bool) -> Shards {
        let fields = self
            .fields
            .as_ref()
            .map(|fields| fields.iter().map(|field| field.name.clone()).collect());
        Shards::new(
            &self.session,
            self.form,
            self.files.clone(),
            ShardOptions { in_place, fields },
        )
        .unwrap()
    }

    fn begin(
        &self,
        path: &Path,
        in_place: bool,
        resume: bool,
    ) -> outcore::Result<(DatasetWriter, Shards)> {
        let mut writer = DatasetWriter::create(
            &self.session,
            path,
            WriterOptions {
                resume,
                ..WriterOptions::default()
            },
        )?;
        let mut shards = self.shards(in_place);
        if in_place {
            let lens = self
                .files
                .iter()
                .map(|file| (file.clone(), std::fs::metadata(file).unwrap().len()));
            writer.set_elsewhere(ExternalFiles::of(path, self.form, lens))?;
        }
        if writer.fields().is_none() {
            writer.set_fields(self.fields.clone().map_or_else(|| shards.fields(), Ok)?)?;
        }
        Ok((writer, shards))
    }

    fn made(&self, path: &Path, in_place: bool) -> outcore::Result<Dataset> {
        let (mut writer, mut shards) = self.begin(path, in_place, false)?;
        while shards.take(&mut writer, true, u64::MAX)? {}
        writer.finish()?.run()?;
        Dataset::open(&self.session, path)
    }
}

/// Name and fields of a sample.
type Named = (Option<Vec<u8>>, Vec<Vec<u8>>);

fn samples(dataset: &Dataset) -> outcore::Result<Vec<Named>> {
    let all: Vec<u64> = (0..dataset.len()).collect();
    let read = dataset.read(&all)?.wait()?;
    let sample = |&number: &u64| -> outcore::Result<Named> {
        let fields = dataset.split(read.get(number as usize)?)?;
        Ok((
            dataset.name(number)?,
            fields.into_iter().map(|field| field.into_owned()).collect(),
        ))
    };
    all.iter().map(sample).collect()
}

/// Makes it in both ways, and compares.
fn agree(case: &Case, folder: &Path) -> Option<Vec<Named>> {
    let found = [("packed", false), ("there", true)]
        .map(|(name, in_place)| case.made(&folder.join(name), in_place));
    match found {
        [Ok(packed), Ok(there)] => {
            assert_eq!(packed.fields(), there.fields());
            let packed = samples(&packed).unwrap();
            assert_eq!(packed, samples(&there).unwrap());
            Some(packed)
        }
        [Err(one), Err(other)] => {
            assert_eq!(
                one.to_string().replace("packed", "there"),
                other.to_string()
            );
            assert!(one.to_string().len() < 600, "{one}");
            None
        }
        [one, other] => panic!(
            "{:?}, and {:?}",
            one.map(|made| made.len()),
            other.map(|made| made.len())
        ),
    }
}

fn case(folder: &Path, form: Form, bytes: &[u8], fields: Option<Vec<Field>>) -> Case {
    let file = folder.join("a.shard");
    std::fs::write(&file, bytes).unwrap();
    Case {
        session: session(folder),
        form,
        files: vec![file],
        fields,
    }
}

fn bytes_field(name: &str) -> Field {
    Field {
        name: name.into(),
        kind: Kind::Bytes,
    }
}

fn numbers_field() -> Field {
    Field {
        name: "n".into(),
        kind: Kind::Array {
            dtype: "<i8".into(),
            shape: vec![None],
        },
    }
}

#[test]
fn what_is_of_no_sample_is_passed_over_wherever_it_is() {
    let folder = folder();
    let member = |name: &str, data: &str| (name.to_owned(), data.as_bytes().to_vec());
    let large = "x".repeat(300 << 10);
    let members = [
        member("README", &large),
        member("._1.jpg", "mac"),
        member("__meta__/1.json", "{}"),
        member("1.JPG", "A"),
        member("1.d/LICENSE", &large),
        member("1.cls", "7"),
        member("2.jpg", "B"),
        member("2.CLS", "8\n"),
        member("NOTICE", "end"),
    ];
    let case = case(folder.path(), Form::Tar, &tar(&members), None);
    let [one, two] = &agree(&case, folder.path()).unwrap()[..] else {
        panic!("two samples")
    };
    assert_eq!(
        *one,
        (
            Some(b"1".to_vec()),
            vec![b"A".to_vec(), 7i64.to_le_bytes().to_vec()]
        )
    );
    assert_eq!(
        *two,
        (
            Some(b"2".to_vec()),
            vec![b"B".to_vec(), 8i64.to_le_bytes().to_vec()]
        )
    );
}

#[test]
fn members_that_are_not_wanted_are_not_held_in_memory() {
    let folder = folder();
    let member = |name: &str, data: Vec<u8>| (name.to_owned(), data);
    let members: Vec<_> = (0..3u8)
        .flat_map(|n| {
            [
                member(&format!("{n}.mp4"), vec![n; 6 << 20]),
                member(&format!("{n}.id"), vec![b'0' + n]),
            ]
        })
        .collect();
    let case = case(
        folder.path(),
        Form::Tar,
        &tar(&members),
        Some(vec![bytes_field("id")]),
    );
    let packed = case.made(&folder.path().join("packed"), false).unwrap();
    let found: Vec<_> = samples(&packed)
        .unwrap()
        .into_iter()
        .map(|(_, fields)| fields.concat())
        .collect();
    assert_eq!(found, [b"0", b"1", b"2"]);
}

/// Every prefix of a way through three files, some of them compressed.
#[test]
fn what_died_is_gone_on_with_behind_the_last_sample() {
    let folder = folder();
    let of = |form: Form, file: u8| match form {
        Form::Tar => tar(&(0..4)
            .flat_map(|n| {
                [
                    (format!("{file}{n}.x"), vec![n; 700]),
                    ("README".into(), vec![1; 600]),
                ]
            })
            .collect::<Vec<_>>()),
        Form::TfRecord => tfrecord(
            &(0..4)
                .map(|n| example(&vec![n; n.into()], &[file, n]))
                .collect::<Vec<_>>(),
        ),
        Form::Safetensors => safetensors(
            &(0..4)
                .map(|n| (format!("{file}{n}"), vec![n; usize::from(n) / 2 * 9]))
                .collect::<Vec<_>>(),
        ),
    };
    let session = session(folder.path());
    for form in [Form::Tar, Form::TfRecord, Form::Safetensors] {
        let fields = (form == Form::TfRecord).then(|| vec![numbers_field(), bytes_field("s")]);
        for is_packed in [false, true] {
            let files = (0..3u8).map(|file| {
                let path = folder.path().join(format!("{file}.shard"));
                let bytes = of(form, file);
                std::fs::write(
                    &path,
                    if is_packed && file > 0 {
                        zstd(&bytes)
                    } else {
                        bytes
                    },
                )
                .unwrap();
                path
            });
            let case = Case {
                session: session.clone(),
                form,
                files: files.collect(),
                fields: fields.clone(),
            };
            let whole = samples(&case.made(&folder.path().join("whole"), false).unwrap()).unwrap();
            assert_eq!(whole.len(), 12);
            for (count, in_place) in (0..12).flat_map(|count| [(count, false), (count, !is_packed)])
            {
                let path = folder.path().join("data");
                let (mut writer, mut shards) = case.begin(&path, in_place, false).unwrap();
                while writer.len() < count {
                    let most = count - writer.len();
                    shards.take(&mut writer, true, most).unwrap();
                }
                writer.save().unwrap();
                drop(writer);
                let (mut writer, mut shards) = case.begin(&path, in_place, true).unwrap();
                assert_eq!(writer.len(), count);
                while shards.take(&mut writer, true, 5).unwrap() {}
                assert!((0.99..=1.0).contains(&shards.fraction()));
                writer.finish().unwrap().run().unwrap();
                assert_eq!(
                    samples(&Dataset::open(&session, &path).unwrap()).unwrap(),
                    whole
                );
            }
        }
    }
}

/// Stored, not compressed: a frame of one raw block each 64 KiB.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
    let blocks: Vec<&[u8]> = bytes.chunks(64 << 10).collect();
    for (number, block) in blocks.iter().enumerate() {
        let head = (block.len() as u32) << 3 | u32::from(number + 1 == blocks.len());
        frame.extend(&head.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

#[test]
fn compressed_files_are_packed_and_not_pointed_to() {
    let folder = folder();
    let bytes = tar(&[("1.x".into(), vec![7; 100_000])]);
    let case = case(folder.path(), Form::Tar, &zstd(&bytes), None);
    assert_eq!(Form::of_file(&case.files[0]).unwrap(), Some(Form::Tar));
    assert_eq!(
        samples(&case.made(&folder.path().join("packed"), false).unwrap()).unwrap()[0].1,
        [vec![7; 100_000]]
    );
    for magic in [
        &b"\x1f\x8b\x08\0"[..],
        b"\x28\xb5\x2f\xfd",
        b"BZh91AY&SY",
        b"\xfd7zXZ\0",
    ] {
        std::fs::write(&case.files[0], magic).unwrap();
        let error = case
            .made(&folder.path().join("there"), true)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("a.shard") && error.contains("compressed") && error.contains("pack"),
            "{error}"
        );
    }
    // A record whose length looks like gzip's mark: an example, and a field that no example has.
    let record = example(&[1], b"a");
    let unused = 0x8_8b1f - record.len() - 4;
    let tail = [
        0x1a,
        unused as u8 | 0x80,
        (unused >> 7) as u8 | 0x80,
        (unused >> 14) as u8,
    ];
    std::fs::write(
        &case.files[0],
        tfrecord(&[[&record[..], &tail, &vec![0; unused]].concat()]),
    )
    .unwrap();
    let case = Case {
        form: Form::TfRecord,
        ..case
    };
    assert_eq!(std::fs::read(&case.files[0]).unwrap()[..3], [0x1f, 0x8b, 8]);
    assert_eq!(
        case.made(&folder.path().join("there"), true).unwrap().len(),
        1
    );
}

#[test]
fn files_of_another_kind_are_told_from_damaged_ones() {
    let folder = folder();
    let files: [&[u8]; 6] = [
        b"<!DOCTYPE html>\n<html><body>404</body></html>",
        &[b"<!DOCTYPE html>\n<html>".as_slice(), &[b' '; 4096]].concat(),
        &[b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".as_slice(), &[0; 600]].concat(),
        &[b"\xff\xd8\xff\xe0\0\x10JFIF".as_slice(), &[0; 600]].concat(),
        &[b"PK\x03\x04".as_slice(), &[9; 600]].concat(),
        b"no such bucket",
    ];
    for form in [Form::Tar, Form::TfRecord, Form::Safetensors] {
        for file in files {
            let case = case(folder.path(), form, file, None);
            for in_place in [false, true] {
                let error = case
                    .made(&folder.path().join("made"), in_place)
                    .unwrap_err();
                let what = [" tar archive", " TFRecord file", " safetensors file"][form as usize];
                assert!(
                    error.to_string().contains(&format!("is no{what}")),
                    "{error}"
                );
                assert!(
                    matches!(error, Error::Format(FormatError::Unsupported { .. })),
                    "{error:?}"
                );
            }
            assert_eq!(Form::of_file(&case.files[0]).unwrap(), None);
        }
    }
    for (form, bytes) in [
        (Form::Tar, tar(&[("1.x".into(), vec![1])])),
        (Form::TfRecord, tfrecord(&[example(&[1], b"")])),
        (Form::Safetensors, safetensors(&[("a".into(), vec![1])])),
    ] {
        let case = case(folder.path(), form, &bytes, None);
        assert_eq!(Form::of_file(&case.files[0]).unwrap(), Some(form));
        let mut damaged = bytes.clone();
        damaged[if form == Form::Safetensors { 9 } else { 1 }] ^= 4;
        let case = self::case(folder.path(), form, &damaged, None);
        let error = case.made(&folder.path().join("made"), false).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Format(FormatError::Corrupt { .. } | FormatError::Truncated { .. })
            ),
            "{error:?}"
        );
    }
}

#[test]
fn the_end_of_an_archive_is_marked_and_nothing_is_behind_it() {
    let folder = folder();
    let whole = tar(&[("1.x".into(), vec![1; 600]), ("2.x".into(), vec![2; 600])]);
    let told = |bytes: &[u8]| {
        let case = case(folder.path(), Form::Tar, bytes, None);
        case.made(&folder.path().join("made"), false)
            .map(|made| made.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(told(&[&whole[..], &[0; 10_000]].concat()), Ok(2));
    assert_eq!(told(&whole[..whole.len() - 512]), Ok(2));
    for (len, why) in [
        (3072, "corrupt at byte 3072: it ends without"),
        (1000, "byte 512: it ends within '1.x'"),
        (1700, "byte 1536: it ends within a header"),
    ] {
        let error = told(&whole[..len]).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let error = told(&[&whole[..], &whole].concat()).unwrap_err();
    assert!(
        error.contains("corrupt at byte 4096: there is more behind the mark of its end"),
        "{error}"
    );
    let mut hole = whole.clone();
    hole[1536..2048].fill(0);
    assert!(
        told(&hole).unwrap_err().contains("corrupt at byte 2048"),
        "samples are not lost in silence"
    );
}

#[test]
fn a_sample_without_a_field_or_with_another_is_told_with_its_key() {
    let folder = folder();
    let member = |name: &str| (name.to_owned(), b"1".to_vec());
    let told = |names: &[&str], fields| {
        let members: Vec<_> = names.iter().map(|name| member(name)).collect();
        let case = case(folder.path(), Form::Tar, &tar(&members), fields);
        let found: Vec<String> = [false, true]
            .iter()
            .map(|&in_place| {
                case.made(&folder.path().join("made"), in_place)
                    .unwrap_err()
                    .to_string()
            })
            .collect();
        assert_eq!(found[0], found[1]);
        found[0].clone()
    };
    let apart = told(&["1.jpg", "2.jpg", "1.cls", "2.cls"], None);
    assert!(
        apart.contains("a.shard: sample '1', at byte 2048: it has no 'jpg'"),
        "{apart}"
    );
    let more = told(&["1.jpg", "2.jpg", "2.cls"], None);
    assert!(
        more.contains("sample '2', at byte 1024: it has 'cls'"),
        "{more}"
    );
    let missing = told(&["1.jpg", "1.cls", "2.jpg"], Some(vec![bytes_field("cls")]));
    assert!(
        missing.contains("sample '2', at byte 2048: it has no 'cls'"),
        "{missing}"
    );
    let twice = told(&["1.jpg", "1.cls", "1.JPG"], None);
    assert!(
        twice.contains("corrupt at byte 2048: sample '1': '1.JPG': its field 'jpg' comes twice"),
        "{twice}"
    );
    let upper = ShardOptions {
        in_place: false,
        fields: Some(vec!["JPG".into()]),
    };
    assert!(matches!(
        Shards::new(&session(folder.path()), Form::Tar, Vec::new(), upper),
        Err(Error::Value { .. })
    ));
}

#[test]
fn lists_of_another_length_are_told_with_what_would_do() {
    let folder = folder();
    let records = tfrecord(&[
        example(&[1], b"a"),
        example(&[2, 3], b"b"),
        example(&[], b""),
    ]);
    let case = case(folder.path(), Form::TfRecord, &records, None);
    let at = tfrecord(&[example(&[1], b"a")]).len();
    for in_place in [false, true] {
        let error = case
            .made(&folder.path().join("made"), in_place)
            .unwrap_err()
            .to_string();
        let why = format!(
            "a.shard: record 1, at byte {at}: 'n' has shape (2,), where every sample has (); fields={{'n': ('int64', (None,)), ...}}"
        );
        assert!(error.contains(&why), "{error}");
    }
    let case = Case {
        fields: Some(vec![numbers_field()]),
        ..case
    };
    let found: Vec<_> = agree(&case, folder.path())
        .unwrap()
        .into_iter()
        .map(|(_, fields)| fields.concat())
        .collect();
    assert_eq!(
        found,
        [&[1u64, 1][..], &[2, 2, 3], &[0]].map(|numbers| numbers
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>())
    );
}

#[test]
fn a_header_that_promises_much_takes_no_memory() {
    let folder = folder();
    let mut archive = tar(&[("1.x".into(), vec![1; 600])]);
    archive[124..135].copy_from_slice(b"77777777777");
    archive[148..156].fill(b' ');
    let sum: u32 = archive[..512].iter().map(|&byte| u32::from(byte)).sum();
    archive[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    for bytes in [archive.clone(), zstd(&archive)] {
        let case = case(folder.path(), Form::Tar, &bytes, None);
        let error = case
            .made(&folder.path().join("made"), false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("it ends within '1.x', of 8589934591 bytes"),
            "{error}"
        );
    }
}

prop_compose! {
    fn members()(parts in proptest::collection::vec((0usize..4, 0usize..9, proptest::collection::vec(any::<u8>(), 0..1500)), 1..12)) -> Vec<(String, Vec<u8>)> {
        let endings = ["jpg", "JPG", "cls", "txt", "x.npy", "left.png"];
        let mut parts = parts;
        // As they should be, more often than not.
        parts.sort_by_key(|part| part.0);
        parts.into_iter().map(|(key, ending, data)| match ending {
            6 => (format!("{key}README"), data),
            7 => (format!("a/._{key}.jpg"), data),
            8 => (format!("a/{key}"), data),
            2 => (format!("a.b/{key}.cls"), data.len().to_string().into_bytes()),
            _ => (format!("a.b/{key}.{}", endings[ending]), data),
        }).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn packed_and_in_place_are_the_same(members in members(), told in any::<bool>(), edits in proptest::collection::vec((0usize..1 << 16, any::<u8>()), 0..3)) {
        let folder = folder();
        let mut bytes = tar(&members);
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let fields = told.then(|| vec![bytes_field("jpg")]);
        agree(&case(folder.path(), Form::Tar, &bytes, fields), folder.path());
    }

    #[test]
    fn records_and_tensors_too(
        parts in proptest::collection::vec((proptest::collection::vec(0u8..128, 0..9), proptest::collection::vec(any::<u8>(), 0..60)), 1..8),
        edits in proptest::collection::vec((0usize..1 << 12, any::<u8>()), 0..3),
    ) {
        let folder = folder();
        let records = tfrecord(&parts.iter().map(|(numbers, string)| example(numbers, string)).collect::<Vec<_>>());
        let tensors = safetensors(&parts.iter().enumerate().map(|(n, (_, data))| (format!("t{n}"), data.clone())).collect::<Vec<_>>());
        for (form, mut bytes, fields) in [(Form::TfRecord, records, Some(vec![numbers_field(), bytes_field("s")])), (Form::Safetensors, tensors, None)] {
            for &(at, byte) in &edits {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            agree(&case(folder.path(), form, &bytes, fields), folder.path());
        }
    }
}
