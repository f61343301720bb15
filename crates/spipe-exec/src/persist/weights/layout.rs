//! Names, shapes and places of a model's parameters in the files of transformers.
//!
//! | here, inputs × outputs | Llama | GPT-2 | ViT |
//! |---|---|---|---|
//! | `attention.query.weight` | `q_proj.weight`, outputs × inputs | columns of `c_attn.weight` | `query.weight`, outputs × inputs |
//! | `mlp.down.weight` | `down_proj.weight`, outputs × inputs | `c_proj.weight` as it is | `output.dense.weight`, outputs × inputs |
//! | `projection.weight` of the head | `lm_head.weight`, outputs × inputs; absent if tied | the same | `classifier.weight`, outputs × inputs |
//!
//! Gemma, OLMo-2, Phi-2 and StarCoder2 have Llama's names with a few others ([`Family`]).
//!
//! GPT-2's linear layers are transformers' `Conv1D`, which stores inputs × outputs.

use crate::nn::layers::Parameter;
use spipe_model::{
    Architecture, Layer, LayerKind, Mlp, Model, Norm, NormPlaces, PatchEmbedding, Positions, QkNorm, Transformer,
};

/// A family of models with the same names of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Llama and its kin, the first Gemma among them.
    Llama,
    /// Norms before and behind both branches.
    Gemma2,
    /// Norms behind both branches.
    Olmo2,
    /// One norm of both branches, two matrices.
    Phi,
    /// Two matrices.
    Starcoder2,
    Gpt2,
    Vit,
}

/// The place of a parameter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorPlace {
    /// The tensor's name.
    pub tensor: String,
    /// The tensor's shape.
    pub shape: Vec<usize>,
    /// Whether the file stores outputs × inputs.
    transposed: bool,
    /// Its index among equal column ranges of the tensor, and their number.
    part: (usize, usize),
    /// Rows and columns of the parameter.
    size: [usize; 2],
}

impl Family {
    /// The family of `model`, if there is one.
    pub fn of(model: &Model) -> Option<Self> {
        match model.architecture() {
            Architecture::Transformer(transformer) => Self::of_decoder(transformer),
            Architecture::Vision(vision) if vision.head().is_some() && vision.embedding.norm.is_none() => {
                Some(Self::Vit)
            }
            _ => None,
        }
    }

    fn of_decoder(transformer: &Transformer) -> Option<Self> {
        let block = &transformer.block;
        let plain = transformer.peculiarity().is_none();
        let whole = matches!(block.positions, Positions::Rotary { fraction, .. } if fraction >= 1.0);
        let rotary = matches!(block.positions, Positions::Rotary { .. });
        let biased = block.qkv_bias && block.output_bias && block.mlp_bias;
        let usual_ends = transformer.final_norm
            && !transformer.embedding_norm
            && transformer.embedding_width == block.hidden
            && block.experts.is_none()
            && block.latent.is_none()
            && !block.sinks;
        match (block.norms, block.norm, block.mlp) {
            _ if !usual_ends => None,
            (NormPlaces::Before, Norm::RmsNorm, Mlp::Swiglu) if plain && whole => Some(Self::Llama),
            (NormPlaces::Before, Norm::LayerNorm, Mlp::Gelu | Mlp::GeluTanh)
                if plain && biased && matches!(block.positions, Positions::Learned { .. }) =>
            {
                Some(Self::Gpt2)
            }
            (NormPlaces::Before, Norm::LayerNorm, Mlp::GeluTanh) if plain && rotary => Some(Self::Starcoder2),
            (NormPlaces::Before, Norm::RmsNormPlusOne, Mlp::GegluTanh) if whole && !block.parallel_residual => {
                Some(Self::Llama)
            }
            (NormPlaces::Around, Norm::RmsNormPlusOne, Mlp::GegluTanh) if whole => Some(Self::Gemma2),
            (NormPlaces::After, Norm::RmsNorm, Mlp::Swiglu) if whole => Some(Self::Olmo2),
            (NormPlaces::Shared, Norm::LayerNorm, Mlp::GeluTanh)
                if rotary && biased && transformer.head_bias && block.qk_norm == QkNorm::None =>
            {
                Some(Self::Phi)
            }
            _ => None,
        }
    }

