//! The work that adapters and a quantised base add to a layer.

use crate::{Master, Mode, Workload, roofline::Roofline};
use spipe_base::Seconds;
use spipe_model::{Layer, LayerWork, Op};

/// The work beside that of the layer's own matrices.
pub(crate) struct Added {
    /// The kernels of adapters, and those that convert matrices, whose time is `converting`.
    pub work: LayerWork,
    /// The time of converting the matrices of a quantised base, in the forward and again in the
    /// backward: bytes read and written at a share of the memory bandwidth.
    pub converting: Seconds,
}

impl Added {
    /// The work on the device of `roofline`.
    pub(crate) fn of(layer: &Layer, workload: &Workload, roofline: &Roofline<'_>) -> Self {
        let training = workload.mode == Mode::Train;
        let mut work = if training { layer.adapter_work(workload.mean_batch()) } else { LayerWork::default() };
        // Engines that keep gradients of their own run adapters in the precision of the passes.
        let autocast = roofline.launches() && roofline.runtime.gradient_copy_bytes() == 0;
        if training && autocast && roofline.element < 4 && workload.formats.master != Some(Master::None) {
            let casts = layer.adapter_casts(workload.mean_batch());
            work.forward.extend(casts.forward);
            work.backward_input.extend(casts.backward_input);
            work.backward_weight.extend(casts.backward_weight);
        }
        let mut converting = Seconds::ZERO;
        let frozen = !(training && layer.trains);
        if let Some(base) = workload.formats.base.filter(|base| frozen && base.is_quantised()) {
            for tensor in layer.quantised() {
                converting = converting + base.converting(&tensor, roofline.element) / roofline.device.memory_bandwidth;
                // Constants of double quantisation are converted first.
                let kernels = Op::Elementwise { elements: 0, kernels: if base.double { 2 } else { 1 } };
                work.forward.push(kernels);
                work.backward_input.push(kernels);
            }
        }
        Self { work, converting }
    }
}
