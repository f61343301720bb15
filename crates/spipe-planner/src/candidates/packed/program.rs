//! The program of one GPU.

use crate::{
    costs::{CostSums, DeviceSums, HostOffload, StageSlot, StageTimes},
    formulation::solver::{Settings, minimise},
};
use good_lp::{Constraint, Expression, Variable, constraint, variable, variables};
use spipe_base::{DeviceId, LayerRange, StageId};
use spipe_plan::{Activations, Boundary, InFlight, Placement, Stage};

/// What the solver's numbers are off whole ones at most.
const WHOLE: f64 = 1e-6;

/// What a ms of a host or of a way there counts beside one that a GPU is busy.
const LITTLE: f64 = 1e-3;

/// The same of a ms that a host steps beyond what is its.
const MUCH: f64 = 10.0;

/// What a device does.
pub(crate) struct Share {
    pub stages: Vec<Stage>,
    /// What its layers hold.
    pub bytes: u64,
}

/// What a layer does.
#[derive(Clone, Copy)]
struct Choice {
    kept: Activations,
    hosted: bool,
}

impl Choice {
    /// In the order in which the layers of a run make them: the last ones are the first whose gradients are known, and the last ones whose
    /// parameters are needed, so that hosts step these; and they wait least for their backward, so that they keep most.
    const ALL: [Self; 6] = [
        Self { kept: Activations::Recomputed, hosted: false },
        Self { kept: Activations::Offloaded, hosted: false },
        Self { kept: Activations::Saved, hosted: false },
        Self { kept: Activations::Recomputed, hosted: true },
        Self { kept: Activations::Offloaded, hosted: true },
        Self { kept: Activations::Saved, hosted: true },
    ];

    const fn host_offload(self) -> HostOffload {
        HostOffload { optimizer: self.hosted, activations: matches!(self.kept, Activations::Offloaded), host: 0 }
    }

    fn recomputed(self) -> usize {
        usize::from(self.kept == Activations::Recomputed)
    }
}

/// How many of a run of equal layers make a choice.
struct Part {
    first: usize,
    count: usize,
    choice: Choice,
    share: Variable,
}

/// The program of a stage on a GPU that is to be cut into single layers.
pub(crate) struct Program<'p, 'a> {
    pub costs: &'p CostSums<'a>,
    pub plain: &'p Placement,
    pub id: StageId,
    /// How many neighbouring layers that are recomputed are one stage at most.
    pub length: usize,
}

impl Program<'_, '_> {
    /// What it comes to where hosts step, and activations are on their way, no longer than so many ms, and so many bytes are needed beside
    /// the layers.
    pub fn share(&self, (hosted, ways): (f64, f64), beside: i64) -> Option<Share> {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let room = gib(self.device().usable as f64 - beside as f64);
        let mut vars = variables!();
        let (mut parts, mut rows): (Vec<Part>, Vec<Constraint>) = (Vec::new(), Vec::new());
        let [mut busy, mut held, mut moved, mut steps] = [const { Vec::<(f64, Variable)>::new() }; 4];
        for (first, count) in self.runs() {
            let mut all = Expression::default();
            for choice in Choice::ALL.into_iter().filter(|choice| self.allows(first, *choice)) {
                let share = vars.add(variable().min(0.0).max(count as f64));
                all += share;
                let (times, way) = (self.times(first, choice), self.way(first, choice));
                let m = self.costs.microbatches as f64;
                busy.push((
                    m * times.recompute + times.optimizer + LITTLE * (times.step * self.early(first) + way),
                    share,
                ));
                held.push((gib(self.bytes(first, choice) as f64), share));
                moved.push((way, share));
                steps.push((times.step, share));
                parts.push(Part { first, count, choice, share });
            }
            rows.push(constraint!(all == count as f64));
        }
        let sum = |terms: Vec<(f64, Variable)>| -> Expression {
            terms.into_iter().map(|(factor, share)| factor * share).sum()
        };
        // Numbers around one.
        let unit = |limit: f64| if limit > 0.0 { limit } else { 1.0 };
        // Hosts step more than what is theirs only where nothing else fits.
        let more = vars.add(variable().min(0.0));
        busy.push((MUCH, more));
        steps.push((-1.0, more));
        for (terms, limit) in [(held, room), (moved, ways), (steps, hosted)] {
            let scaled = terms.into_iter().map(|(factor, share)| (factor / unit(limit), share)).collect();
            rows.push(constraint!(sum(scaled) <= limit / unit(limit)));
        }
        let values = minimise(vars, (rows, sum(busy)), &Settings::default()).values?;
        let chosen: Vec<Choice> = parts
            .chunk_by(|one, other| one.first == other.first)
            .flat_map(|run| self.whole(run, &|share| values.get(&share).copied().unwrap_or(0.0)))
            .collect();
        self.chosen(&chosen)
    }

