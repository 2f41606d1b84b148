//! Training, updates and versions against a plain model of them: all rows in memory.

use std::path::{Path, PathBuf};

use super::common::{Random, bits, session_with};
use outcore_core::{Error, Session, WrapDevice};
use outcore_device::{Device, Faults, Faulty};
use outcore_kernels::embedding::{RowUpdate, add_scaled};
use outcore_tables::{
    Bags, Feature, Gradient, Ids, Opening, Optimizer, Out, Pooling, RowEncoding, Serving, Table,
    TableSet, TableWriter,
};

const DIM: usize = 12;
const ROWS: u64 = 3000;

fn element(row: u64, column: usize) -> f32 {
    ((row * 31 + column as u64 * 17) % 251) as f32 / 125.0 - 1.0
}

fn create(session: &Session, path: &Path, optimizer: Option<&Optimizer>) {
    let encoding = RowEncoding::F32;
    let mut writer =
        TableWriter::create_versioned(session, path, ROWS, DIM, encoding, optimizer).unwrap();
    for row in 0..ROWS {
        let elements: Vec<f32> = (0..DIM).map(|column| element(row, column)).collect();
        writer.write(&elements).unwrap();
    }
    writer.finish().unwrap();
}

fn create_zeros(session: &Session, path: &Path, rows: u64, dim: usize) {
    let encoding = RowEncoding::F32;
    let mut writer =
        TableWriter::create_versioned(session, path, rows, dim, encoding, None).unwrap();
    (0..rows).for_each(|_| writer.write(&vec![0.0; dim]).unwrap());
    writer.finish().unwrap();
}

fn opened(session: &Session, path: &Path, for_writing: bool, cache_rows: u64) -> TableSet {
    let opening = Opening {
        for_writing,
        ..Opening::default()
    };
    let table = Table::open(session, &[PathBuf::from(path)], &opening).unwrap();
    let serving = Serving {
        cache_bytes: Some(cache_rows * 300),
        reading_bytes: Some(1 << 20),
        ..Serving::default()
    };
    TableSet::new(session, vec![table], serving).unwrap()
}

/// Each row by itself.
fn each(ids: &[i64]) -> Feature<'_> {
    Feature {
        table: 0,
        ids: Ids::I64(ids),
        bags: Bags::Each,
        mode: Pooling::Sum,
        weights: None,
        padding: None,
    }
}

/// All rows of a table.
fn rows_of(set: &TableSet) -> Vec<f32> {
    let ids: Vec<i64> = (0..ROWS as i64).collect();
    let mut found = vec![0.0; ids.len() * DIM];
    let out = Out::of_f32(&mut found, ids.len(), DIM).unwrap();
    let failed = set
        .look_up(&[each(&ids)], &mut [out], &mut || true)
        .unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    found
}

/// A batch: bags of three ids, half of them of few rows, and gradients of the bags.
struct Batch {
    ids: Vec<i64>,
    gradient: Vec<f32>,
}

impl Batch {
    fn new(random: &mut Random, bags: usize) -> Batch {
        let id = |random: &mut Random| match random.below(2) {
            0 => random.below(40) as i64,
            _ => random.below(ROWS) as i64,
        };
        Batch {
            ids: (0..3 * bags).map(|_| id(random)).collect(),
            gradient: (0..bags * DIM)
                .map(|_| random.below(2001) as f32 / 1000.0 - 1.0)
                .collect(),
        }
    }

    fn gradient(&self, mode: Pooling) -> Gradient<'_> {
        Gradient {
            feature: Feature {
                table: 0,
                ids: Ids::I64(&self.ids),
                bags: Bags::Fixed(3),
                mode,
                weights: None,
                padding: Some(5),
            },
            of_bags: &self.gradient,
            order: None,
        }
    }
}

/// The rows and their state as they ought to be.
struct Model {
    rows: Vec<f32>,
    state: Vec<f32>,
    state_len: usize,
}

impl Model {
    fn new(state_len: usize) -> Model {
        Model {
            rows: (0..ROWS)
                .flat_map(|row| (0..DIM).map(move |column| element(row, column)))
                .collect(),
            state: vec![0.0; ROWS as usize * state_len],
            state_len,
        }
    }

