//! Files of rows that are compressed where their names say so: `.gz` by gzip, `.zst` by Zstandard.

use crate::error::{Error, Result};
use crate::files::Out;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A writer of text, which goes on to `W` as the file is to have it.
pub enum Packed<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::Encoder<'static, W>),
}

/// Rows on their way to a file or a stream.
pub type RowsOut = Packed<BufWriter<Out>>;

/// Whether a file of this name is compressed.
pub fn is_packed(path: &Path) -> bool {
    matches!(ending(path), Some("gz" | "zst"))
}

fn ending(path: &Path) -> Option<&str> {
    path.extension().and_then(OsStr::to_str)
}

impl<W: Write> Packed<W> {
    /// Onto `out`, which is to be the file `path`.
    ///
    /// # Errors
    /// There is no memory for what compresses.
    pub fn new(out: W, path: &Path) -> io::Result<Self> {
        Ok(match ending(path) {
            Some("gz") => Self::Gzip(GzEncoder::new(out, Compression::default())),
            Some("zst") => {
                let mut encoder = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            _ => Self::Plain(out),
        })
    }

    /// What was written to, once all of it has arrived there.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(self) -> io::Result<W> {
        let mut out = match self {
            Self::Plain(out) => out,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        out.flush()?;
        Ok(out)
    }
}

impl RowsOut {
    /// Rows to `out`. A stream has them as they are, whatever its name is.
    ///
    /// # Errors
    /// There is no memory for what compresses.
    pub fn onto(out: Out) -> Result<Self> {
        let name = out.name().to_owned();
        let target = match &out {
            Out::Whole(whole) => whole.target().to_owned(),
            Out::Stream(_) => PathBuf::new(),
        };
        let out = BufWriter::with_capacity(1 << 20, out);
        let packed = Self::new(out, &target);
        packed.map_err(|error| Error::io(name, error))
    }

    /// What is being written, for messages.
    pub fn name(&self) -> &Path {
        let out = match self {
            Self::Plain(out) => out,
            Self::Gzip(encoder) => encoder.get_ref(),
            Self::Zstd(encoder) => encoder.get_ref(),
        };
        out.get_ref().name()
    }

    /// Writes a row, which ends its line itself.
    ///
    /// # Errors
    /// The system refused.
    pub fn put(&mut self, line: &[u8]) -> Result<()> {
        let written = self.write_all(line);
        written.map_err(|error| Error::io(self.name(), error))
    }

    /// The file or stream, once all rows are in it.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish_out(self) -> Result<Out> {
        let name = self.name().to_owned();
        let out = self.finish().and_then(|out| Ok(out.into_inner()?));
        out.map_err(|error| Error::io(name, error))
    }
}

impl<W: Write> Write for Packed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    /// Compressed text stays where it is: a flush for each row would be the end of the compression.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(_) | Self::Zstd(_) => Ok(()),
        }
    }
}
