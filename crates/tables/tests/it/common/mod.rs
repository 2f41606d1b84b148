//! What tests of tables share.

use std::path::Path;

use outcore_core::{Session, Settings, WrapDevice};

pub(crate) fn session_with(folder: &Path, wrap_device: WrapDevice) -> Session {
    Session::new(Settings {
        memory_bytes: Some(16 << 20),
        scratch: Some(folder.join("scratch")),
        allow_tmpfs_scratch: true,
        threads: 2,
        wrap_device,
        ..Settings::default()
    })
    .unwrap()
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
