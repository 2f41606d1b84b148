//! Sessions of a process divide what it may use, and calls the budget of their session.

use std::path::Path;
use std::sync::{Barrier, Mutex, MutexGuard};

use outcore::linalg::{Gemm, Syrk, gemm, syrk};
use outcore::{Array, Buf, DType, Error, Order, Session, Settings, memory_allowed, memory_cap};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// One test at a time: what the others take would be missing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn settings(memory_bytes: Option<u64>) -> Settings {
    Settings {
        memory_bytes,
        scratch: Some(env!("CARGO_TARGET_TMPDIR").into()),
        threads: 2,
        ..Settings::default()
    }
}

fn session(memory_bytes: u64) -> Result<Session, Error> {
    Session::new(settings(Some(memory_bytes)))
}

/// Bytes asked for, taken, and of all.
fn over_cap<T>(result: Result<T, Error>) -> (u64, u64, u64) {
    match result.map(drop) {
        Err(Error::OverCap { needed, taken, cap }) => (needed, taken, cap),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sessions_take_shares_of_one_cap_and_give_them_back() {
    let _alone = alone();
    let cap = memory_cap().unwrap();
    assert_eq!(cap, memory_allowed());
    let most = session(cap - 8 * MIB).unwrap();
    assert_eq!(over_cap(session(9 * MIB)), (9 * MIB, cap - 8 * MIB, cap));
    let message = session(9 * MIB).err().unwrap().to_string();
    for number in [9 * MIB, cap - 8 * MIB, cap] {
        assert!(message.contains(&number.to_string()), "{message}");
    }
    let rest = session(8 * MIB).unwrap();
    assert_eq!(over_cap(session(MIB)), (MIB, cap, cap));
    let clone = most.clone();
    drop(most);
    assert_eq!(over_cap(session(MIB)), (MIB, cap, cap));
    drop((clone, rest));
    assert_eq!(session(cap).unwrap().memory_bytes(), cap);
    assert_eq!(over_cap(session(cap + 1)), (cap + 1, 0, cap));
}

#[test]
fn without_a_number_a_session_has_a_quarter_or_what_is_left() {
    let _alone = alone();
    let cap = memory_cap().unwrap();
    let of_default = || Session::new(settings(None));
    let first = of_default().unwrap();
    assert_eq!(first.memory_bytes(), cap / 4);
    let second = of_default().unwrap();
    assert_eq!(second.memory_bytes(), cap / 4);
    let third = session(cap / 2 - 16 * MIB).unwrap();
    let fourth = of_default().unwrap();
    assert!(fourth.memory_bytes() <= 16 * MIB && fourth.memory_bytes() > 15 * MIB);
    let (needed, taken, of) = over_cap(of_default());
    assert!(needed == MIB && taken + MIB > of && of == cap);
    drop((first, second, third, fourth));
    assert_eq!(of_default().unwrap().memory_bytes(), cap / 4);
}

/// Its memory may still be in use.
#[test]
fn a_session_has_its_share_as_long_as_anything_is_open_in_it() {
    let _alone = alone();
    let cap = memory_cap().unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let made = session(cap - MIB).unwrap();
    let array = Array::create(
        &made,
        folder.path().join("a.npy"),
        DType::F32,
        &[10, 10],
        Order::Row,
    )
    .unwrap();
    drop(made);
    assert_eq!(over_cap(session(2 * MIB)), (2 * MIB, cap - MIB, cap));
    drop(array);
    session(cap).unwrap();
}

#[test]
fn threads_that_make_sessions_at_once_have_no_more_than_there_is() {
    const THREADS: usize = 16;
    let _alone = alone();
    let cap = memory_cap().unwrap();
    // Shares are counted in pages.
    let tenth = cap / 10 / 4096 * 4096;
    let (made, checked) = (Barrier::new(THREADS), Barrier::new(THREADS));
    for _ in 0..20 {
        let had: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        made.wait();
                        let own = session(tenth);
                        checked.wait();
                        usize::from(own.is_ok())
                    })
                })
                .collect();
            let ends = threads.into_iter().map(|thread| thread.join().unwrap());
            ends.sum()
        });
        assert_eq!(had, 10);
    }
    session(cap).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    /// Sessions are made and dropped in any order; what is left is what the others do not have.
    #[test]
    fn shares_are_taken_and_given_back(
        steps in proptest::collection::vec((1u64..400, any::<bool>(), any::<prop::sample::Index>()), 1..40),
    ) {
        let _alone = alone();
        let cap = memory_cap().unwrap();
        let mut held: Vec<Session> = Vec::new();
        for (thousandths, drops, which) in steps {
            if drops && !held.is_empty() {
                held.swap_remove(which.index(held.len()));
            }
            let bytes = (cap / 1000 * thousandths).next_multiple_of(4096).max(MIB);
            let taken: u64 = held.iter().map(Session::memory_bytes).sum();
            match session(bytes) {
                Ok(made) => {
                    prop_assert!(taken + bytes <= cap);
                    held.push(made);
                }
                error => {
                    prop_assert_eq!(over_cap(error), (bytes, taken, cap));
                    prop_assert!(taken + bytes > cap);
                }
            }
        }
    }
}

