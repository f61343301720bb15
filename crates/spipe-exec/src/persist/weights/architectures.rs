//! Losses and gradients of small decoders equal those of transformers.
//!
//! `tests/python/architectures.py` made the table. It has no weights: every number of a tensor follows
//! from the tensor's name.

use super::layout::{Family, TensorPlace};
use crate::{
    data::{Batch, Microbatch},
    device::cores,
    nn::{
        Matrix, Tensors,
        layers::{Parameter, PassContext, Reading, Signal, Unit, units},
        passes::{Layers, Outputs, Seed, backward, tracked},
    },
};
use burn::tensor::{Tensor, TensorData};
use serde_json::Value;
use spipe_model::{Layer, Model};
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = include_str!("../../../tests/fixtures/architectures.json");
const SEQUENCES: usize = 2;
const SEQ_LEN: usize = 12;
const VOCABULARY: i32 = 40;

/// The numbers of a tensor: 0.3 (2 f − 1), where f is the fraction of 43758.5453 sin(h + 12.9898 i), and
/// one more for norms.
fn numbers(place: &TensorPlace) -> Vec<f32> {
    let start = place.tensor.bytes().fold(0_u64, |start, letter| (31 * start + u64::from(letter)) % 1_000_003);
    let one = if place.tensor.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let number = |index: usize| {
        let fraction = (43_758.545_3 * (start as f64 + 12.989_8 * index as f64).sin()).rem_euclid(1.0);
        (0.3 * (2.0 * fraction - 1.0) + one) as f32
    };
    (0..place.shape.iter().product::<usize>()).map(number).collect()
}

fn pass() -> PassContext {
    // Token 0 pads, and PyTorch gives a padding row no gradient.
    let token = |index: usize| 1 + (7 * index * index + 3 * index) as i32 % (VOCABULARY - 1);
    let rows = |shift: usize| {
        let at = move |row: usize| (0..SEQ_LEN).map(move |column| token(row * (SEQ_LEN + 1) + column + shift));
        (0..SEQUENCES).flat_map(at).collect::<Vec<i32>>()
    };
    let batch = Batch { inputs: rows(0), targets: rows(1), sequences: SEQUENCES, seq_len: SEQ_LEN };
    PassContext::new(&Microbatch::Tokens(batch), &Reading::Tokens, &cores())
}

/// The loss, and the squared norm of each tensor's gradient, with those of tied uses added.
fn found(model: &Model) -> (f64, BTreeMap<String, f64>) {
    let family = Family::of(model).unwrap();
    let units = units(model).unwrap_or_else(|faults| panic!("{faults}"));
    let placed = |layer: &Layer, parameter: &Parameter| {
        family.place(layer, parameter).unwrap_or_else(|| panic!("{} of {}", parameter.name, layer.name))
    };
    let tensor = |layer: &Layer, parameter: &Parameter| -> Matrix {
        let place = placed(layer, parameter);
        let numbers = place.take(&numbers(&place));
        Tensor::from_data(TensorData::new(numbers, parameter.shape), &cores())
    };
    let all = |unit: &Unit, layer: &Layer| unit.parameters().iter().map(|one| tensor(layer, one)).collect::<Vec<_>>();
    let layers: Vec<&Layer> = model.layers().iter().collect();
    let parameters: Tensors = units.iter().zip(&layers).map(|(unit, layer)| all(unit, layer)).collect();
    let pass = pass();
    let graph = tracked(Layers::new(0, &units, &parameters), Signal::Tokens, &pass, false, &mut Outputs::default());
    let loss = graph.loss();
    let mut norms = BTreeMap::new();
    for ((unit, layer), gradients) in units.iter().zip(&layers).zip(backward(vec![graph], Seed::Loss(1.0)).parameters) {
        for (parameter, gradient) in unit.parameters().iter().zip(gradients) {
            let square: f64 = gradient.into_data().iter::<f32>().map(|number| f64::from(number).powi(2)).sum();
            *norms.entry(placed(layer, parameter).tensor).or_default() += square;
        }
    }
    (loss, norms)
}

#[test]
fn losses_and_gradients_are_those_of_transformers() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let mut wrong = Vec::new();
    for row in table["models"].as_array().unwrap() {
        let kind = row["config"]["model_type"].as_str().unwrap();
        let imported = Model::from_hugging_face("config.json", &row["config"].to_string());
        let model = imported.unwrap_or_else(|faults| panic!("{kind}: {faults}")).model;
        let (loss, norms) = found(&model);
        let expected = row["loss"].as_f64().unwrap();
        if (loss - expected).abs() >= 1e-5 * expected {
            wrong.push(format!("{kind}: {loss}, transformers {expected}"));
        }
        let gradients = row["gradients"].as_object().unwrap();
        let whole = gradients.values().filter_map(Value::as_f64).map(|norm| norm * norm).sum::<f64>().sqrt();
        let names: BTreeSet<&String> = gradients.keys().collect();
        assert_eq!(norms.keys().collect::<BTreeSet<_>>(), names, "{kind}");
        for (name, square) in norms {
            let (norm, expected) = (square.sqrt(), gradients[&name].as_f64().unwrap());
            if (norm - expected).abs() >= 1e-4 * whole {
                wrong.push(format!("{kind} {name}: {norm}, transformers {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
