//! Safetensors files, a tensor at a time.
//!
//! ```text
//! 8 bytes: length of the header ─ header (JSON: name, type, shape, place of each tensor) ─ numbers, little-endian, row by row
//! ```
//!
//! The library parses the header. Its reader and writer need the whole file in memory, which is too
//! much for a large model.

use crate::task_error::TaskError;
use burn::tensor::{bf16, f16};
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

/// The name and shape of an f32 tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    pub shape: Vec<usize>,
}

impl Entry {
    /// Bytes of its numbers.
    pub fn bytes(&self) -> u64 {
        self.stored_bytes(Dtype::F32) as u64
    }

    fn stored_bytes(&self, dtype: Dtype) -> usize {
        let each = if dtype == Dtype::U8 { 1 } else { 4 };
        each * self.shape.iter().product::<usize>()
    }
}

impl Stored {
    const fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::U8(_) => Dtype::U8,
        }
    }
}

/// Numbers of a tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stored {
    F32(Vec<f32>),
    U8(Vec<u8>),
}

/// Writes a file of f32 tensors. `numbers(i)` returns the numbers of `entries[i]`; it is called once
/// for each, in ascending order.
pub(crate) fn write(
    out: &mut dyn Write,
    entries: &[Entry],
    numbers: &mut dyn FnMut(usize) -> Result<Vec<f32>, TaskError>,
) -> io::Result<()> {
    let entries: Vec<(Entry, Dtype)> = entries.iter().map(|entry| (entry.clone(), Dtype::F32)).collect();
    write_stored(out, &entries, &mut |index| numbers(index).map(Stored::F32))
}

/// Writes a file of tensors of f32 and of bytes, as [`write`] does.
pub(crate) fn write_stored(
    out: &mut dyn Write,
    entries: &[(Entry, Dtype)],
    numbers: &mut dyn FnMut(usize) -> Result<Stored, TaskError>,
) -> io::Result<()> {
    let mut place = 0;
    let described = entries.iter().map(|(entry, dtype)| {
        let end = place + entry.stored_bytes(*dtype);
        let info = TensorInfo { dtype: *dtype, shape: entry.shape.clone(), data_offsets: (place, end) };
        place = end;
        (entry.name.clone(), info)
    });
    write_header(out, described.collect())?;
    for (index, (entry, dtype)) in entries.iter().enumerate() {
        let numbers = numbers(index).map_err(io::Error::other)?;
        let count = match &numbers {
            Stored::F32(numbers) => numbers.len(),
            Stored::U8(numbers) => numbers.len(),
        };
        if count != entry.shape.iter().product::<usize>() || *dtype != numbers.dtype() {
            return Err(io::Error::other(format!("`{}` has {count} numbers", entry.name)));
        }
        match numbers {
            Stored::F32(numbers) => write_numbers(out, &numbers)?,
            Stored::U8(numbers) => out.write_all(&numbers)?,
        }
    }
    Ok(())
}

fn write_numbers(out: &mut dyn Write, numbers: &[f32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * CHUNK);
    for chunk in numbers.chunks(CHUNK) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|number| number.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// A tensor of a file: its name, type and shape.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub name: String,
    pub shape: Vec<usize>,
    dtype: Dtype,
    bytes: usize,
}

/// Writes a file of tensors of any types. `bytes(i)` returns the numbers of `tensors[i]`; it is called
/// once for each, in ascending order.
pub(crate) fn write_raw(
    out: &mut dyn Write,
    tensors: &[Raw],
    bytes: &mut dyn FnMut(usize) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let mut place = 0;
    let described = tensors.iter().map(|tensor| {
        let end = place + tensor.bytes;
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (place, end) };
        place = end;
        (tensor.name.clone(), info)
    });
    write_header(out, described.collect())?;
    for (index, tensor) in tensors.iter().enumerate() {
        let bytes = bytes(index)?;
        if bytes.len() != tensor.bytes {
            return Err(io::Error::other(format!("`{}` has {} bytes", tensor.name, bytes.len())));
        }
        out.write_all(&bytes)?;
    }
    Ok(())
}

fn write_header(out: &mut dyn Write, described: Vec<(String, TensorInfo)>) -> io::Result<()> {
    // Required by transformers.
    let format = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    let header = Metadata::new(Some(format), described).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header).map_err(io::Error::other)?;
    // Numbers begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)
}

/// The numbers of a tensor as f32; 16-bit numbers are widened, which is exact.
pub(crate) fn widened(bytes: &[u8], tensor: &Raw) -> io::Result<Vec<f32>> {
    let (fours, _) = bytes.as_chunks::<4>();
    let (pairs, _) = bytes.as_chunks::<2>();
    match tensor.dtype {
        Dtype::F32 => Ok(fours.iter().map(|four| f32::from_le_bytes(*four)).collect()),
        Dtype::BF16 => Ok(pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect()),
        Dtype::F16 => Ok(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect()),
        other => Err(not_read(tensor, other)),
    }
}

