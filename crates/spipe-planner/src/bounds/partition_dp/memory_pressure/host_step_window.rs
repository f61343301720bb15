//! When sockets can begin to step layers of a stage, and by when they have to end.
//!
//! A socket begins once the gradients of the first layer that it steps have come, B behind the last gradient's arrival at the stage for
//! each layer from that one on, and ends before the first activation comes to the last one with its parameters back, F behind that
//! activation's arrival for each layer before it. So beside what is between both arrivals, and the steps, it takes
//!
//! ```text
//! out(first) − ΣB(from..first)  and  back(last) − ΣF(from..last)
//! ```
//!
//! No two sockets step the same layer: only one of them begins with the layer for which the former is least, and only one ends with that
//! for which the latter is. What a socket steps further ahead in the pipeline it gets later, and returns earlier, but for what is shorter
//! on its way. Where steps wait for all gradients, no socket begins before the last one has come to the first layer of all.

use crate::bounds::partition_dp::memory_pressure::Layer;
use std::collections::BTreeMap;

/// For devices that are alike.
pub(crate) struct Ends {
    /// By layer, the way out and back of what is stepped, in ms; infinite where nothing is.
    ways: Vec<[f64; 2]>,
    /// Backwards and forwards of the first 0, 1, 2, … layers, in ms.
    passes: Vec<[f64; 2]>,
    /// By layer, the shortest ways of all layers before it.
    ahead: Vec<[f64; 2]>,
    /// The shortest step of all.
    step: f64,
}

/// The two least of some values.
#[derive(Clone, Copy)]
struct Two([f64; 2]);

impl Two {
    const NONE: Self = Self([f64::INFINITY; 2]);

    fn add(self, value: f64) -> Self {
        let Self([least, next]) = self;
        if value < least { Self([value, least]) } else { Self([least, next.min(value)]) }
    }
}

impl Ends {
    /// Of one device's layers, with all of `lists` known.
    pub fn new(layers: &[Layer], lists: &BTreeMap<usize, Vec<Layer>>) -> Self {
        let stepped = || lists.values().flatten().filter(|layer| layer.optimizer > 0 && layer.ways[0].is_finite());
        let ways = |layer: &Layer| if layer.optimizer > 0 { layer.ways } else { [f64::INFINITY; 2] };
        let shorter =
            |[out, back]: [f64; 2], [other_out, other_back]: [f64; 2]| [out.min(other_out), back.min(other_back)];
        let shortest = |at: usize| lists.values().map(|list| ways(&list[at])).fold([f64::INFINITY; 2], shorter);
        let add = |known: &mut Vec<[f64; 2]>, at: usize| known.push(shorter(known[at], shortest(at)));
        let mut ahead = vec![[f64::INFINITY; 2]];
        (0..layers.len()).for_each(|at| add(&mut ahead, at));
        let mut passes = vec![[0.0; 2]];
        for (layer, at) in layers.iter().zip(0..) {
            let [backward, forward]: [f64; 2] = passes[at];
            passes.push([backward + layer.backward, forward + layer.forward]);
        }
        let step = stepped().map(|layer| layer.by_host).fold(f64::INFINITY, f64::min);
        Self { ways: layers.iter().map(ways).collect(), passes, ahead, step }
    }

    /// What begin and end of one socket come to at least, for some of layers `from..to`, and those of every other one, in ms. Where steps wait
    /// `for_all` gradients there is nothing to begin with.
    pub fn least(&self, (from, to): (usize, usize), for_all: bool) -> [f64; 2] {
        let of = |end: usize| {
            let before = self.passes[from][end];
            let costs = (from..to).map(|layer| self.ways[layer][end] - (self.passes[layer][end] - before));
            // Those of layers ahead are no less than their ways.
            let Two(two) = costs.fold(Two::NONE, Two::add);
            two.map(|least| least.min(self.ahead[from][end]))
        };
        let ([first, first_next], [last, last_next]) = (if for_all { [0.0; 2] } else { of(0) }, of(1));
        // A socket that steps nothing is idle for as long as another one steps a layer.
        [first + last, (first_next + last_next).min(first + last + self.step)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_layer()(
            passes in (1u32..50, 1u32..90), ways in (0u32..200, 0u32..200), by_host in 1u32..300, trained in prop::bool::weighted(0.9),
        ) -> Layer {
            let ms = f64::from;
            Layer {
                forward: ms(passes.0), backward: ms(passes.1), saved: 1.0, leaves: 1.0, optimizer: u64::from(trained), own: 0.0,
                by_host: ms(by_host), ways: [ms(ways.0), ms(ways.1)],
            }
        }
    }

    /// How long a socket takes at least for the layers that it steps beside what is between the last gradient's arrival before layer `from`
    /// and the first activation's there.
    fn taken(list: &[Layer], (from, for_all): (usize, bool), own: &[usize]) -> f64 {
        let sum = |layer: usize, of: fn(&Layer) -> f64| list[from.min(layer)..layer].iter().map(of).sum::<f64>();
        let begins = |layer: usize| list[layer].ways[0] - sum(layer, |layer| layer.backward);
        let first = |layer: usize| if for_all { 0.0 } else { begins(layer) };
        let last = |layer: usize| list[layer].ways[1] - sum(layer, |layer| layer.forward);
        let pairs = own.iter().flat_map(|one| own.iter().map(move |other| (*one, *other)));
        let ends =
            pairs.filter(|(one, other)| one != other || own.len() == 1).map(|(one, other)| first(one) + last(other));
        ends.fold(f64::INFINITY, f64::min) + own.iter().map(|layer| list[*layer].by_host).sum::<f64>()
    }

    proptest! {
        #[test]
        fn sockets_wait_no_less(
            list in prop::collection::vec(any_layer(), 1..7), from in 0usize..6, sockets in 1usize..4, for_all in any::<bool>(),
            at in prop::collection::vec(0usize..6, 6),
        ) {
            let from = from.min(list.len() - 1);
            let by: Vec<Vec<usize>> = (0..sockets)
                .map(|socket| (0..list.len()).filter(|layer| at[*layer] == socket && list[*layer].optimizer > 0).collect())
                .collect();
            prop_assume!(by.iter().flatten().any(|layer| *layer >= from));
            let lists = BTreeMap::from([(0, list)]);
            let (list, to) = (&lists[&0], lists[&0].len());
            let [one, other] = Ends::new(list, &lists).least((from, to), for_all);
            let longest = by.iter().filter(|own| !own.is_empty()).map(|own| taken(list, (from, for_all), own)).fold(f64::NEG_INFINITY, f64::max);
            let stepped: f64 = by.iter().flatten().map(|layer| list[*layer].by_host).sum();
            let others = sockets as f64 - 1.0;
            prop_assert!(one + others * other + stepped <= sockets as f64 * longest + 1e-6, "{one} {other} {stepped} {longest}");
        }
    }
}
