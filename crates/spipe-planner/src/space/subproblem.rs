//! A subproblem of branch and bound: a device order with a schedule. It leaves open the stage
//! boundaries, the numbers of recomputed layers, and undecided host offloads.

use crate::{
    costs::{CostSums, DeviceSums, HostOffload, StageSlot, StageTimes},
    problem::{Problem, SYSTEMS},
    space::rules::SystemSpec,
};
use spipe_base::{DeviceId, LayerRange, StageId};
use spipe_plan::{InFlight, Knob, Placement, Stage, System};

/// A system with its head start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScheduleKind {
    pub system: System,
    pub head_start: u64,
}

impl ScheduleKind {
    pub fn of(self, stages: impl IntoIterator<Item = Stage>) -> Placement {
        Placement::new(self.system, stages).with(Knob::HeadStart, self.head_start)
    }
}

/// The schedules of `systems` on a device order with or without a CPU socket.
///
/// A hybrid without head start is 1F1B, and is left out where that is allowed.
pub(crate) fn schedule_kinds(systems: &[System], has_cpu: bool) -> Vec<ScheduleKind> {
    let mut list = Vec::new();
    for system in System::ALL.into_iter().filter(|system| systems.contains(system)) {
        // The others have candidate generators.
        let spec = SystemSpec::of(system);
        if !SYSTEMS.contains(&system) || (spec.needs_cpu && !has_cpu) {
            continue;
        }
        let least = u64::from(spec.needs_cpu && systems.contains(&System::OneForwardOneBackward));
        let head_starts = least..=spec.largest_head_start();
        list.extend(head_starts.map(|head_start| ScheduleKind { system, head_start }));
    }
    list
}

/// A device order under a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subproblem {
    /// The device of each stage, in model order.
    pub devices: Vec<usize>,
    pub schedule: ScheduleKind,
    /// The slot of each stage.
    pub stage_slots: Vec<StageSlot>,
    /// The number of layers at the front of the model that no gradient reaches.
    pub frozen: usize,
}

/// A partition of the layers into the stages of a subproblem.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Partition {
    /// The layer after the last one of each stage.
    pub ends: Vec<usize>,
    pub recomputed: Vec<usize>,
}

impl Partition {
    /// The layers of stage `stage`: the first one, and the one after the last.
    pub fn layers(&self, stage: usize) -> (usize, usize) {
        (if stage == 0 { 0 } else { self.ends[stage - 1] }, self.ends[stage])
    }

    /// Adds a stage that ends before layer `to`.
    pub fn push(&mut self, to: usize, recomputed: usize) {
        self.ends.push(to);
        self.recomputed.push(recomputed);
    }
}

/// A partition with a subproblem in which the host offload of every stage is decided.
#[derive(Clone, Debug)]
pub(crate) struct DecidedPartition {
    pub partition: Partition,
    pub case: Subproblem,
}

impl DecidedPartition {
    /// A partition of `case` without its stages.
    pub fn empty(case: Subproblem) -> Self {
        Self { partition: Partition::default(), case }
    }

    /// Adds the next stage, which ends before layer `to`.
    pub fn push(&mut self, to: usize, recomputed: usize, host_offload: HostOffload) {
        self.case.stage_slots[self.partition.ends.len()].host_offload = Some(host_offload);
        self.partition.push(to, recomputed);
    }

    pub fn placement(&self, costs: &CostSums<'_>) -> Placement {
        self.case.placement(costs, &self.partition)
    }
}

impl Subproblem {
    pub fn new(costs: &CostSums<'_>, devices: &[usize], schedule: ScheduleKind) -> Self {
        let stages = devices.len();
        let one_layer = |(index, device): (usize, &usize)| Stage::new(DeviceId::from(*device), single(index));
        let sketch = schedule.of(devices.iter().enumerate().map(one_layer));
        let in_flight = |stage: usize| {
            InFlight::of(&sketch, StageId::from(stage), costs.microbatches, |device| {
                costs.devices[device.index()].is_cpu
            })
            .0
        };
        let stage_slot = |(index, device): (usize, &usize)| StageSlot {
            device: *device,
            in_flight: in_flight(index),
            first: index == 0,
            last: index + 1 == stages,
            host_offload: Some(HostOffload::NONE),
        };
        let stage_slots = devices.iter().enumerate().map(stage_slot).collect();
        Self { devices: devices.to_vec(), schedule, stage_slots, frozen: costs.frozen }
    }