/// The bytes of numbers in the type of a tensor, rounded to nearest.
pub(crate) fn narrowed_to(numbers: &[f32], tensor: &Raw) -> io::Result<Vec<u8>> {
    match tensor.dtype {
        Dtype::F32 => Ok(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()),
        Dtype::BF16 => Ok(numbers.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect()),
        Dtype::F16 => Ok(numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()),
        other => Err(not_read(tensor, other)),
    }
}

fn not_read(tensor: &Raw, dtype: Dtype) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{}` holds {dtype:?}, which is not read", tensor.name))
}

/// Numbers converted at a time.
const CHUNK: usize = 1 << 16;

/// An open file whose tensors are read one by one.
#[derive(Debug)]
pub(crate) struct TensorFile {
    file: File,
    header: Metadata,
    /// Offset of the numbers.
    start: u64,
}

/// Opens a regular file; opening a pipe would wait for its writer.
pub(crate) fn open_ordinary(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    File::open(path)
}

impl TensorFile {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = open_ordinary(path)?;
        let length = file.metadata()?.len();
        let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|_| damaged("it ends within its header".into()))?;
        let header_length = u64::from_le_bytes(prefix);
        let start = header_length.checked_add(8).filter(|start| *start <= length);
        let start = start.ok_or_else(|| damaged("it ends within its header".into()))?;
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header is not valid: {error}")))?;
        let (wanted, found) = (header.data_len() as u64, length - start);
        if wanted != found {
            return Err(damaged(format!("its header promises {wanted} bytes of numbers, it has {found}")));
        }
        Ok(Self { file, header, start })
    }

    /// The names of its tensors, in the order of their numbers.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The shape of a tensor, if it exists.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    /// The numbers of a tensor as f32; 16-bit numbers are widened, which is exact.
    pub fn read(&self, name: &str) -> io::Result<Vec<f32>> {
        let tensor = self.info(name).ok_or_else(|| missing(name))?;
        widened(&self.bytes(name)?, &tensor)
    }

    /// The type and shape of a tensor, if it exists.
    pub fn info(&self, name: &str) -> Option<Raw> {
        let TensorInfo { dtype, shape, data_offsets: (first, end) } = self.header.info(name)?;
        Some(Raw { name: name.into(), shape: shape.clone(), dtype: *dtype, bytes: end - first })
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let info = self.header.info(name).ok_or_else(|| missing(name))?;
        let (first, end) = info.data_offsets;
        let mut bytes = vec![0; end - first];
        // Readers on several threads would need a handle each; there is one reader.
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start + first as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("it has no tensor `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |name: &str, shape: &[usize]| Entry { name: name.into(), shape: shape.to_vec() };
        vec![entry("b", &[2, 3]), entry("a", &[1]), entry("none", &[0, 4])]
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read_and_the_library_agrees() {
        let numbers = [vec![1.0, -0.0, f32::MIN_POSITIVE, 4.0, 5.5, f32::MAX], vec![7.0], Vec::new()];
        let mut bytes = Vec::new();
        write(&mut bytes, &entries(), &mut |index| Ok(numbers[index].clone())).unwrap();
        let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(whole.tensor("b").unwrap().shape(), [2, 3]);
        let on_disk = file(&bytes);
        let read = TensorFile::open(on_disk.path()).unwrap();
        assert_eq!(read.names(), ["b", "a", "none"]);
        assert_eq!(read.shape("b"), Some(&[2, 3][..]));
        for (entry, numbers) in entries().iter().zip(&numbers) {
            let bits = |all: &[f32]| all.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&read.read(&entry.name).unwrap()), bits(numbers));
        }
        assert_eq!(read.read("c").unwrap_err().to_string(), "it has no tensor `c`");
    }

    #[test]
    fn sixteen_bits_are_widened() {
        let halves: Vec<u8> =
            [f16::from_f32(0.5), f16::from_f32(-2.0)].iter().flat_map(|half| half.to_le_bytes()).collect();
        let brains: Vec<u8> = [bf16::from_f32(3.0)].iter().flat_map(|half| half.to_le_bytes()).collect();
        let views = [
            ("f", safetensors::tensor::TensorView::new(Dtype::F16, vec![2], &halves).unwrap()),
            ("b", safetensors::tensor::TensorView::new(Dtype::BF16, vec![1], &brains).unwrap()),
        ];
        let on_disk = file(&safetensors::serialize(views, None).unwrap());
        let read = TensorFile::open(on_disk.path()).unwrap();
        assert_eq!((read.read("f").unwrap(), read.read("b").unwrap()), (vec![0.5, -2.0], vec![3.0]));
    }

    #[test]
    fn files_that_are_cut_or_garbled_are_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, &entries(), &mut |index| Ok(vec![0.0; [6, 1, 0][index]])).unwrap();
        let say = |bytes: &[u8]| TensorFile::open(file(bytes).path()).unwrap_err().to_string();
        assert_eq!(say(&bytes[..bytes.len() - 1]), "its header promises 28 bytes of numbers, it has 27");
        assert_eq!(say(&bytes[..20]), "it ends within its header");
        assert_eq!(say(&bytes[..5]), "it ends within its header");
        bytes[9] = b'!';
        assert!(say(&bytes).starts_with("its header is not valid: "), "{}", say(&bytes));
    }
}
