//! The disk for checkpoints; tests replace it by a full one.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

/// A file system.
pub(crate) trait Disk: Sync {
    /// Creates a file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
}

/// A file that is being written.
pub(crate) trait Sink: Write {
    /// Waits until all bytes are on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real file system.
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(BufWriter::new(File::create_new(path)?)))
    }
}

impl Sink for BufWriter<File> {
    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.get_ref().sync_all()
    }
}

/// Syncs the entries of a folder: a rename is durable only after that.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A writer that counts bytes and computes their CRC-32.
pub(crate) struct ChecksumWriter<'a> {
    sink: &'a mut dyn Sink,
    sum: crc32fast::Hasher,
    bytes: u64,
}

impl<'a> ChecksumWriter<'a> {
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, sum: crc32fast::Hasher::new(), bytes: 0 }
    }

    /// Syncs the file; returns the bytes and their CRC-32.
    pub fn finish(self) -> io::Result<(u64, u32)> {
        self.sink.sync()?;
        Ok((self.bytes, self.sum.finalize()))
    }
}

impl Write for ChecksumWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.sum.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