fn numbers(session: &Session, path: &Path, rows: u64, columns: u64) -> Array {
    let array = Array::create(session, path, DType::F32, &[rows, columns], Order::Row).unwrap();
    let values: Vec<f32> = (0..rows * columns)
        .map(|at| ((at * 7919 % 1009) as f32).sqrt() - 16.0)
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&values);
    let mut buf = Buf::anonymous(bytes.len()).unwrap().split_to(bytes.len());
    buf.copy_from_slice(bytes);
    array.write(buf.freeze()).unwrap().run().unwrap();
    array
}

fn bits(array: &Array) -> Vec<u32> {
    let read = array.read().unwrap().run().unwrap();
    bytemuck::pod_collect_to_vec(&read[..array.nbytes() as usize])
}

/// A call in `of` with operands of `operands`: what it would do, and the bits of what it did.
fn calls(of: &Session, a: &Array) -> Vec<(String, Vec<u32>)> {
    let product = gemm(of, a.into(), (&a.t()).into(), Gemm::default()).unwrap();
    let square = syrk(of, a.into(), Syrk::default()).unwrap();
    [product, square]
        .into_iter()
        .map(|job| {
            let plans = format!("{:?}", job.explain());
            (plans, bits(&job.run().unwrap()))
        })
        .collect()
}

#[test]
fn a_part_plans_and_computes_as_a_session_of_its_size() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (whole, own) = (session(256 * MIB).unwrap(), session(2 * MIB).unwrap());
    let path = folder.path().join("a.npy");
    let a = numbers(&whole, &path, 1500, 700);
    let part = whole.part(2 * MIB).unwrap();
    assert_eq!(part.memory_bytes(), 2 * MIB);
    let expected = calls(&own, &Array::open(&own, &path).unwrap());
    // Operands of the whole session and of the part, alone and beside memory that another has.
    assert_eq!(calls(&part, &a), expected);
    let held = whole.engine().reserve("another", 200 * MIB).unwrap();
    assert_eq!(calls(&part, &Array::open(&part, &path).unwrap()), expected);
    assert_ne!(calls(&whole, &a)[0].0, expected[0].0);
    drop(held);
    assert_eq!(whole.engine().budget().available(), 256 * MIB);
}

#[test]
fn a_part_has_the_files_of_its_session() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let whole = session(64 * MIB).unwrap();
    let path = folder.path().join("a.npy");
    let a = numbers(&whole, &path, 600, 300);
    let part = whole.part(4 * MIB).unwrap();
    let again = Array::open(&part, &path).unwrap();
    let new = Buf::anonymous(600 * 300 * 4).unwrap();
    let new = { new }.split_to(600 * 300 * 4);
    again.write(new.freeze()).unwrap().run().unwrap();
    assert!(bits(&a).iter().all(|&bits| bits == 0));
    let made = gemm(&part, (&a).into(), (&a.t()).into(), Gemm::default());
    let made = made.unwrap().run().unwrap();
    assert_eq!(made.session().memory_bytes(), 4 * MIB);
    let made = made.with_whole_budget();
    assert_eq!(made.session().memory_bytes(), 64 * MIB);
    assert!(whole.last_trace().is_some_and(|trace| trace.plan == "gemm"));
}

#[test]
fn a_part_beyond_the_budget_is_refused_with_both_numbers() {
    let _alone = alone();
    let whole = session(64 * MIB).unwrap();
    for size in [65 * MIB, u64::MAX] {
        let Err(Error::OverPart { needed, budget }) = whole.part(size) else {
            panic!("{size} bytes of 64 MiB")
        };
        assert_eq!((needed, budget), (size, 64 * MIB));
    }
    assert!(matches!(whole.part(MIB - 1), Err(Error::Value { .. })));
    // A part of a part is one of the whole.
    let part = whole.part(8 * MIB).unwrap();
    assert_eq!(part.part(16 * MIB).unwrap().memory_bytes(), 16 * MIB);
}

#[test]
fn calls_with_parts_that_do_not_fit_together_take_turns() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let whole = session(3 * MIB).unwrap();
    let path = folder.path().join("a.npy");
    let a = numbers(&whole, &path, 300, 250);
    let own = session(2 * MIB).unwrap();
    let expected = calls(&own, &Array::open(&own, &path).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let part = whole.part(2 * MIB).unwrap();
                for _ in 0..3 {
                    assert_eq!(calls(&part, &a), expected);
                }
            });
        }
    });
    assert_eq!(whole.engine().budget().available(), 3 * MIB);
}
