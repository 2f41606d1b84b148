//! Descriptors: readable exactly while something can be had without waiting.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use outcore_device::{Choice, Device, Faults, Faulty, MemoryDevice};
use outcore_engine::{
    Config, Engine, Error, Extent, GatherOptions, Item, Mode, Plan, Region, StreamOptions, Task,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BLOCK: usize = 4096;
const SOON: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: 1 << 20,
        threads: 1,
        driver: Choice::Auto,
    })
}

fn extent() -> Extent {
    Extent::new(
        "memory",
        Arc::new(MemoryDevice::with_sector("memory", 64 << 10, 512)),
    )
}

/// Nothing else reads or writes the extent until what is returned is dropped.
fn hold(engine: &Engine, extent: &Extent) -> Sender<()> {
    let ((begins, begun), (go, gone)) = (channel(), channel::<()>());
    let mut plan = Plan::new("holds");
    let region = Region::span(plan.extent(extent), 0, extent.len());
    plan.lock(region, Mode::Write);
    plan.task(Task::new("waits").run(move |_| {
        begins.send(())?;
        let _ = gone.recv();
        Ok(())
    }));
    let ticket = engine.run(plan).unwrap();
    begun.recv_timeout(SOON).unwrap();
    std::thread::spawn(move || ticket.wait().map(|_| ()).unwrap());
    go
}

fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

fn waits(fd: BorrowedFd<'_>) -> bool {
    !is_readable(fd, Duration::ZERO)
}

#[test]
fn a_read_stream_is_readable_while_its_next_block_is_there() {
    let (engine, extent) = (engine(), extent());
    let held = hold(&engine, &extent);
    let options = StreamOptions {
        block_bytes: BLOCK,
        ahead: 2,
    };
    let mut stream = engine
        .read_stream(&extent, 0..4 * BLOCK as u64, options)
        .unwrap();
    assert!(waits(stream.fd().unwrap()), "nothing has come yet");
    drop(held);
    for _ in 0..4 {
        assert!(is_readable(stream.fd().unwrap(), SOON));
        assert!(
            stream.ready_within(Duration::ZERO),
            "it says what polling says"
        );
        // What is taken is dropped at once, or the stream would say that all is lent.
        drop(stream.next_if_ready().unwrap());
        let (readable, ready) = (
            !waits(stream.fd().unwrap()),
            stream.ready_within(Duration::ZERO),
        );
        assert!(readable <= ready, "what comes meanwhile may only add");
    }
    assert!(
        is_readable(stream.fd().unwrap(), SOON),
        "the end can be had"
    );
    assert!(stream.next().is_none());
    assert!(!waits(stream.fd().unwrap()), "and again");
}

#[test]
fn a_read_stream_that_fails_is_readable() {
    let faults = Faults {
        read_error: 1.0,
        ..Faults::default()
    };
    let device = Faulty::new(Arc::new(MemoryDevice::new("memory", 8192)), faults);
    let extent = Extent::new("bad", device as Arc<dyn Device>);
    let engine = engine();
    let mut stream = engine
        .read_stream(&extent, 0..8192, StreamOptions::default())
        .unwrap();
    assert!(is_readable(stream.fd().unwrap(), SOON));
    let error = stream.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
}

#[test]
fn a_write_stream_is_readable_while_there_is_memory_and_once_all_is_written() {
    let (engine, extent) = (engine(), extent());
    let held = hold(&engine, &extent);
    let options = StreamOptions {
        block_bytes: BLOCK,
        ahead: 2,
    };
    let mut stream = engine.write_stream(&extent, 0, options).unwrap();
    assert!(is_readable(stream.fd().unwrap(), SOON));
    for _ in 0..2 {
        stream.write(&[7; BLOCK]).unwrap();
    }
    assert!(waits(stream.fd().unwrap()), "both blocks are on their way");
    assert!(!stream.ready_within(Duration::ZERO));
    drop(held);
    assert!(is_readable(stream.fd().unwrap(), SOON));
    let held = hold(&engine, &extent);
    stream.write(&[8; 10]).unwrap();
    assert!(
        !waits(stream.fd().unwrap()),
        "a block that is begun has room"
    );
    stream.end().unwrap();
    assert!(stream.buffer().is_err(), "nothing comes after the end");
    assert!(waits(stream.fd().unwrap()), "the last block is not written");
    drop(held);
    assert!(is_readable(stream.fd().unwrap(), SOON));
    stream.finish().unwrap();
}

#[test]
fn a_write_stream_that_fails_is_readable() {
    let faults = Faults {
        write_error: 1.0,
        ..Faults::default()
    };
    let device = Faulty::new(Arc::new(MemoryDevice::new("memory", 8192)), faults);
    let extent = Extent::new("bad", device as Arc<dyn Device>);
    let engine = engine();
    let mut stream = engine
        .write_stream(&extent, 0, StreamOptions::default())
        .unwrap();
    stream.write(&[1; 100]).unwrap();
    stream.end().unwrap();
    assert!(is_readable(stream.fd().unwrap(), SOON));
    let error = stream.finish().unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
}

#[test]
fn arrivals_are_readable_while_an_item_can_be_had() {
    let (engine, extent) = (engine(), extent());
    let held = hold(&engine, &extent);
    let item = |at: u64| Item {
        extent: &extent,
        offset: at * 8192,
        len: 100,
    };
    // Two of them are one.
    let items = [item(0), item(0), item(1), item(2)];
    let options = GatherOptions {
        gap_bytes: 0,
        cache: false,
        ..GatherOptions::default()
    };
    let mut arrivals = engine.gather_each(&items, &options).unwrap();
    assert!(waits(arrivals.fd().unwrap()));
    drop(held);
    for _ in 0..4 {
        assert!(is_readable(arrivals.fd().unwrap(), SOON));
        assert!(arrivals.ready_within(Duration::ZERO));
        arrivals.next().unwrap().unwrap();
    }
    assert!(
        is_readable(arrivals.fd().unwrap(), SOON),
        "the end can be had"
    );
    assert!(arrivals.next().is_none());
}

/// The descriptor of a batch was asked for before some of its items were looked at: they left no
/// trace in it once they had been.
#[test]
fn a_descriptor_made_between_two_items_follows_both() {
    let (engine, extent) = (engine(), extent());
    let held = hold(&engine, &extent);
    let item = |at: u64| Item {
        extent: &extent,
        offset: at,
        len: 100,
    };
    let mut arrivals = engine
        .gather_each(
            &[item(0), item(200), item(40_000)],
            &GatherOptions::default(),
        )
        .unwrap();
    drop(held);
    // Which item comes first is not known: the others may have arrived, or may arrive later.
    arrivals.next().unwrap().unwrap();
    assert!(is_readable(arrivals.fd().unwrap(), SOON));
    while arrivals.next().is_some() {
        assert!(is_readable(arrivals.fd().unwrap(), SOON));
    }
}
