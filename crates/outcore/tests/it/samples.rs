//! Datasets: written, read by number and by name, shuffled, gone on with, damaged.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use outcore::samples::{
    Channels, Chunks, Dataset, DatasetWriter, Decode, End, Field, Kind, Loader, LoaderOptions,
    Shuffle, WriterOptions,
};
use outcore::{Error, Session, Settings};
use outcore_store::{Error as StoreError, Formatted};
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

/// A folder, and in it a store.
fn places() -> (tempfile::TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = folder.path().join("disk.store");
    Formatted::format(&disk, Some(64 << 20)).unwrap();
    let places = [folder.path().join("data"), disk.join("data")];
    (folder, places)
}

fn fields() -> Vec<Field> {
    vec![
        Field {
            name: "image".into(),
            kind: Kind::Bytes,
        },
        Field {
            name: "label".into(),
            kind: Kind::Array {
                dtype: "<i8".into(),
                shape: vec![],
            },
        },
    ]
}

/// Bytes of some length, sometimes none, that no other sample has.
fn image(sample: u64) -> Vec<u8> {
    let len = if sample % 10 == 3 {
        0
    } else {
        20 + (sample * 7919 % 3000) as usize
    };
    (0..len)
        .map(|at| (sample * 31 + at as u64 * 7) as u8)
        .collect()
}

fn name(sample: u64) -> String {
    format!("{}/{sample}.jpg", sample % 10)
}

fn write(
    writer: &mut DatasetWriter,
    samples: impl Iterator<Item = u64>,
    named: bool,
) -> outcore::Result<()> {
    for sample in samples {
        let label = (sample % 10) as i64;
        writer.write(
            named.then(|| name(sample)).as_deref().map(str::as_bytes),
            &[&image(sample), &label.to_le_bytes()],
        )?;
    }
    Ok(())
}

fn written(session: &Session, path: &Path, samples: u64, named: bool) {
    let mut writer = DatasetWriter::create(session, path, WriterOptions::default()).unwrap();
    writer.set_fields(fields()).unwrap();
    write(&mut writer, 0..samples, named).unwrap();
    writer.finish().unwrap().run().unwrap();
}

fn check(session: &Session, path: &Path, samples: u64, named: bool) {
    let dataset = Dataset::open(session, path).unwrap();
    assert_eq!(
        (dataset.len(), dataset.fields(), dataset.is_named()),
        (samples, &fields()[..], named && samples > 0)
    );
    let numbers: Vec<u64> = (0..samples).rev().chain(0..samples.min(3)).collect();
    for some in numbers.chunks(500) {
        let read = dataset.read(some).unwrap().wait().unwrap();
        for (index, &sample) in some.iter().enumerate() {
            let found = dataset.split(read.get(index).unwrap()).unwrap();
            assert_eq!(
                found,
                [&image(sample)[..], &((sample % 10) as i64).to_le_bytes()]
            );
        }
    }
    for sample in 0..if named { samples } else { 0 } {
        assert_eq!(dataset.find(name(sample).as_bytes()).unwrap(), Some(sample));
        assert_eq!(
            dataset.name(sample).unwrap().unwrap(),
            name(sample).as_bytes()
        );
    }
    assert_eq!(dataset.find(b"0/1.jpg").unwrap(), None);
    assert!(matches!(dataset.read(&[samples]), Err(Error::Value { .. })));
}

#[test]
fn samples_come_back_by_number_and_by_name() {
    let (folder, places) = places();
    let session = session(folder.path());
    for path in &places {
        for samples in [0, 1, 63, 64, 65, 3000] {
            for named in [false, true] {
                written(&session, path, samples, named);
                check(&session, path, samples, named);
            }
        }
    }
}

#[test]
fn opening_can_be_given_up_between_its_reads() {
    let (folder, places) = places();
    let session = session(folder.path());
    for path in places {
        written(&session, &path, 3000, true);
        let asked = Cell::new(0);
        let ask = |at| {
            asked.set(0);
            let stop = || asked.replace(asked.get() + 1) == at;
            Dataset::open_until(&session, &path, &stop)
        };
        ask(u64::MAX).unwrap();
        let all = asked.get();
        assert!(all > 10, "every file and every read is asked for");
        for at in 0..all {
            assert!(matches!(ask(at), Err(Error::Cancelled)));
            assert_eq!(asked.get(), at + 1, "nothing is done after it");
        }
    }
}

