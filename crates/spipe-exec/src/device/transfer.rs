//! Copies of tensors between the memory of a device and that of the host.
//!
//! Each lane has a thread, and on a GPU each thread has a stream: copies overlap with computation.
//! A copy is complete when its function returns, except for an upload, which is complete after the
//! next wait for the device.
//!
//! Every byte is counted when the copy engine of a device moves it, or the core that plays the engine, and once
//! more each time that a core copies it besides.

use super::{
    arena::Arena,
    cpu::{copied, cores},
};
use crate::{
    host::{count_copied, count_moved, count_unpinned},
    task_error::TaskError,
};
use burn::tensor::{AllocationProperty, DType, Device, Shape, Tensor, TensorData, Transaction};
use std::sync::Arc;

/// Copies tensors of one device to host memory.
///
/// Reads from a GPU are requested together, waited for once, and arrive in pinned memory. Burn's
/// `into_data` delays a copy until its first use, and keeps the tensor's memory until then.
///
/// # Errors
/// A failure of the device since it was last waited for.
pub(crate) fn all_to_host<'a>(tensors: impl IntoIterator<Item = &'a Tensor<2>>) -> Result<Vec<TensorData>, TaskError> {
    let mut reads = Transaction::default();
    let mut reads_any = false;
    let mut found = Vec::new();
    for tensor in tensors {
        let copied = copied(tensor).map(|numbers| TensorData::new(numbers, tensor.dims()));
        if copied.is_none() {
            (reads, reads_any) = (reads.register(tensor.clone()), true);
        }
        found.push(copied);
    }
    let read = if reads_any { reads.try_execute().map_err(TaskError::device)? } else { Vec::new() };
    let mut read = read.into_iter();
    let all: Option<_> = found.into_iter().map(|copied| copied.or_else(|| read.next())).collect();
    all.ok_or_else(|| "the device has left out a copy".into())
}

/// Copies one tensor to host memory, as [`all_to_host`] does.
///
/// # Errors
/// A failure of the device since it was last waited for.
pub(crate) fn to_host(tensor: &Tensor<2>) -> Result<TensorData, TaskError> {
    all_to_host([tensor])?.pop().ok_or_else(|| "the device has left out a copy".into())
}

/// A tensor of these numbers on `device`, whose library may take over their memory. For a GPU they
/// are first copied to pinned memory here; otherwise the thread that feeds the GPU would do it.
pub(crate) fn to_device(data: TensorData, device: &Device) -> Tensor<2> {
    let mut data = if *device == cores() { owned(data) } else { data };
    if *device != cores() && data.bytes().property() != AllocationProperty::Pinned {
        count_copied(data.as_bytes().len());
        device.staging(std::iter::once(&mut data));
    }
    let width = data.dtype();
    Tensor::from_data(data, (device, width))
}

/// The same numbers in memory that the library of CPU cores takes over: it copies any other memory in every
/// operation.
fn owned(data: TensorData) -> TensorData {
    match data.as_slice::<f32>() {
        Ok(numbers) if data.bytes().property() != AllocationProperty::Native => {
            count_copied(data.as_bytes().len());
            TensorData::new(numbers.to_vec(), data.shape().clone())
        }
        _ => data,
    }
}

/// Counts numbers that the engine of a device reads, if a core has to copy them for it first.
pub(crate) fn count_source(data: &TensorData) {
    if data.bytes().property() != AllocationProperty::Pinned {
        count_unpinned(data.as_bytes().len());
    }
}

/// A copy of `data` in another shape in the memory of `arena`, by the engine of an emulated device.
pub(crate) fn moved(data: &TensorData, shape: impl Into<Shape>, arena: &Arc<Arena>) -> TensorData {
    count_moved(data.as_bytes().len());
    arena.filled(shape, data.dtype(), |to| to.copy_from_slice(data.as_bytes()))
}

/// The same bytes in another shape, without a copy.
pub(crate) fn reshaped(data: TensorData, shape: impl Into<Shape>) -> TensorData {
    let (bytes, _, dtype): (_, _, DType) = data.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}

/// A copy of `data`.
pub(crate) fn copy(data: &TensorData) -> TensorData {
    TensorData::from_bytes_vec(data.as_bytes().to_vec(), data.shape().clone(), data.dtype())
}

/// A copy of the numbers of an f32 tensor.
pub(crate) fn numbers(tensor: &Tensor<2>) -> Vec<f32> {
    copied(tensor).unwrap_or_else(|| tensor.clone().into_data().try_into_vec().expect("tensors are f32"))
}