    /// Whether its names are Llama's, with few others.
    const fn is_llama(self) -> bool {
        matches!(self, Self::Llama | Self::Gemma2 | Self::Olmo2 | Self::Phi | Self::Starcoder2)
    }

    /// The prefix of all names. The files of some models, such as the first GPT-2, leave it out.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Llama | Self::Gemma2 | Self::Olmo2 | Self::Phi | Self::Starcoder2 => "model.",
            Self::Gpt2 => "transformer.",
            Self::Vit => "vit.",
        }
    }

    /// The embedding's table, with which a tied head projects.
    pub const fn table(self) -> &'static str {
        match self {
            Self::Llama | Self::Gemma2 | Self::Olmo2 | Self::Phi | Self::Starcoder2 => "model.embed_tokens.weight",
            Self::Gpt2 => "transformer.wte.weight",
            Self::Vit => "",
        }
    }

    /// The place of a parameter of `layer`; none if the family does not have it.
    pub fn place(self, layer: &Layer, parameter: &Parameter) -> Option<TensorPlace> {
        let (name, kind) = parameter.name.rsplit_once('.')?;
        let index = layer.name.rsplit_once('.').map_or("", |(_, index)| index);
        let (stem, part) = match (&layer.kind, self) {
            (LayerKind::Block(_), _) => self.in_block(name).map(|(stem, part)| (self.block(index) + stem, part))?,
            (LayerKind::Head(_), Self::Vit) => (at_end(name, "vit.layernorm", "classifier")?, (0, 1)),
            (LayerKind::Head(_), Self::Gpt2) => (at_end(name, "transformer.ln_f", "lm_head")?, (0, 1)),
            (LayerKind::Head(_), Self::Phi) => (at_end(name, "model.final_layernorm", "lm_head")?, (0, 1)),
            (LayerKind::Head(_), _) => (at_end(name, "model.norm", "lm_head")?, (0, 1)),
            (LayerKind::Embedding(_), _) if self.is_llama() && name == "token" => ("model.embed_tokens".into(), (0, 1)),
            (LayerKind::Embedding(_), Self::Gpt2) if name == "token" => ("transformer.wte".into(), (0, 1)),
            (LayerKind::Embedding(_), Self::Gpt2) if name == "position" => ("transformer.wpe".into(), (0, 1)),
            (LayerKind::PatchEmbedding(shape), Self::Vit) => return patches(shape, parameter),
            _ => return None,
        };
        let matrix = kind == "weight" && !name.ends_with("norm");
        let table = matches!(name, "token" | "position");
        let transposed = matrix && !table && (self != Self::Gpt2 || name == "projection");
        let [rows, columns] = parameter.shape;
        let shape = match (matrix, transposed) {
            (true, true) => vec![columns, rows],
            (true, false) => vec![rows, columns * part.1],
            (false, _) => vec![columns * part.1],
        };
        Some(TensorPlace { tensor: format!("{stem}.{kind}"), shape, transposed, part, size: parameter.shape })
    }

    /// The prefix of names in block `index`.
    fn block(self, index: &str) -> String {
        match self {
            Self::Llama | Self::Gemma2 | Self::Olmo2 | Self::Phi | Self::Starcoder2 => format!("model.layers.{index}."),
            Self::Gpt2 => format!("transformer.h.{index}."),
            Self::Vit => format!("vit.encoder.layer.{index}."),
        }
    }

    /// The name of a parameter in a block; and its index among the parts of the tensor, and their
    /// number.
    fn in_block(self, name: &str) -> Option<(&'static str, (usize, usize))> {
        let whole = |stem| Some((stem, (0, 1)));
        match (self, name) {
            (Self::Gemma2, "mlp-norm") => whole("pre_feedforward_layernorm"),
            (Self::Phi, "attention.output") => whole("self_attn.dense"),
            (Self::Phi, "mlp.up") => whole("mlp.fc1"),
            (Self::Phi, "mlp.down") => whole("mlp.fc2"),
            (Self::Starcoder2, "mlp.up") => whole("mlp.c_fc"),
            (Self::Starcoder2, "mlp.down") => whole("mlp.c_proj"),
            (family, name) if family.is_llama() => whole(match name {
                "attention-norm" => "input_layernorm",
                "attention.query" => "self_attn.q_proj",
                "attention.key" => "self_attn.k_proj",
                "attention.value" => "self_attn.v_proj",
                "attention.query-norm" => "self_attn.q_norm",
                "attention.key-norm" => "self_attn.k_norm",
                "attention.output" => "self_attn.o_proj",
                "mlp-norm" | "attention-end-norm" => "post_attention_layernorm",
                "mlp-end-norm" => "post_feedforward_layernorm",
                "mlp.gate" => "mlp.gate_proj",
                "mlp.up" => "mlp.up_proj",
                "mlp.down" => "mlp.down_proj",
                _ => return None,
            }),
            (Self::Gpt2, "attention-norm") => whole("ln_1"),
            (Self::Gpt2, "attention.query") => Some(("attn.c_attn", (0, 3))),
            (Self::Gpt2, "attention.key") => Some(("attn.c_attn", (1, 3))),
            (Self::Gpt2, "attention.value") => Some(("attn.c_attn", (2, 3))),
            (Self::Gpt2, "attention.output") => whole("attn.c_proj"),
            (Self::Gpt2, "mlp-norm") => whole("ln_2"),
            (Self::Gpt2, "mlp.up") => whole("mlp.c_fc"),
            (Self::Gpt2, "mlp.down") => whole("mlp.c_proj"),
            (Self::Vit, "attention-norm") => whole("layernorm_before"),
            (Self::Vit, "attention.query") => whole("attention.attention.query"),
            (Self::Vit, "attention.key") => whole("attention.attention.key"),
            (Self::Vit, "attention.value") => whole("attention.attention.value"),
            (Self::Vit, "attention.output") => whole("attention.output.dense"),
            (Self::Vit, "mlp-norm") => whole("layernorm_after"),
            (Self::Vit, "mlp.up") => whole("intermediate.dense"),
            (Self::Vit, "mlp.down") => whole("output.dense"),
            _ => None,
        }
    }
}