#[test]
fn samples_that_are_longer_than_memory_are_read_in_pieces() {
    let (folder, places) = places();
    let session = session(folder.path());
    let long: Vec<u8> = (0..5_500_001u64).map(|at| ((at * at) >> 7) as u8).collect();
    for path in &places {
        let mut writer = DatasetWriter::create(&session, path, WriterOptions::default()).unwrap();
        writer
            .set_fields(vec![Field {
                name: "image".into(),
                kind: Kind::Bytes,
            }])
            .unwrap();
        for image in [&b"before"[..], &long, b"behind"] {
            writer.write(None, &[image]).unwrap();
        }
        writer.finish().unwrap().run().unwrap();
        let dataset = Dataset::open(&session, path).unwrap();
        let batch = dataset.load(&[2, 1, 0], || true).unwrap();
        assert!((0..3).map(|index| batch.columns()[0].get(index)).eq([
            &b"behind"[..],
            &long,
            b"before"
        ]));
        assert!(dataset.faults(0..3, || true).unwrap().is_empty());
        let mut loader = Loader::new(
            &dataset,
            LoaderOptions {
                batch: 2,
                ..LoaderOptions::default()
            },
        )
        .unwrap();
        assert_eq!(
            loader.next_batch(|| true).unwrap().unwrap().columns()[0].get(1),
            long
        );
    }
}

#[test]
fn the_directory_takes_few_bytes_a_sample() {
    let (folder, [path, even]) = places();
    let session = session(folder.path());
    written(&session, &path, 20_000, true);
    let dataset = Dataset::open(&session, &path).unwrap();
    assert!(
        dataset.directory_bytes() < 12 * 20_000,
        "{}",
        dataset.directory_bytes()
    );
    let held = || session.engine().budget().total() - session.engine().budget().available();
    assert_eq!(held(), dataset.directory_bytes());
    drop(dataset);
    // Samples of one length: their checksums, and nothing else.
    let mut writer = DatasetWriter::create(&session, &even, WriterOptions::default()).unwrap();
    let kind = Kind::Array {
        dtype: "<u2".into(),
        shape: vec![Some(3)],
    };
    writer
        .set_fields(vec![Field {
            name: "x".into(),
            kind,
        }])
        .unwrap();
    (0..1000u64).for_each(|number| writer.write(None, &[&number.to_le_bytes()[..6]]).unwrap());
    writer.finish().unwrap().run().unwrap();
    let dataset = Dataset::open(&session, &even).unwrap();
    assert_eq!((dataset.directory_bytes(), held()), (4 * 1000, 4 * 1000));
}

#[test]
fn a_writer_that_died_is_gone_on_with() {
    let (folder, places) = places();
    for path in &places {
        let session = session(folder.path());
        written(&session, path, 10, false);
        let mut writer = DatasetWriter::create(&session, path, WriterOptions::default()).unwrap();
        writer.set_fields(fields()).unwrap();
        write(&mut writer, 0..1000, true).unwrap();
        writer.note("a thousand");
        writer.save().unwrap();
        write(&mut writer, 1000..1500, true).unwrap();
        assert!(matches!(
            DatasetWriter::create(&session, path, WriterOptions::default()),
            Err(Error::Store(StoreError::Locked { .. }))
        ));
        drop(writer);
        check(&session, path, 10, false);
        let options = WriterOptions {
            resume: true,
            ..WriterOptions::default()
        };
        let mut writer = DatasetWriter::create(&session, path, options).unwrap();
        assert_eq!(
            (writer.len(), writer.noted(), writer.fields()),
            (1000, "a thousand", Some(&fields()[..]))
        );
        write(&mut writer, 1000..2000, true).unwrap();
        writer.finish().unwrap().run().unwrap();
        check(&session, path, 2000, true);
        let writer = DatasetWriter::create(&session, path, options).unwrap();
        assert!(writer.is_empty());
        drop(writer);
        check(&session, path, 2000, true);
    }
}