    fn step(&mut self, batch: &Batch, mode: Pooling, update: &RowUpdate) {
        let mut sums = std::collections::BTreeMap::<i64, Vec<f32>>::new();
        for (bag, ids) in batch.ids.chunks(3).enumerate() {
            let members: Vec<i64> = ids.iter().copied().filter(|id| *id != 5).collect();
            for id in &members {
                let factor = match mode {
                    Pooling::Mean => 1.0 / members.len() as f32,
                    _ => 1.0,
                };
                let sum = sums.entry(*id).or_insert_with(|| vec![0.0; DIM]);
                add_scaled(sum, factor, &batch.gradient[bag * DIM..][..DIM]);
            }
        }
        for (id, sum) in sums {
            let row = &mut self.rows[id as usize * DIM..][..DIM];
            let state = &mut self.state[id as usize * self.state_len..][..self.state_len];
            update.apply(row, state, &sum);
        }
    }
}

fn update(optimizer: &Optimizer, rate: f64, step: u64) -> (RowUpdate, usize) {
    match *optimizer {
        Optimizer::Sgd => (RowUpdate::Sgd { rate: rate as f32 }, 0),
        Optimizer::RowwiseAdagrad { eps } => {
            let (rate, eps) = (rate as f32, eps as f32);
            (RowUpdate::RowwiseAdagrad { rate, eps }, 1)
        }
        Optimizer::Adam { betas, eps } => {
            let eps = eps as f32;
            let adam = RowUpdate::Adam {
                rate,
                betas,
                eps,
                step,
            };
            (adam, 2 * DIM)
        }
    }
}

const NAMES: [&str; 3] = ["sgd", "rowwise_adagrad", "adam"];

#[test]
fn training_has_the_bits_of_training_in_memory_with_any_cache() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    for (name, mode) in NAMES
        .into_iter()
        .zip([Pooling::Sum, Pooling::Mean, Pooling::Sum])
    {
        let optimizer: Optimizer = name.parse().unwrap();
        for cache_rows in [0, 100, 1000, 4000] {
            let path = folder.path().join(format!("{name}-{cache_rows}"));
            create(&session, &path, Some(&optimizer));
            let mut model = Model::new(update(&optimizer, 0.1, 1).1);
            let (mut random, mut step) = (Random(cache_rows), 0);
            for sitting in 0..3u64 {
                let set = opened(&session, &path, true, cache_rows);
                for _ in 0..15 {
                    step += 1;
                    let bags = 1 + random.below(400) as usize;
                    let batch = Batch::new(&mut random, bags);
                    let rate = 0.1 / step as f64;
                    if step % 4 == 0 {
                        assert_eq!(bits(&rows_of(&set)), bits(&model.rows), "{name} {step}");
                    }
                    set.train(&[batch.gradient(mode)], &optimizer, rate, &mut || true)
                        .unwrap();
                    model.step(&batch, mode, &update(&optimizer, rate, step).0);
                }
                assert_eq!(
                    bits(&rows_of(&set)),
                    bits(&model.rows),
                    "{name} {cache_rows}"
                );
                // What was opened before has the version of then.
                let reader = opened(&session, &path, false, 100);
                assert_eq!(set.commit(&[0, 0], &mut || true).unwrap(), [sitting + 1; 2]);
                let fresh = opened(&session, &path, false, 100);
                assert_eq!(bits(&rows_of(&fresh)), bits(&model.rows));
                assert!(bits(&rows_of(&reader)) != bits(&model.rows));
                // Steps that are not committed are gone with their writer.
                let batch = Batch::new(&mut random, 50);
                set.train(&[batch.gradient(mode)], &optimizer, 1.0, &mut || true)
                    .unwrap();
            }
        }
    }
}

