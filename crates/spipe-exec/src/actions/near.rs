//! Tensors of sums: cores read them where they are, without a copy if that is their own library.

use super::part_of;
use crate::{
    device::{arena::Arena, cores, with_numbers},
    nn::Matrix,
    optimizer::{Numbers, add, convert},
    stored::{Stored, all_to_host, matrix_bytes, numbers, numbers_mut},
    task_error::TaskError,
};
use burn::tensor::{DType, TensorData};
use spipe_schedule::Part;
use std::sync::Arc;

/// A tensor wherever it is; numbers in host memory are shared with those of its buffer.
pub(super) enum Held {
    Host(TensorData),
    Device(Stored),
}

/// A tensor that cores read where it is.
pub(super) enum Near {
    Host(TensorData),
    /// One of the library of cores.
    Cores(Matrix),
}

impl Near {
    /// The tensors; those of a GPU are copied to host memory by one request.
    pub fn all<'a>(held: impl Iterator<Item = &'a Held> + Clone) -> Result<Vec<Self>, TaskError> {
        let on_cores = |stored: &Stored| match stored {
            Stored::Own(matrix) if matrix.device() == cores() && matrix.dtype() == DType::F32 => Some(matrix.clone()),
            _ => None,
        };
        let elsewhere = |held: &'a Held| match held {
            Held::Device(stored) if on_cores(stored).is_none() => Some(stored),
            _ => None,
        };
        let mut read = all_to_host(held.clone().filter_map(elsewhere))?.into_iter();
        let near = |held: &Held| match held {
            Held::Host(data) => Some(Self::Host(data.clone())),
            Held::Device(stored) => on_cores(stored).map(Self::Cores).or_else(|| read.next().map(Self::Host)),
        };
        held.map(near).collect::<Option<_>>().ok_or_else(|| "the device has left out a copy".into())
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(data) => data.as_bytes().len(),
            Self::Cores(matrix) => matrix_bytes(matrix).get() as usize,
        }
    }

    fn look<T>(&self, look: impl FnOnce(Numbers<'_>) -> T) -> Result<T, TaskError> {
        match self {
            Self::Host(data) => Ok(look(numbers(data)?)),
            Self::Cores(matrix) => {
                let found = with_numbers(matrix, |numbers| look(Numbers::F32(numbers)));
                found.ok_or_else(|| "cores cannot read a tensor of theirs".into())
            }
        }
    }

    /// Adds it, or a part of it, to a tensor in host memory, whose type the sum has.
    pub fn add_to(&self, sum: &mut TensorData, part: Option<Part>) -> Result<(), TaskError> {
        let to = numbers_mut(sum).ok_or("a sum of bytes")?;
        self.look(|more| {
            let all = 0..more.len();
            add(to, more.part(part.map_or(all.clone(), |part| part_of(all.end, part))));
        })
    }

    /// The part that belongs to one of several devices.
    pub fn cut(&self, part: Part, arena: &Arc<Arena>) -> Result<TensorData, TaskError> {
        if let Self::Host(data) = self {
            return Ok(cut(data, part, arena));
        }
        self.look(|numbers| {
            let range = part_of(numbers.len(), part);
            let mut to = arena.tensor([1, range.len()], DType::F32);
            convert(numbers.part(range), numbers_mut(&mut to).ok_or("numbers become something that is none")?);
            Ok(to)
        })?
    }
}

/// The part of a tensor that belongs to one of several devices.
pub(super) fn cut(whole: &TensorData, part: Part, arena: &Arc<Arena>) -> TensorData {
    let range = part_of(whole.shape().num_elements(), part);
    let size = whole.dtype().size();
    let bytes = &whole.as_bytes()[range.start * size..range.end * size];
    arena.filled([1, range.len()], whole.dtype(), |to| to.copy_from_slice(bytes))
}
