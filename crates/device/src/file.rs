//! A file, or a block device, as a device.
//!
//! Direct I/O is used where the file system allows it. Where it does not (tmpfs, some overlays and
//! network mounts) the file is reached through the page cache, and each transfer drops the pages
//! that it touched: otherwise a run under a memory limit would fill that limit with pages of the
//! page cache.

use crate::transfer::{flush_descriptor, punch_hole};
use crate::{Blocking, Device, DeviceError, Limits, OpKind, Route};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest single transfer. The kernel accepts up to 2 GiB; shorter transfers let the parts of
/// a long request run in parallel.
const MAX_TRANSFER_BYTES: usize = 1 << 20;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It must exist; it will only be read.
    Read,
    /// It must exist; it will be read and written.
    ReadWrite,
    /// It is created, or emptied if it exists, with this many zero bytes, for reading and writing.
    Create(u64),
}

/// A file as a device.
pub struct FileDevice {
    file: Held,
    name: String,
    len: AtomicU64,
    direct: bool,
    sector: u32,
}

/// An open file, and the owner that closes it, if it has one.
struct Held {
    /// `Some` until the drop.
    file: Option<File>,
    closer: Option<Closer>,
}

type Closer = Box<dyn FnOnce(File) + Send + Sync>;

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("it is not being dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(closer), Some(file)) = (self.closer.take(), self.file.take()) {
            closer(file);
        }
    }
}

/// Opens a file as a device. Errors name the path.
pub fn open_file(path: impl AsRef<Path>, mode: Mode) -> Result<Arc<FileDevice>, DeviceError> {
    FileDevice::open(path.as_ref(), mode).map(Arc::new)
}

impl FileDevice {
    /// Opens a file as a device. Errors name the path.
    pub fn open(path: &Path, mode: Mode) -> Result<FileDevice, DeviceError> {
        let name = path.display().to_string();
        let len = if let Mode::Create(len) = mode { len } else { 0 };
        open_options(mode)
            .open(path)
            .and_then(|file| FileDevice::with_descriptor(file, name.clone(), mode))
            .map_err(|source| DeviceError {
                device: name,
                op: OpKind::Open,
                offset: 0,
                len,
                source,
            })
    }

    /// A device on a file that is already open; `mode` says how it may be used. Changes the flags
    /// of the file: direct I/O is switched on where it works.
    pub fn from_file(
        file: File,
        name: impl Into<String>,
        mode: Mode,
    ) -> Result<FileDevice, DeviceError> {
        let name = name.into();
        let len = if let Mode::Create(len) = mode { len } else { 0 };
        FileDevice::with_descriptor(file, name.clone(), mode).map_err(|source| DeviceError {
            device: name,
            op: OpKind::Open,
            offset: 0,
            len,
            source,
        })
    }

    fn with_descriptor(mut file: File, name: String, mode: Mode) -> io::Result<FileDevice> {
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if let Mode::Create(len) = mode {
            file.set_len(0)?;
            file.set_len(len)?;
        }
        // The metadata of a block device reports a length of 0; seeking to its end does not.
        let len = file.seek(SeekFrom::End(0))?;
        let sector = direct::switch_on(&file, mode)?;
        let direct = sector.is_some();
        if direct && let Mode::Create(len) = mode {
            direct::allocate(&file, len)?;
        }
        if !direct {
            page_cache::expect_no_order(file.as_fd());
        }
        let file = Held {
            file: Some(file),
            closer: None,
        };
        Ok(FileDevice {
            file,
            name,
            len: AtomicU64::new(len),
            direct,
            sector: sector.unwrap_or(1),
        })
    }

    /// Sets an owner that closes the file.
    #[must_use]
    pub fn closed_by(mut self, closer: impl FnOnce(File) + Send + Sync + 'static) -> FileDevice {
        self.file.closer = Some(Box::new(closer));
        self
    }

    /// Sets the length of the device, whatever the length of the file: its owner knows where its
    /// data ends.
    #[must_use]
    pub fn sized(self, len: u64) -> FileDevice {
        self.len.store(len, Ordering::Release);
        self
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The file, for operations beyond an address space: locks, attributes, renames.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Truncates or extends the file. The caller keeps requests beyond the new end away.
    pub fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.file.set_len(len).map_err(|source| DeviceError {
            device: self.name.clone(),
            op: OpKind::Write,
            offset: len,
            len: 0,
            source,
        })?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }
}

fn open_options(mode: Mode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    match mode {
        Mode::Read => {}
        Mode::ReadWrite => drop(options.write(true)),
        // Truncated only after it is open, so that opening something other than a file changes
        // nothing.
        Mode::Create(_) => drop(options.write(true).create(true).truncate(false)),
    }
    options
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits {
            sector: self.sector,
            max_transfer: MAX_TRANSFER_BYTES,
        }
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn route(&self) -> Route<'_> {
        if self.direct {
            Route::Descriptor(self.file.as_fd())
        } else {
            Route::Blocking(self)
        }
    }
}

