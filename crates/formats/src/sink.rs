//! Bytes written to a file, compressed according to its name.

use std::io::{self, Write};

use flate2::write::GzEncoder;
use zstd::stream::write::Encoder as ZstdEncoder;

/// Compresses the output if the name ends in `.gz` or `.zst`. The file is complete only after
/// [`finish`](Sink::finish).
pub enum Sink<W: Write> {
    /// Not compressed.
    Plain(W),
    /// RFC 1952, level 6.
    Gzip(GzEncoder<W>),
    /// RFC 8878, level 3, with a checksum.
    Zstd(ZstdEncoder<'static, W>),
}

impl<W: Write> Sink<W> {
    /// The sink for `name`, on top of `writer`.
    pub fn new(name: &str, writer: W) -> io::Result<Sink<W>> {
        Ok(match name.rsplit('.').next() {
            Some("gz") => Sink::Gzip(GzEncoder::new(writer, flate2::Compression::default())),
            Some("zst") => {
                let mut encoder = ZstdEncoder::new(writer, 3)?;
                encoder.include_checksum(true)?;
                Sink::Zstd(encoder)
            }
            _ => Sink::Plain(writer),
        })
    }

    /// Writes the rest, and returns the writer.
    pub fn finish(self) -> io::Result<W> {
        let mut writer = match self {
            Sink::Plain(writer) => writer,
            Sink::Gzip(encoder) => encoder.finish()?,
            Sink::Zstd(encoder) => encoder.finish()?,
        };
        writer.flush()?;
        Ok(writer)
    }
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Plain(writer) => writer.write(bytes),
            Sink::Gzip(encoder) => encoder.write(bytes),
            Sink::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Plain(writer) => writer.flush(),
            Sink::Gzip(encoder) => encoder.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compression, Source};

    #[test]
    fn what_is_written_is_read_back_packed_as_the_name_says() {
        let text = b"1 2 3\n".repeat(10_000);
        for (name, compression) in [
            ("x.txt", Compression::Plain),
            ("x.txt.gz", Compression::Gzip),
            ("x.zst", Compression::Zstd),
        ] {
            let mut sink = Sink::new(name, Vec::new()).unwrap();
            sink.write_all(&text).unwrap();
            let stored = sink.finish().unwrap();
            let mut source = Source::open(name, &stored[..]).unwrap();
            assert_eq!(source.compression(), compression);
            let mut bytes = vec![0; text.len() + 1];
            let read = source.read_full(&mut bytes).unwrap();
            assert_eq!(bytes[..read], text);
        }
    }
}
