//! What finds samples again: their places, checksums and names, which grow with every sample.

use outcore_core::Result;
use outcore_store::checksum_on;

use super::DatasetWriter;
use crate::manifest::parts;
use crate::packed::{GROUP, pack};

impl DatasetWriter {
    /// Adds what finds a sample.
    pub(super) fn add(
        &mut self,
        name: Option<&[u8]>,
        start: u64,
        end: u64,
        sum: u32,
    ) -> Result<()> {
        self.append(parts::SUMS, &sum.to_le_bytes())?;
        if let Some(name) = name {
            if self.state.group.is_empty() {
                let at = self.state.files[parts::NAMES].bytes;
                self.append(parts::NAME_GROUPS, &at.to_le_bytes())?;
            }
            for bytes in [&(name.len() as u32).to_le_bytes(), name] {
                self.append(parts::NAMES, bytes)?;
                self.state.names_sum = checksum_on(self.state.names_sum, bytes);
            }
        }
        self.state.group.push((start, end));
        self.state.samples += 1;
        if self.state.group.len() == GROUP {
            self.close_group()?;
        }
        self.save_if_due()
    }

    /// Appends to a file that is summed as a whole.
    fn append(&mut self, part: usize, bytes: &[u8]) -> Result<()> {
        self.files[part].write(bytes)?;
        let file = &mut self.state.files[part];
        file.crc32c = checksum_on(file.crc32c, bytes);
        file.bytes += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn close_group(&mut self) -> Result<()> {
        if self.state.named {
            let sum = std::mem::take(&mut self.state.names_sum);
            self.append(parts::NAME_SUMS, &sum.to_le_bytes())?;
        }
        let (starts, ends): (Vec<u64>, Vec<u64>) = self.state.group.drain(..).unzip();
        self.pack([parts::PLACES, parts::BITS], &starts)?;
        if self.state.elsewhere.is_some() {
            self.pack([parts::ENDS, parts::END_BITS], &ends)?;
        }
        Ok(())
    }

    fn pack(&mut self, [groups, bits]: [usize; 2], numbers: &[u64]) -> Result<()> {
        let (mut packed, words) = (Vec::new(), self.state.files[bits].bytes / 8);
        let group = pack(numbers, words, &mut packed);
        self.append(groups, bytemuck::cast_slice(&group.map(u64::to_le)))?;
        self.append(
            bits,
            bytemuck::cast_slice(&packed.iter().map(|word| word.to_le()).collect::<Vec<u64>>()),
        )
    }
}
