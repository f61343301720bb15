//! How long hosts step some layers at least, and what the others leave on their device at least.
//!
//! The longer hosts step, the more of the state is theirs: of all layers that are stepped in so many ms no choice takes more of it than the one
//! that begins with those of which a ms takes most, the last of them in part; and no choice of so many layers leaves less than the smallest.

use super::{Layer, OnHosts, sums};
use crate::{bisect::first_of, divide::TOLERANCE};

/// In how many steps it is told apart for how long hosts step.
const LEVELS: usize = 24;

/// Steps of some layers, and what the others' state comes to.
#[derive(Clone, Copy)]
pub(super) struct Level {
    pub own: f64,
    pub by_hosts: OnHosts,
    pub state: u64,
}

/// What some layers leave on their device while hosts step the others.
struct Left {
    /// Of the first 0, 1, 2, … layers, the smallest first.
    least: Vec<f64>,
    /// How long hosts step the first layers, of which they take most for that, and how much that is.
    best: Vec<(f64, f64)>,
}

impl Left {
    fn new(layers: &[&Layer], of: &dyn Fn(&Layer) -> f64) -> Self {
        let mut values: Vec<(f64, f64)> = layers.iter().map(|layer| (layer.by_host, of(layer))).collect();
        values.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let least = sums(values.iter().map(|(_, value)| *value));
        let worth = |(time, value): &(f64, f64)| if *time > 0.0 { value / time } else { value.signum() * f64::MAX };
        values.sort_by(|one, other| worth(other).total_cmp(&worth(one)));
        let best = sums(values.iter().map(|value| value.0)).into_iter().zip(sums(values.iter().map(|value| value.1)));
        Self { least, best: best.collect() }
    }

    /// The least while hosts step no more than `most` layers, and for less than `upto` ms.
    fn least(&self, most: usize, upto: f64) -> f64 {
        let last = self.best.len() - 1;
        let taken = match self.best.partition_point(|(time, _)| *time <= upto) {
            after if after > last => self.best[last].1,
            after => {
                let ((time, taken), (next, more)) = (self.best[after - 1], self.best[after]);
                taken + (more - taken) * (upto - time) / (next - time)
            }
        };
        let whole = self.best[last].1;
        self.least[last - most].max(whole * (1.0 - TOLERANCE) - taken)
    }
}

/// By the end of the layers from `from` on, with all of them stepped on the device first.
pub(super) fn levels(list: &[Layer], from: usize, helped: bool) -> Vec<Vec<Level>> {
    let mut all: Vec<Vec<Level>> = vec![Vec::new(); list.len() + 1];
    let mut trained: Vec<&Layer> = Vec::new();
    for (layer, to) in list[from..].iter().zip(from + 1..) {
        trained.extend(Some(layer).filter(|layer| layer.optimizer > 0));
        all[to] = if helped {
            of_hosts(&trained)
        } else {
            // Their state is counted with their parameters.
            vec![Level { own: trained.iter().map(|layer| layer.own).sum(), by_hosts: OnHosts::NONE, state: 0 }]
        };
    }
    all
}

/// By how long hosts step these layers, from not at all to all of them.
fn of_hosts(layers: &[&Layer]) -> Vec<Level> {
    let sorted = |of: &dyn Fn(&Layer) -> f64| {
        let mut values: Vec<f64> = layers.iter().map(|layer| of(layer)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let steps = sorted(&|layer| layer.by_host);
    let state = Left::new(layers, &|layer| layer.optimizer as f64);
    let own = Left::new(layers, &|layer| layer.own);
    let (least, longest) = (sums(steps.iter().copied()), sums(steps.iter().rev().copied()));
    let all = least[layers.len()];
    // From the steps of so many short ones on, up to those of so many more.
    let mut counts: Vec<usize> = (0..=LEVELS)
        .map(|level| {
            let part = all * (1.0 + TOLERANCE) * level as f64 / LEVELS as f64;
            first_of((1, layers.len() + 1), |count| least[count] > part) - 1
        })
        .collect();
    counts.dedup();
    let nexts = counts.iter().skip(1).map(|next| Some(*next)).chain([None]);
    let level = |(count, next): (&usize, Option<usize>)| {
        let (most, upto) = next.map_or((layers.len(), all), |next| (next - 1, least[next]));
        let shortest = if *count > 0 { steps[0] } else { 0.0 };
        let by_hosts = OnHosts {
            layers: longest.partition_point(|sum| *sum < least[*count] * (1.0 - TOLERANCE)),
            all: least[*count],
            least: shortest,
        };
        Level { own: own.least(most, upto), by_hosts, state: state.least(most, upto) as u64 }
    };
    counts.iter().zip(nexts).map(level).collect()
}