#[test]
fn classes_are_kept_and_gone_on_with() {
    let (folder, places) = places();
    let session = session(folder.path());
    let classes = ["cats".to_owned(), "größe".to_owned(), "none".to_owned()];
    for place in &places {
        let mut writer = DatasetWriter::create(&session, place, WriterOptions::default()).unwrap();
        assert!(matches!(
            writer.set_classes(vec!["a".into(), "a".into()]),
            Err(Error::Value { .. })
        ));
        writer.set_classes(classes.to_vec()).unwrap();
        writer.set_fields(fields()).unwrap();
        write(&mut writer, 0..100, true).unwrap();
        writer.save().unwrap();
        drop(writer);
        let mut writer = DatasetWriter::create(
            &session,
            place,
            WriterOptions {
                resume: true,
                ..WriterOptions::default()
            },
        )
        .unwrap();
        assert_eq!((writer.len(), writer.classes()), (100, Some(&classes[..])));
        assert!(matches!(
            writer.set_classes(classes[..2].to_vec()),
            Err(Error::Value { .. })
        ));
        writer.set_classes(classes.to_vec()).unwrap();
        writer.finish().unwrap().run().unwrap();
        let dataset = Dataset::open(&session, place).unwrap();
        assert_eq!(dataset.classes(), Some(&classes[..]));
        let mut copy = DatasetWriter::create(
            &session,
            place.with_file_name("copy"),
            WriterOptions::default(),
        )
        .unwrap();
        copy.copy(&dataset, &[3, 1], true, || true).unwrap();
        assert_eq!(copy.classes(), Some(&classes[..]));
        copy.discard();
        let mut other = DatasetWriter::create(
            &session,
            place.with_file_name("other"),
            WriterOptions::default(),
        )
        .unwrap();
        other.set_classes(classes[1..].to_vec()).unwrap();
        assert!(matches!(
            other.copy(&dataset, &[3, 1], true, || true),
            Err(Error::Value { .. })
        ));
        other.discard();
    }
    let plain = folder.path().join("plain");
    written(&session, &plain, 3, false);
    assert_eq!(Dataset::open(&session, &plain).unwrap().classes(), None);
    assert!(
        !std::fs::read_to_string(plain.join("dataset.json"))
            .unwrap()
            .contains("classes")
    );
}

#[test]
fn a_sample_that_is_none_is_refused_and_the_next_is_written() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    assert!(matches!(
        writer.write(None, &[b""]),
        Err(Error::Value { .. })
    ));
    writer.set_fields(fields()).unwrap();
    let label = 0_i64.to_le_bytes();
    writer.write(None, &[&image(0), &label]).unwrap();
    for (name, sample) in [
        (None, &[&b"x"[..]][..]),
        (None, &[b"x", b"short"]),
        (Some(&b"name"[..]), &[b"x", &label]),
    ] {
        assert!(matches!(
            writer.write(name, sample),
            Err(Error::Value { .. })
        ));
    }
    assert!(matches!(
        writer.set_fields(Vec::new()),
        Err(Error::Value { .. })
    ));
    write(&mut writer, 1..100, false).unwrap();
    writer.finish().unwrap().run().unwrap();
    check(&session, &path, 100, false);
}

#[test]
fn a_name_that_two_samples_have_is_told_and_nothing_is_made() {
    let (folder, places) = places();
    let session = session(folder.path());
    for path in &places {
        let mut writer = DatasetWriter::create(&session, path, WriterOptions::default()).unwrap();
        writer.set_fields(fields()).unwrap();
        write(&mut writer, (0..500).chain([77]), true).unwrap();
        let error = writer.finish().unwrap().run().unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("samples 77 and 500 are both called \"7/77.jpg\""),
            "{error}"
        );
        assert!(matches!(
            Dataset::open(&session, path),
            Err(Error::Store(StoreError::Missing { .. }))
        ));
    }
}

#[test]
fn names_are_any_bytes() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    let names: [&[u8]; 5] = [b"", b"\0", b"../x\n", b"\xff\xfe", &[7; 70_000]];
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    writer
        .set_fields(vec![Field {
            name: "x".into(),
            kind: Kind::Bytes,
        }])
        .unwrap();
    names
        .iter()
        .for_each(|name| writer.write(Some(name), &[name]).unwrap());
    writer.finish().unwrap().run().unwrap();
    let dataset = Dataset::open(&session, &path).unwrap();
    assert!(
        names
            .iter()
            .enumerate()
            .all(|(sample, name)| dataset.find(name).unwrap() == Some(sample as u64))
    );
    assert_eq!(dataset.names(0..9).unwrap().concat(), names);
}

