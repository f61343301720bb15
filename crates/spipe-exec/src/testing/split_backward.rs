//! Graphs whose weight gradients come later, or whose weights leave.

use crate::{
    data::{Data, Draw, Tokens},
    device::{Cores, cores},
    nn::{
        Matrix, Tensors, cast,
        layers::{Parameter, PassContext, Reading, Signal, Unit, initial, units},
        passes::{Layers, Outputs, Seed, Tracked, backward, tracked},
    },
    testing::machine::{GPT, LLAMA, UNET, VIT},
};
use burn::tensor::{FloatDType, Tensor, TensorData};
use spipe_model::Model;

/// A model with data for one pass.
struct Small {
    units: Vec<Unit>,
    pass: PassContext,
}

impl Small {
    fn new(text: &str) -> Self {
        let model = Model::from_toml("model.toml", text).unwrap();
        let data = Data::synthetic(&model).unwrap_or_else(|| Tokens::bytes(&text.as_bytes()[..99], 16).unwrap().into());
        let draw = Draw { seed: 1, step: 0, microbatch: 0 };
        let pass = PassContext::new(&data.microbatch(draw, 2), &Reading::of(&model), &cores());
        Self { units: units(&model).unwrap(), pass }
    }

    fn parameters(&self) -> Tensors {
        let tensor = |unit: &Unit, parameter: &Parameter| -> Matrix {
            let numbers = initial(1, unit.id(), parameter);
            // The product has memory of its own, not that of the data.
            Tensor::from_data(TensorData::new(numbers, parameter.shape), &cores()).mul_scalar(1.0)
        };
        self.units.iter().map(|unit| unit.parameters().iter().map(|one| tensor(unit, one)).collect()).collect()
    }

    fn graph(&self, parameters: &Tensors, split: bool) -> Tracked {
        let layers = Layers::new(0, &self.units, parameters);
        tracked(layers, Signal::Tokens, &self.pass, split, &mut Outputs::default())
    }

    fn gradients(&self, graph: Tracked) -> Vec<(String, Vec<f32>)> {
        let gradients = backward(vec![graph], Seed::Loss(1.0)).parameters;
        let named = |(unit, gradients): (&Unit, Vec<Matrix>)| -> Vec<(String, Vec<f32>)> {
            let names = unit.parameters().into_iter().map(|parameter| format!("{} {}", unit.id(), parameter.name));
            names.zip(gradients.into_iter().map(|gradient| gradient.into_data().iter::<f32>().collect())).collect()
        };
        self.units.iter().zip(gradients).flat_map(named).collect()
    }
}

/// Whether nobody else holds the numbers of a tensor.
#[expect(deprecated, reason = "the library is deprecated")]
fn is_alone(tensor: Matrix) -> bool {
    use burn::backend::ndarray::NdArrayTensor;
    matches!(tensor.try_into_primitive::<Cores>(), Ok(NdArrayTensor::F32(numbers)) if numbers.is_unique())
}

#[test]
fn weights_that_left_are_held_by_nobody_and_come_back_for_the_backward() {
    for text in [LLAMA, GPT, VIT, UNET] {
        let small = Small::new(text);
        let graph = small.graph(&small.parameters(), false);
        let expected = small.gradients(graph);

        let parameters = small.parameters();
        let graph = small.graph(&parameters, true);
        graph.forget();
        let (mut left, mut held) = (0, 0);
        for (unit, tensors) in small.units.iter().zip(parameters) {
            for (parameter, tensor) in unit.parameters().into_iter().zip(tensors) {
                let is_alone = is_alone(tensor);
                *(if is_alone { &mut left } else { &mut held }) += parameter.count();
                assert!(
                    is_alone || parameter.shape[0] == 1 || parameter.name == "position.weight",
                    "{}",
                    parameter.name
                );
            }
        }
        // Norms, biases, and the positions of patches stay.
        assert!(left > 9 * held, "{left} {held}");

        graph.lend(Layers::new(0, &small.units, &small.parameters()));
        for ((name, ours), (_, theirs)) in small.gradients(graph).iter().zip(&expected) {
            let largest = theirs.iter().fold(0.0f32, |most, number| most.max(number.abs()));
            let off = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
            // Layers of a denoising network with several consumers sum gradients in the order of a
            // shorter graph.
            let allowed = if text == UNET { 1e-5 * largest } else { 0.0 };
            assert!(largest > 0.0 && off <= allowed, "{name}: {off} of {largest}");
        }
    }
}

fn size(numbers: &mut dyn Iterator<Item = f32>) -> f32 {
    numbers.map(|number| number * number).sum::<f32>().sqrt()
}

/// As a device does that holds and computes in 16 bits. CPU cores have none, and compute in 64
/// here: a tensor that is cast to the wrong width, or not at all, meets one of another width.
#[test]
fn numbers_of_another_width_are_computed_with_as_they_are() {
    for text in [LLAMA, GPT, VIT] {
        let small = Small::new(text);
        let graph = small.graph(&small.parameters(), false);
        let loss = graph.loss();
        let expected = small.gradients(graph);
        let whole = size(&mut expected.iter().flat_map(|(_, numbers)| numbers.iter().copied()));
        for split in [false, true] {
            let other = |tensor| cast(tensor, FloatDType::F64);
            let layers = small.parameters().into_iter();
            let parameters: Tensors = layers.map(|layer| layer.into_iter().map(other).collect()).collect();
            let graph = small.graph(&parameters, split);
            assert!((graph.loss() - loss).abs() < 1e-5 * loss.abs(), "{} {loss}", graph.loss());
            if split {
                graph.forget();
                graph.lend(Layers::new(0, &small.units, &parameters));
            }
            for ((name, ours), (_, theirs)) in small.gradients(graph).iter().zip(&expected) {
                let off = size(&mut ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs));
                // Softmax is invariant to a bias of all keys, whose gradient is rounding noise.
                let allowed = 1e-5 * size(&mut theirs.iter().copied()) + 1e-6 * whole;
                assert!(off <= allowed, "{name}: {off}, and {allowed} allowed");
            }
        }
    }
}
