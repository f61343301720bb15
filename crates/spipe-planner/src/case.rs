//! A case: which device has which stage, under which system. What is left open is where the stages end and what they
//! recompute.

use crate::{
    LARGEST_HEAD_START, Problem,
    figures::{DeviceFigures, Figures, Help, Hop, Seat, StageTimes},
    order::Times,
    systems::busiest_of_shared,
};
use spipe_base::{DeviceId, LayerRange, SimTime, StageId};
use spipe_plan::{Family, InFlight, Knobs, Placement, Stage, System, check};

/// A system with its knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Discipline {
    pub system: System,
    pub head_start: u64,
}

impl Discipline {
    pub fn knobs(self) -> Knobs {
        Knobs { head_start: self.head_start, ..Knobs::default() }
    }
}

/// The disciplines that `problem` allows on a sequence with or without a CPU stage.
///
/// A hybrid without head start is 1F1B, and is left out where that is allowed.
pub(crate) fn disciplines(systems: &[System], has_cpu: bool) -> Vec<Discipline> {
    let mut list = Vec::new();
    for system in System::ALL.into_iter().filter(|system| systems.contains(system)) {
        let plain = usize::from(systems.contains(&System::OneForwardOneBackward)) as u64;
        let head_starts = match system {
            System::Hybrid if !has_cpu => continue,
            System::Hybrid => plain..=LARGEST_HEAD_START,
            System::Gpipe | System::OneForwardOneBackward => 0..=0,
            // The others have planners of their own.
            _ => continue,
        };
        list.extend(head_starts.map(|head_start| Discipline { system, head_start }));
    }
    list
}

/// A device sequence under a discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// Device of each stage, in model order.
    pub devices: Vec<usize>,
    pub discipline: Discipline,
    /// Where each stage stands.
    pub seats: Vec<Seat>,
    /// How many of the model's first layers no gradient reaches.
    pub frozen: usize,
}

/// Where the stages of a case end, and how many of their first layers are recomputed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Division {
    /// The layer after the last one of each stage.
    pub ends: Vec<usize>,
    pub recomputed: Vec<usize>,
}

impl Division {
    /// The layers of stage `stage`: the first, and the one after the last.
    pub fn layers(&self, stage: usize) -> (usize, usize) {
        (if stage == 0 { 0 } else { self.ends[stage - 1] }, self.ends[stage])
    }
}

impl Case {
    pub fn new(figures: &Figures<'_>, devices: &[usize], discipline: Discipline) -> Self {
        let stages = devices.len();
        let one_layer = |(index, device): (usize, &usize)| Stage::new(DeviceId::from(*device), single(index));
        let sketch =
            Placement::new(discipline.system, devices.iter().enumerate().map(one_layer)).with_knobs(discipline.knobs());
        let in_flight = |stage: usize| {
            InFlight::of(&sketch, StageId::from(stage), figures.microbatches, |device| {
                figures.devices[device.index()].is_cpu
            })
            .0
        };
        let seat = |(index, device): (usize, &usize)| Seat {
            device: *device,
            in_flight: in_flight(index),
            first: index == 0,
            last: index + 1 == stages,
            help: Some(Help::NONE),
        };
        let seats = devices.iter().enumerate().map(seat).collect();
        Self { devices: devices.to_vec(), discipline, seats, frozen: figures.frozen }
    }

    /// The same with that help for every stage that can be helped.
    pub fn with_help(mut self, figures: &Figures<'_>, help: Option<Help>) -> Self {
        for seat in self.seats.iter_mut().filter(|seat| figures.helps(seat.device).len() > 1) {
            seat.help = help;
        }
        self
    }

    /// The first stage of which it is undecided what the host does for it.
    pub fn undecided(&self) -> Option<usize> {
        self.seats.iter().position(|seat| seat.help.is_none())
    }

    /// The same with every help for stage `stage`.
    pub fn decided(&self, figures: &Figures<'_>, stage: usize) -> Vec<Self> {
        let with = |help: &Help| {
            let mut case = self.clone();
            case.seats[stage].help = Some(*help);
            case
        };
        figures.helps(self.devices[stage]).iter().map(with).collect()
    }

    pub fn stages(&self) -> usize {
        self.devices.len()
    }

    pub fn device<'f>(&self, figures: &'f Figures<'_>, stage: usize) -> &'f DeviceFigures {
        &figures.devices[self.devices[stage]]
    }

