//! Matrices as a device stores them, which may be narrower than it computes.
//!
//! ```text
//!              ┌─ the device's library knows the width ───────► Own: its tensor ──────────────────┐
//! Matrix ─► of ┤                                                                               on ├─► Matrix
//!              └─ it does not: 16 bits on CPU cores ─► Narrow: the numbers in host memory ─► f32 ─┘
//! ```

use crate::{
    layers::{Matrix, cast},
    optimizer::{Numbers, narrowed},
    passes::{self, Tensors},
    transfer::{self, copy, to_device, to_host},
};
use burn::tensor::{DType, Device, FloatDType, TensorData, bf16, f16};
use spipe_base::Bytes;
use std::sync::Arc;

/// A matrix in the memory of a device. Clones share its numbers.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// A tensor of the device's library.
    Own(Matrix),
    /// Numbers of 16 bits, with which the device's library does not compute.
    Narrow(Arc<TensorData>),
}

/// The tensors of consecutive layers, layer by layer.
pub(crate) type StoredTensors = Vec<Vec<Stored>>;

impl Stored {
    /// `matrix` with numbers of `width`, each rounded to the nearest, ties to even.
    pub fn of(matrix: Matrix, width: FloatDType) -> Self {
        if computes_in(&matrix.device(), width.into()) {
            return Self::Own(cast(matrix, width));
        }
        let data = TensorData::new(passes::numbers(&matrix), matrix.dims());
        Self::Narrow(Arc::new(in_width(data, width.into())))
    }

    /// `data` in the memory of `device`, whose library may take over the memory of `data`.
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        match computes_in(device, data.dtype()) {
            true => Self::Own(to_device(data, device)),
            false => Self::Narrow(Arc::new(data)),
        }
    }

    /// A tensor of `device` with numbers of `width`.
    ///
    /// # Errors
    /// What has gone wrong on the device that holds it.
    pub fn on(self, device: &Device, width: FloatDType) -> Result<Matrix, String> {
        Ok(cast(self.own(device)?, width))
    }

    /// A tensor of `device`, in the stored width where the library of `device` computes in that, otherwise in f32. It is the stored
    /// tensor itself unless two devices with different libraries share a memory.
    ///
    /// # Errors
    /// What has gone wrong on the device that holds it.
    pub fn own(self, device: &Device) -> Result<Matrix, String> {
        Ok(match self {
            Self::Own(matrix) if matrix.device() == *device => matrix,
            Self::Own(matrix) => to_device(to_host(&matrix)?, device),
            Self::Narrow(data) => to_device(widened(&data)?, device),
        })
    }

    /// Its numbers in host memory, in memory of their own.
    ///
    /// # Errors
    /// What has gone wrong on the device that holds it.
    pub fn to_host(&self) -> Result<TensorData, String> {
        match self {
            Self::Own(matrix) => to_host(matrix),
            Self::Narrow(data) => Ok(copy(data)),
        }
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Own(matrix) => matrix_bytes(matrix),
            Self::Narrow(data) => Bytes::new(data.as_bytes().len() as u64),
        }
    }
}

/// Whether the library of `device` computes with numbers of `width`.
fn computes_in(device: &Device, width: DType) -> bool {
    width == DType::F32 || device.supports_dtype(width)
}

/// Bytes of a matrix.
pub(crate) fn matrix_bytes(matrix: &Matrix) -> Bytes {
    let [rows, columns] = matrix.dims();
    Bytes::new((matrix.dtype().size() * rows * columns) as u64)
}

/// All of `tensors` as a device stores numbers of `width`.
pub(crate) fn store_all(tensors: Tensors, width: FloatDType) -> StoredTensors {
    let store = |tensor| Stored::of(tensor, width);
    tensors.into_iter().map(|layer| layer.into_iter().map(store).collect()).collect()
}

/// All of `tensors` on `device`, as [`Stored::own`] has them.
///
/// # Errors
/// What has gone wrong on the device that holds them.
pub(crate) fn all_own(tensors: StoredTensors, device: &Device) -> Result<Tensors, String> {
    let own = |tensor: Stored| tensor.own(device);
    tensors.into_iter().map(|layer| layer.into_iter().map(own).collect()).collect()
}

/// All of `tensors` on `device`, with numbers of `width`.
///
/// # Errors
/// What has gone wrong on the device that holds them.
pub(crate) fn all_on(tensors: StoredTensors, device: &Device, width: FloatDType) -> Result<Tensors, String> {
    let on = |tensor: Stored| tensor.on(device, width);
    tensors.into_iter().map(|layer| layer.into_iter().map(on).collect()).collect()
}

/// The numbers of all in host memory, as [`transfer::all_to_host`] copies them.
///
/// # Errors
/// What has gone wrong on the device that holds them.
pub(crate) fn all_to_host<'a>(all: impl Iterator<Item = &'a Stored> + Clone) -> Result<Vec<TensorData>, String> {
    let own = all.clone().filter_map(|stored| if let Stored::Own(matrix) = stored { Some(matrix) } else { None });
    let mut read = transfer::all_to_host(own)?.into_iter();
    let numbers = |stored: &Stored| match stored {
        Stored::Own(_) => read.next(),
        Stored::Narrow(data) => Some(copy(data)),
    };
    all.map(numbers).collect::<Option<_>>().ok_or_else(|| "the device has left out a copy".into())
}

fn widened(data: &TensorData) -> Result<TensorData, String> {
    Ok(TensorData::new(numbers(data)?.widened(), data.shape().clone()))
}

/// The same numbers in `width`.
pub(crate) fn in_width(data: TensorData, width: DType) -> TensorData {
    let shape = data.shape().clone();
    match (numbers(&data), width) {
        _ if data.dtype() == width => data,
        (Ok(Numbers::F32(wide)), DType::BF16) => TensorData::new(narrowed::<bf16>(wide), shape),
        (Ok(Numbers::F32(wide)), DType::F16) => TensorData::new(narrowed::<f16>(wide), shape),
        (Ok(narrow), DType::F32) => TensorData::new(narrow.widened(), shape),
        _ => data.convert_dtype(width),
    }
}

/// The numbers of a tensor in host memory, as they are.
pub(crate) fn numbers(data: &TensorData) -> Result<Numbers<'_>, String> {
    match data.dtype() {
        DType::BF16 => data.as_slice().map(Numbers::Bf16),
        DType::F16 => data.as_slice().map(Numbers::F16),
        _ => data.as_slice().map(Numbers::F32),
    }
    .map_err(|error| format!("{error:?}"))
}
