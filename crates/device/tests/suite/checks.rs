//! What must hold for every pair.

use super::{Random, Subject, pattern, perform, reap_all};
use outcore_device::{Buf, Device, Memory, Op, OpKind, Request};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::ErrorKind;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

pub(crate) fn reads_what_was_written(subject: &mut Subject) {
    let made = subject.device(MIB as u64);
    let sector = made.device.limits().sector as usize;
    for (turn, blocks) in [1, 3, 17].into_iter().enumerate() {
        let (offset, bytes) = (turn * 128 * 1024, pattern(turn as u64, blocks * sector));
        subject.write(&made.device, offset as u64, &bytes).unwrap();
        assert_eq!(
            &subject
                .read(&made.device, offset as u64, bytes.len())
                .unwrap()[..],
            &bytes[..]
        );
    }
    let untouched = subject.read(&made.device, 64 * 1024, 4096).unwrap();
    assert!(untouched.iter().all(|&byte| byte == 0));
}

pub(crate) fn unaligned_requests_work_or_are_refused(subject: &mut Subject) {
    let made = subject.device(MIB as u64);
    let sector = made.device.limits().sector as usize;
    assert!(sector.is_power_of_two());
    let constrained = sector > 1;
    subject.write(&made.device, 0, &pattern(1, 8192)).unwrap();
    for (offset, len, shift) in [(1, 4096, 0), (0, 4095, 0), (0, 4096, 1), (4097, 1, 3)] {
        let mut buf = Buf::anonymous(8192).unwrap();
        buf.split_to(shift);
        let buf = buf.split_to(len);
        let read = subject.perform(&made.device, offset as u64, Op::Read(buf));
        let Op::Read(mut buf) = read.op else { panic!() };
        match read.result {
            Err(error) if constrained => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}")
            }
            result => {
                result.unwrap();
                assert!(!constrained);
                assert_eq!(&buf[..], &pattern(1, 8192)[offset..offset + len]);
            }
        }
        buf.copy_from_slice(&pattern(1, 8192)[offset..offset + len]);
        let write = subject.perform(&made.device, offset as u64, Op::Write(buf.freeze()));
        assert_eq!(write.result.is_err(), constrained);
    }
    assert_eq!(
        &subject.read(&made.device, 0, 8192).unwrap()[..],
        &pattern(1, 8192)[..]
    );
}

/// A length that is no multiple of any sector but 1.
const RAGGED: usize = 3 * 4096 + 777;

pub(crate) fn reads_past_the_end_are_zeroed(subject: &mut Subject) {
    let made = subject.device(RAGGED as u64);
    let sector = made.device.limits().sector as usize;
    let whole = RAGGED.next_multiple_of(sector);
    // Bytes past the end reach the medium and must not come back.
    subject.write(&made.device, 0, &pattern(5, whole)).unwrap();
    for offset in [0, (RAGGED - 1) / sector * sector] {
        let bytes = subject
            .read(&made.device, offset as u64, whole - offset)
            .unwrap();
        let (inside, outside) = bytes.split_at(RAGGED - offset);
        assert_eq!(inside, &pattern(5, whole)[offset..RAGGED]);
        assert!(outside.iter().all(|&byte| byte == 0));
    }
}

pub(crate) fn writes_past_the_end_keep_what_is_before_it(subject: &mut Subject) {
    let made = subject.device(RAGGED as u64);
    let sector = made.device.limits().sector as usize;
    let whole = RAGGED.next_multiple_of(sector);
    let tail = (RAGGED - 1) / sector * sector;
    subject
        .write(&made.device, tail as u64, &pattern(6, whole - tail))
        .unwrap();
    assert_eq!(made.device.len(), RAGGED as u64);
    let bytes = subject.read(&made.device, 0, whole).unwrap();
    assert!(bytes[..tail].iter().all(|&byte| byte == 0));
    assert_eq!(
        &bytes[tail..RAGGED],
        &pattern(6, whole - tail)[..RAGGED - tail]
    );
}

