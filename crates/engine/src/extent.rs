//! A run of bytes on a device, under a name that errors and traces can use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use outcore_device::Device;

use crate::error::{Error, Result};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The bytes of a device. Clones are the same extent.
#[derive(Clone)]
pub struct Extent(Arc<Inner>);

struct Inner {
    id: u64,
    name: String,
    device: Arc<dyn Device>,
    len: u64,
    version: Arc<AtomicU64>,
    life: Arc<()>,
}

impl Extent {
    /// All bytes of a device.
    pub fn new(name: impl Into<String>, device: Arc<dyn Device>) -> Extent {
        Extent::versioned(name, device, Arc::default())
    }

    /// The same, of bytes that others may change: what an engine remembers of them counts only
    /// while `version` is what it was.
    pub fn versioned(
        name: impl Into<String>,
        device: Arc<dyn Device>,
        version: Arc<AtomicU64>,
    ) -> Extent {
        let (id, len) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), device.len());
        Extent(Arc::new(Inner {
            id,
            name: name.into(),
            device,
            len,
            version,
            life: Arc::default(),
        }))
    }

    /// The same bytes by way of another device: what writes through it and what reads through this
    /// one wait for each other.
    pub fn through(&self, device: Arc<dyn Device>) -> Extent {
        let Inner {
            id,
            name,
            len,
            version,
            life,
            ..
        } = &*self.0;
        let (version, life) = (Arc::clone(version), Arc::clone(life));
        Extent(Arc::new(Inner {
            id: *id,
            name: name.clone(),
            len: *len,
            version,
            life,
            device,
        }))
    }

    /// Changes whenever the bytes have been written.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Upgrades as long as a handle of this extent exists.
    pub(crate) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.0.life)
    }

    /// Unique in the process.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The name for people.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Refuses bytes that are not inside.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::OutOfRange {
                object: self.name().to_owned(),
                offset,
                len,
                object_len: self.len(),
            }),
        }
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// The unit of transfer, bytes.
    pub fn block(&self) -> u32 {
        self.0.device.limits().block
    }
}