    /// The copy of activations over the boundary behind `stage`, and that of gradients back.
    pub fn hops<'f>(&self, figures: &'f Figures<'_>, stage: usize) -> Option<(&'f Hop, &'f Hop)> {
        let (from, to) = (self.devices[stage], self.devices[stage + 1]);
        Some((figures.hop(from, to)?, figures.hop(to, from)?))
    }

    /// How long activations and gradients take over the boundary behind `stage` if it ends before layer `end`.
    pub fn transfers(&self, figures: &Figures<'_>, stage: usize, end: usize) -> (f64, f64) {
        figures.transfers((self.devices[stage], self.devices[stage + 1]), end)
    }

    /// All durations of a division.
    pub fn times(&self, figures: &Figures<'_>, division: &Division) -> Times {
        let stage = |stage: usize| -> StageTimes {
            let (from, to) = division.layers(stage);
            let help = self.help(stage);
            self.device(figures, stage).stage_times((from, to), division.recomputed[stage], help)
        };
        let boundaries = (0..self.stages() - 1).map(|stage| self.transfers(figures, stage, division.ends[stage]));
        let (activations, gradients) = boundaries.unzip();
        Times { stages: (0..self.stages()).map(stage).collect(), activations, gradients }
    }

    pub fn placement(&self, figures: &Figures<'_>, division: &Division) -> Placement {
        let stage = |stage: usize| {
            let ((first, end), borders) = (division.layers(stage), &figures.borders);
            let (from, to, again) = (borders[first], borders[end], borders[first + division.recomputed[stage]]);
            let layers = LayerRange::new(from.into(), (to - 1).into()).unwrap_or_else(|| single(from));
            let plain = Stage::new(DeviceId::from(self.devices[stage]), layers);
            let stage_of = plain.with_recomputed(again - from);
            let help = self.help(stage);
            match self.device(figures, stage).host(help) {
                Some(host) => Stage {
                    optimizer: help.optimizer.then_some(host.socket),
                    offload: help.activations.then_some(host.memory),
                    ..stage_of
                },
                None => stage_of,
            }
        };
        Placement::new(self.discipline.system, (0..self.stages()).map(stage)).with_knobs(self.discipline.knobs())
    }

    /// What the host does for a stage, nothing where that is undecided.
    pub fn help(&self, stage: usize) -> Help {
        self.seats[stage].help.unwrap_or_default()
    }

    /// The names of its devices, in stage order.
    pub fn names(&self, figures: &Figures<'_>) -> String {
        self.devices.iter().map(|device| figures.devices[*device].name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

fn single(layer: usize) -> LayerRange {
    let range = LayerRange::new(layer.into(), layer.into());
    range.unwrap_or_else(|| unreachable!("a layer comes not after itself"))
}

/// A placement with its simulated time.
pub(crate) type Scored = (SimTime, Placement);

/// The simulated time of `placement` if it is acceptable and runs.
pub(crate) fn judge(problem: &Problem<'_>, placement: Placement) -> Option<Scored> {
    let placement = acceptable(problem, placement)?;
    (problem.score)(&placement).map(|time| (time, placement))
}

/// The same, but perhaps none for one that takes longer than `limit`.
pub(crate) fn judge_within(problem: &Problem<'_>, placement: Placement, limit: SimTime) -> Option<Scored> {
    let placement = acceptable(problem, placement)?;
    problem.score_within(&placement, limit).map(|time| (time, placement))
}

/// `placement` with what pins say of all, if it holds the others and what is checked before anything runs.
pub(crate) fn acceptable(problem: &Problem<'_>, placement: Placement) -> Option<Placement> {
    let placement = problem.options.pins.with_common_knobs(placement);
    let allowed = problem.options.pins.allow(&problem.context, &placement);
    (allowed && check(&problem.context, &placement).is_ok()).then_some(placement)
}

/// For how long the busiest device computes, or what else is busy where devices share everything, in ms: no iteration is shorter.
pub(crate) fn busiest(figures: &Figures<'_>, placement: &Placement) -> f64 {
    if placement.system.family() == Family::Sharded {
        return busiest_of_shared(&figures.context, placement);
    }
    let mut busy = vec![0.0; figures.devices.len()];
    let m = figures.microbatches as f64;
    for stage in &placement.stages {
        let device = &figures.devices[stage.device.index()];
        for times in stage.layers.iter().filter_map(|layer| device.times[layer.index()]) {
            busy[stage.device.index()] += m * times.forward;
        }
    }
    for stage in placement.backward_stages().iter().filter(|_| figures.training) {
        let device = &figures.devices[stage.device.index()];
        for (index, layer) in stage.layers.iter().enumerate() {
            let times = device.times[layer.index()].unwrap_or_default();
            let again = if index < stage.recomputed && times.backward > 0.0 { times.forward } else { 0.0 };
            busy[stage.device.index()] += m * (times.backward + again);
        }
    }
    busy.into_iter().fold(0.0, f64::max)
}

/// The faster of two; the first of two equally fast ones.
pub(crate) fn faster(first: Option<Scored>, second: Option<Scored>) -> Option<Scored> {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second.0 < first.0 { second } else { first }),
        (first, second) => first.or(second),
    }
}
