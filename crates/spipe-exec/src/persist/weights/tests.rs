//! Weights are saved and found under the names of transformers.

use super::*;
use crate::nn::layers::{initial, units};

const LLAMA: &str = "format-version = 1\nkind = \"transformer\"\nname = \"llama\"\nvocabulary = 20\nseq-len = 16\nhidden = 8\n\
                     layers = 2\nheads = 2\nkv-heads = 1\nintermediate = 12\n";
const GPT: &str = "format-version = 1\nkind = \"transformer\"\nname = \"gpt\"\nvocabulary = 20\nseq-len = 16\nhidden = 8\n\
                   layers = 2\nheads = 2\nintermediate = 32\nnorm = \"layer-norm\"\nmlp = \"gelu\"\n\
                   positions = \"learned\"\nplaces = 16\nqkv-bias = true\noutput-bias = true\nmlp-bias = true\n";
const VIT: &str = "format-version = 1\nkind = \"vit\"\nname = \"vit\"\nimage = 4\npatch = 2\nhidden = 8\nlayers = 2\n\
                   heads = 2\nintermediate = 16\nclasses = 3\n";

struct Case {
    model: Model,
    parameters: Vec<Vec<Parameter>>,
    folder: tempfile::TempDir,
}

impl Case {
    fn new(toml: &str) -> Self {
        let model = Model::from_toml("model.toml", toml).unwrap_or_else(|faults| panic!("{faults}"));
        let units = units(&model).unwrap_or_else(|faults| panic!("{faults}"));
        let parameters = units.iter().map(|unit| unit.parameters()).collect();
        Self { model, parameters, folder: tempfile::tempdir().unwrap() }
    }

    fn number(&self, layer: LayerId, index: usize) -> Vec<f32> {
        let parameter = &self.parameters[layer.index()][index];
        // Ones and zeros would hide a wrong place.
        let parameter = Parameter { initialisation: crate::nn::layers::Initialisation::Normal, ..parameter.clone() };
        initial(3, layer, &parameter)
    }

    fn save(&self, most: u64) {
        let numbers = &mut |layer, index| Ok(self.number(layer, index));
        save(self.folder.path(), (&self.model, &self.parameters), numbers, most).unwrap();
    }

    fn open(&self) -> Result<Weights, WeightsError> {
        Weights::open(self.folder.path(), &self.model, self.parameters.iter().map(Vec::as_slice))
    }

    fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn check(&self, weights: &Weights) {
        for (layer, parameters) in self.model.layers().ids().zip(&self.parameters) {
            for (index, parameter) in parameters.iter().enumerate() {
                assert_eq!(weights.parameter(layer, parameter).unwrap(), self.number(layer, index), "{parameter:?}");
            }
        }
    }
}

#[test]
fn weights_come_back() {
    for toml in [LLAMA, GPT, VIT] {
        let case = Case::new(toml);
        case.save(u64::MAX);
        assert_eq!(case.files(), ["model.safetensors"]);
        case.check(&case.open().unwrap());
    }
}

#[test]
fn large_models_are_in_several_files() {
    let case = Case::new(LLAMA);
    case.save(2000);
    let files = case.files();
    assert_eq!(files.last().unwrap(), INDEX);
    let count = files.len() - 1;
    assert!(count > 1 && files[0] == format!("model-00001-of-{count:05}.safetensors"), "{files:?}");
    let index = std::fs::read(case.folder.path().join(INDEX)).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"].as_u64(), Some(4 * case.model.parameters()));
    assert!(index["weight_map"]["model.layers.1.mlp.down_proj.weight"].is_string(), "{index}");
    case.check(&case.open().unwrap());
    // A single file leaves no index of others.
    case.save(u64::MAX);
    assert!(!case.files().contains(&INDEX.to_owned()));
    case.check(&case.open().unwrap());
    // Several files leave no single file, which readers would prefer.
    case.save(2000);
    assert!(!case.files().contains(&FILE.to_owned()));
    case.check(&case.open().unwrap());
}