#[test]
fn a_table_that_is_trained_serves_look_ups_of_other_threads() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let path = folder.path().join("table");
    create(&session, &path, Some(&Optimizer::Sgd));
    let set = opened(&session, &path, true, 500);
    // All elements of all rows grow by one in each step.
    let ids: Vec<i64> = (0..ROWS as i64).collect();
    let gradient = vec![-1.0; ids.len() * DIM];
    let all = Gradient {
        feature: each(&ids),
        of_bags: &gradient,
        order: None,
    };
    let before = rows_of(&set);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let found = rows_of(&set);
                    let grown = (found[0] - before[0]).round();
                    let is_one_step = found
                        .iter()
                        .zip(&before)
                        .all(|(found, before)| (found - before - grown).abs() < 1e-3);
                    assert!(is_one_step, "a look-up between two steps sees one of them");
                }
            });
        }
        for _ in 0..20 {
            set.train(&[all], &Optimizer::Sgd, 1.0, &mut || true)
                .unwrap();
            set.commit(&[0], &mut || true).unwrap();
        }
    });
}

#[test]
fn updates_are_applied_once_and_readers_go_over_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let path = folder.path().join("table");
    create(&session, &path, None);
    let reader = opened(&session, &path, false, 4000);
    let old = rows_of(&reader);
    let writer = opened(&session, &path, true, 0);
    let go_on = &mut || true;
    let rows = [7, 2999, 7];
    let elements: Vec<f32> = (0..3 * DIM).map(|x| x as f32).collect();
    assert!(
        writer
            .write_rows(0, &rows, &elements, Some(3), go_on)
            .unwrap()
    );
    assert!(
        !writer
            .write_rows(0, &[8], &elements[..DIM], Some(3), go_on)
            .unwrap()
    );
    // No update has the number that a new table has.
    assert!(
        writer
            .write_rows(0, &[8], &elements[..DIM], Some(0), go_on)
            .is_err()
    );
    assert!(
        !writer
            .write_rows(0, &[8], &elements[..DIM], Some(2), go_on)
            .unwrap()
    );
    writer.commit(&[0], go_on).unwrap();
    assert_eq!(bits(&rows_of(&reader)), bits(&old));
    let read_before = reader.statistics(0).units_read;
    let last = Table::open(&session, std::slice::from_ref(&path), &Opening::default()).unwrap();
    reader.replace(0, last).unwrap();
    let mut expected = old;
    expected[7 * DIM..8 * DIM].copy_from_slice(&elements[2 * DIM..]);
    expected[2999 * DIM..].copy_from_slice(&elements[DIM..2 * DIM]);
    assert_eq!(bits(&rows_of(&reader)), bits(&expected));
    // Two pages have changed; the rows of all others were still in memory.
    assert!(reader.statistics(0).units_read - read_before < 10);

    let other = folder.path().join("other");
    let mut small = TableWriter::create(&session, &other, 1, DIM, RowEncoding::F32, None).unwrap();
    small.write(&[0.0; DIM]).unwrap();
    small.finish().unwrap();
    let other = Table::open(&session, &[other], &Opening::default()).unwrap();
    let refused = reader.replace(0, other).unwrap_err();
    assert!(matches!(refused, Error::Shape { .. }), "{refused}");
    assert!(refused.to_string().contains("other of 1 x 12"), "{refused}");
}