/// Transfers through the page cache.
impl Blocking for FileDevice {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = rustix::io::pread(&*self.file, destination, offset)?;
        page_cache::drop_pages(self.file.as_fd(), offset, len as u64);
        Ok(len)
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        let len = rustix::io::pwrite(&*self.file, source, offset)?;
        page_cache::write_out(self.file.as_fd(), offset, len as u64)?;
        page_cache::drop_pages(self.file.as_fd(), offset, len as u64);
        Ok(len)
    }

    fn flush(&self) -> io::Result<()> {
        flush_descriptor(self.file.as_fd())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        punch_hole(self.file.as_fd(), offset, len)
    }
}

/// Direct I/O: whether it works, and which alignment it requires.
#[cfg(target_os = "linux")]
mod direct {
    use super::Mode;
    use crate::Buf;
    use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl};
    use std::fs::File;
    use std::io;

    /// Safe if the true sector is unknown: no medium in use has larger ones.
    const LARGEST_BLOCK: u32 = 4096;

    /// Switches direct I/O on and returns its sector, or `None` if the file system refuses it.
    pub(super) fn switch_on(file: &File, mode: Mode) -> io::Result<Option<u32>> {
        let flags = fcntl_getfl(file)?;
        let sector = match stated_sector(file) {
            Some(0) => return Ok(None),
            stated => stated,
        };
        if is_memory_backed(file) || fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
            return Ok(None);
        }
        // Some file systems accept the flag and refuse the transfer, so one is tried.
        let candidates = match (sector, mode) {
            (Some(sector), _) => vec![sector],
            // A file opened for reading holds its bytes already, so a read of 512 shows whether 512
            // works.
            (None, Mode::Read) => vec![512, LARGEST_BLOCK],
            // In a hole, a small read succeeds even if a small write would not.
            (None, _) => vec![LARGEST_BLOCK],
        };
        for sector in candidates {
            if reads_directly(file, sector)? {
                return Ok(Some(sector));
            }
        }
        fcntl_setfl(file, flags)?;
        Ok(None)
    }

    /// The sector that `statx` reports (Linux 6.1 and later): 0 if there is no direct I/O, `None` if
    /// it does not report one.
    fn stated_sector(file: &File) -> Option<u32> {
        let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
            return None;
        }
        let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        if memory == 0 || offset == 0 {
            return Some(0);
        }
        let sector = memory.max(offset);
        Some(if sector.is_power_of_two() { sector } else { 0 })
    }

    /// Whether the file system is in memory. Newer kernels accept direct I/O there and still serve
    /// it from the page cache; treating such files as not direct frees them from alignment.
    fn is_memory_backed(file: &File) -> bool {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        const RAMFS_MAGIC: u64 = 0x8584_58f6;
        rustix::fs::fstatfs(file)
            .is_ok_and(|stat| matches!(stat.f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC))
    }

    fn reads_directly(file: &File, sector: u32) -> io::Result<bool> {
        let mut buf = Buf::anonymous(sector as usize)?;
        Ok(rustix::io::pread(file, &mut buf[..], 0).is_ok())
    }

    /// Allocates the space of the file: a full disk is detected before the first byte is written,
    /// and concurrent writes do not wait for each other to allocate.
    pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// On other systems every transfer uses the page cache.
#[cfg(not(target_os = "linux"))]
mod direct {
    use super::Mode;
    use std::fs::File;
    use std::io;

    pub(super) fn switch_on(_: &File, _: Mode) -> io::Result<Option<u32>> {
        Ok(None)
    }

