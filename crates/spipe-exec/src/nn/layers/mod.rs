//! Layers that can be computed: their parameters, their arithmetic, and the size of their graphs.
//!
//! Transformer layers exchange a matrix of tokens × width, so that every projection is one matrix
//! product for any microbatch; layers of denoising networks exchange a row for each image. All
//! parameters are matrices: norms and biases have one row, convolutions one for each output
//! channel.

mod activation;
mod activation_record;
mod adapters;
mod attention;
mod block;
mod cut_tensors;
mod embedding;
mod head;
mod init;
mod kv_cache;
mod noise;
mod norm;
mod pass_context;
mod patch;
mod product;
mod replay;
mod scaled_dot_product;
mod unet;

pub(crate) use activation_record::ActivationRecord;
pub(crate) use cut_tensors::{CutTensors, LiveOutputs};
pub(crate) use init::initial;
pub(crate) use kv_cache::KvCache;
pub(crate) use noise::{begin, denoised, go_on};
pub(crate) use pass_context::{PassContext, Reading, Targets};
pub(crate) use product::{Convolution, Linear, Product, Products};
#[cfg(feature = "cube")]
pub(crate) use replay::{LinearFunction, linear_on_gpu};

use super::{Matrix, cast, float, wide};
use adapters::Adapters;
use block::BlockUnit;
use burn::tensor::Tensor;
use embedding::EmbeddingUnit;
use head::HeadUnit;
use patch::PatchUnit;
use spipe_base::{Bytes, Diagnostic, Faults, LayerId};
use spipe_model::{
    Architecture, Attention, Batch, Block, Embedding, Head, Layer, LayerKind, Model, Precision, Recompute, UnetLayer,
};
use std::borrow::Cow;
use unet::UnetUnit;

/// A parameter of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Its name in the layer, `attention.query.weight`.
    pub name: Cow<'static, str>,
    /// Rows and columns; weights are inputs × outputs.
    pub shape: [usize; 2],
    /// Its initialisation.
    pub initialisation: Initialisation,
}

/// The initialisation of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initialisation {
    /// Normal with a standard deviation of 0.02, as GPT-2 and Llama are initialised.
    Normal,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// Uniform within ± 1 ÷ √n for outputs that are sums of n numbers: PyTorch's linear layers and
    /// convolutions.
    Uniform(u64),
}

impl Parameter {
    const fn weight(name: &'static str, rows: u64, columns: u64) -> Self {
        Self {
            name: Cow::Borrowed(name),
            shape: [rows as usize, columns as usize],
            initialisation: Initialisation::Normal,
        }
    }

    const fn bias(name: &'static str, width: u64) -> Self {
        Self { name: Cow::Borrowed(name), shape: [1, width as usize], initialisation: Initialisation::Zeros }
    }

    fn uniform(name: String, [rows, columns]: [u64; 2], fan_in: u64) -> Self {
        Self {
            name: name.into(),
            shape: [rows as usize, columns as usize],
            initialisation: Initialisation::Uniform(fan_in),
        }
    }

    fn ones(name: String, width: u64) -> Self {
        Self { name: name.into(), shape: [1, width as usize], initialisation: Initialisation::Ones }
    }

    fn zeros(name: String, width: u64) -> Self {
        Self { initialisation: Initialisation::Zeros, ..Self::ones(name, width) }
    }

    /// A weight and a bias with PyTorch's initialisation.
    fn linear(name: &str, inputs: u64, outputs: u64) -> [Self; 2] {
        [
            Self::uniform(format!("{name}.weight"), [inputs, outputs], inputs),
            Self::uniform(format!("{name}.bias"), [1, outputs], inputs),
        ]
    }

    /// Number of its elements.
    pub const fn count(&self) -> usize {
        self.shape[0] * self.shape[1]
    }
}

/// The value passed from layer to layer.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// Nothing: layers that read data take it from the microbatch.
    Tokens,
    /// A vector for each token, or a row for each image.
    Hidden(Matrix),
    /// The mean loss.
    Loss(Tensor<1>),
    /// In inference, the answer of the last layer, and the mean loss.
    Answer(Answer, Tensor<1>),
}

/// The answer of the last layer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The token that follows each sequence.
    Tokens(Vec<i32>),
    /// A row for each image: its vector, or the noise in it.
    Rows(Box<Matrix>),
}

/// A layer as it is computed, with its place in the model.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    id: LayerId,
    inputs: Vec<LayerId>,
    is_last: bool,
    trains: bool,
    adapters: Option<Adapters>,
    tied: Option<Tied>,
    before: CutTensors,
    after: CutTensors,
    arithmetic: Arithmetic,
}

