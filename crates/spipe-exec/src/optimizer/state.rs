//! The state that an optimizer keeps for a parameter tensor.

use super::{
    dynamic_map::{BLOCK, Coded, Map},
    floats::Floats,
};
use crate::device::arena::Arena;
use std::{
    io::{self, Read, Write},
    ops::Range,
    sync::Arc,
};

/// A parameter tensor, or the range of its numbers that a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows and columns of the whole tensor.
    pub shape: [usize; 2],
    /// The numbers that are held here, in the order of rows.
    pub part: Range<usize>,
}

impl Extent {
    /// All of a tensor of `shape`.
    pub const fn whole(shape: [usize; 2]) -> Self {
        Self { shape, part: 0..shape[0] * shape[1] }
    }

    /// All of a vector.
    pub const fn vector(count: usize) -> Self {
        Self::whole([1, count])
    }
}

/// One buffer of the state of a tensor: its name in checkpoints, its numbers and their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub name: &'static str,
    pub count: usize,
    /// The map of numbers in 8 bits; none for f32.
    map: Option<Map>,
}

impl Slot {
    /// A number in f32 for each of the tensor.
    pub fn per_number(name: &'static str, tensor: &Extent) -> Self {
        Self::of(name, tensor.part.len())
    }

    /// `count` numbers in f32.
    pub const fn of(name: &'static str, count: usize) -> Self {
        Self { name, count, map: None }
    }

    /// The same numbers in 8 bits.
    pub const fn in_eight_bits(self, map: Map) -> Self {
        Self { map: Some(map), ..self }
    }

    /// Bytes of the buffer.
    pub const fn bytes(&self) -> u64 {
        match self.map {
            Some(_) => (self.count + 4 * self.count.div_ceil(BLOCK)) as u64,
            None => 4 * self.count as u64,
        }
    }

    /// The arrays of the buffer in a file: name, number of elements, and whether they are codes.
    pub fn arrays(&self) -> Vec<(String, usize, bool)> {
        let Self { name, count, map } = *self;
        let mut arrays = vec![(name.to_owned(), count, map.is_some())];
        if map.is_some() {
            arrays.push((format!("{name}.constants"), count.div_ceil(BLOCK), false));
        }
        arrays
    }
}

/// The numbers of a buffer in their storage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Buffer {
    F32(Floats),
    EightBit(Coded),
}

/// An array of a buffer, as files hold it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Array {
    F32(Vec<f32>),
    Codes(Vec<u8>),
}

impl Buffer {
    fn zeros(slot: &Slot) -> Self {
        match slot.map {
            Some(map) => Self::EightBit(Coded::zeros(map, slot.count)),
            None => Self::F32(vec![0.0; slot.count].into()),
        }
    }

    /// The buffer of `slot` from its arrays; none if they are not those of [`Slot::arrays`].
    fn from_arrays(slot: &Slot, arrays: Vec<Array>) -> Option<Self> {
        let buffer = match (slot.map, <[Array; 1]>::try_from(arrays)) {
            (None, Ok([Array::F32(numbers)])) => Self::F32(numbers.into()),
            (Some(map), Err(arrays)) => match <[Array; 2]>::try_from(arrays) {
                Ok([Array::Codes(codes), Array::F32(constants)]) => Self::EightBit(Coded { map, codes, constants }),
                _ => return None,
            },
            _ => return None,
        };
        let count = match &buffer {
            Self::F32(numbers) => numbers.len(),
            Self::EightBit(coded) => coded.codes.len(),
        };
        (count == slot.count && buffer.bytes() == slot.bytes()).then_some(buffer)
    }

    fn array(&self, index: usize) -> Option<Array> {
        match (self, index) {
            (Self::F32(numbers), 0) => Some(Array::F32(numbers.to_vec())),
            (Self::EightBit(coded), 0) => Some(Array::Codes(coded.codes.clone())),
            (Self::EightBit(coded), 1) => Some(Array::F32(coded.constants.clone())),
            _ => None,
        }
    }

    fn part(&self, part: Range<usize>) -> Option<Self> {
        match self {
            Self::F32(numbers) => Some(Self::F32(numbers.get(part)?.to_vec().into())),
            Self::EightBit(coded) => Some(Self::EightBit(coded.part(part)?)),
        }
    }

    fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::EightBit(first), Self::EightBit(second)) => Self::EightBit(first.joined(second)),
            (first, second) => Self::F32([first.numbers(), second.numbers()].concat().into()),
        }
    }

    /// Codes and constants; none in f32.
    fn codes(&self) -> Option<(&[u8], &[f32])> {
        match self {
            Self::F32(_) => None,
            Self::EightBit(coded) => Some((&coded.codes, &coded.constants)),
        }
    }

    /// The numbers, to be changed; none in 8 bits.
    fn f32_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::F32(numbers) => Some(numbers),
            Self::EightBit(_) => None,
        }
    }

    /// The description of a buffer that holds as many numbers in the same storage.
    fn slot(&self) -> Slot {
        match self {
            Self::F32(numbers) => Slot::of("", numbers.len()),
            Self::EightBit(coded) => Slot::of("", coded.codes.len()).in_eight_bits(coded.map),
        }
    }

    /// Writes the numbers in their storage.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::F32(numbers) => out.write_all(numbers.bytes()),
            Self::EightBit(coded) => {
                out.write_all(&coded.codes)?;
                write_numbers(out, &coded.constants)
            }
        }
    }

    /// Reads the numbers of a buffer, as [`Self::write`] left them, to the memory of `arena`.
    fn read(slot: &Slot, from: &mut dyn Read, arena: &Arc<Arena>) -> io::Result<Self> {
        let Some(map) = slot.map else { return Ok(Self::F32(Floats::read(slot.count, from, arena)?)) };
        let mut coded = Coded::zeros(map, slot.count);
        from.read_exact(&mut coded.codes)?;
        read_numbers(&mut coded.constants, from)?;
        Ok(Self::EightBit(coded))
    }

    /// The numbers in f32.
    fn numbers(&self) -> Vec<f32> {
        match self {
            Self::F32(numbers) => numbers.to_vec(),
            Self::EightBit(coded) => coded.decoded(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::F32(numbers) => 4 * numbers.len() as u64,
            Self::EightBit(coded) => coded.bytes(),
        }
    }
}

