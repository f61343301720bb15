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
        4 * self.shape.iter().product::<usize>() as u64
    }
}

/// Writes a file. `numbers(i)` returns the numbers of `entries[i]`; it is called once for each, in
/// ascending order.
pub(crate) fn write(
    out: &mut dyn Write,
    entries: &[Entry],
    numbers: &mut dyn FnMut(usize) -> Result<Vec<f32>, TaskError>,
) -> io::Result<()> {
    let mut place = 0;
    let described = entries.iter().map(|entry| {
        let end = place + entry.bytes() as usize;
        let info = TensorInfo { dtype: Dtype::F32, shape: entry.shape.clone(), data_offsets: (place, end) };
        place = end;
        (entry.name.clone(), info)
    });
    // Required by transformers.
    let format = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    let header = Metadata::new(Some(format), described.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header).map_err(io::Error::other)?;
    // Numbers begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (index, entry) in entries.iter().enumerate() {
        let numbers = numbers(index).map_err(io::Error::other)?;
        if 4 * numbers.len() as u64 != entry.bytes() {
            return Err(io::Error::other(format!("`{}` has {} numbers", entry.name, numbers.len())));
        }
        write_numbers(out, &numbers)?;
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
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("it has no tensor `{name}`"));
        let info = self.header.info(name).ok_or_else(missing)?;
        let (first, end) = info.data_offsets;
        let mut bytes = vec![0; end - first];
        // Readers on several threads would need a handle each; there is one reader.
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start + first as u64))?;
        file.read_exact(&mut bytes)?;
        let (fours, _) = bytes.as_chunks::<4>();
        let (pairs, _) = bytes.as_chunks::<2>();
        match info.dtype {
            Dtype::F32 => Ok(fours.iter().map(|four| f32::from_le_bytes(*four)).collect()),
            Dtype::BF16 => Ok(pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect()),
            Dtype::F16 => Ok(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect()),
            other => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{name}` holds {other:?}, which is not read")))
            }
        }
    }
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
