//! The adapters of a layer among its parameters and products.

use crate::{
    nn::layers::{Unit, units},
    testing::machine::{GPT, LLAMA},
};
use spipe_model::{Lora, Model};

/// The parameters of a block of `model` with adapters on `targets`, and the order in which it
/// multiplies with them.
fn of(model: &str, targets: &str) -> (Unit, Vec<String>) {
    let lora = Lora::parse(&format!("rank=2,targets={targets}"), None).unwrap();
    let model = Model::from_toml("model.toml", model).unwrap().with_lora(&lora).unwrap();
    let unit = units(&model).unwrap().swap_remove(1);
    let parameters = unit.parameters();
    let order = unit.multiplied().into_iter().map(|index| parameters[index].name.clone().into_owned()).collect();
    (unit, order)
}

#[test]
fn adapters_come_first_and_are_multiplied_behind_their_matrices() {
    let (unit, order) = of(LLAMA, "o,v,q,down");
    let expected = [
        "attention.query.weight",
        "attention.key.weight",
        "attention.value.weight",
        "attention.query.lora-a",
        "attention.query.lora-b",
        "attention.value.lora-a",
        "attention.value.lora-b",
        "attention.output.weight",
        "attention.output.lora-a",
        "attention.output.lora-b",
        "mlp.gate.weight",
        "mlp.up.weight",
        "mlp.down.weight",
        "mlp.down.lora-a",
        "mlp.down.lora-b",
    ];
    assert_eq!(order, expected);
    assert_eq!(unit.trained(), 8);
    assert!(unit.parameters().iter().enumerate().all(|(index, one)| one.is_adapter() == (index < 8)));
}

#[test]
fn a_matrix_that_holds_several_has_one_adapter() {
    let (unit, order) = of(GPT, "c_attn");
    let place = order.iter().position(|name| name == "attention.query-key-value.lora-a").unwrap();
    assert_eq!(order[place - 1], "attention.value.weight");
    let [a, b] = [0, 1].map(|index| unit.parameters()[index].shape);
    assert_eq!((a[1], b[0], b[1]), (2, 2, 3 * a[0]));
}
