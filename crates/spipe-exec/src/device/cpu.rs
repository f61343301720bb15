//! The library of CPU cores, Burn's ndarray backend, and its tensors' numbers.

use burn::{
    backend::tensor::FloatTensor,
    tensor::{DType, Device, Tensor},
};
use std::borrow::Cow;

/// The library of CPU cores.
#[expect(deprecated, reason = "it is what the product is asked to run on")]
pub(crate) type Cores = burn::backend::NdArray;

/// The device of the library of CPU cores.
pub(crate) fn cores() -> Device {
    #[expect(deprecated, reason = "it is what the product is asked to run on")]
    Device::ndarray()
}

/// The numbers of an f32 tensor, row by row.
///
/// # Panics
/// If the tensor is of another type.
#[expect(deprecated, reason = "the library is deprecated")]
pub(crate) fn numbers(tensor: &FloatTensor<Cores>) -> Cow<'_, [f32]> {
    let burn::backend::ndarray::NdArrayTensor::F32(storage) = tensor else { panic!("numbers that are not f32") };
    let view = storage.view();
    match view.to_slice() {
        Some(numbers) => Cow::Borrowed(numbers),
        None => Cow::Owned(view.iter().copied().collect()),
    }
}

/// Looks at the numbers of an f32 matrix without a graph; none on other devices and for other types.
/// Burn's own way out of ndarray copies a shared tensor number by number, which takes 30 times as long.
pub(crate) fn with_numbers<T>(matrix: &Tensor<2>, look: impl FnOnce(&[f32]) -> T) -> Option<T> {
    if matrix.dtype() != DType::F32 {
        return None;
    }
    matrix.clone().try_into_primitive::<Cores>().ok().map(|tensor| look(&numbers(&tensor)))
}

/// A copy of the numbers that [`with_numbers`] looks at.
pub(crate) fn copied(matrix: &Tensor<2>) -> Option<Vec<f32>> {
    with_numbers(matrix, <[f32]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    #[test]
    fn copies_are_of_the_same_numbers_however_they_lie() {
        let numbers: Vec<f32> = (0..35).map(|index| (index * 7919 % 1009) as f32).collect();
        let matrix = Tensor::<2>::from_data(TensorData::new(numbers, [5, 7]), &cores());
        for matrix in [matrix.clone(), matrix.clone().transpose(), matrix.slice([1..4, 2..6])] {
            assert_eq!(copied(&matrix), matrix.into_data().try_to_vec().ok());
        }
    }
}