#[test]
fn memory_is_divided_anew_while_tables_change() {
    const DIM: usize = 64;
    const ROWS: u64 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let tables = ["useless", "useful"].map(|name| {
        let path = folder.path().join(name);
        create_zeros(&session, &path, ROWS, DIM);
        let opening = Opening {
            for_writing: true,
            ..Opening::default()
        };
        Table::open(&session, &[path], &opening).unwrap()
    });
    let serving = Serving {
        cache_bytes: Some(8 << 20),
        reading_bytes: Some(1 << 20),
        ..Serving::default()
    };
    let set = TableSet::new(&session, tables.into(), serving).unwrap();
    let slots = |table| set.statistics(table).cache_rows;
    assert_eq!(slots(0), slots(1));
    let mut expected = [0, 1].map(|_| vec![0.0; ROWS as usize]);
    let (mut random, mut next) = (Random(8), 0);
    let mut found = vec![0.0; 1000 * DIM];
    for step in 0..500 {
        // Ids of one table never come again soon, those of the other are among 20,000.
        let once: Vec<i64> = (next..next + 1000).map(|id| id % ROWS as i64).collect();
        next += 1000;
        let often: Vec<i64> = (0..1000).map(|_| random.below(20_000) as i64).collect();
        for (table, ids) in [once, often].into_iter().enumerate() {
            let asked = Feature {
                table,
                ..each(&ids)
            };
            let out = Out::of_f32(&mut found, 1000, DIM).unwrap();
            set.look_up(&[asked], &mut [out], &mut || true).unwrap();
            for (row, &id) in found.chunks(DIM).zip(&ids) {
                assert_eq!(*row, [expected[table][id as usize]; DIM]);
            }
            // Rows that are in memory now, so that they change there.
            if step % 10 == 0 {
                let rows: Vec<u64> = ids[..500].iter().map(|&id| id as u64).collect();
                let elements = vec![step as f32; 500 * DIM];
                set.write_rows(table, &rows, &elements, None, &mut || true)
                    .unwrap();
                for row in rows {
                    expected[table][row as usize] = step as f32;
                }
            }
        }
    }
    assert!(2 * slots(1) > 3 * slots(0), "{} and {}", slots(1), slots(0));
    set.commit(&[0, 1], &mut || true).unwrap();
}

#[test]
fn a_commit_ends_where_the_list_of_changed_rows_has_no_room() {
    const DIM: usize = 4;
    const ROWS: u64 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let path = folder.path().join("table");
    create_zeros(&session, &path, ROWS, DIM);
    let opened = |for_writing| {
        let opening = Opening {
            for_writing,
            ..Opening::default()
        };
        let table = Table::open(&session, std::slice::from_ref(&path), &opening).unwrap();
        let serving = Serving {
            cache_bytes: Some(if for_writing { 12 << 20 } else { 0 }),
            reading_bytes: Some(1 << 20),
            ..Serving::default()
        };
        TableSet::new(&session, vec![table], serving).unwrap()
    };
    let set = opened(true);
    // Changed in memory, where they are after the first look.
    let rows: Vec<u64> = (0..80_000).collect();
    let ids: Vec<i64> = (0..80_000).collect();
    set.load(&[each(&ids)], &mut || true).unwrap();
    for part in rows.chunks(10_000) {
        let elements: Vec<f32> = part.iter().flat_map(|&row| [row as f32; DIM]).collect();
        set.write_rows(0, part, &elements, None, &mut || true)
            .unwrap();
    }
    let rest = session.memory_free() - (64 << 10);
    let held = session.engine().reserve("all but little", rest).unwrap();
    set.commit(&[0], &mut || true).unwrap();
    drop((held, set));
    let set = opened(false);
    let ids: Vec<i64> = (0..ROWS as i64).step_by(97).collect();
    let mut found = vec![0.0; ids.len() * DIM];
    let out = Out::of_f32(&mut found, ids.len(), DIM).unwrap();
    set.look_up(&[each(&ids)], &mut [out], &mut || true)
        .unwrap();
    for (row, &id) in found.chunks(DIM).zip(&ids) {
        let expected = if id < 80_000 { id as f32 } else { 0.0 };
        assert_eq!(*row, [expected; DIM]);
    }
}

/// Two tables without an optimizer, and how they are opened.
fn create_two(session: &Session, folder: &Path, for_writing: bool) -> [(Vec<PathBuf>, Opening); 2] {
    ["one", "deep/er/two"].map(|name| {
        let path = folder.join(name);
        if !path.exists() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            create(session, &path, None);
        }
        let opening = Opening {
            for_writing,
            ..Opening::default()
        };
        (vec![path], opening)
    })
}

fn set_of(session: &Session, tables: &[(Vec<PathBuf>, Opening)]) -> TableSet {
    let serving = Serving {
        cache_bytes: Some(1 << 20),
        reading_bytes: Some(1 << 20),
        ..Serving::default()
    };
    let tables = Table::open_all(session, tables).unwrap();
    TableSet::new(session, tables, serving).unwrap()
}

