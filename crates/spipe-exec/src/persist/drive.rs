//! A file that stands for a drive: every optimizer state has a place of its own in it, and activations
//! have places that they share.
//!
//! ```text
//! one place: whole blocks of 4 KiB │ next place │ …      numbers, little-endian, then zeros to the end of a block
//! ```
//!
//! Reads and writes go past the system's cache where the file system allows that. The file is working
//! storage of one run, written before the first step and removed after the last: a run that was killed
//! resumes from its checkpoint, and writes the file again.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Sizes and places of direct transfers are multiples of this, for any drive in use.
const BLOCK: usize = 4096;

/// Bytes of one transfer: large enough for a drive's full rate.
const CHUNK: usize = 4 << 20;

/// A file that stands for a drive.
#[derive(Debug)]
pub(crate) struct DriveFile {
    /// Has the lock, for as long as it is open.
    locked: File,
    /// For direct transfers, where there are such.
    unbuffered: Option<File>,
    path: PathBuf,
    /// The end of the last place.
    end: Mutex<u64>,
    /// Places of activations that have come back, by the bytes that they take.
    free: Mutex<BTreeMap<usize, Vec<DrivePlace>>>,
    /// Memory of transfers that have ended.
    chunks: Mutex<Vec<Chunk>>,
}

/// A place in the file, with the CRC-32 of the bytes that were written there last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrivePlace {
    start: u64,
    bytes: usize,
    sum: u32,
}

impl DrivePlace {
    /// Bytes that are kept there.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl DriveFile {
    /// Creates the file of the drive `name` in `folder`, or takes over one that a killed run has left.
    pub fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(format!("{name}.state"));
        // Without truncation, until it is certain that no other run uses it.
        let mut plain = OpenOptions::new();
        plain.read(true).write(true).create(true).truncate(false);
        let file = plain.open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another run uses it")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        let unbuffered = direct(&mut plain, &path)?;
        Ok(Self {
            locked: file,
            unbuffered,
            path,
            end: Mutex::new(0),
            free: Mutex::default(),
            chunks: Mutex::default(),
        })
    }

    fn file(&self) -> &File {
        self.unbuffered.as_ref().unwrap_or(&self.locked)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether transfers go past the system's cache.
    pub const fn is_direct(&self) -> bool {
        self.unbuffered.is_some()
    }

    /// Writes a state for the first time. The place is allocated with it, so that later writes cannot
    /// find the drive full.
    pub fn add(&self, bytes: usize, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<DrivePlace> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.write(DrivePlace { start: *end, bytes, sum: 0 }, fill)?;
        self.file().sync_data()?;
        *end += bytes.next_multiple_of(BLOCK) as u64;
        Ok(place)
    }

    /// Writes `bytes` that are read once: to a place that is free, or to a new one.
    pub fn lend(&self, bytes: usize, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<DrivePlace> {
        let place = self.free.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&bytes).and_then(Vec::pop);
        match place {
            Some(place) => self.write(place, fill),
            None => self.add(bytes, fill),
        }
    }

    /// Takes back a place that was lent.
    pub fn free(&self, place: DrivePlace) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).entry(place.bytes).or_default().push(place);
    }

    /// Writes the bytes that `fill` produces to a place; there must be as many as before.
    pub fn write(
        &self,
        place: DrivePlace,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<DrivePlace> {
        let mut writer = Writer {
            file: self.file(),
            at: place.start,
            chunk: self.chunk(place.bytes),
            filled: 0,
            bytes: 0,
            sum: crc32fast::Hasher::new(),
        };
        fill(&mut writer)?;
        let (bytes, sum, chunk) = writer.finish()?;
        self.give(chunk);
        if bytes != place.bytes {
            return Err(io::Error::other(format!("{bytes} bytes were written where {} belong", place.bytes)));
        }
        Ok(DrivePlace { sum, ..place })
    }

    /// Reads a place: `parse` must take all of its bytes.
    ///
    /// # Errors
    /// Bytes that cannot be read, or are not those that were written.
    pub fn read<T>(&self, place: &DrivePlace, parse: impl FnOnce(&mut dyn Read) -> io::Result<T>) -> io::Result<T> {
        let mut reader =
            Reader { drive: self, place, chunk: self.chunk(place.bytes), done: 0, sum: crc32fast::Hasher::new() };
        let parsed = parse(&mut reader);
        let Reader { chunk, done, sum, .. } = reader;
        self.give(chunk);
        let parsed = parsed?;
        if done < place.bytes || sum.finalize() != place.sum {
            return Err(io::Error::other("it holds other bytes than were written there"));
        }
        Ok(parsed)
    }

    /// Memory for one transfer of a place of `bytes`.
    fn chunk(&self, bytes: usize) -> Chunk {
        let kept = self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.filter(|kept| kept.len >= bytes.min(CHUNK)).unwrap_or_else(|| Chunk::new(bytes))
    }

    /// Takes it back, for the next transfer.
    fn give(&self, chunk: Chunk) {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }
}

impl Drop for DriveFile {
    fn drop(&mut self) {
        // A file that stays is taken over by the next run.
        let _removed = std::fs::remove_file(&self.path);
    }
}

