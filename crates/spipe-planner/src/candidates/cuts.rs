//! Division of the layers into consecutive pieces that minimises the heaviest piece.

use crate::bisect::first_of;
use spipe_base::{DeviceId, LayerRange};
use spipe_cost::Mode;
use spipe_plan::Context;

/// Weight by which pieces are balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Time of one microbatch.
    Time,
    /// Sum of both, each as a fraction of its total.
    Both,
    /// State on the device, with the saved activations of one microbatch.
    Bytes,
}

/// Divides all layers into `pieces` consecutive pieces that minimise the time of the slowest on
/// `device`. None if there are too few layers, or one cannot run there.
pub(crate) fn balanced(context: &Context<'_>, device: DeviceId, pieces: usize) -> Option<Vec<LayerRange>> {
    balanced_in(context, (device, Weight::Time), pieces)
}

/// Divides all layers into `pieces` consecutive pieces that minimise the heaviest by `weight`.
pub(crate) fn balanced_in(
    context: &Context<'_>,
    (device, weight): (DeviceId, Weight),
    pieces: usize,
) -> Option<Vec<LayerRange>> {
    lightest(&weights(context, (device, weight))?, pieces)
}

/// Divides all layers but the last into `pieces` balanced pieces, and adds the last layer as a
/// piece.
pub(crate) fn with_the_last_alone(context: &Context<'_>, device: DeviceId, pieces: usize) -> Option<Vec<LayerRange>> {
    let weights = weights(context, (device, Weight::Time))?;
    let (_, others) = weights.split_last()?;
    let last = LayerRange::new(others.len().into(), others.len().into())?;
    Some([lightest(others, pieces)?, vec![last]].concat())
}

/// Returns the weight of each layer on `device`; none if one cannot run there.
fn weights(context: &Context<'_>, (device, weight): (DeviceId, Weight)) -> Option<Vec<f64>> {
    let training = context.workload().mode == Mode::Train;
    let mut weights = Vec::new();
    for layer in context.cost.layers() {
        let (time, memory) = (context.cost.time(layer, device)?, context.cost.memory(layer, device));
        let work = time.forward.get() + if training { time.backward().get() } else { 0.0 };
        weights.push((work, (memory.state() + memory.saved).as_f64()));
    }
    let total = |part: fn(&(f64, f64)) -> f64| weights.iter().map(part).sum::<f64>().max(f64::MIN_POSITIVE);
    let (time, bytes) = (total(|weight| weight.0), total(|weight| weight.1));
    let of = |(work, held): &(f64, f64)| match weight {
        Weight::Time => *work,
        Weight::Both => work / time + held / bytes,
        Weight::Bytes => *held,
    };
    Some(weights.iter().map(of).collect())
}

/// Solves the linear partition problem, minimal heaviest piece, by dynamic programming in O(L p log
/// L).
fn lightest(weights: &[f64], pieces: usize) -> Option<Vec<LayerRange>> {
    let mut sums = vec![0.0];
    for weight in weights {
        sums.push(sums[sums.len() - 1] + weight);
    }
    let layers = sums.len() - 1;
    if pieces == 0 || pieces > layers {
        return None;
    }
    // best[p][e]: the heaviest of p pieces of the first e layers; from[p][e]: the start of its
    // last.
    let mut best = vec![vec![f64::INFINITY; layers + 1]; pieces + 1];
    let mut from = vec![vec![0; layers + 1]; pieces + 1];
    best[0][0] = 0.0;
    for piece in 1..=pieces {
        for end in piece..=layers {
            // With a later start, the last piece gets lighter and the pieces before it heavier: the
            // best start is where they meet.
            let meet = first_of((piece - 1, end), |start| best[piece - 1][start] >= sums[end] - sums[start]);
            let before = meet.checked_sub(1).filter(|before| *before + 1 >= piece);
            let before = before.map(|before| first_of((piece - 1, end), |start| sums[start] >= sums[before]));
            for start in before.into_iter().chain(Some(meet).filter(|meet| *meet < end)) {
                let heaviest = f64::max(best[piece - 1][start], sums[end] - sums[start]);
                if heaviest < best[piece][end] {
                    best[piece][end] = heaviest;
                    from[piece][end] = start;
                }
            }
        }
    }
    let mut ends = vec![layers];
    for piece in (1..=pieces).rev() {
        ends.push(from[piece][ends[ends.len() - 1]]);
    }
    ends.reverse();
    between(&ends)
}

/// Returns the pieces between neighbouring `ends`, of which 0 is the first.
pub(crate) fn between(ends: &[usize]) -> Option<Vec<LayerRange>> {
    ends.windows(2).map(|pair| LayerRange::new(pair[0].into(), pair[1].checked_sub(1)?.into())).collect()
}

/// Returns one piece per layer.
pub(crate) fn single(context: &Context<'_>) -> Vec<LayerRange> {
    context.cost.layers().filter_map(|layer| LayerRange::new(layer, layer)).collect()
}
