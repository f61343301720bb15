//! Where checkpoints are written, so that tests can have a disk that is full.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

/// A place for files.
pub(crate) trait Disk: Sync {
    /// Makes a file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
}

/// A file that is being written.
pub(crate) trait Sink: Write {
    /// Waits until everything written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system.
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

/// Writes the entries of a folder to the disk: a rename lasts only after that.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Counts and sums up what goes through it.
pub(crate) struct Summed<'a> {
    sink: &'a mut dyn Sink,
    sum: crc32fast::Hasher,
    bytes: u64,
}

impl<'a> Summed<'a> {
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, sum: crc32fast::Hasher::new(), bytes: 0 }
    }

    /// Waits for the disk; bytes and their CRC-32.
    pub fn finish(self) -> io::Result<(u64, u32)> {
        self.sink.sync()?;
        Ok((self.bytes, self.sum.finalize()))
    }
}

impl Write for Summed<'_> {
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
