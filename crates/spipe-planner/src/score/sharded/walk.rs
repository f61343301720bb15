//! An estimate of the iteration time of a sharded placement: a walk through the passes of one
//! device, which gathers ahead where there is room.

use crate::{costs::ms_of, score::sharded::load::Busy};
use spipe_base::{LayerRange, Seconds};
use spipe_cost::LayerTime;
use spipe_plan::{Context, GRADIENT_SLOTS, Placement, Stage, Use, Window, round};

/// The most rounds of an iteration that are walked through: two consecutive ones after the first.
/// All others are like the last.
const ROUNDS: u64 = 3;

/// The times of a stage on the slowest device, in ms.
struct SharedStageTimes {
    forward: f64,
    /// The backward, with recomputation.
    backward: f64,
    gather: f64,
    scatter: f64,
    /// The sum over groups, once in an iteration.
    sum: f64,
    step: f64,
    /// Whether the optimizer step runs on a socket, so that the next gather waits for it.
    on_host: bool,
}

/// The properties of an iteration beside the times of its stages.
#[derive(Clone, Copy)]
struct IterationShape {
    rounds: u64,
    /// The gathered stages per device.
    resident: usize,
    /// The first stage that has a backward.
    first: Option<usize>,
    /// Whether sockets give priority to the steps that the next iteration needs first.
    urgent: bool,
    /// Whether all optimizer steps wait for the last gradient.
    together: bool,
}

/// Estimates the iteration time of `placement`, in ms.
pub(crate) fn estimate(context: &Context<'_>, placement: &Placement) -> f64 {
    let groups = placement.shard_groups();
    let phased = placement.update.is_phase();
    let shape = IterationShape {
        rounds: context.workload().microbatches / groups.devices().len().max(1) as u64,
        resident: placement.resident_stages(),
        first: placement.stages.iter().position(|stage| context.backward_of(stage.layers).is_some()),
        urgent: placement.update.is_urgent(),
        together: phased || context.workload().checks_gradients(),
    };
    let busy = Busy::new(context, groups, phased);
    let times: Vec<SharedStageTimes> = placement.stages.iter().map(|stage| busy.times(stage)).collect();
    of_stages(&times, shape)
}

fn of_stages(times: &[SharedStageTimes], shape: IterationShape) -> f64 {
    let mut walk = ShardedWalk::new(times, shape);
    let shown = shape.rounds.min(ROUNDS);
    let mut iteration = || {
        let rounds: Vec<f64> = (0..shown).map(|index| walk.round(index == 0)).collect();
        walk.step();
        let like_the_last = match rounds[..] {
            [.., before, last] => (shape.rounds - shown) as f64 * (last - before),
            _ => 0.0,
        };
        (walk.computed, like_the_last)
    };
    // The state at the start of the first iteration is not steady, so that the second one is
    // measured.
    let ((before, _), (last, like_the_last)) = (iteration(), iteration());
    last - before + like_the_last
}

impl Busy<'_, '_> {
    fn times(&self, stage: &Stage) -> SharedStageTimes {
        let slowest = |layers: LayerRange, part: fn(&LayerTime) -> Seconds| {
            self.shown().map(|device| ms_of(self.context, (layers, device), part)).fold(0.0, f64::max)
        };
        let forward = |layers: LayerRange| slowest(layers, |time| time.forward);
        let again = stage.recomputed_layers().map_or(0.0, forward);
        let backward = again + slowest(stage.layers, LayerTime::backward);
        let forward = forward(stage.layers);
        let [gather, scatter, sum] = self.passing(stage);
        let (step, on_host) = self.stepping(stage);
        SharedStageTimes { forward, backward, gather, scatter, sum, step, on_host }
    }
}

/// The state of the walk; times in ms.
struct ShardedWalk<'w> {
    times: &'w [SharedStageTimes],
    shape: IterationShape,
    window: Window,
    /// The ends of the last pass and of the last gather.
    computed: f64,
    gathered: f64,
    /// The ends of the scatters of gradients, in order.
    scattered: Vec<f64>,
    /// By stage: the end of its last use, of its last gather, and of its optimizer step.
    used: Vec<f64>,
    there: Vec<f64>,
    stepped: Vec<f64>,
    /// The end of the iteration before.
    ended: f64,
}

impl<'w> ShardedWalk<'w> {
    fn new(times: &'w [SharedStageTimes], shape: IterationShape) -> Self {
        let none = vec![0.0; times.len()];
        Self {
            times,
            shape,
            window: Window::new(shape.resident),
            computed: 0.0,
            gathered: 0.0,
            scattered: Vec::new(),
            used: none.clone(),
            there: none.clone(),
            stepped: none,
            ended: 0.0,
        }
    }

    /// Walks through all passes of a round and returns the end of the last one. The window is empty
    /// if the iteration begins.
    fn round(&mut self, begins: bool) -> f64 {
        if begins {
            (self.window, self.ended) = (Window::new(self.shape.resident), self.computed);
        }
        let count = self.times.len();
        for pass in round(count, self.shape.first) {
            let (stage, times) = (pass.stage, &self.times[pass.stage]);
            if let Use::Gathered { instead_of } = self.window.touch(stage) {
                let room = instead_of.map_or(self.ended, |left| self.used[left]);
                self.gathered = self.gathered.max(room).max(self.stepped[stage]) + times.gather;
                self.there[stage] = self.gathered;
            }
            let slots = GRADIENT_SLOTS as usize;
            let turns = !pass.backward && stage + 1 == count;
            let waits = match (pass.backward, turns) {
                (true, _) => self.scattered.len().checked_sub(slots),
                (false, true) => self.scattered.len().checked_sub(1),
                (false, false) => None,
            };
            let left = waits.map_or(0.0, |index| self.scattered[index]);
            let begin = self.computed.max(self.there[stage]).max(left);
            self.computed = begin + if pass.backward { times.backward } else { times.forward };
            self.used[stage] = self.computed;
            if pass.backward {
                let before = self.scattered.last().copied().unwrap_or_default();
                self.scattered.push(before.max(self.computed) + times.scatter);
            }
        }
        self.computed
    }