    /// The same subproblem with this host offload for every stage that has a choice.
    pub fn with_host_offload(mut self, costs: &CostSums<'_>, host_offload: Option<HostOffload>) -> Self {
        for stage_slot in
            self.stage_slots.iter_mut().filter(|stage_slot| costs.host_offloads(stage_slot.device).len() > 1)
        {
            stage_slot.host_offload = host_offload;
        }
        self
    }

    /// The subproblem with every combination of host offloads for its undecided stages.
    pub fn decided(self, costs: &CostSums<'_>) -> Vec<Self> {
        let Some(stage) = self.stage_slots.iter().position(|stage_slot| stage_slot.host_offload.is_none()) else {
            return vec![self];
        };
        let with = |host_offload: &HostOffload| {
            let mut case = self.clone();
            case.stage_slots[stage].host_offload = Some(*host_offload);
            case.decided(costs)
        };
        costs.host_offloads(self.devices[stage]).iter().flat_map(with).collect()
    }

    pub fn stages(&self) -> usize {
        self.devices.len()
    }

    pub fn device<'f>(&self, costs: &'f CostSums<'_>, stage: usize) -> &'f DeviceSums {
        &costs.devices[self.devices[stage]]
    }

    /// The times of activations and gradients over the boundary after `stage`, in ms, if the stage
    /// ends before layer `end`.
    pub fn transfers(&self, costs: &CostSums<'_>, stage: usize, end: usize) -> (f64, f64) {
        costs.transfers((self.devices[stage], self.devices[stage + 1]), end)
    }

    /// All durations of a partition.
    pub fn times(&self, costs: &CostSums<'_>, partition: &Partition) -> Times {
        let stage = |stage: usize| -> StageTimes {
            let (from, to) = partition.layers(stage);
            let host_offload = self.host_offload(stage);
            self.device(costs, stage).stage_times((from, to), partition.recomputed[stage], host_offload)
        };
        let boundaries = (0..self.stages() - 1).map(|stage| self.transfers(costs, stage, partition.ends[stage]));
        let (activations, gradients) = boundaries.unzip();
        Times { stages: (0..self.stages()).map(stage).collect(), activations, gradients }
    }

    pub fn placement(&self, costs: &CostSums<'_>, partition: &Partition) -> Placement {
        let stage = |stage: usize| {
            let (from, to) = partition.layers(stage);
            let layers = LayerRange::new(from.into(), (to - 1).into()).unwrap_or_else(|| single(from));
            let plain = Stage::new(DeviceId::from(self.devices[stage]), layers);
            let stage_of = plain.with_recomputed(partition.recomputed[stage]);
            let host_offload = self.host_offload(stage);
            match self.device(costs, stage).host(host_offload) {
                Some(host) => Stage {
                    optimizer: host_offload.optimizer.then_some(host.socket),
                    offload: host_offload.activations.then_some(host.memory),
                    ..stage_of
                },
                None => stage_of,
            }
        };
        self.schedule.of((0..self.stages()).map(stage))
    }

    /// The host offload of a stage; none if undecided.
    pub fn host_offload(&self, stage: usize) -> HostOffload {
        self.stage_slots[stage].host_offload.unwrap_or_default()
    }
}

fn single(layer: usize) -> LayerRange {
    let range = LayerRange::new(layer.into(), layer.into());
    range.unwrap_or_else(|| unreachable!("a layer comes not after itself"))
}

/// The durations of a partition, in ms.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times {
    pub stages: Vec<StageTimes>,
    /// The times of activations over each boundary; `gradients` likewise.
    pub activations: Vec<f64>,
    pub gradients: Vec<f64>,
}

/// The subproblems of every device order under every schedule that suits it and that pins allow,
/// without host offloads.
pub(crate) fn cases(problem: &Problem<'_>, costs: &CostSums<'_>, sequences: &[Vec<usize>]) -> Vec<Subproblem> {
    let pins = &problem.options.pins;
    let of_sequence = |devices: &Vec<usize>| {
        let has_cpu = devices.iter().any(|device| costs.devices[*device].is_cpu);
        let case = |schedule| Subproblem::new(costs, devices, schedule);
        let schedule_kinds = schedule_kinds(&problem.systems, has_cpu).into_iter();
        let allowed = |schedule: &ScheduleKind| pins.allows_knobs(&pins.with_common_knobs(schedule.of([])));
        schedule_kinds.filter(allowed).map(case).collect::<Vec<_>>()
    };
    sequences.iter().filter(|devices| pins.allows_devices(devices)).flat_map(of_sequence).collect()
}
