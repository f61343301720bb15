//! Numbers from the memory of a device to that of the host, and back.
//!
//! Each lane has a thread, and each thread a stream of its own on a GPU: copies run beside computation. They are through when these
//! functions return, but for an upload, which is when the device is next waited for.

use crate::{kernels, layers::Matrix};
use burn::tensor::{Device, Shape, Tensor, TensorData, Transaction};

/// The numbers of tensors of one device, in memory of their own.
///
/// Those of a GPU are asked for together, waited for once, and arrive in pinned memory. Burn's `into_data` puts a copy off until
/// somebody looks, and holds the memory of the tensor until then.
///
/// # Errors
/// What has gone wrong on the device since it was last waited for.
pub(crate) fn all_to_host<'a>(tensors: impl IntoIterator<Item = &'a Matrix>) -> Result<Vec<TensorData>, String> {
    let mut reads = Transaction::default();
    let mut reads_any = false;
    let mut found = Vec::new();
    for tensor in tensors {
        let copied = kernels::copied(tensor).map(|numbers| TensorData::new(numbers, tensor.dims()));
        if copied.is_none() {
            (reads, reads_any) = (reads.register(tensor.clone()), true);
        }
        found.push(copied);
    }
    let read = if reads_any { reads.try_execute().map_err(|error| format!("{error:?}"))? } else { Vec::new() };
    let mut read = read.into_iter();
    let all: Option<_> = found.into_iter().map(|copied| copied.or_else(|| read.next())).collect();
    all.ok_or_else(|| "the device has left out a copy".into())
}

/// The numbers of one tensor, as [`all_to_host`] copies them.
///
/// # Errors
/// What has gone wrong on the device since it was last waited for.
pub(crate) fn to_host(tensor: &Matrix) -> Result<TensorData, String> {
    all_to_host([tensor])?.pop().ok_or_else(|| "the device has left out a copy".into())
}

/// A tensor of these numbers on `device`, whose library may take over their memory. Where it is a GPU, they are copied to pinned
/// memory here, which the thread that feeds the GPU would do otherwise.
pub(crate) fn to_device(mut data: TensorData, device: &Device) -> Matrix {
    device.staging(std::iter::once(&mut data));
    let width = data.dtype();
    Tensor::from_data(data, (device, width))
}

/// The same numbers in memory of their own.
pub(crate) fn copy(data: &TensorData) -> TensorData {
    copy_as(data.shape().clone(), data)
}

/// The same in another shape.
pub(crate) fn copy_as(shape: impl Into<Shape>, data: &TensorData) -> TensorData {
    TensorData::from_bytes_vec(data.as_bytes().to_vec(), shape, data.dtype())
}