    /// Walks through the optimizer steps of all stages with a backward, after their last gradients.
    fn step(&mut self) {
        let Some(first) = self.shape.first else { return };
        let count = self.times.len();
        let gradients = self.scattered.len() - (count - first);
        let mut summed: f64 = 0.0;
        let sums = self.scattered[gradients..].iter().zip((first..count).rev()).map(|(scattered, stage)| {
            summed = summed.max(*scattered) + self.times[stage].sum;
            summed
        });
        let complete: Vec<f64> = sums.collect();
        let last = complete.last().copied().unwrap_or_default();
        let ready = |stage: usize| if self.shape.together { last } else { complete[count - 1 - stage] };
        let mut left: Vec<(f64, usize)> = (first..count).rev().map(|stage| (ready(stage), stage)).collect();
        let mut free: f64 = 0.0;
        while let Some((earliest, _)) = left.first().copied() {
            free = free.max(earliest);
            let known = left.partition_point(|(ready, _)| *ready <= free);
            let next = if self.shape.urgent { known.saturating_sub(1) } else { 0 };
            let (_, stage) = left.remove(next);
            let times = &self.times[stage];
            if times.on_host {
                free += times.step;
                self.stepped[stage] = free;
            } else {
                self.computed += times.step;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: usize = 6;

    fn stage() -> SharedStageTimes {
        SharedStageTimes { forward: 1.0, backward: 2.0, gather: 0.0, scatter: 0.0, sum: 0.0, step: 0.0, on_host: true }
    }

    fn shape(rounds: u64) -> IterationShape {
        IterationShape { rounds, resident: 2, first: Some(0), urgent: true, together: false }
    }

    fn estimated(times: impl Fn(usize) -> SharedStageTimes, shape: IterationShape) -> f64 {
        of_stages(&(0..STAGES).map(times).collect::<Vec<_>>(), shape)
    }

    fn equal(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-9, "{one} {other}");
    }

    #[test]
    fn a_device_that_waits_for_nothing_computes() {
        for rounds in [1, 2, 3, 4, 40] {
            equal(estimated(|_| stage(), shape(rounds)), (3 * STAGES) as f64 * rounds as f64);
        }
    }

    #[test]
    fn a_slow_link_is_never_idle() {
        // A round has twelve gathers. The last two stages' are spared where it turns around, and
        // the first two's before the next round.
        let gather = 100.0;
        let of = |rounds: u64| estimated(|_| SharedStageTimes { gather, ..stage() }, shape(rounds));
        let of_round = (of(12) - of(8)) / 4.0;
        assert!((of_round / gather - 8.0).abs() < 0.2, "{of_round}");
        // More room spares more.
        let roomy = |rounds: u64| {
            estimated(|_| SharedStageTimes { gather, ..stage() }, IterationShape { resident: STAGES, ..shape(rounds) })
        };
        equal((roomy(12) - roomy(8)) / 4.0, (3 * STAGES) as f64);
    }

    #[test]
    fn gradients_wait_for_slots() {
        let scatter = 100.0;
        let of = |rounds: u64| estimated(|_| SharedStageTimes { scatter, ..stage() }, shape(rounds));
        let of_round = (of(12) - of(8)) / 4.0;
        assert!((of_round / scatter / STAGES as f64 - 1.0).abs() < 0.05, "{of_round}");
    }

    #[test]
    fn sums_over_groups_come_once() {
        let sum = 100.0;
        let of = |rounds: u64| estimated(|_| SharedStageTimes { sum, step: 0.1, ..stage() }, shape(rounds));
        // A round more is computed beside them.
        equal((of(12) - of(8)) / 4.0, (3 * STAGES) as f64);
        assert!(of(1) > sum * STAGES as f64, "{}", of(1));
    }

    #[test]
    fn all_rounds_but_one_are_computed_beside_no_steps() {
        let step = 100.0;
        let of = |shape: IterationShape| estimated(|_| SharedStageTimes { step, ..stage() }, shape);
        // From the first step, after the last stage's backward, to the last stage's forward.
        let (steps, rounds) = (step * STAGES as f64, 4);
        let rest = (3 * STAGES) as f64 * (rounds - 1) as f64 + 3.0;
        let in_turn = of(shape(rounds));
        assert!((in_turn - steps - rest).abs() < 2.0, "{in_turn} {}", steps + rest);
        // Steps that wait for the last gradient come after a whole backward.
        let together = of(IterationShape { together: true, ..shape(rounds) });
        assert!((together - in_turn - 2.0 * (STAGES - 1) as f64).abs() < 2.0, "{together} {in_turn}");
        // On the device itself, steps run between its passes.
        let own = estimated(|_| SharedStageTimes { step, on_host: false, ..stage() }, shape(rounds));
        equal(own, steps + (3 * STAGES) as f64 * rounds as f64);
    }
}