/// Every bit of every file, turned over: an error that names the file, or the right answer.
#[test]
fn damage_is_noticed() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    written(&session, &path, 70, true);
    let all = |session: &Session| -> outcore::Result<()> {
        let dataset = Dataset::open(session, &path)?;
        let numbers: Vec<u64> = (0..70).collect();
        let read = dataset.read(&numbers)?.wait()?;
        for (index, &sample) in numbers.iter().enumerate() {
            assert_eq!(dataset.split(read.get(index)?)?[0], image(sample));
            assert_eq!(
                dataset.find(name(sample).as_bytes())?.unwrap_or(sample),
                sample
            );
            dataset.name(sample)?;
        }
        Ok(())
    };
    all(&session).unwrap();
    let files: Vec<PathBuf> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 9);
    for file in files {
        let (whole, name) = (
            std::fs::read(&file).unwrap(),
            file.file_name().unwrap().to_str().unwrap().to_owned(),
        );
        let step = (whole.len() / 40).max(1);
        for at in (0..whole.len()).step_by(step) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&file, &bytes).unwrap();
            let found = all(&session);
            assert!(
                found.unwrap_err().to_string().contains(&name),
                "{name} {at}"
            );
        }
        for len in [0, whole.len() / 2, whole.len() - 2] {
            std::fs::write(&file, &whole[..len]).unwrap();
            assert!(
                all(&session).unwrap_err().to_string().contains(&name),
                "{name} {len}"
            );
        }
        std::fs::write(&file, &whole).unwrap();
    }
    all(&session).unwrap();
}

#[test]
fn damaged_samples_are_left_out_and_counted_if_asked() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    written(&session, &path, 200, false);
    let file = path.join("samples");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let dataset = Dataset::open(&session, &path).unwrap();
    for shuffle in shuffles() {
        let options = LoaderOptions {
            batch: 7,
            shuffle,
            ..LoaderOptions::default()
        };
        let mut loader = Loader::new(&dataset, options).unwrap();
        let error = std::iter::from_fn(|| {
            loader
                .next_batch(|| true)
                .map(|batch| batch.map(drop))
                .transpose()
        })
        .find_map(Result::err)
        .unwrap();
        assert!(
            error.to_string().contains("samples") && error.to_string().contains("checksum"),
            "{error}"
        );
        let mut loader = Loader::new(
            &dataset,
            LoaderOptions {
                skip_damaged: true,
                ..options
            },
        )
        .unwrap();
        assert_eq!(epoch(&mut loader).len(), 199);
        assert_eq!(loader.skipped().0, 1);
    }
}

/// As pictures are, of which a batch is longer than the caches.
#[test]
fn long_samples_are_compared_while_they_are_copied() {
    let image = |sample: u64| -> Vec<u8> {
        (0..25_000 + sample * 7919 % 30_000)
            .map(|at| (sample * 31 + at * at % 251) as u8)
            .collect()
    };
    let (_folder, [path, _]) = places();
    let settings = Settings {
        memory_bytes: Some(64 << 20),
        threads: 1,
        ..Settings::default()
    };
    let session = Session::new(settings).unwrap();
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    writer.set_fields(fields()).unwrap();
    (0..300u64).for_each(|sample| {
        writer
            .write(None, &[&image(sample), &sample.to_le_bytes()])
            .unwrap()
    });
    writer.finish().unwrap().run().unwrap();
    let file = path.join("samples");
    let sound = std::fs::read(&file).unwrap();
    for damaged in [false, true] {
        let mut bytes = sound.clone();
        bytes[sound.len() / 2] ^= u8::from(damaged);
        std::fs::write(&file, &bytes).unwrap();
        let dataset = Dataset::open(&session, &path).unwrap();
        for shuffle in shuffles() {
            let options = LoaderOptions {
                batch: 100,
                shuffle,
                skip_damaged: true,
                ..LoaderOptions::default()
            };
            let mut loader = Loader::new(&dataset, options).unwrap();
            let mut found = 0;
            while let Some(batch) = loader.next_batch(|| true).unwrap() {
                for (index, &sample) in batch.samples().iter().enumerate() {
                    assert_eq!(batch.columns()[0].get(index), image(sample));
                    assert_eq!(batch.columns()[1].get(index), sample.to_le_bytes());
                }
                found += batch.len();
            }
            assert_eq!(
                (found as u64, loader.skipped().0),
                (300 - u64::from(damaged), u64::from(damaged))
            );
            assert!(
                loader
                    .skipped()
                    .1
                    .is_none_or(|error| error.to_string().contains("checksum"))
            );
        }
    }
}

