//! The part of Burn that launches of kernels use: tensors that have a shape and no numbers.
//!
//! ```text
//! burn::{backend, tensor}                    ─┐
//! burn_cubecl::{kernel, ops, tensor, cubecl} ─┴─ modules of this one
//! ```

pub mod tensor;

/// Libraries that a tensor may belong to.
pub mod backend {
    use super::tensor::CubeTensor;

    /// A library, whose tensors may be asked for.
    pub trait Library {
        /// Its tensor, if it is of this library.
        fn own(tensor: CubeTensor) -> Option<CubeTensor>;
    }

    /// The library of GPUs, which all tensors belong to.
    pub struct Cube;

    /// The same with graphs, which no tensor has.
    pub struct Autodiff<L>(std::marker::PhantomData<L>);

    impl Library for Cube {
        fn own(tensor: CubeTensor) -> Option<CubeTensor> {
            Some(tensor)
        }
    }

    impl<L> Library for Autodiff<L> {
        fn own(_: CubeTensor) -> Option<CubeTensor> {
            None
        }
    }
}

/// Orders of numbers.
pub mod kernel {
    use super::tensor::CubeTensor;

    /// A tensor whose rows follow each other without gaps. The library's copy is not launched: it is not ours to check.
    pub fn into_contiguous(tensor: CubeTensor) -> CubeTensor {
        if tensor.is_contiguous() {
            tensor
        } else {
            CubeTensor::contiguous(&tensor.client, tensor.meta.shape(), tensor.dtype)
        }
    }
}

/// Operations.
pub mod ops {
    /// Tensors of numbers.
    pub mod numeric {
        use crate::{
            cubecl::client::Client,
            tensor::{CubeTensor, DType, Device, Shape},
        };

        /// A tensor to be filled, with gaps between its rows where a device wants them.
        pub fn empty_device_dtype(client: Client, Device: Device, shape: Shape, dtype: DType) -> CubeTensor {
            let layout = client.empty_tensor(shape.clone(), dtype.size());
            CubeTensor::new(client, layout, shape, dtype)
        }
    }
}

/// CubeCL under the name of its facade.
pub mod cubecl {
    pub use cubecl_core::*;
    pub use cubecl_std as std;
}