pub(crate) fn requests_beyond_the_end_are_refused(subject: &mut Subject) {
    let made = subject.device(RAGGED as u64);
    let sector = made.device.limits().sector as usize;
    let end = RAGGED.next_multiple_of(sector) as u64;
    let far = !(sector as u64 - 1);
    for offset in [end, end - sector as u64, far] {
        let error = subject.read(&made.device, offset, 2 * sector).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let error = subject
            .write(&made.device, offset, &vec![1; 2 * sector])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

pub(crate) fn empty_requests_succeed(subject: &mut Subject) {
    for len in [0, 8192] {
        let made = subject.device(len);
        subject
            .perform(&made.device, 0, Op::Read(Buf::default()))
            .result
            .unwrap();
        subject
            .perform(&made.device, 0, Op::Write(Buf::default().freeze()))
            .result
            .unwrap();
        subject
            .perform(&made.device, 0, Op::Discard { len: 0 })
            .result
            .unwrap();
        subject.perform(&made.device, 0, Op::Flush).result.unwrap();
    }
    subject.driver.submit(&mut Vec::new());
    assert_eq!(subject.driver.in_flight(), 0);
}

pub(crate) fn each_of_many_requests_completes_exactly_once(subject: &mut Subject) {
    const REQUESTS: usize = 10_000;
    const BYTES: usize = 4096;
    const PLACES: usize = 1024;
    let made = subject.device((PLACES * BYTES) as u64);
    subject
        .write(&made.device, 0, &pattern(0, PLACES * BYTES))
        .unwrap();
    let expected = pattern(0, PLACES * BYTES);
    let mut memory = Buf::anonymous(REQUESTS * BYTES).unwrap();
    let mut requests: Vec<Request> = (0..REQUESTS)
        .map(|index| Request {
            tag: index as u64,
            device: Arc::clone(&made.device),
            offset: (index % PLACES * BYTES) as u64,
            op: Op::Read(memory.split_to(BYTES)),
        })
        .collect();
    Random(7).shuffle(&mut requests);
    // In two batches, so that the second meets a full queue.
    let mut second = requests.split_off(REQUESTS / 3);
    subject.driver.submit(&mut requests);
    subject.driver.submit(&mut second);
    assert!(requests.is_empty() && second.is_empty());
    assert_eq!(subject.driver.in_flight(), REQUESTS);
    let mut seen = vec![false; REQUESTS];
    for completion in reap_all(&mut *subject.driver) {
        let tag = completion.tag as usize;
        assert!(
            !std::mem::replace(&mut seen[tag], true),
            "request {tag} came twice"
        );
        completion.result.unwrap();
        let Op::Read(buf) = completion.op else {
            panic!()
        };
        let place = tag % PLACES * BYTES;
        assert_eq!(&buf[..], &expected[place..place + BYTES]);
    }
    assert!(seen.into_iter().all(|seen| seen));
}

pub(crate) fn large_requests_are_carried_out_whole(subject: &mut Subject) {
    let made = subject.device(32 * MIB as u64);
    let bytes = pattern(9, 21 * MIB + 12288);
    subject.write(&made.device, MIB as u64, &bytes).unwrap();
    assert!(subject.read(&made.device, MIB as u64, bytes.len()).unwrap()[..] == bytes[..]);
    let edge = subject.read(&made.device, MIB as u64 - 4096, 4096).unwrap();
    assert!(edge.iter().all(|&byte| byte == 0));
}

pub(crate) fn flush_and_discard(subject: &mut Subject) {
    let made = subject.device(MIB as u64);
    subject.write(&made.device, 0, &pattern(3, 65536)).unwrap();
    subject.perform(&made.device, 0, Op::Flush).result.unwrap();
    match subject
        .perform(&made.device, 8192, Op::Discard { len: 16384 })
        .result
    {
        // Not every file system can punch holes.
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported) => return,
        result => result.unwrap(),
    }
    let bytes = subject.read(&made.device, 0, 65536).unwrap();
    let mut expected = pattern(3, 65536);
    expected[8192..24576].fill(0);
    assert!(bytes[..] == expected[..]);
}

pub(crate) fn offload_is_refused_where_there_is_none(subject: &mut Subject) {
    let made = subject.device(8192);
    let input = Buf::default().freeze();
    let op = Op::Offload {
        opcode: 1,
        input,
        destination: Buf::anonymous(512).unwrap(),
    };
    let error = subject.perform(&made.device, 0, op).result.unwrap_err();
    assert_eq!(
        (error.op, error.kind()),
        (OpKind::Offload, ErrorKind::Unsupported)
    );
}

pub(crate) fn errors_name_device_operation_and_place(subject: &mut Subject) {
    let made = subject.device(8192);
    let error = subject.read(&made.device, 1 << 30, 4096).unwrap_err();
    assert_eq!(error.device, made.device.name());
    assert_eq!(
        (error.op, error.offset, error.len),
        (OpKind::Read, 1 << 30, 4096)
    );
    let text = error.to_string();
    for part in [made.device.name(), "read", "4096", "1073741824"] {
        assert!(text.contains(part), "{text}");
    }
}

pub(crate) fn a_wake_ends_a_wait_now_or_later(subject: &mut Subject) {
    let mut out = Vec::new();
    for _ in 0..3 {
        let waker = subject.driver.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            waker.wake();
        });
        subject.driver.reap(None, &mut out).unwrap();
        thread.join().unwrap();
    }
    subject.driver.waker().wake();
    subject.driver.reap(None, &mut out).unwrap();
    assert!(out.is_empty());
}

