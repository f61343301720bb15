//! The groups of a layer's parameters.
//!
//! ```text
//! group              storage              gradient         state of the optimizer
//! own, trained       the precision        the precision    moments, and a master copy if narrow
//! own, frozen        the precision        none             none
//! matrices, frozen   the base's format    none             none
//! adapters           f32                  f32              moments
//! copy               the precision        the precision    moments in the precision
//! ```
//!
//! Adapters are stored in 32 bits and copies as they were loaded, as PEFT does; `--master none` stores
//! adapters in 16 bits too. A 16-bit pass casts the adapters it uses.

use crate::{GradientFormat, Master, Mode, Optimizer, StateFormat, Workload};
use spipe_base::Bytes;
use spipe_model::{Block, Layer, LayerKind, Precision, Tensor};

/// Parameters of a layer that are stored, and trained or not, in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// The number of parameters.
    pub parameters: u64,
    /// The bytes of the parameters.
    pub bytes: Bytes,
    /// The bytes among them of experts, of which a token passes through some.
    pub experts: Bytes,
    /// The training of the parameters; none if they are frozen.
    pub training: Option<Training>,
}

/// The bytes and the work that the training of a group takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Training {
    /// The gradients.
    pub gradients: Bytes,
    /// The optimizer's state, with master copies.
    pub state: Bytes,
    /// Casts of the parameters to the precision of the passes.
    pub casts: Bytes,
    /// The bytes that a step moves through memory: the gradient in, the parameter out, its state in
    /// and out, and the parameter in if it is its own master copy.
    pub step: Bytes,
    /// The floating-point operations of a step beside those per element.
    pub step_flops: f64,
}

/// Returns the groups of `layer` where parameters are stored in `precision`.
pub fn groups(layer: &Layer, workload: &Workload, precision: Precision) -> Vec<Group> {
    let training = workload.mode == Mode::Train;
    let width = precision.bytes();
    let mut groups = Vec::new();
    if training && layer.trains {
        let stored = Stored { width, master: width < 4, copied: false, in_block: layer.as_block().is_some() };
        groups.push(trained(layer, workload, stored).with_experts(layer, width));
    } else {
        groups.extend(frozen(layer, workload, width));
    }
    if let Some(adaptation) = layer.adaptation.as_ref().filter(|_| training) {
        let narrow = workload.formats.master == Some(Master::None);
        let stored = Stored { width: if narrow { width } else { 4 }, master: false, copied: false, in_block: true };
        let casts = if stored.width > width { width } else { 0 };
        if !adaptation.matrices.is_empty() {
            let tensors = adaptation.tensors();
            let mut group = of_tensors(&tensors, workload, stored);
            group.experts = Bytes::new(of_experts(&tensors).map(Tensor::elements).sum::<u64>() * stored.width);
            if let Some(training) = &mut group.training {
                training.casts = Bytes::new(group.parameters.saturating_mul(casts));
            }
            groups.push(group);
        }
        if let Some([rows, columns]) = adaptation.copy {
            let stored = Stored { width, master: false, copied: true, in_block: false };
            groups.push(of_tensors(&[Tensor { rows, columns, count: 1 }], workload, stored));
        }
    }
    groups
}

/// The storage of a trained group.
#[derive(Clone, Copy)]
struct Stored {
    /// Bytes of a parameter.
    width: u64,
    /// Whether there is a master copy in 32 bits, unless the workload says otherwise.
    master: bool,
    /// Whether moments have the parameters' format, unless the workload says otherwise.
    copied: bool,
    /// Whether matrices are those of a block or an adapter.
    in_block: bool,
}

fn frozen(layer: &Layer, workload: &Workload, width: u64) -> Vec<Group> {
    let group = |parameters, bytes| Group { parameters, bytes, ..Group::default() };
    let Some(base) = workload.formats.base else {
        return vec![group(layer.parameters, Bytes::new(layer.parameters * width)).with_experts(layer, width)];
    };
    let matrices = layer.quantised();
    let quantised = matrices.iter().map(Tensor::elements).sum();
    let rest = layer.parameters.saturating_sub(quantised);
    let bytes = matrices.iter().map(|tensor| base.bytes(tensor)).sum();
    let width = width.min(Precision::Bf16.bytes());
    let biases = expert_parameters(layer).saturating_sub(of_experts(&matrices).map(Tensor::elements).sum());
    vec![
        Group { experts: of_experts(&matrices).map(|tensor| base.bytes(tensor)).sum(), ..group(quantised, bytes) },
        Group { experts: Bytes::new(biases * width), ..group(rest, Bytes::new(rest * width)) },
    ]
}

/// Returns the matrices of which every expert has one.
fn of_experts(tensors: &[Tensor]) -> impl Iterator<Item = &Tensor> {
    tensors.iter().filter(|tensor| tensor.count > 1)
}

fn expert_parameters(layer: &Layer) -> u64 {
    layer.as_block().map_or(0, Block::expert_parameters)
}

impl Group {
    /// Returns the group of all parameters of `layer`, with the bytes of its experts.
    fn with_experts(self, layer: &Layer, width: u64) -> Self {
        Self { experts: Bytes::new(expert_parameters(layer) * width), ..self }
    }
}

fn trained(layer: &Layer, workload: &Workload, stored: Stored) -> Group {
    // The moments of plain AdamW do not depend on shapes, which profiled layers do not have.
    let tensors = match (&layer.kind, workload.optimizer, workload.formats.state) {
        (LayerKind::Profiled(_), _, _) | (_, Optimizer::Adamw, None | Some(StateFormat::F32)) => {
            vec![Tensor { rows: layer.parameters, columns: 1, count: 1 }]
        }
        _ => layer.tensors(),
    };
    of_tensors(&tensors, workload, stored)
}

fn of_tensors(tensors: &[Tensor], workload: &Workload, stored: Stored) -> Group {
    let (formats, optimizer, width) = (&workload.formats, workload.optimizer, stored.width);
    let parameters = tensors.iter().map(Tensor::elements).fold(0, u64::saturating_add);
    let master = match formats.master {
        Some(Master::F32) => width < 4,
        Some(Master::None) => false,
        None => stored.master,
    };
    let own = if stored.copied && width < 4 && optimizer.state_formats().contains(&StateFormat::Bf16) {
        StateFormat::Bf16
    } else {
        optimizer.state_format()
    };
    let format = formats.state.unwrap_or(own);
    let moments: u64 = tensors.iter().map(|tensor| optimizer.state_bytes(tensor, format, stored.in_block)).sum();
    let state = moments.saturating_add(if master { parameters.saturating_mul(4) } else { 0 });
    let gradient = formats.gradients.map_or(width, GradientFormat::bytes);
    let read = if master { 0 } else { width };
    let step = parameters.saturating_mul(gradient + width + read).saturating_add(state.saturating_mul(2));
    let training = Training {
        gradients: Bytes::new(parameters.saturating_mul(gradient)),
        state: Bytes::new(state),
        casts: Bytes::ZERO,
        step: Bytes::new(step),
        step_flops: tensors.iter().map(|tensor| optimizer.step_flops(tensor, stored.in_block)).sum(),
    };
    let bytes = Bytes::new(parameters.saturating_mul(width));
    Group { parameters, bytes, experts: Bytes::ZERO, training: Some(training) }
}