/// Writes numbers, little-endian.
fn write_numbers(out: &mut dyn Write, numbers: &[f32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * AT_ONCE);
    for part in numbers.chunks(AT_ONCE) {
        bytes.clear();
        bytes.extend(part.iter().flat_map(|number| number.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Reads numbers, little-endian.
fn read_numbers(numbers: &mut [f32], from: &mut dyn Read) -> io::Result<()> {
    let mut bytes = [0; 4];
    for number in numbers {
        from.read_exact(&mut bytes)?;
        *number = f32::from_le_bytes(bytes);
    }
    Ok(())
}

/// Numbers that are turned into bytes at once, so that a copy of all is not needed.
const AT_ONCE: usize = 1 << 16;

/// The state of one parameter tensor: the buffers that its optimizer has described, in that order.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorState {
    pub(super) buffers: Vec<Buffer>,
    pub(super) steps: u32,
}

impl TensorState {
    /// The state before the first step.
    pub(crate) fn new(slots: &[Slot]) -> Self {
        Self { buffers: slots.iter().map(Buffer::zeros).collect(), steps: 0 }
    }

    /// The state after `steps` steps, with numbers in f32.
    pub(crate) fn from_numbers(numbers: Vec<Vec<f32>>, steps: u32) -> Self {
        Self { buffers: numbers.into_iter().map(|numbers| Buffer::F32(numbers.into())).collect(), steps }
    }

    /// The state after `steps` steps from the arrays of each slot; none if they are not those of
    /// [`Slot::arrays`].
    pub(crate) fn from_arrays(slots: &[Slot], arrays: Vec<Vec<Array>>, steps: u32) -> Option<Self> {
        let buffers = slots.iter().zip(arrays).map(|(slot, arrays)| Buffer::from_arrays(slot, arrays));
        Some(Self { buffers: buffers.collect::<Option<_>>()?, steps })
    }

    /// The state of a tensor from those of its parts, in order; none of no parts.
    pub(crate) fn joined(parts: Vec<Self>) -> Option<Self> {
        parts.into_iter().reduce(|all, part| {
            let buffers = all.buffers.into_iter().zip(part.buffers).map(|(all, part)| all.joined(part));
            Self { buffers: buffers.collect(), steps: all.steps }
        })
    }

    /// The state of a part of the tensor; none if it has fewer numbers.
    pub(crate) fn part(self, extent: &Extent) -> Option<Self> {
        if *extent == Extent::whole(extent.shape) {
            return Some(self);
        }
        let part = |buffer: &Buffer| buffer.part(extent.part.clone());
        Some(Self { buffers: self.buffers.iter().map(part).collect::<Option<_>>()?, steps: self.steps })
    }

    /// The descriptions of its buffers, for [`Self::read`].
    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.buffers.iter().map(Buffer::slot).collect()
    }

    /// Writes the numbers of all buffers in their storage.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.buffers.iter().try_for_each(|buffer| buffer.write(out))
    }

    /// Reads a state after `steps` steps, as [`Self::write`] left it, to the memory of `arena`.
    pub(crate) fn read((slots, steps): (&[Slot], u32), from: &mut dyn Read, arena: &Arc<Arena>) -> io::Result<Self> {
        let buffers = slots.iter().map(|slot| Buffer::read(slot, from, arena)).collect::<io::Result<_>>()?;
        Ok(Self { buffers, steps })
    }

    /// The same state with its f32 numbers in the memory of `arena`.
    pub(crate) fn moved_to(self, arena: &Arc<Arena>) -> Self {
        let moved = |buffer| match buffer {
            Buffer::F32(numbers) => Buffer::F32(numbers.moved_to(arena)),
            Buffer::EightBit(_) => buffer,
        };
        Self { buffers: self.buffers.into_iter().map(moved).collect(), steps: self.steps }
    }

    /// An array of a buffer, by the positions of the buffer and of the array in [`Slot::arrays`].
    pub(crate) fn array(&self, (buffer, array): (usize, usize)) -> Option<Array> {
        self.buffers.get(buffer)?.array(array)
    }

    /// The numbers of all buffers, in f32.
    pub fn numbers(&self) -> Vec<Vec<f32>> {
        self.buffers.iter().map(Buffer::numbers).collect()
    }

    /// Codes and constants of all buffers; none of those in f32.
    pub fn codes(&self) -> Vec<Option<(&[u8], &[f32])>> {
        self.buffers.iter().map(Buffer::codes).collect()
    }

    /// The numbers of all `N` buffers in f32, to be changed.
    ///
    /// # Panics
    /// If the state is another optimizer's.
    pub(super) fn numbers_mut<const N: usize>(&mut self) -> [&mut [f32]; N] {
        let numbers: Vec<&mut [f32]> = self.buffers.iter_mut().filter_map(Buffer::f32_mut).collect();
        <[&mut [f32]; N]>::try_from(numbers).unwrap_or_else(|_| panic!("the state is another optimizer's"))
    }

    /// Number of steps in it.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(Buffer::bytes).sum()
    }
}