/// The owner of a tied weight, its first parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tied {
    pub owner: LayerId,
    /// Whether the weight is trained.
    pub trains: bool,
}

#[derive(Clone, Debug)]
enum Arithmetic {
    Embedding(EmbeddingUnit),
    Patches(PatchUnit),
    Block(Box<BlockUnit>),
    Head(HeadUnit),
    /// With the layer, from which the size of its graph follows.
    Unet(UnetUnit, Box<Layer>),
}

impl Arithmetic {
    /// The arithmetic of `layer`, or the reason why it cannot be computed.
    fn new(layer: &Layer) -> Result<Self, Diagnostic> {
        let unsupported = |what: &str| {
            Diagnostic::error(format!("layer `{}` cannot be executed yet: {what}", layer.name)).hint(
                "transformers with rotary or learned positions and one pass-forward network run, over text or over patches of \
                 images, and denoising networks; dropout is left out where nothing is trained",
            )
        };
        if layer.tied_to.is_some() && !matches!(layer.kind, LayerKind::Head(_)) {
            return Err(unsupported("it shares its parameters with another layer"));
        }
        match &layer.kind {
            LayerKind::Embedding(embedding) => EmbeddingUnit::new(embedding).map(Self::Embedding),
            LayerKind::PatchEmbedding(embedding) if embedding.mask_token => {
                Err("vectors of hidden patches are not computed")
            }
            LayerKind::PatchEmbedding(embedding) if !embedding.class_token => {
                Err("images without a class token are not computed")
            }
            LayerKind::Unet(UnetLayer::Conditioning(condition)) if condition.added > 0 => {
                Err("pooled texts and sizes of images are not computed")
            }
            LayerKind::PatchEmbedding(embedding) => Ok(Self::Patches(PatchUnit::new(embedding))),
            LayerKind::Block(block) => BlockUnit::new(block).map(|unit| Self::Block(Box::new(unit))),
            LayerKind::Head(head) => HeadUnit::new(head).map(Self::Head),
            LayerKind::EncoderHead(_) => Err("heads of text encoders are planned only"),
            LayerKind::Projection(_) | LayerKind::Contrast(_) => Err("contrastive losses are not computed"),
            LayerKind::Unet(shape) => Ok(Self::Unet(UnetUnit::new(shape), Box::new(layer.clone()))),
            LayerKind::Profiled(_) => Err("it is known by measurements only"),
            LayerKind::Counted => Err("it is counted only"),
        }
        .map_err(unsupported)
    }
}

impl Unit {
    /// The layer.
    pub const fn id(&self) -> LayerId {
        self.id
    }

    /// Whether it ends in the loss.
    pub const fn yields_loss(&self) -> bool {
        self.is_last
    }

    /// Whether any of its parameters is trained.
    pub const fn trains(&self) -> bool {
        self.trains || self.adapters.is_some()
    }

    /// Number of the tensors of its adapters, which are its first parameters.
    pub fn adapters(&self) -> usize {
        self.adapters.as_ref().map_or(0, Adapters::count)
    }

    /// Number of its trained parameters: the first of them all.
    pub fn trained(&self) -> usize {
        match &self.adapters {
            _ if self.trains => self.parameters().len(),
            _ => self.adapters(),
        }
    }

    /// The owner of its tied weight, if it has one.
    pub const fn tied(&self) -> Option<Tied> {
        self.tied
    }

    /// The tensors cut before it.
    pub const fn before(&self) -> &CutTensors {
        &self.before
    }

    /// The tensors cut after it.
    pub const fn after(&self) -> &CutTensors {
        &self.after
    }

    /// A copy of the layer `index` places further in a chain of its copies, whose cuts consist of
    /// its own input and output.
    pub fn copy(&self, model: &Model, index: u32) -> Self {
        let shift = |id: &LayerId| LayerId::new(id.index() as u32 + index);
        Self {
            id: shift(&self.id),
            inputs: self.inputs.iter().map(shift).collect(),
            before: CutTensors::of(model, self.inputs.iter().copied()).shifted(index),
            after: CutTensors::of(model, std::iter::once(self.id)).shifted(index),
            ..self.clone()
        }
    }

    /// Its parameters, in the order in which [`Unit::forward`] takes them: those of adapters, then its
    /// own.
    pub fn parameters(&self) -> Vec<Parameter> {
        let own = self.own_parameters();
        match &self.adapters {
            Some(adapters) => adapters.parameters().chain(own).collect(),
            None => own,
        }
    }

