//! Tensors of shapes alone.

use super::backend::Library;
use crate::cubecl::{
    client::Client,
    prelude::*,
    server::{Handle, MemoryLayout, MemoryLayoutDescriptor},
    std::tensor::layout::linear::{LinearViewLaunch, linear_view},
    zspace::metadata::Metadata,
};
use std::{fmt, marker::PhantomData};

pub use crate::cubecl::zspace::Shape;

/// Types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum DType {
    F32,
    BF16,
    F16,
    I32,
    I64,
}

impl DType {
    /// Bytes of a number.
    pub const fn size(self) -> usize {
        match self {
            Self::BF16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// The only device: its client is known to its tensors.
#[derive(Clone, Debug)]
pub struct Device;

/// Mark of a tensor of integers.
#[derive(Clone, Copy, Debug)]
pub struct Int;

/// Mark of a tensor of floats.
#[derive(Clone, Copy, Debug)]
pub struct Float;

/// A tensor of the library of GPUs.
#[derive(Clone)]
pub struct CubeTensor {
    /// The client of its device.
    pub client: Client,
    /// Its device.
    pub device: Device,
    /// Shape and strides.
    pub meta: Metadata,
    /// The type of its numbers.
    pub dtype: DType,
    handle: Handle,
}

impl CubeTensor {
    /// A tensor of a layout.
    pub fn new(client: Client, layout: MemoryLayout, shape: Shape, dtype: DType) -> Self {
        let MemoryLayout { memory: handle, strides } = layout;
        Self { client, device: Device, meta: Metadata::new(shape, strides), dtype, handle }
    }

    /// A tensor without gaps.
    pub fn contiguous(client: &Client, shape: &Shape, dtype: DType) -> Self {
        let descriptor = MemoryLayoutDescriptor::contiguous(shape.clone(), dtype.size());
        let layout = client.empty_tensors(vec![descriptor]).remove(0);
        Self::new(client.clone(), layout, shape.clone(), dtype)
    }

    /// Whether rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        let sizes = self.meta.shape().iter().rev();
        let mut expected = 1;
        sizes.zip(self.meta.strides().iter().rev()).all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= size;
            fits
        })
    }

    /// Whether nobody else holds it.
    pub fn can_mut(&self) -> bool {
        self.handle.can_mut()
    }

    /// No two numbers of a tensor share memory.
    pub const fn is_nonoverlapping(&self) -> bool {
        true
    }

    /// Another tensor of the same shape.
    pub fn copy(&self) -> Self {
        Self::contiguous(&self.client, self.meta.shape(), self.dtype)
    }

    /// The type that addresses all numbers.
    pub fn required_address_type(&self) -> AddressType {
        AddressType::from_len(self.handle.size() as usize / self.dtype.size())
    }

    /// The tensor as the argument of a kernel.
    pub fn into_linear_view(self) -> LinearViewLaunch {
        let Metadata { shape, strides, tiling } = self.meta;
        linear_view(TensorBinding { handle: self.handle.binding(), strides, shape, tiling })
    }
}

/// A tensor of the user.
#[derive(Clone)]
pub struct Tensor<const D: usize, K = Float>(Box<CubeTensor>, PhantomData<K>);

impl<const D: usize, K> fmt::Debug for Tensor<D, K> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?} of {:?}", self.0.meta.shape(), self.0.dtype)
    }
}

impl<const D: usize, K> Tensor<D, K> {
    /// A tensor of a library's tensor.
    pub fn from_primitive<L: Library>(tensor: CubeTensor) -> Self {
        Self(Box::new(tensor), PhantomData)
    }

    /// The library's tensor.
    ///
    /// # Errors
    /// It belongs to another library.
    pub fn try_into_primitive<L: Library>(self) -> Result<CubeTensor, OtherLibrary> {
        L::own(*self.0).ok_or(OtherLibrary)
    }
}

/// A tensor belongs to another library.
#[derive(Debug)]
pub struct OtherLibrary;