/// The last norm or the projection.
fn at_end(name: &str, norm: &str, projection: &str) -> Option<String> {
    match name {
        "norm" => Some(norm.into()),
        "projection" => Some(projection.into()),
        _ => None,
    }
}

/// The class token and the positions have one more dimension; the projection is the weight of a
/// convolution.
fn patches(shape: &PatchEmbedding, parameter: &Parameter) -> Option<TensorPlace> {
    let [rows, columns] = parameter.shape;
    let (channels, patch) = (shape.channels as usize, shape.patch as usize);
    let (tensor, there, transposed) = match &*parameter.name {
        "class.weight" => ("cls_token", vec![1, 1, columns], false),
        "position.weight" => ("position_embeddings", vec![1, rows, columns], false),
        "projection.weight" => ("patch_embeddings.projection.weight", vec![columns, channels, patch, patch], true),
        "projection.bias" => ("patch_embeddings.projection.bias", vec![columns], false),
        _ => return None,
    };
    let tensor = format!("vit.embeddings.{tensor}");
    Some(TensorPlace { tensor, shape: there, transposed, part: (0, 1), size: parameter.shape })
}

impl TensorPlace {
    /// Number of parameters in the tensor.
    pub const fn parts(&self) -> usize {
        self.part.1
    }

    /// Whether the file stores outputs × inputs.
    pub const fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// The numbers of the parameter from those of the tensor.
    pub fn take(&self, tensor: &[f32]) -> Vec<f32> {
        let [rows, columns] = self.size;
        let (part, parts) = self.part;
        let number = |row: usize, column: usize| {
            if self.transposed {
                tensor[column * rows + row]
            } else {
                tensor[row * columns * parts + part * columns + column]
            }
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| number(row, column))).collect()
    }

    /// Writes the numbers of the parameter to their place in the tensor.
    pub fn put(&self, parameter: &[f32], tensor: &mut [f32]) {
        let [rows, columns] = self.size;
        let (part, parts) = self.part;
        for (row, numbers) in (0..rows).zip(parameter.chunks(columns.max(1))) {
            for (column, number) in numbers.iter().enumerate() {
                let place =
                    if self.transposed { column * rows + row } else { row * columns * parts + part * columns + column };
                tensor[place] = *number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::layers::units;

    /// Names and shapes of all tensors, each once.
    fn tensors(model: &str) -> Vec<(String, Vec<usize>)> {
        let model = Model::from_toml("model.toml", model).unwrap_or_else(|faults| panic!("{faults}"));
        let family = Family::of(&model).unwrap();
        let units = units(&model).unwrap_or_else(|faults| panic!("{faults}"));
        let mut all: Vec<(String, Vec<usize>)> = Vec::new();
        for (layer, unit) in model.layers().iter().zip(&units) {
            for parameter in unit.parameters() {
                let place = family.place(layer, &parameter).unwrap_or_else(|| panic!("{parameter:?}"));
                if !all.iter().any(|(name, _)| *name == place.tensor) {
                    all.push((place.tensor, place.shape));
                }
            }
        }
        let numbers: usize = all.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(numbers as u64, model.parameters(), "every parameter is there once");
        all
    }

    fn said(tensors: &[(String, Vec<usize>)]) -> Vec<String> {
        tensors.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect()
    }

    #[test]
    fn llama() {
        let all = tensors(
            "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 100\nseq-len = 16\nhidden = 32\n\
             layers = 1\nheads = 4\nkv-heads = 2\nintermediate = 48\n",
        );
        // `LlamaForCausalLM` of transformers 4 and 5.
        let expected = [
            "model.embed_tokens.weight [100, 32]",
            "model.layers.0.input_layernorm.weight [32]",
            "model.layers.0.self_attn.q_proj.weight [32, 32]",
            "model.layers.0.self_attn.k_proj.weight [16, 32]",
            "model.layers.0.self_attn.v_proj.weight [16, 32]",
            "model.layers.0.self_attn.o_proj.weight [32, 32]",
            "model.layers.0.post_attention_layernorm.weight [32]",
            "model.layers.0.mlp.gate_proj.weight [48, 32]",
            "model.layers.0.mlp.up_proj.weight [48, 32]",
            "model.layers.0.mlp.down_proj.weight [32, 48]",
            "model.norm.weight [32]",
            "lm_head.weight [100, 32]",
        ];
        assert_eq!(said(&all), expected);
    }

    #[test]
    fn gpt2() {
        let all = tensors(
            "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 100\nseq-len = 16\nhidden = 32\n\
             layers = 1\nheads = 4\nintermediate = 128\nnorm = \"layer-norm\"\nmlp = \"gelu\"\npositions = \"learned\"\n\
             places = 24\nqkv-bias = true\noutput-bias = true\nmlp-bias = true\n",
        );
        // `GPT2LMHeadModel` of transformers 4 and 5, its head written out.
        let expected = [
            "transformer.wte.weight [100, 32]",
            "transformer.wpe.weight [24, 32]",
            "transformer.h.0.ln_1.weight [32]",
            "transformer.h.0.ln_1.bias [32]",
            "transformer.h.0.attn.c_attn.weight [32, 96]",
            "transformer.h.0.attn.c_attn.bias [96]",
            "transformer.h.0.attn.c_proj.weight [32, 32]",
            "transformer.h.0.attn.c_proj.bias [32]",
            "transformer.h.0.ln_2.weight [32]",
            "transformer.h.0.ln_2.bias [32]",
            "transformer.h.0.mlp.c_fc.weight [32, 128]",
            "transformer.h.0.mlp.c_fc.bias [128]",
            "transformer.h.0.mlp.c_proj.weight [128, 32]",
            "transformer.h.0.mlp.c_proj.bias [32]",
            "transformer.ln_f.weight [32]",
            "transformer.ln_f.bias [32]",
            "lm_head.weight [100, 32]",
        ];
        assert_eq!(said(&all), expected);
    }

    #[test]
    fn vit() {
        let all = tensors(
            "format-version = 1\nkind = \"vit\"\nname = \"m\"\nimage = 8\npatch = 4\nhidden = 32\nlayers = 1\n\
             heads = 4\nintermediate = 64\nclasses = 10\n",
        );
        // `ViTForImageClassification` of transformers 4 and 5.
        let expected = [
            "vit.embeddings.cls_token [1, 1, 32]",
            "vit.embeddings.position_embeddings [1, 5, 32]",
            "vit.embeddings.patch_embeddings.projection.weight [32, 3, 4, 4]",
            "vit.embeddings.patch_embeddings.projection.bias [32]",
            "vit.encoder.layer.0.layernorm_before.weight [32]",
            "vit.encoder.layer.0.layernorm_before.bias [32]",
            "vit.encoder.layer.0.attention.attention.query.weight [32, 32]",
            "vit.encoder.layer.0.attention.attention.key.weight [32, 32]",
            "vit.encoder.layer.0.attention.attention.value.weight [32, 32]",
            "vit.encoder.layer.0.attention.attention.query.bias [32]",
            "vit.encoder.layer.0.attention.attention.key.bias [32]",
            "vit.encoder.layer.0.attention.attention.value.bias [32]",
            "vit.encoder.layer.0.attention.output.dense.weight [32, 32]",
            "vit.encoder.layer.0.attention.output.dense.bias [32]",
            "vit.encoder.layer.0.layernorm_after.weight [32]",
            "vit.encoder.layer.0.layernorm_after.bias [32]",
            "vit.encoder.layer.0.intermediate.dense.weight [64, 32]",
            "vit.encoder.layer.0.intermediate.dense.bias [64]",
            "vit.encoder.layer.0.output.dense.weight [32, 64]",
            "vit.encoder.layer.0.output.dense.bias [32]",
            "vit.layernorm.weight [32]",
            "vit.layernorm.bias [32]",
            "classifier.weight [10, 32]",
            "classifier.bias [10]",
        ];
        assert_eq!(said(&all), expected);
    }

    #[test]
    fn numbers_find_their_place_and_back() {
        let tensor: Vec<f32> = (0..12).map(|number| number as f32).collect();
        let place = |transposed, part, size| TensorPlace { tensor: "t".into(), shape: vec![], transposed, part, size };
        // Rows of outputs, such as [[0, 1, 2], [3, 4, 5], …].
        let turned = place(true, (0, 1), [3, 4]);
        assert_eq!(turned.take(&tensor), [0.0, 3.0, 6.0, 9.0, 1.0, 4.0, 7.0, 10.0, 2.0, 5.0, 8.0, 11.0]);
        let middle = place(false, (1, 3), [2, 2]);
        assert_eq!(middle.take(&tensor), [2.0, 3.0, 8.0, 9.0]);
        let mut again = vec![0.0; 12];
        turned.put(&turned.take(&tensor), &mut again);
        assert_eq!(again, tensor);
        let mut parts = vec![0.0; 12];
        for part in 0..3 {
            let place = place(false, (part, 3), [2, 2]);
            place.put(&place.take(&tensor), &mut parts);
        }
        assert_eq!(parts, tensor);
    }

    #[test]
    fn other_families_have_no_names() {
        let neox = "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 100\nseq-len = 16\n\
                    hidden = 32\nlayers = 1\nheads = 4\nintermediate = 128\nnorm = \"layer-norm\"\nmlp = \"gelu\"\n\
                    qkv-bias = true\noutput-bias = true\nmlp-bias = true\nparallel-residual = true\n";
        assert_eq!(Family::of(&Model::from_toml("m", neox).unwrap()), None);
    }
}
