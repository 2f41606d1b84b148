//! The devices under test. Each function makes a fresh one of `len` zero bytes, or returns `None`
//! if this system lacks it.

use outcore_device::{Device, Faults, Faulty, MemoryDevice, Mode, open_file};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A device and the folder that goes with it.
pub(crate) struct Made {
    pub(crate) device: Arc<dyn Device>,
    _folder: Option<TempDir>,
}

/// Where files on a disk may lie; the unprivileged run names another place.
pub(crate) const FOLDER_VARIABLE: &str = "OUTCORE_TEST_FOLDER";

fn disk_folder() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE)
        .unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into())
        .into()
}

fn file_in(parent: &Path, len: u64) -> Option<Made> {
    let folder = match TempDir::new_in(parent) {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("skipped: {}: {error}", parent.display());
            return None;
        }
    };
    let device = open_file(folder.path().join("object"), Mode::Create(len)).unwrap();
    Some(Made {
        device,
        _folder: Some(folder),
    })
}

/// A file on a disk, by direct I/O if its file system supports it.
pub(crate) fn disk(len: u64) -> Option<Made> {
    file_in(&disk_folder(), len)
}

/// A file in memory, through the page cache.
pub(crate) fn tmpfs(len: u64) -> Option<Made> {
    file_in(Path::new("/dev/shm"), len)
}

/// Plain memory.
pub(crate) fn memory(len: u64) -> Option<Made> {
    Some(Made {
        device: Arc::new(MemoryDevice::new("memory", len)),
        _folder: None,
    })
}

/// Memory with a disk's constraints.
pub(crate) fn memory_in_blocks(len: u64) -> Option<Made> {
    Some(Made {
        device: Arc::new(MemoryDevice::with_sector("memory in blocks", len, 4096)),
        _folder: None,
    })
}

fn faulty_disk(len: u64, faults: Faults) -> Option<Made> {
    let Made { device, _folder } = disk(len)?;
    Some(Made {
        device: Faulty::new(device, faults),
        _folder,
    })
}

/// A wrapped file without faults.
pub(crate) fn faulty(len: u64) -> Option<Made> {
    faulty_disk(len, Faults::default())
}

/// A file whose transfers are short, slow and out of order, yet never wrong: callers see no
/// difference.
pub(crate) fn nervous(len: u64) -> Option<Made> {
    let latency = Some(Duration::ZERO..Duration::from_micros(50));
    faulty_disk(
        len,
        Faults {
            seed: 42,
            short: 0.3,
            reorder: 0.05,
            latency,
            ..Faults::default()
        },
    )
}
