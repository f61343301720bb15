//! Pitfalls: known mistakes, each with the time that it costs in this plan.
//!
//! The cost is the iteration less the iteration with the cause removed. A pitfall is named if its
//! cost is at least one percent of the iteration. The first five are the sPipe article's.
//!
//! | pitfall | the cause removed |
//! |---|---|
//! | `attention-on-cpu` | sockets compute as fast as the first GPU |
//! | `half-on-cpu` | planned again without layers on sockets, by any system |
//! | `numa-crossing` | links between sockets never limit |
//! | `too-many-stages` | two neighbouring stages joined on one of their devices |
//! | `pcie-3` | links of at most 16 GB/s between GPUs and host with twice the bandwidth |
//! | `both-directions` | no limit on both directions of a link, or of a pair of memories, together |
//! | `host-bound-launches` | the host launches kernels at once |
//! | `no-peer-access` | GPUs read each other's memory |
//! | `pageable-copies` | host data in pinned memory |
//! | `data-parallel-is-faster` | the baseline: data parallelism, simulated |
//! | `inference-only` | links between GPUs and host never limit |

use super::{
    machines::{self, LinkKind},
    trial::{Again, Explained},
};
use crate::{
    compare::equal_stages::data_parallel,
    request::{pins, spelling::Spelling, systems::current},
};
use spipe_base::{LayerRange, MemoryId, SimTime, StageId};
use spipe_cost::Mode;
use spipe_model::LayerKind;
use spipe_plan::{Placement, Stage, Weights};
use spipe_schedule::Program;
use spipe_trace::Pitfall;
use std::collections::BTreeSet;

/// The least share of the iteration that a pitfall costs.
const LEAST: f64 = 0.01;

/// The bandwidth of PCIe 3.0 × 16 in each direction, in bytes/s, rounded up: 8 GT/s × 16 lanes × 128/130 ÷ 8
/// (PCI Express Base Specification 3.0).
const PCIE_3: f64 = 16e9;

/// The pitfalls of a plan, the dearest first.
pub fn pitfalls(explained: &Explained<'_>, program: &Program) -> Vec<Pitfall> {
    let case = Case { explained, program };
    let mut all: Vec<Pitfall> = [
        case.attention_on_cpu(),
        case.half_on_cpu(),
        case.numa_crossing(),
        case.too_many_stages(),
        case.pcie_3(),
        case.both_directions(),
        case.host_bound_launches(),
        case.no_peer_access(),
        case.pageable_copies(),
        case.data_parallel_is_faster(),
        case.inference_only(),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.sort_by(|one, other| other.cost_ms.total_cmp(&one.cost_ms));
    all
}

struct Case<'a> {
    explained: &'a Explained<'a>,
    program: &'a Program,
}