fn shuffles() -> [Shuffle; 3] {
    [
        Shuffle::No,
        Shuffle::Global,
        Shuffle::Chunks(Chunks {
            samples: 16,
            window: 2,
            lanes: 2,
        }),
    ]
}

/// The samples of what is left of an epoch, whose bytes are compared.
fn epoch(loader: &mut Loader) -> Vec<u64> {
    let (mut all, steps) = (Vec::new(), loader.left());
    let mut count = 0;
    while let Some(batch) = loader.next_batch(|| true).unwrap() {
        for (index, &sample) in batch.samples().iter().enumerate() {
            assert_eq!(batch.columns()[0].get(index), image(sample));
        }
        all.extend_from_slice(batch.samples());
        count += 1;
    }
    assert_eq!(count, steps);
    all
}

#[test]
fn epochs_differ_and_are_the_same_every_time() {
    let (folder, places) = places();
    let session = session(folder.path());
    for path in &places {
        written(&session, path, 500, false);
        let dataset = Dataset::open(&session, path).unwrap();
        for shuffle in shuffles() {
            let options = LoaderOptions {
                batch: 32,
                shuffle,
                seed: 5,
                ..LoaderOptions::default()
            };
            let mut loader = Loader::new(&dataset, options).unwrap();
            let [first, second] = [epoch(&mut loader), epoch(&mut loader)];
            assert_eq!(first == second, shuffle == Shuffle::No);
            let mut again = Loader::new(&dataset, options).unwrap();
            again.set_epoch(1);
            assert_eq!(epoch(&mut again), second);
            for mut samples in [first, second] {
                samples.sort_unstable();
                assert!(samples.into_iter().eq(0..500));
            }
        }
    }
}