pub(crate) fn waiting_ends_in_time(subject: &mut Subject) {
    let mut out = Vec::new();
    let start = Instant::now();
    subject.driver.reap(Some(Duration::ZERO), &mut out).unwrap();
    subject
        .driver
        .reap(Some(Duration::from_millis(30)), &mut out)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
    // A request that is polled for arrives without a wait.
    let made = subject.device(8192);
    let op = Op::Read(Buf::anonymous(4096).unwrap());
    subject.driver.submit(&mut vec![Request {
        tag: 3,
        device: Arc::clone(&made.device),
        offset: 0,
        op,
    }]);
    while out.is_empty() {
        assert!(start.elapsed() < super::PATIENCE);
        subject.driver.reap(Some(Duration::ZERO), &mut out).unwrap();
    }
    assert_eq!((out.len(), out[0].tag), (1, 3));
}

pub(crate) fn a_driver_moves_between_threads(subject: &mut Subject) {
    let made = subject.device(MIB as u64);
    subject.write(&made.device, 0, &pattern(8, 65536)).unwrap();
    let mut driver = subject.another_driver();
    let read = |offset| Request {
        tag: offset,
        device: Arc::clone(&made.device),
        offset,
        op: Op::Read(Buf::anonymous(4096).unwrap()),
    };
    // Submitted by a thread that ends before its completion is reaped.
    let driver = std::thread::scope(|scope| {
        let submit = || {
            driver.submit(&mut (0..16).map(|index| read(index * 4096)).collect());
            driver
        };
        scope.spawn(submit).join().unwrap()
    });
    let mut driver = driver;
    for completion in reap_all(&mut *driver) {
        completion.result.unwrap();
        let Op::Read(buf) = completion.op else {
            panic!()
        };
        let start = completion.tag as usize;
        assert_eq!(&buf[..], &pattern(8, 65536)[start..start + 4096]);
    }
    driver.submit(&mut vec![read(0)]);
    std::thread::spawn(move || drop(driver)).join().unwrap();
}