impl Case<'_> {
    /// A pitfall without which the iteration takes `without`, if it costs enough.
    fn named(&self, name: &str, place: String, (without, words): (Option<SimTime>, &str)) -> Option<Pitfall> {
        let (with, without) = (self.explained.iteration.to_ms(), without?.to_ms());
        let cost_ms = with - without;
        (cost_ms >= LEAST * with && cost_ms > 0.0).then(|| Pitfall {
            name: name.into(),
            place,
            cost_ms,
            words: words.into(),
        })
    }

    fn stages_where(&self, holds: impl Fn(&Stage) -> bool) -> Vec<StageId> {
        self.explained.placement().stages.enumerate().filter(|(_, stage)| holds(stage)).map(|(id, _)| id).collect()
    }

    fn on(&self, stages: &[StageId]) -> String {
        let placement = self.explained.placement();
        let device = |id: &StageId| &self.explained.hardware().devices()[placement.stages[*id].lead()].name;
        stages.iter().map(|id| format!("{id} on {}", device(id))).collect::<Vec<_>>().join(", ")
    }

    fn has_gpu(&self) -> bool {
        self.explained.hardware().devices().iter().any(spipe_hardware::Device::is_gpu)
    }

    fn attends(&self, layers: LayerRange) -> bool {
        layers.iter().any(|layer| matches!(self.explained.model().layers()[layer].kind, LayerKind::Block(_)))
    }

    fn attention_on_cpu(&self) -> Option<Pitfall> {
        let context = self.explained.plan.context();
        let stages = self.stages_where(|stage| context.is_cpu(stage.lead()) && self.attends(stage.layers));
        if stages.is_empty() || !self.has_gpu() {
            return None;
        }
        let fast = machines::with_fast_sockets(self.explained.hardware())?;
        let words =
            "attention on CPU cores starves the GPU: keep blocks on GPUs, streamed from DRAM if they do not fit";
        self.named("attention-on-cpu", self.on(&stages), (self.explained.time_on(fast), words))
    }

    fn half_on_cpu(&self) -> Option<Pitfall> {
        let (context, placement) = (self.explained.plan.context(), self.explained.placement());
        let on_cpu = self.stages_where(|stage| context.is_cpu(stage.lead()));
        let layers: usize = on_cpu.iter().map(|id| placement.stages[*id].layers.count()).sum();
        if on_cpu.is_empty() || 2 * layers < context.model.layers().len() || !self.has_gpu() {
            return None;
        }
        let last = context.model.layers().len().saturating_sub(1);
        let whose = (context.model, context.hardware, context.workload().mode);
        let pin = [format!("layer=0..{last}:gpu")];
        let words = pins::Words { pins: &pin, system: "auto", microbatch: "auto" };
        let pins = pins::read(None, words, whose, Spelling::default()).ok()?.pins;
        let again = Again { pins, systems: current(), start: None, ..self.explained.same() };
        let without = self.explained.again(again).map(|found| found.solution.simulated);
        let words = "at least half of the layers compute on CPU cores: stream them to a GPU instead";
        self.named("half-on-cpu", self.on(&on_cpu), (without, words))
    }

    /// The channels that any flow passes.
    fn used(&self) -> BTreeSet<&str> {
        let flows = self.program.actions().iter().flat_map(|action| self.program.flows(action));
        let links = flows.flat_map(|flow| flow.route.iter());
        links.map(|link| self.program.channels()[*link].name.as_str()).collect()
    }

    /// The links of a kind that are used, slower than `limit` in bytes/s.
    fn used_links(&self, kind: LinkKind, limit: f64) -> Vec<String> {
        let used = self.used();
        let is_used =
            |name: &str| used.iter().any(|channel| channel.rsplit_once('.').is_some_and(|(link, _)| link == name));
        let slow = machines::links(self.explained.hardware(), kind).into_iter();
        slow.filter(|(name, rate)| rate.get() <= limit && is_used(name)).map(|(name, _)| name).collect()
    }

    fn numa_crossing(&self) -> Option<Pitfall> {
        let links = self.used_links(LinkKind::Sockets, f64::INFINITY);
        if links.is_empty() {
            return None;
        }
        let free = machines::boundless(self.explained.hardware(), LinkKind::Sockets)?;
        let words = "copies cross from one socket to the other: keep host data on the socket nearest to its GPU";
        self.named("numa-crossing", links.join(", "), (self.explained.time_on(free), words))
    }

    fn pcie_3(&self) -> Option<Pitfall> {
        let links = self.used_links(LinkKind::Host, PCIE_3);
        if links.is_empty() {
            return None;
        }
        let faster = machines::next_generation(self.explained.hardware(), LinkKind::Host)?;
        let words = "links as slow as PCIe 3: check that cards run at their generation and with all lanes";
        self.named("pcie-3", links.join(", "), (self.explained.time_on(faster), words))
    }

    fn both_directions(&self) -> Option<Pitfall> {
        let free = machines::with_independent_directions(self.explained.hardware())?;
        let limits: Vec<&str> = self.used().into_iter().filter_map(|channel| channel.strip_suffix(".both")).collect();
        let words = "copies in both directions at once are slower than each alone: let less data go back, \
                     or move it while nothing comes";
        self.named("both-directions", limits.join(", "), (self.explained.time_on(free), words))
    }

    fn host_bound_launches(&self) -> Option<Pitfall> {
        let instant = machines::with_instant_launches(self.explained.hardware())?;
        let devices = self.explained.plan.devices();
        let gpus =
            devices.into_iter().map(|id| &self.explained.hardware().devices()[id]).filter(|device| device.is_gpu());
        let names: Vec<&str> = gpus.map(|gpu| gpu.name.as_str()).collect();
        let words =
            "the host launches kernels more slowly than the GPU runs them: use larger microbatches, or CUDA graphs";
        self.named("host-bound-launches", names.join(", "), (self.explained.time_on(instant), words))
    }

    fn no_peer_access(&self) -> Option<Pitfall> {
        let open = machines::with_peer_access(self.explained.hardware())?;
        let closed: Vec<String> = self
            .explained
            .hardware()
            .expanded()
            .gpu
            .into_iter()
            .filter(|gpu| gpu.peer_access == Some(false))
            .map(|gpu| gpu.name)
            .collect();
        let words =
            "GPUs copy to each other through host memory: use cards or a driver with peer access, or fewer boundaries";
        self.named("no-peer-access", closed.join(", "), (self.explained.time_on(open), words))
    }

    fn pageable_copies(&self) -> Option<Pitfall> {
        let hardware = self.explained.hardware();
        let pinned = |memory: MemoryId| hardware.pool(memory);
        let home = |stage: &Stage| match stage.weights {
            Weights::Streamed(home) => Some(home),
            Weights::Resident => None,
        };
        let is_pageable = |memory: MemoryId| pinned(memory) != memory;
        let pages = |stage: &Stage| home(stage).into_iter().chain(stage.offload).any(is_pageable);
        let stages = self.stages_where(pages);
        if stages.is_empty() {
            return None;
        }
        let moved = |stage: &Stage| Stage {
            weights: home(stage).map_or(Weights::Resident, |home| Weights::Streamed(pinned(home))),
            offload: stage.offload.map(pinned),
            ..*stage
        };
        let placement = self.explained.placement();
        let mut without = placement.clone();
        without.stages = placement.stages.iter().map(moved).collect();
        without.backward = placement.backward.iter().map(moved).collect();
        let words = "copies from pageable memory pass through the driver's buffer: pin it";
        self.named("pageable-copies", self.on(&stages), (self.explained.time(&without), words))
    }

    fn too_many_stages(&self) -> Option<Pitfall> {
        let placement = self.explained.placement();
        if placement.shards_parameters() || !placement.backward.is_empty() {
            return None;
        }
        let pairs = placement.stages.ids().skip(1).flat_map(|behind| {
            let before = StageId::from(behind.index() - 1);
            [before, behind].map(|keeps| (before, behind, joined(placement, (before, behind), keeps)))
        });
        let times = pairs.filter_map(|(before, behind, joined)| Some((self.explained.time(&joined?)?, before, behind)));
        let (without, before, behind) = times.min()?;
        let words = "every boundary costs a copy and a bubble: join the two stages";
        self.named("too-many-stages", self.on(&[before, behind]), (Some(without), words))
    }

    fn data_parallel_is_faster(&self) -> Option<Pitfall> {
        let (model, hardware, workload) =
            (self.explained.model(), self.explained.hardware(), self.explained.workload());
        let gpus: Vec<&str> = hardware.gpus().map(|gpu| hardware.devices()[gpu].name.as_str()).collect();
        let shared = gpus.len() > 1 && workload.mode == Mode::Train;
        let found = shared.then(|| data_parallel((model, hardware), &[workload]).ok()).flatten();
        let without = found.and_then(|found| Some(found.times.ok()?.iteration));
        let words = "the baseline is faster, data parallelism: the model fits on each GPU, so give every GPU \
                     its own sequences";
        self.named("data-parallel-is-faster", gpus.join(", "), (without, words))
    }

    fn inference_only(&self) -> Option<Pitfall> {
        let streams = |stage: &Stage| matches!(stage.weights, Weights::Streamed(_));
        let stages = self.stages_where(streams);
        if self.explained.workload().mode == Mode::Train || stages.is_empty() {
            return None;
        }
        let free = machines::boundless(self.explained.hardware(), LinkKind::Host)?;
        let words = "inference reads all parameters for little arithmetic: shrink them until they stay on the GPU (fewer bits, more GPUs)";
        self.named("inference-only", self.on(&stages), (self.explained.time_on(free), words))
    }
}

/// The placement with two neighbouring stages joined on the device of one of them.
fn joined(placement: &Placement, (before, behind): (StageId, StageId), keeps: StageId) -> Option<Placement> {
    let (one, other) = (placement.stages[before], placement.stages[behind]);
    if one.team == other.team {
        return None;
    }
    let layers = LayerRange::new(one.layers.first(), other.layers.last())?;
    let all = one.recomputed == one.layers.count() && other.recomputed == other.layers.count();
    let recomputed = if all { layers.count() } else { one.recomputed };
    let whole = Stage { layers, recomputed, ..placement.stages[keeps] };
    let stages = placement.stages.enumerate().filter(|(id, _)| *id != behind);
    let stages = stages.map(|(id, stage)| if id == before { whole } else { *stage });
    Some(Placement { stages: stages.collect(), ..placement.clone() })
}