/// The same file, opened for direct transfers; none where the file system has none.
fn direct(options: &mut OpenOptions, path: &Path) -> io::Result<Option<File>> {
    #[cfg(target_os = "linux")]
    {
        let Ok(file) = options.custom_flags(libc::O_DIRECT).open(path) else { return Ok(None) };
        // Some file systems refuse at the first transfer only.
        let mut block = Chunk::new(BLOCK);
        match file.write_all_at(&block.bytes_mut()[..BLOCK], 0) {
            Ok(()) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = (options, path);
        Ok(None)
    }
}

/// Memory for one transfer, aligned as direct transfers want it.
#[derive(Debug)]
struct Chunk {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Chunk {
    fn new(most: usize) -> Self {
        let len = most.next_multiple_of(BLOCK).clamp(BLOCK, CHUNK);
        let memory = vec![0; len + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { memory, start, len }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Reads chunk by chunk.
struct Reader<'a> {
    drive: &'a DriveFile,
    place: &'a DrivePlace,
    chunk: Chunk,
    /// Bytes that have been handed out; those before the next multiple of a chunk are in memory.
    done: usize,
    sum: crc32fast::Hasher,
}

impl Read for Reader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (left, at) = (self.place.bytes - self.done, self.done % CHUNK);
        if left == 0 || to.is_empty() {
            return Ok(0);
        }
        if at == 0 {
            let part = left.next_multiple_of(BLOCK).min(CHUNK);
            let start = self.place.start + self.done as u64;
            self.drive.file().read_exact_at(&mut self.chunk.bytes_mut()[..part], start)?;
        }
        let count = left.min(CHUNK - at).min(to.len());
        to[..count].copy_from_slice(&self.chunk.bytes_mut()[at..at + count]);
        self.sum.update(&to[..count]);
        self.done += count;
        Ok(count)
    }
}

/// Writes whole chunks, and the rest up to a whole block.
struct Writer<'a> {
    file: &'a File,
    at: u64,
    chunk: Chunk,
    filled: usize,
    bytes: usize,
    sum: crc32fast::Hasher,
}

impl Writer<'_> {
    fn put(&mut self, bytes: usize) -> io::Result<()> {
        self.file.write_all_at(&self.chunk.bytes_mut()[..bytes], self.at)?;
        self.at += bytes as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes the rest; returns the bytes, their CRC-32, and the memory of transfers.
    fn finish(mut self) -> io::Result<(usize, u32, Chunk)> {
        let (filled, whole) = (self.filled, self.filled.next_multiple_of(BLOCK));
        self.chunk.bytes_mut()[filled..whole].fill(0);
        if whole > 0 {
            self.put(whole)?;
        }
        Ok((self.bytes, self.sum.finalize(), self.chunk))
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (filled, len) = (self.filled, self.chunk.len);
        let part = bytes.len().min(len - filled);
        self.chunk.bytes_mut()[filled..filled + part].copy_from_slice(&bytes[..part]);
        self.sum.update(&bytes[..part]);
        (self.filled, self.bytes) = (filled + part, self.bytes + part);
        if self.filled == len {
            self.put(len)?;
        }
        Ok(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(drive: &DriveFile, place: &DrivePlace) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // Pieces that end anywhere.
        drive.read(place, |from| from.read_to_end(&mut bytes))?;
        Ok(bytes)
    }

    fn numbers(count: usize, seed: u8) -> Vec<u8> {
        (0..count).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    }

    #[test]
    fn places_hold_what_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let drive = DriveFile::create(folder.path(), "nvme0").unwrap();
        // Less than a block, a whole block, and more than a chunk.
        let sizes = [1, BLOCK, CHUNK + BLOCK + 5];
        let place = |(seed, bytes): (usize, &usize)| {
            drive.add(*bytes, |out| out.write_all(&numbers(*bytes, seed as u8))).unwrap()
        };
        let places: Vec<DrivePlace> = sizes.iter().enumerate().map(place).collect();
        for (seed, place) in places.iter().enumerate() {
            assert!(all(&drive, place).unwrap() == numbers(place.bytes(), seed as u8));
        }
        let again = drive.write(places[2], |out| out.write_all(&numbers(sizes[2], 9))).unwrap();
        assert!(all(&drive, &again).unwrap() == numbers(sizes[2], 9));
        assert!(all(&drive, &places[1]).unwrap() == numbers(BLOCK, 1));
        assert_eq!(all(&drive, &places[2]).unwrap_err().to_string(), "it holds other bytes than were written there");
    }

    /// Two places for any number of activations of which two are there at once.
    #[test]
    fn lent_places_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let drive = DriveFile::create(folder.path(), "nvme0").unwrap();
        let lend = |seed: u8| drive.lend(100, |out| out.write_all(&numbers(100, seed))).unwrap();
        let mut before = lend(0);
        for seed in 1..9 {
            let place = lend(seed);
            assert!(all(&drive, &before).unwrap() == numbers(100, seed - 1));
            drive.free(before);
            before = place;
        }
        assert_eq!(std::fs::metadata(drive.path()).unwrap().len(), 2 * BLOCK as u64);
    }

    #[test]
    fn damage_is_found_and_a_file_has_one_run() {
        let folder = tempfile::tempdir().unwrap();
        let drive = DriveFile::create(folder.path(), "nvme0").unwrap();
        let place = drive.add(100, |out| out.write_all(&numbers(100, 3))).unwrap();
        let other = DriveFile::create(folder.path(), "nvme0").unwrap_err();
        assert_eq!(other.to_string(), "another run uses it");
        let path = drive.path().to_owned();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[255], 50).unwrap();
        file.sync_all().unwrap();
        assert!(all(&drive, &place).is_err());
        drop(drive);
        assert!(!path.exists());
    }
}