fn versions(tables: &[Table]) -> Vec<u64> {
    tables
        .iter()
        .map(|table| table.version().unwrap())
        .collect()
}

#[test]
fn a_commit_has_steps_of_several_tables_whole() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    let opening = |for_writing| Opening {
        for_writing,
        ..Opening::default()
    };
    let all = |for_writing| paths.clone().map(|path| (vec![path], opening(for_writing)));
    paths
        .iter()
        .for_each(|path| create(&session, path, Some(&Optimizer::Sgd)));
    let (set, ids) = (set_of(&session, &all(true)), [0]);
    let gradients = [0, 1].map(|table| Gradient {
        feature: Feature {
            table,
            ..each(&ids)
        },
        of_bags: &[-1.0; DIM],
        order: None,
    });
    let steps = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while steps.load(std::sync::atomic::Ordering::Relaxed) {
                set.train(&gradients, &Optimizer::Sgd, 1.0, &mut || true)
                    .unwrap();
                // As an optimizer that goes from table to table.
                let step = set.step(&mut || true).unwrap();
                for part in gradients.chunks(1) {
                    step.train(part, &Optimizer::Sgd, 1.0, &mut || true)
                        .unwrap();
                    std::thread::yield_now();
                }
            }
        });
        for _ in 0..40 {
            set.commit(&[0, 1], &mut || true).unwrap();
            let committed = set_of(&session, &all(false));
            let [one, two] = [0, 1].map(|table| {
                let mut row = [0; 4 * DIM];
                committed
                    .read_stored(table, &[0], &mut row, &mut || true)
                    .unwrap();
                row
            });
            assert_eq!(one, two);
        }
        steps.store(false, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn tables_that_are_opened_together_are_of_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let writer = set_of(&session, &create_two(&session, folder.path(), true));
    let readers = create_two(&session, folder.path(), false);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            for value in 1..60 {
                for table in 0..2 {
                    let elements = [value as f32; DIM];
                    writer
                        .write_rows(table, &[0], &elements, None, &mut || true)
                        .unwrap();
                }
                let committed = writer.commit(&[1, 0], &mut || true).unwrap();
                assert_eq!(committed, [value; 2]);
            }
        });
        let mut last = 0;
        while !committing.is_finished() {
            let found = versions(&Table::open_all(&session, &readers).unwrap());
            assert!(found[0] == found[1] && found[0] >= last, "{found:?}");
            last = found[0];
        }
    });
    let set = set_of(&session, &readers);
    assert_eq!(versions(&[set.table(0), set.table(1)]), [59, 59]);
    assert_eq!(bits(&rows_of(&set)[..DIM]), bits(&[59.0; DIM]));
}

#[test]
fn a_commit_of_a_set_that_fails_is_one_of_none_of_its_tables() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let writer = set_of(&session, &create_two(&session, folder.path(), true));
    let readers = create_two(&session, folder.path(), false);
    let opened = || versions(&Table::open_all(&session, &readers).unwrap());
    for (at, name) in ["one/group.new", "deep/er/two/group.new"]
        .into_iter()
        .enumerate()
    {
        let row = [at as f32; DIM];
        writer
            .write_rows(1, &[7], &row, None, &mut || true)
            .unwrap();
        let in_the_way = folder.path().join(name);
        std::fs::create_dir(&in_the_way).unwrap();
        let error = writer.commit(&[0, 1], &mut || true).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        std::fs::remove_dir(&in_the_way).unwrap();
        let before = at as u64;
        assert_eq!(opened(), [before; 2]);
        assert_eq!(
            writer.commit(&[0, 1], &mut || true).unwrap(),
            [before + 1; 2]
        );
        assert_eq!(opened(), [before + 1; 2]);
    }
}