    fn own_parameters(&self) -> Vec<Parameter> {
        match &self.arithmetic {
            Arithmetic::Embedding(unit) => unit.parameters(),
            Arithmetic::Patches(unit) => unit.parameters(),
            Arithmetic::Block(unit) => unit.parameters(),
            Arithmetic::Head(unit) => unit.parameters(),
            Arithmetic::Unet(unit, _) => unit.parameters(),
        }
    }

    /// Whether a parameter is a weight of a block, which a base may quantise, and not an adapter's.
    pub fn is_block_matrix(&self, index: usize) -> bool {
        let own = |index: usize| self.own_parameters().get(index).map(|parameter| parameter.initialisation);
        matches!(self.arithmetic, Arithmetic::Block(_))
            && index.checked_sub(self.adapters()).and_then(own) == Some(Initialisation::Normal)
    }

    /// Indices of the weights that it multiplies with through a [`PassContext`], in order.
    pub fn multiplied(&self) -> Vec<usize> {
        let is_weight = |parameter: &Parameter| match &self.arithmetic {
            Arithmetic::Embedding(_) | Arithmetic::Block(_) | Arithmetic::Head(_) => {
                parameter.initialisation == Initialisation::Normal
            }
            Arithmetic::Patches(_) => PatchUnit::multiplies(parameter),
            Arithmetic::Unet(..) => UnetUnit::multiplies(parameter),
        };
        let first = self.adapters();
        let mut order = Vec::new();
        for (index, parameter) in self.own_parameters().iter().enumerate().filter(|(_, one)| is_weight(one)) {
            let copy = self.adapters.as_ref().and_then(|adapters| adapters.copy_of(&parameter.name));
            order.push(copy.unwrap_or(first + index));
            order.extend(self.adapters.iter().flat_map(|adapters| adapters.behind(&parameter.name)));
        }
        // A tied head projects with another layer's table.
        let rest: Vec<usize> = (0..first).filter(|index| !order.contains(index)).collect();
        order.extend(rest);
        order
    }

    /// Its output from those of the layers before it, with a graph if parameters or inputs are
    /// tracked. A tied layer projects with `table`.
    ///
    /// # Panics
    /// If a layer that it reads has not run, which the order of layers rules out.
    pub fn forward(
        &self,
        parameters: &[Matrix],
        table: Option<&Matrix>,
        live: &LiveOutputs,
        pass: &PassContext,
    ) -> Signal {
        let read = |layer: &LayerId| live.get(layer).expect("layers come behind those that they read").clone();
        let inputs: Vec<Matrix> = self.inputs.iter().map(read).collect();
        let (adapters, own) = parameters.split_at(self.adapters());
        let parameters = &self.with_copy(adapters, own)[..];
        let pass = &pass.with_adapters(self.adapters.as_ref().map(|shapes| shapes.bind(adapters)));
        let input = || inputs.first().expect("only layers that read data have no input").clone();
        match &self.arithmetic {
            Arithmetic::Embedding(unit) => Signal::Hidden(unit.forward(parameters, pass)),
            Arithmetic::Patches(unit) => Signal::Hidden(unit.forward(parameters, pass)),
            Arithmetic::Block(unit) => Signal::Hidden(unit.forward(parameters, input(), pass)),
            Arithmetic::Head(unit) => unit.forward(parameters, table, input(), pass),
            Arithmetic::Unet(unit, _) => unit.forward(parameters, &inputs, pass, self.is_last),
        }
    }

    /// Its own parameters, a trained copy in place of its original.
    fn with_copy<'p>(&self, adapters: &[Matrix], own: &'p [Matrix]) -> Cow<'p, [Matrix]> {
        let Some(shapes) = &self.adapters else { return Cow::Borrowed(own) };
        let copied = |parameter: &Parameter| shapes.copy_of(&parameter.name);
        let all = self.own_parameters();
        let found = all.iter().enumerate().find_map(|(index, parameter)| Some((index, copied(parameter)?)));
        let Some((index, copy)) = found else { return Cow::Borrowed(own) };
        let mut own = own.to_vec();
        own[index] = adapters[copy].clone();
        Cow::Owned(own)
    }

    /// Estimated bytes that its graph keeps from forward to backward, its input included. A number
    /// in the compute type has `width` bytes. The count follows the operations that Burn records,
    /// or with `ours` this crate's kernels; for a denoising network it is the plan's.
    pub fn saved(&self, (sequences, seq_len): (usize, usize), (ours, width): (bool, u64)) -> Bytes {
        let (sequences, seq_len) = (sequences as u64, seq_len as u64);
        let saved = match &self.arithmetic {
            Arithmetic::Embedding(_) => SavedNumbers { own: 0, wide: sequences * seq_len },
            Arithmetic::Patches(unit) => unit.saved(sequences),
            Arithmetic::Block(unit) => unit.saved((sequences, seq_len), ours, (self.trains, self.adapters.as_ref())),
            Arithmetic::Head(unit) => unit.saved(sequences, seq_len),
            Arithmetic::Unet(_, layer) => {
                let batch = Batch { microbatch: sequences, seq_len };
                return layer.saved(batch, Precision::Fp32, Recompute::None, Attention::Materialised);
            }
        };
        Bytes::new(saved.bytes(width))
    }
}