    /// What each layer of a run does, where what is cut into parts does what takes least room of it.
    fn whole(&self, run: &[Part], value: &dyn Fn(Variable) -> f64) -> Vec<Choice> {
        let wholes = |part: &Part| (value(part.share) + WHOLE).floor() as usize;
        let cut = |part: &&Part| value(part.share) - wholes(part) as f64 > WHOLE;
        let smallest =
            run.iter().filter(cut).min_by_key(|part| self.bytes(part.first, part.choice)).map(|part| part.share);
        let rest = run.first().map_or(0, |part| part.count.saturating_sub(run.iter().map(wholes).sum()));
        let of_part = |part: &Part| {
            let more = if smallest == Some(part.share) { rest } else { 0 };
            std::iter::repeat_n(part.choice, wholes(part) + more)
        };
        run.iter().flat_map(of_part).collect()
    }

    /// The layers with their choices; none where they are not all there.
    fn chosen(&self, choices: &[Choice]) -> Option<Share> {
        let (from, to) = self.layers();
        if choices.len() < to - from {
            return None;
        }
        let chosen = || (from..to).zip(choices.iter().copied());
        let bytes = chosen().map(|(layer, choice)| self.bytes(layer, choice)).sum();
        let mut stages: Vec<Stage> = Vec::new();
        for (layer, choice) in chosen() {
            let next = self.stage(layer, choice)?;
            let joins = |last: &&mut Stage| {
                let recomputed = last.recomputed > 0 && next.recomputed > 0;
                recomputed && last.optimizer == next.optimizer && last.layers.count() < self.length
            };
            match stages.last_mut().filter(joins) {
                Some(last) => {
                    last.layers = LayerRange::new(last.layers.first(), next.layers.last())?;
                    last.recomputed += next.recomputed;
                }
                None => stages.push(next),
            }
        }
        Some(Share { stages, bytes })
    }

    fn layers(&self) -> (usize, usize) {
        let layers = self.plain.stages[self.id].layers;
        (layers.first().index(), layers.last().index() + 1)
    }

    fn at(&self) -> DeviceId {
        self.plain.stages[self.id].device
    }

    fn device(&self) -> &DeviceSums {
        &self.costs.devices[self.at().index()]
    }

    /// Runs of equal layers: the first, and how many there are.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let (from, to) = self.layers();
        let among = move |(first, count): &(usize, usize)| {
            let (first, end) = ((*first).max(from), (first + count).min(to));
            (first < end).then_some((first, end.saturating_sub(first)))
        };
        self.costs.runs.iter().filter_map(among)
    }

    fn allows(&self, layer: usize, choice: Choice) -> bool {
        let device = self.device();
        let Some((least, most)) = device.recomputes(self.costs.training, layer, layer + 1) else { return false };
        let hosts = self.costs.host_help && device.hosts().next().is_some();
        let kept = match choice.kept {
            Activations::Recomputed => most > 0,
            Activations::Saved => least == 0,
            Activations::Offloaded => least == 0 && hosts && device.leaving((layer, layer + 1), 0) > 0,
        };
        let steps = !choice.hosted || (hosts && device.bytes[layer].optimizer.get() > 0);
        kept && steps && device.allows(choice.host_offload(), layer, layer + 1)
    }

    fn times(&self, layer: usize, choice: Choice) -> StageTimes {
        self.device().stage_times(
            (layer, layer + 1),
            choice.recomputed(),
            HostOffload { activations: false, ..choice.host_offload() },
        )
    }

    fn bytes(&self, layer: usize, choice: Choice) -> u64 {
        let context = &self.costs.context;
        let microbatches = self.costs.microbatches;
        let in_flight = InFlight::of(self.plain, self.id, microbatches, |device| context.is_cpu(device)).0;
        let seat =
            StageSlot { in_flight, host_offload: Some(choice.host_offload()), ..StageSlot::alone(self.at().index()) };
        self.device().parts(seat, (layer, layer + 1), choice.recomputed(), [Boundary::Within; 2]).0
    }

    /// How long activations are on their way in an iteration, in ms.
    fn way(&self, layer: usize, choice: Choice) -> f64 {
        let host = self.device().hosts().next().filter(|_| choice.kept == Activations::Offloaded);
        let bytes = self.device().leaving((layer, layer + 1), 0) * self.costs.microbatches;
        host.map_or(0.0, |host| bytes as f64 * (host.out + host.back))
    }

    /// Between 1 for the last layer and 2 for the first: parameters of the first ones are needed first.
    fn early(&self, layer: usize) -> f64 {
        let (from, to) = self.layers();
        1.0 + (to - 1 - layer) as f64 / (to - from) as f64
    }

    fn stage(&self, layer: usize, choice: Choice) -> Option<Stage> {
        let stage = Stage::new(self.at(), LayerRange::new(layer.into(), layer.into())?);
        let host = self.device().hosts().next();
        let stage = Stage {
            optimizer: host.filter(|_| choice.hosted).map(|host| host.socket),
            offload: host.filter(|_| choice.kept == Activations::Offloaded).map(|host| host.memory),
            ..stage
        };
        Some(if choice.kept == Activations::Recomputed { stage.with_everything_recomputed() } else { stage })
    }
}