/// Samples that are kept from epoch to epoch come and go with the memory that others leave.
#[test]
fn what_is_kept_gives_way_to_others() {
    let (folder, places) = places();
    let session = session(folder.path());
    for path in &places {
        written(&session, path, 4000, false);
        let dataset = Dataset::open(&session, path).unwrap();
        for shuffle in [Shuffle::No, Shuffle::Global] {
            let mut loader = Loader::new(
                &dataset,
                LoaderOptions {
                    batch: 50,
                    shuffle,
                    ..LoaderOptions::default()
                },
            )
            .unwrap();
            for round in 0..4 {
                let mut reserved = None;
                let mut all = Vec::new();
                while let Some(batch) = loader.next_batch(|| true).unwrap() {
                    for (index, &sample) in batch.samples().iter().enumerate() {
                        assert_eq!(batch.columns()[0].get(index), image(sample));
                    }
                    all.extend_from_slice(batch.samples());
                    if round > 0 && all.len() % 700 == 0 {
                        reserved = if reserved.is_none() {
                            session.engine().reserve("test", 2 << 20).ok()
                        } else {
                            None
                        };
                    }
                }
                all.sort_unstable();
                assert!(all.into_iter().eq(0..4000));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Any number of ranks has the same samples in the same order as one, and goes on where any
    /// other number was.
    #[test]
    fn ranks_share_one_order(
        samples in 0u64..150, batch in 1u64..9, ranks in 1u64..6, later in 1u64..6, steps in 0usize..4, which in 0usize..3, end in 0usize..3,
    ) {
        let (folder, [path, _]) = places();
        let session = session(folder.path());
        written(&session, &path, samples, false);
        let dataset = Dataset::open(&session, &path).unwrap();
        let end = [End::Drop, End::Pad, End::Uneven][end];
        let shuffle = shuffles()[which];
        let loader = |rank, ranks, batch| {
            Loader::new(&dataset, LoaderOptions { batch, shuffle, seed: 9, rank, ranks, end, ..LoaderOptions::default() }).unwrap()
        };
        let whole = epoch(&mut loader(0, 1, 1));
        let mut found = Vec::new();
        let mut states = Vec::new();
        for rank in 0..ranks {
            let mut loader = loader(rank, ranks, batch);
            let mut mine = Vec::new();
            for _ in 0..steps {
                let Some(next) = loader.next_batch(|| true).unwrap() else { break };
                mine.extend_from_slice(next.samples());
            }
            states.push(loader.state());
            found.push(mine);
        }
        // Ranks that have begun the next epoch, or had nothing to do, are elsewhere.
        if steps as u64 * batch * ranks > samples {
            return Ok(());
        }
        prop_assert!(states.windows(2).all(|pair| pair[0] == pair[1]));
        let position = states[0].position as usize;
        let interleaved: Vec<u64> = (0..position).map(|at| found[at % ranks as usize][at / ranks as usize]).collect();
        prop_assert_eq!(&interleaved, &whole[..position]);
        let mut rest = Vec::new();
        let mut counts = Vec::new();
        for rank in 0..later {
            let mut loader = loader(rank, later, batch + 1);
            loader.restore(&states[0]).unwrap();
            let mine = epoch(&mut loader);
            counts.push(mine.len());
            rest.extend(mine.into_iter().enumerate().map(|(at, sample)| (at as u64 * later + rank, sample)));
        }
        rest.sort_unstable();
        let rest: Vec<u64> = rest.into_iter().map(|(_, sample)| sample).collect();
        let left = whole.len() - position;
        match end {
            End::Uneven => prop_assert_eq!(&rest, &whole[position..]),
            End::Drop => prop_assert_eq!(&rest, &whole[position..position + left / later as usize * later as usize]),
            End::Pad => {
                prop_assert_eq!(&rest[..left], &whole[position..]);
                prop_assert!(counts.iter().all(|&count| count == left.div_ceil(later as usize)));
            }
        }
    }
}

/// A caller that stops waiting for a batch sees by the state that it did not come, and gets it
/// whole when it waits again.
#[test]
fn a_batch_that_was_not_waited_for_is_the_next_one_again() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    let mut noise = image::RgbImage::new(64, 64);
    noise.pixels_mut().enumerate().for_each(|(at, pixel)| {
        pixel.0 = [at * at, at * 7, at ^ 99].map(|value| (value >> 3) as u8)
    });
    let mut png = Vec::new();
    noise
        .write_to(&mut std::io::Cursor::new(&mut png), image::ImageFormat::Png)
        .unwrap();
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    writer
        .set_fields(vec![Field {
            name: "image".into(),
            kind: Kind::Bytes,
        }])
        .unwrap();
    (0..80).for_each(|_| writer.write(None, &[&png]).unwrap());
    writer.finish().unwrap().run().unwrap();
    let decode = Decode {
        field: "image".into(),
        channels: Channels::Rgb,
        size: Some((64, 64)),
        turned: false,
    };
    let dataset = Dataset::open(&session, &path)
        .unwrap()
        .decoding(vec![decode])
        .unwrap();
    for shuffle in shuffles() {
        let options = LoaderOptions {
            batch: 40,
            shuffle,
            ..LoaderOptions::default()
        };
        let whole = Loader::new(&dataset, options)
            .unwrap()
            .next_batch(|| true)
            .unwrap()
            .unwrap();
        let mut loader = Loader::new(&dataset, options).unwrap();
        let start = loader.state();
        // A thread may have made it already.
        while !matches!(loader.next_batch(|| false), Err(Error::Cancelled)) {
            loader.set_epoch(0);
        }
        assert_eq!(loader.state(), start);
        let mut asked = 0;
        let given_up = loader.next_batch(|| {
            asked += 1;
            asked < 3
        });
        assert!(matches!(given_up, Err(Error::Cancelled)));
        let again = loader.next_batch(|| true).unwrap().unwrap();
        assert_eq!((again.samples(), again.len()), (whole.samples(), 40));
        assert!((0..again.len()).all(|at| again.columns()[0].get(at) == noise.as_raw()));
    }
}

/// What else goes on in the session does not change it, nor does a state from elsewhere bring it
/// down.
#[test]
fn the_order_of_a_chunk_shuffle_is_that_of_the_budget() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    written(&session, &path, 4000, false);
    let dataset = Dataset::open(&session, &path).unwrap();
    let shape = dataset.chunk_shuffle(None);
    let held = session.engine().reserve("test", 3 << 20).unwrap();
    assert_eq!(dataset.chunk_shuffle(None), shape);
    drop(held);
    assert!(matches!(
        dataset.chunk_shuffle(Some(64)),
        Shuffle::Chunks(Chunks {
            lanes: 24,
            window: 2,
            ..
        })
    ));
    for shape in [
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
        (u64::MAX, 1, 1),
        (1, u64::MAX, 1),
        (1, 1, u64::MAX),
    ] {
        let shuffle = Shuffle::Chunks(Chunks {
            samples: shape.0,
            window: shape.1,
            lanes: shape.2,
        });
        let options = LoaderOptions {
            shuffle,
            ..LoaderOptions::default()
        };
        assert!(matches!(
            Loader::new(&dataset, options),
            Err(Error::Value { .. })
        ));
    }
}

#[test]
fn a_loader_keeps_to_the_budget_and_says_what_it_needs() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    writer
        .set_fields(vec![Field {
            name: "x".into(),
            kind: Kind::Bytes,
        }])
        .unwrap();
    let long = vec![7; 200 << 10];
    (0..64).for_each(|_| writer.write(None, &[&long]).unwrap());
    writer.finish().unwrap().run().unwrap();
    let dataset = Dataset::open(&session, &path).unwrap();
    // A chunk of one sample mixes with nothing that a permutation of all does not.
    assert_eq!(dataset.chunk_shuffle(None), Shuffle::Global);
    for shuffle in shuffles() {
        let mut loader = Loader::new(
            &dataset,
            LoaderOptions {
                batch: 4,
                shuffle,
                ahead: Some(100),
                ..LoaderOptions::default()
            },
        )
        .unwrap();
        match (loader.next_batch(|| true), shuffle) {
            (Ok(Some(batch)), Shuffle::No | Shuffle::Global) => assert_eq!(batch.len(), 4),
            (Err(Error::OverBudget { needed, .. }), Shuffle::Chunks(_)) => {
                assert!(needed > (16 * 200) << 10)
            }
            (other, _) => panic!("{:?}", other.map(|batch| batch.map(|batch| batch.len()))),
        }
    }
    // What is larger than the budget is read into memory of the caller's.
    let mut loader = Loader::new(
        &dataset,
        LoaderOptions {
            batch: 64,
            ..LoaderOptions::default()
        },
    )
    .unwrap();
    let batch = loader.next_batch(|| true).unwrap().unwrap();
    assert!(batch.len() == 64 && (0..64).all(|index| batch.columns()[0].get(index) == long));
}