/// Memory that says when it goes.
struct Watched {
    bytes: Buf,
    gone: Arc<AtomicBool>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

// SAFETY: the buffer is valid and stable, and only reached through this value.
unsafe impl Memory for Watched {
    fn pointer(&self) -> NonNull<u8> {
        Memory::pointer(&self.bytes)
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

pub(crate) fn dropping_the_driver_drains_it(subject: &mut Subject) {
    const PIECE: usize = 128 * 1024;
    let made = subject.device(64 * PIECE as u64);
    let gone = Arc::new(AtomicBool::new(false));
    let mut bytes = Buf::anonymous(64 * PIECE).unwrap();
    bytes.copy_from_slice(&pattern(4, 64 * PIECE));
    let mut memory = Buf::new(Box::new(Watched {
        bytes,
        gone: Arc::clone(&gone),
    }));
    let mut driver = subject.another_driver();
    let mut requests = (0..64)
        .map(|index| Request {
            tag: index,
            device: Arc::clone(&made.device),
            offset: index * PIECE as u64,
            op: Op::Write(memory.split_to(PIECE).freeze()),
        })
        .collect();
    drop(memory);
    driver.submit(&mut requests);
    assert!(!gone.load(Ordering::SeqCst));
    drop(driver);
    assert!(gone.load(Ordering::SeqCst));
    let bytes = subject.read(&made.device, 0, 64 * PIECE).unwrap();
    assert!(bytes[..] == pattern(4, 64 * PIECE)[..]);
}

pub(crate) fn registered_memory_works_the_same(subject: &mut Subject) {
    let made = subject.device(4 * MIB as u64);
    let mut memory = Buf::anonymous(16 * MIB).unwrap();
    let mut driver = subject.another_driver();
    let registered = driver.register(memory.anchor());
    assert!(registered <= memory.len());
    assert_eq!(driver.info().registered_bytes, registered);
    println!("{registered} bytes registered");
    // The second piece lies across the end of what an unprivileged user can register; the third
    // meets no registration.
    for skip in [0, 2 * MIB, 0] {
        memory.split_to(skip);
        let seed = memory.len() as u64;
        let mut piece = memory.split_to(4 * MIB);
        piece.copy_from_slice(&pattern(seed, 4 * MIB));
        let write = perform(&mut *driver, &made.device, 0, Op::Write(piece.freeze()));
        write.result.unwrap();
        let Op::Write(shared) = write.op else {
            panic!()
        };
        let mut piece = shared.try_thaw().unwrap();
        piece.fill(0);
        let read = perform(&mut *driver, &made.device, 0, Op::Read(piece));
        read.result.unwrap();
        let Op::Read(piece) = read.op else { panic!() };
        assert!(piece[..] == pattern(seed, 4 * MIB)[..]);
        if skip > 0 {
            driver.unregister();
            assert_eq!(driver.info().registered_bytes, 0);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Read {
        start: usize,
        blocks: usize,
    },
    Write {
        start: usize,
        blocks: usize,
        seed: u64,
    },
    Flush,
}

fn steps(blocks: usize) -> impl Strategy<Value = Vec<Step>> {
    let range = (0..blocks).prop_flat_map(move |start| (Just(start), 1..=blocks - start));
    let step = prop_oneof![
        4 => range.clone().prop_map(|(start, blocks)| Step::Read { start, blocks }),
        4 => (range, any::<u64>()).prop_map(|((start, blocks), seed)| Step::Write { start, blocks, seed }),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..24)
}

pub(crate) fn random_operations_agree_with_a_model(subject: &mut Subject) {
    const BLOCKS: usize = 24;
    let mut runner = TestRunner::new(Config {
        cases: 12,
        failure_persistence: None,
        ..Config::default()
    });
    let subject = std::cell::RefCell::new(subject);
    runner
        .run(&steps(BLOCKS), |steps| {
            let subject = &mut **subject.borrow_mut();
            // Without constraints, lengths that no sector divides.
            let probe = subject.device(0).device.limits().sector as usize;
            let unit = if probe == 1 { 1031 } else { probe };
            let made = subject.device((BLOCKS * unit) as u64);
            agrees(subject, &made.device, unit, BLOCKS * unit, &steps);
            Ok(())
        })
        .unwrap();
}

fn agrees(
    subject: &mut Subject,
    device: &Arc<dyn Device>,
    unit: usize,
    len: usize,
    steps: &[Step],
) {
    let mut model = vec![0; len];
    for step in steps {
        match *step {
            Step::Read { start, blocks } => {
                let range = start * unit..(start + blocks) * unit;
                let bytes = subject
                    .read(device, range.start as u64, range.len())
                    .unwrap();
                assert!(bytes[..] == model[range]);
            }
            Step::Write {
                start,
                blocks,
                seed,
            } => {
                let bytes = pattern(seed, blocks * unit);
                subject
                    .write(device, (start * unit) as u64, &bytes)
                    .unwrap();
                model[start * unit..][..bytes.len()].copy_from_slice(&bytes);
            }
            Step::Flush => subject.perform(device, 0, Op::Flush).result.unwrap(),
        }
    }
}
