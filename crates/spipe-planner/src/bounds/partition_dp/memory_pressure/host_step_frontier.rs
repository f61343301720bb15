//! How long hosts step some layers at least, and what the others leave on their device at least.
//!
//! Where there are few kinds of layers, every choice of how many of each kind hosts step is a level of its own. Otherwise, the longer hosts
//! step, the more of the state is theirs: of all layers that are stepped in so many ms no choice takes more of it than the one that begins
//! with those of which a ms takes most, the last of them in part; and no choice of so many layers leaves less than the smallest.

use crate::bounds::partition_dp::memory_pressure::{Layer, OnHosts, sums};
use crate::{bisect::first_of, bounds::partition_dp::TOLERANCE};

/// In how many steps it is told apart for how long hosts step.
const LEVELS: usize = 48;

/// Of no more choices each is told apart.
const MOST_CHOICES: usize = 64;

/// What rounding may take from the figures of layers that are alike.
const LESS: f64 = 1.0 - TOLERANCE;

/// Steps of some layers, and what the others' state comes to.
#[derive(Clone, Copy)]
pub(crate) struct Level {
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
pub(crate) fn levels(list: &[Layer], from: usize, helped: bool) -> Vec<Vec<Level>> {
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
    choices(layers).unwrap_or_else(|| intervals(layers))
}

/// One for each choice of how many layers of each kind hosts step; none where there are too many.
fn choices(layers: &[&Layer]) -> Option<Vec<Level>> {
    let near = |one: f64, other: f64| (one - other).abs() <= TOLERANCE * one;
    let alike = |one: &Layer, other: &Layer| {
        near(one.by_host, other.by_host) && near(one.own, other.own) && one.optimizer == other.optimizer
    };
    let mut kinds: Vec<(&Layer, usize)> = Vec::new();
    for layer in layers {
        match kinds.iter_mut().find(|(kind, _)| alike(kind, layer)) {
            Some((_, count)) => *count += 1,
            None => kinds.push((layer, 1)),
        }
        if kinds.iter().map(|(_, count)| count + 1).product::<usize>() > MOST_CHOICES {
            return None;
        }
    }
    let nothing = OnHosts { least: f64::INFINITY, ..OnHosts::NONE };
    let mut all = vec![Level { own: 0.0, by_hosts: nothing, state: 0 }];
    for (kind, count) in kinds {
        let with = |level: &Level, hosted: usize| {
            let OnHosts { layers, all, least } = level.by_hosts;
            let kept = count - hosted;
            let least = if hosted > 0 { least.min(kind.by_host * LESS) } else { least };
            Level {
                own: level.own + kept as f64 * kind.own * LESS,
                by_hosts: OnHosts { layers: layers + hosted, all: all + hosted as f64 * kind.by_host * LESS, least },
                state: level.state + kept as u64 * kind.optimizer,
            }
        };
        all = all.iter().flat_map(|level| (0..=count).map(move |hosted| with(level, hosted))).collect();
    }
    for level in all.iter_mut().filter(|level| level.by_hosts.layers == 0) {
        level.by_hosts.least = 0.0;
    }
    all.sort_by(|one, other| one.by_hosts.all.total_cmp(&other.by_hosts.all));
    Some(all)
}

/// One for each interval of how long hosts step.
fn intervals(layers: &[&Layer]) -> Vec<Level> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(by_host: f64, optimizer: u64) -> Layer {
        Layer {
            forward: 1.0,
            backward: 2.0,
            ways: [0.1; 2],
            saved: 1.0,
            leaves: 1.0,
            optimizer,
            own: by_host / 10.0,
            by_host,
        }
    }

    /// Every choice of layers is a level where there are few kinds, and no level says more than the choices that it stands for otherwise.
    #[test]
    fn levels_cover_every_choice() {
        let (block, head) = (layer(27.0, 96), layer(8.0, 29));
        let few: Vec<Layer> = (0..5).map(|_| layer(27.0, 96)).chain([layer(8.0, 29)]).collect();
        let few: Vec<&Layer> = few.iter().collect();
        let exact = choices(&few).unwrap();
        assert_eq!(exact.len(), 6 * 2);
        for level in &exact {
            let OnHosts { layers, all, least } = level.by_hosts;
            let blocks = (0..=5).find(|blocks| {
                let heads = layers - (*blocks).min(layers);
                heads <= 1 && (*blocks as f64 * block.by_host + heads as f64 * head.by_host - all).abs() < 1e-6
            });
            let blocks = blocks.unwrap();
            let heads = layers - blocks;
            assert_eq!(level.state, (5 - blocks) as u64 * block.optimizer + (1 - heads) as u64 * head.optimizer);
            let shortest = if heads > 0 { 8.0 } else { 27.0 * f64::from(u8::from(blocks > 0)) };
            assert!((least - shortest).abs() < 1e-6);
        }
        // As many kinds as layers.
        let many: Vec<Layer> = (1..=8).map(|kind| layer(f64::from(kind), 3 * kind as u64 + 1)).collect();
        let many: Vec<&Layer> = many.iter().collect();
        assert!(choices(&many).is_none());
        let levels = of_hosts(&many);
        for chosen in 0u32..1 << many.len() {
            let hosted = |index: usize| chosen >> index & 1 == 1;
            let sum = |of: &dyn Fn(usize) -> f64| (0..many.len()).map(of).sum::<f64>();
            let all = sum(&|index| if hosted(index) { many[index].by_host } else { 0.0 });
            let state = sum(&|index| if hosted(index) { 0.0 } else { many[index].optimizer as f64 });
            let covers = |level: &Level| {
                level.by_hosts.all <= all + 1e-9
                    && level.state as f64 <= state
                    && level.by_hosts.layers <= chosen.count_ones() as usize
            };
            assert!(levels.iter().any(covers), "{chosen:b}");
        }
    }
}