#[test]
fn a_batch_of_several_windows_a_lane_takes_no_more_than_these() {
    let (folder, [path, _]) = places();
    let session = session(folder.path());
    let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default()).unwrap();
    let kind = Kind::Array {
        dtype: "|u1".into(),
        shape: vec![Some(1024)],
    };
    writer
        .set_fields(vec![Field {
            name: "x".into(),
            kind,
        }])
        .unwrap();
    (0..8192u64).for_each(|number| writer.write(None, &[&[number as u8; 1024]]).unwrap());
    writer.finish().unwrap().run().unwrap();
    drop(session);
    let shuffle = Shuffle::Chunks(Chunks {
        samples: 64,
        window: 2,
        lanes: 4,
    });
    // With more than what three windows a lane take, batches that are ready have some until windows
    // need it.
    for windows in [13, 18, 24] {
        let session = self::session(folder.path());
        let dataset = Dataset::open(&session, &path).unwrap();
        let budget = session.engine().budget();
        let _held = session
            .engine()
            .reserve("test", budget.available() - windows * (128 << 10))
            .unwrap();
        let options = LoaderOptions {
            batch: 256,
            shuffle,
            ahead: Some(0),
            ..LoaderOptions::default()
        };
        let mut loader = Loader::new(&dataset, options).unwrap();
        assert_eq!(loader.next_batch(|| true).unwrap().unwrap().len(), 256);
        loader.set_batch(1024).unwrap();
        let batch = loader.next_batch(|| true).unwrap().unwrap();
        assert!(
            (0..1024)
                .all(|index| batch.columns()[0].get(index) == [batch.samples()[index] as u8; 1024])
        );
    }
}
