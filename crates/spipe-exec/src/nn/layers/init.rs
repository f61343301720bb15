//! Initial parameters: the same for a seed, however layers are placed.

use super::{Initialisation, Parameter};
use crate::data::{hash, normals, uniform};
use spipe_base::LayerId;

/// The standard deviation of weights (GPT-2 and Llama: `initializer_range`).
const DEVIATION: f64 = 0.02;

/// The numbers of `parameter` of `layer`, row by row: a function of seed, layer, name and index
/// alone. A copy begins as its original does.
pub(crate) fn initial(seed: u64, layer: LayerId, parameter: &Parameter) -> Vec<f32> {
    if let Some(original) = parameter.original() {
        return initial(seed, layer, &original);
    }
    let name: Vec<u64> = parameter.name.bytes().map(u64::from).collect();
    let key = hash(&[&[seed, layer.index() as u64], &name[..]].concat());
    match parameter.initialisation {
        Initialisation::Ones => vec![1.0; parameter.count()],
        Initialisation::Zeros => vec![0.0; parameter.count()],
        Initialisation::Normal => {
            normals(key).take(parameter.count()).map(|number| (number * DEVIATION) as f32).collect()
        }
        Initialisation::Uniform(fan_in) => {
            let bound = 1.0 / (fan_in as f64).sqrt();
            (0..parameter.count() as u64).map(|index| ((2.0 * uniform(key, index) - 1.0) * bound) as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_normal_and_differ_by_layer_and_name() {
        let of = |layer: u32, name| initial(1, LayerId::new(layer), &Parameter::weight(name, 200, 100));
        let numbers = of(3, "a");
        let mean = numbers.iter().map(|number| f64::from(*number)).sum::<f64>() / 2e4;
        let square = numbers.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>() / 2e4;
        assert!(mean.abs() < 5e-4 && (square.sqrt() - DEVIATION).abs() < 5e-4, "{mean} {square}");
        assert_eq!(numbers, of(3, "a"));
        assert!(numbers != of(4, "a") && numbers != of(3, "b"));
    }
}