    pub(super) fn allocate(_: &File, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the page cache empty.
#[cfg(target_os = "linux")]
mod page_cache {
    use rustix::fs::{Advice, fadvise};
    use std::io;
    use std::num::NonZeroU64;
    use std::os::fd::BorrowedFd;

    /// Switches read-ahead off: it would leave pages outside the range of any transfer in the page
    /// cache.
    pub(super) fn expect_no_order(file: BorrowedFd<'_>) {
        advise(file, 0, 0, Advice::Random);
    }

    /// Writes the range out, so that its pages can be dropped.
    pub(super) fn write_out(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match crate::linux::write_out_pages(file, offset, len) {
            // A file system without pages to write out has none to drop.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINVAL | libc::ESPIPE | libc::ENOSYS)
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Drops the clean pages of the range, those at its edges included.
    pub(super) fn drop_pages(file: BorrowedFd<'_>, offset: u64, len: u64) {
        // A length of 0 would mean everything from there on.
        if len == 0 {
            return;
        }
        let page_bytes = rustix::param::page_size() as u64;
        let start = offset - offset % page_bytes;
        let end = (offset + len).next_multiple_of(page_bytes);
        advise(file, start, end - start, Advice::DontNeed);
    }

    fn advise(file: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) {
        // The advice is optional: if it is refused, memory or speed suffers, never the content.
        if let Err(error) = fadvise(file, offset, NonZeroU64::new(len), advice) {
            log::trace!("page cache advice refused: {error}");
        }
    }
}

/// On other systems the page cache is left to the system.
#[cfg(not(target_os = "linux"))]
mod page_cache {
    use std::io;
    use std::os::fd::BorrowedFd;

    pub(super) fn expect_no_order(_: BorrowedFd<'_>) {}

    pub(super) fn write_out(_: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn drop_pages(_: BorrowedFd<'_>, _: u64, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, Choice, Op, Request};

    #[test]
    fn errors_name_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = open_file(&missing, Mode::Read).err().unwrap();
        assert_eq!(
            (error.op, error.kind()),
            (OpKind::Open, io::ErrorKind::NotFound)
        );
        assert!(error.to_string().contains("missing"), "{error}");
        let error = open_file(folder.path(), Mode::Read).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_created_file_is_empty_of_what_it_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        std::fs::write(&path, [7; 9000]).unwrap();
        let device = open_file(&path, Mode::Create(5000)).unwrap();
        assert_eq!(device.len(), 5000);
        assert_eq!(std::fs::read(&path).unwrap(), [0; 5000]);
        device.set_len(100).unwrap();
        assert_eq!(
            (device.len(), std::fs::metadata(&path).unwrap().len()),
            (100, 100)
        );
    }

    #[test]
    fn a_file_opened_for_reading_refuses_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        std::fs::write(&path, [7; 8192]).unwrap();
        let device = open_file(&path, Mode::Read).unwrap();
        let mut driver = crate::driver(Choice::Auto).unwrap();
        let op = Op::Write(Buf::anonymous(4096).unwrap().freeze());
        driver.submit(&mut vec![Request {
            tag: 0,
            device,
            offset: 0,
            op,
        }]);
        let mut done = Vec::new();
        driver.reap(None, &mut done).unwrap();
        assert_eq!(done[0].result.as_ref().unwrap_err().op, OpKind::Write);
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
    }

    /// Pages of the file's first `len` bytes in the page cache. A read without waiting would start
    /// reading the page that it asks for.
    #[cfg(target_os = "linux")]
    fn cached_pages(file: &File, len: usize) -> usize {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let mut pages = vec![0u8; len.div_ceil(rustix::param::page_size())];
        // SAFETY: a new mapping that is not read; `pages` has a byte for each page of it.
        unsafe {
            let map = mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            );
            let map = map.unwrap();
            assert_eq!(libc::mincore(map, len, pages.as_mut_ptr()), 0);
            munmap(map, len).unwrap();
        }
        pages.iter().filter(|&page| page & 1 == 1).count()
    }

    /// A run under a memory limit must not be charged for pages of the page cache.
    #[cfg(target_os = "linux")]
    #[test]
    fn buffered_transfers_leave_nothing_in_the_page_cache() {
        const LEN: usize = 4 << 20;
        // Of 1024 pages. A page that two pieces share may be under write-back when it should be
        // dropped.
        const FEW: usize = 64;
        let folder = tempfile::tempdir().unwrap();
        let mut device =
            FileDevice::open(&folder.path().join("object"), Mode::Create(LEN as u64)).unwrap();
        if !device.is_direct() {
            // The pages of a file in memory cannot be dropped.
            return;
        }
        let path = folder.path().join("object");
        device.file.file = OpenOptions::new().read(true).write(true).open(path).ok();
        device.direct = false;
        page_cache::expect_no_order(device.file.as_fd());
        // Pieces that share pages with their neighbours.
        for offset in (0..LEN - 30_000).step_by(30_000) {
            assert_eq!(
                device.write_at(&[9; 30_000], offset as u64).unwrap(),
                30_000
            );
        }
        let after_writes = cached_pages(&device.file, LEN);
        assert!(
            after_writes <= FEW,
            "{after_writes} pages stay after writes"
        );
        let mut bytes = vec![0; 30_000];
        for offset in (0..LEN - 30_000).step_by(30_000) {
            assert_eq!(device.read_at(&mut bytes, offset as u64).unwrap(), 30_000);
        }
        let after_reads = cached_pages(&device.file, LEN);
        assert!(after_reads <= FEW, "{after_reads} pages stay after reads");
    }
}
