//! Helpers of the checks: a driver, a device, and single operations.

pub(crate) mod checks;
pub(crate) mod devices;
#[cfg(target_os = "linux")]
pub(crate) mod unprivileged;

use devices::Made;
use outcore_device::{Buf, Choice, Completion, Device, DeviceError, Driver, Op, Request, driver};
use std::sync::Arc;

/// No test waits longer for a single answer; a lost completion fails instead of hanging.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// One pair of driver and device.
pub(crate) struct Subject {
    choice: Choice,
    make: fn(u64) -> Option<Made>,
    pub(crate) driver: Box<dyn Driver>,
}

impl Subject {
    /// `None` if this system lacks the pair.
    pub(crate) fn new(choice: Choice, make: fn(u64) -> Option<Made>) -> Option<Subject> {
        let driver = match driver(choice) {
            Ok(driver) => driver,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        make(0)?;
        Some(Subject {
            choice,
            make,
            driver,
        })
    }

    /// A fresh device of zeros.
    pub(crate) fn device(&self, len: u64) -> Made {
        (self.make)(len).expect("it could be made before")
    }

    /// A further driver of the same kind.
    pub(crate) fn another_driver(&self) -> Box<dyn Driver> {
        driver(self.choice).expect("it could be made before")
    }

    /// Performs one operation and waits for its completion.
    pub(crate) fn perform(&mut self, device: &Arc<dyn Device>, offset: u64, op: Op) -> Completion {
        perform(&mut *self.driver, device, offset, op)
    }

    pub(crate) fn read(
        &mut self,
        device: &Arc<dyn Device>,
        offset: u64,
        len: usize,
    ) -> Result<Buf, DeviceError> {
        let mut buf = Buf::anonymous(len).unwrap();
        // Bytes that a read does not set must not look as if it had.
        buf.fill(0xee);
        let completion = self.perform(device, offset, Op::Read(buf));
        match (completion.result, completion.op) {
            (Ok(()), Op::Read(buf)) => Ok(buf),
            (Err(error), _) => Err(error),
            (_, op) => panic!("a read came back as {op:?}"),
        }
    }

    pub(crate) fn write(
        &mut self,
        device: &Arc<dyn Device>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let mut buf = Buf::anonymous(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        self.perform(device, offset, Op::Write(buf.freeze())).result
    }
}

pub(crate) fn perform(
    driver: &mut dyn Driver,
    device: &Arc<dyn Device>,
    offset: u64,
    op: Op,
) -> Completion {
    driver.submit(&mut vec![Request {
        tag: 1,
        device: Arc::clone(device),
        offset,
        op,
    }]);
    reap_all(driver).pop().expect("one answer")
}

/// Waits for everything that is in flight.
pub(crate) fn reap_all(driver: &mut dyn Driver) -> Vec<Completion> {
    let mut out = Vec::new();
    while driver.in_flight() > 0 {
        let before = driver.in_flight();
        driver.reap(Some(PATIENCE), &mut out).unwrap();
        assert!(driver.in_flight() < before, "{before} requests hang");
    }
    out
}

/// Bytes that depend on their position.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Splitmix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