#[test]
fn what_cannot_be_trained_is_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_with(folder.path(), WrapDevice::default());
    let path = folder.path().join("table");
    create(&session, &path, Some(&Optimizer::Sgd));
    let reader = opened(&session, &path, false, 100);
    let writer = opened(&session, &path, true, 100);
    let batch = Batch::new(&mut Random(1), 10);
    let go_on = &mut || true;
    let adam: Optimizer = "adam".parse().unwrap();
    let mut short = batch.gradient(Pooling::Sum);
    short.of_bags = &short.of_bags[1..];
    let mut disordered = batch.gradient(Pooling::Sum);
    disordered.order = Some(&[0, 0]);
    let errors = [
        reader.train(&[batch.gradient(Pooling::Sum)], &Optimizer::Sgd, 0.1, go_on),
        writer.train(&[batch.gradient(Pooling::Sum)], &adam, 0.1, go_on),
        writer.train(&[batch.gradient(Pooling::Max)], &Optimizer::Sgd, 0.1, go_on),
        writer.train(&[short], &Optimizer::Sgd, 0.1, go_on),
        writer.train(&[disordered], &Optimizer::Sgd, 0.1, go_on),
        writer
            .write_rows(0, &[ROWS], &[0.0; DIM], None, go_on)
            .map(drop),
        reader.commit(&[0], go_on).map(drop),
    ];
    let texts = [
        "not opened for writing",
        "made to be trained by 'sgd', not by 'adam'",
        "no gradients of a maximum",
        "119 elements of gradients for 10 bags of 12",
        "an order of 2",
        "has 3000 rows, and no row 3000",
        "not opened for writing",
    ];
    for (error, text) in errors.into_iter().zip(texts) {
        let found = error.unwrap_err().to_string();
        assert!(found.contains(text) && found.contains("table"), "{found}");
    }
    let opening = Opening {
        for_writing: true,
        ..Opening::default()
    };
    let second = Table::open(&session, &[path], &opening).err().unwrap();
    assert!(
        second.to_string().contains("another writer holds it"),
        "{second}"
    );
}

/// Whichever request fails, the step that it belongs to counts as not made, and the next one succeeds.
#[test]
fn a_step_that_fails_leaves_the_table_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let good = session_with(folder.path(), WrapDevice::default());
    let optimizer: Optimizer = "rowwise_adagrad".parse().unwrap();
    let (mut failures, mut seed) = (0, 0);
    for faults in [
        Faults {
            write_error: 0.1,
            ..Faults::default()
        },
        Faults {
            torn: 0.1,
            ..Faults::default()
        },
        Faults {
            read_error: 0.1,
            ..Faults::default()
        },
        Faults {
            space_bytes: Some(400 << 10),
            ..Faults::default()
        },
    ] {
        seed += 1;
        let path = folder.path().join(format!("table-{seed}"));
        create(&good, &path, Some(&optimizer));
        let wrap = WrapDevice::new(move |device: std::sync::Arc<dyn Device>| {
            Faulty::new(
                device,
                Faults {
                    seed,
                    ..faults.clone()
                },
            )
        });
        let bad = session_with(folder.path(), wrap);
        let set = opened(&bad, &path, true, 200);
        let (mut model, mut random) = (Model::new(1), Random(seed));
        let mut is_full = false;
        for step in 1..30 {
            let batch = Batch::new(&mut random, 60);
            match set.train(
                &[batch.gradient(Pooling::Sum)],
                &optimizer,
                0.1,
                &mut || true,
            ) {
                Ok(()) => model.step(&batch, Pooling::Sum, &update(&optimizer, 0.1, step).0),
                Err(error) => {
                    failures += 1;
                    if matches!(error, Error::Store(outcore_store::Error::Full { .. })) {
                        is_full = true;
                        let told = error.to_string();
                        assert!(told.contains(&path.display().to_string()), "{told}");
                    }
                }
            }
        }
        assert_eq!(is_full, seed == 4);
        if set.commit(&[0], &mut || true).is_ok() {
            drop(set);
            let found = rows_of(&opened(&good, &path, false, 0));
            assert_eq!(bits(&found), bits(&model.rows), "faults {seed}");
        } else {
            drop(set);
            let found = rows_of(&opened(&good, &path, false, 0));
            assert_eq!(bits(&found), bits(&Model::new(1).rows), "faults {seed}");
        }
    }
    assert!(failures > 10, "{failures} failures");
}