/// Count of numbers that a graph keeps: in the compute type, and in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedNumbers {
    pub own: u64,
    pub wide: u64,
}

impl SavedNumbers {
    /// Their bytes, with `width` bytes for a number in the compute type.
    pub const fn bytes(self, width: u64) -> u64 {
        self.own * width + self.wide * 4
    }
}

/// All layers of `model`, or everything in it that cannot be computed.
pub(crate) fn units(model: &Model) -> Result<Vec<Unit>, Faults> {
    units_of(model, &Layer::clone)
}

/// The same layers, each by itself: a tied layer gets a weight of its own.
pub(crate) fn lone_units(model: &Model) -> Result<Vec<Unit>, Faults> {
    units_of(model, &|layer| match layer.kind {
        LayerKind::Head(head) => {
            Layer { kind: LayerKind::Head(Head { tied: false, ..head }), tied_to: None, ..layer.clone() }
        }
        _ => layer.clone(),
    })
}

/// The same layers for inference, without dropout.
pub(crate) fn inferring_units(model: &Model) -> Result<Vec<Unit>, Faults> {
    units_of(model, &|layer| {
        let kind = match &layer.kind {
            LayerKind::Block(block) => LayerKind::Block(Block { dropout: false, ..*block }),
            LayerKind::Embedding(embedding) => LayerKind::Embedding(Embedding { dropout: false, ..*embedding }),
            other => other.clone(),
        };
        Layer { kind, ..layer.clone() }
    })
}

fn units_of(model: &Model, seen: &dyn Fn(&Layer) -> Layer) -> Result<Vec<Unit>, Faults> {
    let mut faults = Faults::new();
    if let Architecture::Unet(unet) = model.architecture()
        && unet.outputs != unet.channels
    {
        let message = format!("images of {} channels with noise in {} are not computed", unet.channels, unet.outputs);
        faults.push(Diagnostic::error(message));
    }
    let mut units = Vec::new();
    let mut before = CutTensors::default();
    for (id, layer) in model.layers().enumerate() {
        let after = CutTensors::behind(model, id);
        let layer = seen(layer);
        let adapters = Adapters::of(&layer, model.lora());
        match Arithmetic::new(&layer).and_then(|arithmetic| Ok((arithmetic, adapters?))) {
            Ok((arithmetic, adapters)) => units.push(Unit {
                id,
                inputs: layer.inputs,
                tied: layer.tied_to.map(|owner| Tied { owner, trains: trains_table(&model.layers()[owner]) }),
                is_last: id.index() + 1 == model.layers().len(),
                trains: layer.trains,
                adapters,
                before: std::mem::replace(&mut before, after.clone()),
                after,
                arithmetic,
            }),
            // One message for a run of equal layers.
            Err(fault) if !same_kind_before(model, id) => faults.push(fault),
            Err(_) => {}
        }
    }
    faults.or(units)
}

/// Whether the table of `layer`, or a copy of it, is trained.
fn trains_table(layer: &Layer) -> bool {
    layer.trains || layer.adaptation.as_ref().is_some_and(|adaptation| adaptation.copy.is_some())
}

/// The tensors of layers, those that are trained and the others.
pub(crate) fn split_trained<T>(units: &[Unit], layers: Vec<Vec<T>>) -> (Vec<Vec<T>>, Vec<Vec<T>>) {
    let split = |(mut tensors, unit): (Vec<T>, &Unit)| {
        let frozen = tensors.split_off(unit.trained().min(tensors.len()));
        (tensors, frozen)
    };
    layers.into_iter().zip(units).map(split).unzip()
}

/// The tensors of layers from those that are trained and the others.
pub(crate) fn joined<T>(trained: Vec<Vec<T>>, frozen: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let join = |(trained, frozen): (Vec<T>, Vec<T>)| trained.into_iter().chain(frozen).collect();
    trained.into_iter().zip(frozen).map(join).collect()
}

fn same_kind_before(model: &Model, id: LayerId) -> bool {
    let kind = |index: usize| &model.layers()[LayerId::from(index)].kind;
    id.index() > 0 && std::mem::discriminant(kind(id.index())) == std::mem::discriminant(kind(id.index() - 1))
}
