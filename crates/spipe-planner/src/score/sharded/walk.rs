//! About how long an iteration of shared stages takes, without simulating it: one device computes, and gathers ahead as far as there is room.

use crate::score::sharded::load::Busy;
use spipe_base::{DeviceId, LayerId};
use spipe_cost::LayerTime;
use spipe_plan::{Context, GRADIENT_SLOTS, Placement, Stage, Use, Window, round};

/// Of an iteration so many rounds are walked through; those that are left out are like the last one.
const ROUNDS: u64 = 3;

/// What a stage takes on the slowest device, in ms.
struct Times {
    forward: f64,
    /// With what is recomputed for it.
    backward: f64,
    gather: f64,
    scatter: f64,
    step: f64,
    /// Whether a socket steps it, and its parameters come from there afterwards.
    on_host: bool,
}

/// What an iteration is.
#[derive(Clone, Copy)]
struct Shape {
    rounds: u64,
    /// How many stages are there in whole.
    resident: usize,
    /// The first stage that has a backward.
    first: Option<usize>,
    /// Whether what is needed first is stepped first.
    urgent: bool,
    /// Whether no stage is stepped before the last gradient is there.
    together: bool,
}

/// About how long an iteration of `placement` takes, in ms.
pub(crate) fn estimate(context: &Context<'_>, placement: &Placement) -> f64 {
    let devices = placement.participants(context.hardware);
    let phased = placement.knobs.synchronous_optimizer;
    let shape = Shape {
        rounds: context.workload().microbatches / devices.len().max(1) as u64,
        resident: placement.resident_stages(),
        first: placement.stages.iter().position(|stage| context.backward_of(stage.layers).is_some()),
        urgent: placement.knobs.urgent_steps,
        together: phased || context.workload().checks_gradients(),
    };
    let mut busy = Busy::new(context, devices, phased);
    let times: Vec<Times> = placement.stages.iter().map(|stage| busy.times(stage)).collect();
    of_stages(&times, shape)
}

fn of_stages(times: &[Times], shape: Shape) -> f64 {
    let mut walk = Walk::new(times, shape);
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
    // What the first one begins with is not known.
    let ((before, _), (last, like_the_last)) = (iteration(), iteration());
    last - before + like_the_last
}

impl Busy<'_, '_> {
    fn times(&mut self, stage: &Stage) -> Times {
        let context = self.context;
        let again = stage.recomputed_layers();
        let on = |part: &dyn Fn(&LayerTime) -> f64, layers: &mut dyn Iterator<Item = LayerId>| {
            let layers: Vec<_> = layers.collect();
            let of = |device: &DeviceId| -> f64 {
                layers.iter().filter_map(|layer| context.cost.time(*layer, *device)).map(part).sum()
            };
            self.devices.iter().map(of).fold(0.0, f64::max)
        };
        let forward = |time: &LayerTime| time.forward.to_ms();
        let again = on(&forward, &mut again.iter().flat_map(|layers| layers.iter()));
        let backward = again + on(&|time| time.backward().to_ms(), &mut stage.layers.iter());
        let forward = on(&forward, &mut stage.layers.iter());
        let [gather, scatter] = self.passing(stage);
        let (step, on_host) = self.stepping(stage);
        Times { forward, backward, gather, scatter, step, on_host }
    }
}

/// What is where, and when: times in ms.
struct Walk<'w> {
    times: &'w [Times],
    shape: Shape,
    window: Window,
    /// Until when the device computes, and what comes and goes is on its way.
    computed: f64,
    gathered: f64,
    /// When gradients had left, one stage after the other.
    scattered: Vec<f64>,
    /// By stage: when it was used last, when it is there, and when it has been stepped.
    used: Vec<f64>,
    there: Vec<f64>,
    stepped: Vec<f64>,
    /// When the iteration before ended.
    ended: f64,
}

impl<'w> Walk<'w> {
    fn new(times: &'w [Times], shape: Shape) -> Self {
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

    /// All passes of a round, for which nothing is there yet if the iteration begins; when the last one ends.
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

    /// The steps of all stages from the first that has one on, once their last gradients are there.
    fn step(&mut self) {
        let Some(first) = self.shape.first else { return };
        let count = self.times.len();
        let last = self.scattered.last().copied().unwrap_or_default();
        let gradients = self.scattered.len() - (count - first);
        let ready =
            |stage: usize| if self.shape.together { last } else { self.scattered[gradients + count - 1 - stage] };
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

    fn stage() -> Times {
        Times { forward: 1.0, backward: 2.0, gather: 0.0, scatter: 0.0, step: 0.0, on_host: true }
    }

    fn shape(rounds: u64) -> Shape {
        Shape { rounds, resident: 2, first: Some(0), urgent: true, together: false }
    }

    fn estimated(times: impl Fn(usize) -> Times, shape: Shape) -> f64 {
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
        // Of the twelve gathers of a round, the last two stages' are spared at its turn, and the first two's before the next one.
        let gather = 100.0;
        let of = |rounds: u64| estimated(|_| Times { gather, ..stage() }, shape(rounds));
        let of_round = (of(12) - of(8)) / 4.0;
        assert!((of_round / gather - 8.0).abs() < 0.2, "{of_round}");
        // More room spares more.
        let roomy =
            |rounds: u64| estimated(|_| Times { gather, ..stage() }, Shape { resident: STAGES, ..shape(rounds) });
        equal((roomy(12) - roomy(8)) / 4.0, (3 * STAGES) as f64);
    }

    #[test]
    fn gradients_wait_for_slots() {
        let scatter = 100.0;
        let of = |rounds: u64| estimated(|_| Times { scatter, ..stage() }, shape(rounds));
        let of_round = (of(12) - of(8)) / 4.0;
        assert!((of_round / scatter / STAGES as f64 - 1.0).abs() < 0.05, "{of_round}");
    }

    #[test]
    fn all_rounds_but_one_are_computed_beside_no_steps() {
        let step = 100.0;
        let of = |shape: Shape| estimated(|_| Times { step, ..stage() }, shape);
        // From the first step on, after the last stage's backward, to the last stage's forward.
        let (steps, rounds) = (step * STAGES as f64, 4);
        let rest = (3 * STAGES) as f64 * (rounds - 1) as f64 + 3.0;
        let in_turn = of(shape(rounds));
        assert!((in_turn - steps - rest).abs() < 2.0, "{in_turn} {}", steps + rest);
        // What waits for the last gradient comes after a whole backward.
        let together = of(Shape { together: true, ..shape(rounds) });
        assert!((together - in_turn - 2.0 * (STAGES - 1) as f64).abs() < 2.0, "{together} {in_turn}");
        // On the device itself they take their turn.
        let own = estimated(|_| Times { step, on_host: false, ..stage() }, shape(rounds));
        equal(own, steps + (3 * STAGES) as f64 * rounds as f64);
    }
}