/// Writes each tensor of a saved file under other names, under several, or not at all.
fn rewrite(case: &Case, names: &dyn Fn(&str) -> Vec<String>) {
    let path = case.folder.path().join(FILE);
    let file = TensorFile::open(&path).unwrap();
    let under = |old: String| names(&old).into_iter().map(move |name| (name, old.clone()));
    let kept: Vec<(String, String)> = file.names().into_iter().flat_map(under).collect();
    let entry = |(name, old): &(String, String)| crate::persist::tensor_file::Entry {
        name: name.clone(),
        shape: file.shape(old).unwrap().to_vec(),
    };
    let entries: Vec<_> = kept.iter().map(entry).collect();
    let mut bytes = Vec::new();
    crate::persist::tensor_file::write(&mut bytes, &entries, &mut |index| Ok(file.read(&kept[index].1).unwrap()))
        .unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn but(other: &str, name: &str) -> Vec<String> {
    if name == other { Vec::new() } else { vec![name.into()] }
}

/// Saves the weights of `written`, then opens them for the same model with one change.
fn refused(written: &str, (from, to): (&str, &str)) -> String {
    let case = Case::new(written);
    case.save(u64::MAX);
    assert!(case.open().is_ok());
    let other = Case { folder: case.folder, ..Case::new(&written.replace(from, to)) };
    other.open().map(|_| ()).unwrap_err().to_string()
}

#[test]
fn weights_that_would_be_left_out_are_named() {
    let shorter = refused(LLAMA, ("layers = 2", "layers = 1"));
    assert!(shorter.contains("the model has no place for its `model.layers.1.input_layernorm.weight`"), "{shorter}");
    let plain = refused(&format!("{LLAMA}qkv-bias = true\n"), ("qkv-bias = true", "qkv-bias = false"));
    assert!(plain.contains("the model has no place for its `model.layers.0.self_attn.k_proj.bias`"), "{plain}");
    let tied = refused(&format!("{LLAMA}tied = false\n"), ("tied = false", "tied = true"));
    assert!(tied.contains("its `lm_head.weight` is another than the table"), "{tied}");
}

#[test]
fn copies_of_the_table_and_masks_are_no_weights() {
    let case = Case::new(&format!("{GPT}tied = true\n"));
    case.save(u64::MAX);
    rewrite(&case, &|name| {
        let more = match name {
            "transformer.wte.weight" => Some(PROJECTION),
            "transformer.h.0.ln_1.weight" => Some("transformer.h.0.attn.bias"),
            _ => None,
        };
        std::iter::once(name).chain(more).map(Into::into).collect()
    });
    case.check(&case.open().unwrap());
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    let case = Case::new(LLAMA);
    let broken = &mut |layer: LayerId, index| {
        let mut numbers = case.number(layer, index);
        numbers[0] = if layer.index() == 1 { f32::NAN } else { numbers[0] };
        Ok(numbers)
    };
    save(case.folder.path(), (&case.model, &case.parameters), broken, u64::MAX).unwrap();
    let message = case.open().unwrap().parameter(LayerId::new(1), &case.parameters[1][0]).unwrap_err().to_string();
    assert!(message.ends_with("of the weights holds numbers that are not finite"), "{message}");
}

#[test]
fn an_index_needs_no_more_than_where_tensors_are() {
    let case = Case::new(LLAMA);
    case.save(2000);
    let path = case.folder.path().join(INDEX);
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for metadata in [serde_json::json!(null), serde_json::json!({"total_size": 1.5e3})] {
        let other = serde_json::json!({"metadata": metadata, "weight_map": index["weight_map"]});
        std::fs::write(&path, other.to_string()).unwrap();
        case.check(&case.open().unwrap());
    }
    std::fs::write(&path, serde_json::json!({"weight_map": index["weight_map"]}).to_string()).unwrap();
    case.check(&case.open().unwrap());
}

#[test]
fn prefixes_may_be_left_out() {
    let case = Case::new(GPT);
    case.save(u64::MAX);
    rewrite(&case, &|name| vec![name.strip_prefix("transformer.").unwrap_or(name).to_owned()]);
    let weights = case.open().unwrap();
    assert_eq!(weights.parameter(LayerId::new(1), &case.parameters[1][2]).unwrap(), case.number(LayerId::new(1), 2));
}

#[test]
fn only_a_tied_model_does_without_a_projection() {
    let case = Case::new(GPT);
    case.save(u64::MAX);
    rewrite(&case, &|name| but(PROJECTION, name));
    let message = case.open().map(|_| ()).unwrap_err().to_string();
    assert!(
        message.ends_with("it has no `lm_head.weight`, which only a model that is `tied` does without"),
        "{message}"
    );
    let tied = Case::new(&format!("{GPT}tied = true\n"));
    let tied = Case { folder: case.folder, ..tied };
    assert!(tied.open().is_ok());
}

#[test]
fn what_is_missing_or_differs_is_listed() {
    let case = Case::new(LLAMA);
    case.save(u64::MAX);
    rewrite(&case, &|name| but("model.norm.weight", name));
    let message = case.open().unwrap_err().to_string();
    assert!(message.contains("does not hold the weights of `llama`: it has no `model.norm.weight`"), "{message}");
    let wider = Case { model: Case::new(&LLAMA.replace("intermediate = 12", "intermediate = 13")).model, ..case };
    let units = units(&wider.model).unwrap();
    let wider = Case { parameters: units.iter().map(|unit| unit.parameters()).collect(), ..wider };
    let message = wider.open().unwrap_err().to_string();
    assert!(
        message.contains("its `model.layers.0.mlp.down_proj.weight` is 8 × 12, the model's is 8 × 13"),
        "{message}"
    );
    assert!(message.ends_with("and 3 more"), "{message}");
}

#[test]
fn files_that_are_not_there_are_named() {
    let case = Case::new(VIT);
    let message = case.open().unwrap_err().to_string();
    assert!(message.starts_with("cannot read `") && message.contains("model.safetensors`: "), "{message}");
}

#[test]
fn a_disk_that_refuses_leaves_the_old_weights() {
    let case = Case::new(GPT);
    case.save(u64::MAX);
    let numbers = &mut |layer: LayerId, index: usize| {
        if layer.index() > 1 {
            Err(TaskError::from("no more"))
        } else {
            Ok(vec![0.0; case.parameters[layer.index()][index].count()])
        }
    };
    let error = save(case.folder.path(), (&case.model, &case.parameters), numbers, u64::MAX).unwrap_err().to_string();
    assert!(error.ends_with("model.safetensors`: no more"), "{error}");
    assert_eq!(case.files(), ["model.safetensors"]);
    case.check(&case.open().unwrap());
}
