//! Programs of an order and stage times alone: links have only latency, and memory counts
//! activations.

use crate::{
    Access, Anchor, Content, Edge, Lifetime, NewAction, Offloading, Order, Pass, Program, ProgramBuilder, Shape, Stage,
    StageTimes, Step, Token,
    order::{Grid, PassGrid},
};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, Diagnostic, Faults, IdleCause, LaneId, LaneRole, LayerRange, MemoryId,
    Payload, SimTime, StageId, Subject,
};
use std::collections::{BTreeMap, BTreeSet};

/// The program of `order` with the same `times` for every stage.
///
/// Each device has an unlimited memory. A forward acquires [`StageTimes::UNIT`] there. A fused
/// backward releases it; the parts of a split backward release their shares.
///
/// # Errors
/// The faults of `order`, or a share above 1.
pub fn bare(name: &str, order: &Order, times: &StageTimes) -> Result<Program, Faults> {
    program(name, order, std::slice::from_ref(times), None)
}

/// The same with `times` for each stage, in model order. Latency and memory are those of the first.
///
/// # Errors
/// The faults of `order`, a share above 1, or times for another number of stages.
pub fn bare_with_stage_times(name: &str, order: &Order, times: &[StageTimes]) -> Result<Program, Faults> {
    matches_stages(order, times)?;
    program(name, order, times, None)
}

fn matches_stages(order: &Order, times: &[StageTimes]) -> Result<(), Faults> {
    if times.len() == order.stages() {
        return Ok(());
    }
    Err(Diagnostic::error(format!("there are times for {} stages, and {} stages", times.len(), order.stages())).into())
}

/// The program of an order with offloads and reloads, on one lane `offload` per device. The end of
/// an offload releases [`StageTimes::UNIT`] on the device, and the start of a reload acquires it
/// again.
///
/// # Errors
/// The faults of the order, or a share above 1.
pub fn bare_offloaded(name: &str, offloading: &Offloading, times: &StageTimes) -> Result<Program, Faults> {
    program(name, &offloading.order, std::slice::from_ref(times), Some(offloading))
}

/// The same with `times` for each stage, in model order. Latency and memory are those of the first.
///
/// # Errors
/// The faults of the order, a share above 1, or times for another number of stages.
pub fn bare_offloaded_with_stage_times(
    name: &str,
    offloading: &Offloading,
    times: &[StageTimes],
) -> Result<Program, Faults> {
    matches_stages(&offloading.order, times)?;
    program(name, &offloading.order, times, Some(offloading))
}

/// The program with times for all stages, one for each or the same one for all.
fn program(name: &str, order: &Order, each: &[StageTimes], offloading: Option<&Offloading>) -> Result<Program, Faults> {
    order.validate()?;
    let Some(times) = each.first() else { return Err(Diagnostic::error("there are no stage times").into()) };
    if times.weight_gradient_memory > StageTimes::UNIT.get() {
        return Err(Diagnostic::error("the share of memory kept for the weight gradient is more than 1").into());
    }
    let (stages, microbatches) = (order.stages(), order.microbatches());
    let mut builder = ProgramBuilder::new(Shape {
        name: name.into(),
        layers: stages,
        microbatches: microbatches as u64,
        training: true,
        without_backward: 0,
        feeds_back: false,
        tokens: None,
        notes: Vec::new(),
    });
    let copies = offloading.iter().flat_map(|offloading| offloading.copies.iter().flatten());
    let shape = [stages, microbatches];
    let mut bare = Bare {
        times,
        each,
        builder: &mut builder,
        device_of: devices_of_stages(order),
        added: PassGrid::of_passes(shape, None),
        copied: BTreeMap::new(),
        leaving: copies
            .filter_map(|(step, _)| if let Step::Offload(forward) = step { Some(*forward) } else { None })
            .collect(),
        left: BTreeMap::new(),
        saved: Grid::new(shape, [None; 2]),
    };
    for device in 0..order.devices().len() {
        let memory = bare.builder.memory(&format!("gpu{device}"), None);
        bare.builder.device(&format!("gpu{device}"), memory, false);
    }
    for (stage, device) in bare.device_of.iter().enumerate() {
        if let Some(layers) = LayerRange::new(stage.into(), stage.into()) {
            bare.builder.stage(Stage { device: (*device).into(), layers, recomputed: None });
        }
    }
    for (device, tokens) in order.devices().iter().enumerate() {
        let lane = bare.builder.lane(device.into(), LaneRole::Compute.name(), LaneRole::Compute);
        for token in tokens {
            bare.add((device, lane), token);
        }
    }
    bare.join(order);
    if let Some(offloading) = offloading {
        let host = bare.builder.memory("dram", None);
        bare.copy(offloading, host);
    }
    drop(bare);
    builder.build()
}

/// By stage, its device. Every stage of a valid order has one.
fn devices_of_stages(order: &Order) -> Vec<usize> {
    let mut device_of = vec![0; order.stages()];
    for (device, tokens) in order.devices().iter().enumerate() {
        for token in tokens {
            device_of[token.stage.index()] = device;
        }
    }
    device_of
}

/// The state of lowering an order.
struct Bare<'a> {
    /// The times of the first stage, whose latency and memory are those of all.
    times: &'a StageTimes,
    /// The times of each stage, or of all.
    each: &'a [StageTimes],
    builder: &'a mut ProgramBuilder,
    /// By stage, its device.
    device_of: Vec<usize>,
    /// The action of each pass.
    added: PassGrid<Option<ActionId>>,
    /// The action of each offload and reload.
    copied: BTreeMap<Step, ActionId>,
    /// The forwards whose activations are offloaded.
    leaving: BTreeSet<Token>,
    /// By forward that is offloaded, the activation that it saves.
    left: BTreeMap<Token, Saved>,
    /// The activation that a backward reads: the saved or the reloaded one.
    saved: Grid<Saved>,
}

/// An activation in two parts, for the backward-input and for the backward-weight; `None` for a
/// share of zero.
type Saved = [Option<BufferId>; 2];

impl Bare<'_> {
    fn add(&mut self, (device, lane): (usize, LaneId), token: &Token) {
        let place = (token.stage, token.microbatch);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        if token.pass == Pass::Forward {
            let saved = self.save(*token, device.into());
            self.saved[place] = saved;
            if self.leaving.contains(token) {
                self.left.insert(*token, saved);
                self.saved[place] = self.save(*token, device.into());
            }
            writes = accesses(saved);
        } else {
            let [input, weight] = self.saved[place];
            reads = accesses(match token.pass {
                Pass::BackwardInput => [input, None],
                Pass::BackwardWeight => [None, weight],
                _ => [input, weight],
            });
        }
        let kind = match token.pass {
            Pass::Forward => ActionKind::Forward,
            Pass::Backward => ActionKind::Backward,
            Pass::BackwardInput => ActionKind::BackwardInput,
            Pass::BackwardWeight => ActionKind::BackwardWeight,
        };
        let id = self.builder.action(NewAction {
            lane,
            kind,
            subject: Subject::work(token.stage, token.microbatch),
            reads,
            writes,
            work: self.each.get(token.stage.index()).unwrap_or(self.times).of(token.pass),
            flows: Vec::new(),
            guard: None,
        });
        self.added[*token] = Some(id);
    }

    /// The buffers of an activation.
    fn save(&mut self, forward: Token, memory: MemoryId) -> Saved {
        let layers = LayerRange::new(forward.stage.index().into(), forward.stage.index().into());
        let weight = Bytes::new(self.times.weight_gradient_memory);
        [StageTimes::UNIT - weight, weight].map(|bytes| {
            let content = match layers {
                Some(layers) => Content::Saved(layers, forward.microbatch),
                None => Content::Workspace(forward.stage, forward.microbatch),
            };
            let buffer = |bytes| self.builder.buffer(content, memory, bytes, Lifetime::Transient);
            Some(bytes).filter(|bytes| *bytes > Bytes::ZERO).map(buffer)
        })
    }

    /// Adds the copies, in order on the lane of their device, and their precedences.
    fn copy(&mut self, offloading: &Offloading, host: MemoryId) {
        let mut away: BTreeMap<Token, Saved> = BTreeMap::new();
        let mut edges = Vec::new();
        let edge =
            |from, to, cause| Edge { from, to, anchor: Anchor::EndToStart, distance: 0, lag: SimTime::ZERO, cause };
        for (device, copies) in offloading.copies.iter().enumerate() {
            let mut before = None;
            for (step, work) in copies {
                let (forward, payload) = match step {
                    Step::Pass(_) => continue,
                    Step::Offload(forward) => (*forward, Payload::Offload),
                    Step::Reload(forward) => (*forward, Payload::Reload),
                };
                let outside = *away.entry(forward).or_insert_with(|| self.save(forward, host));
                let (reads, writes) = match payload {
                    Payload::Offload => (self.left[&forward], outside),
                    _ => (outside, self.saved[(forward.stage, forward.microbatch)]),
                };
                let lane = self.builder.lane(device.into(), "offload", LaneRole::Channel);
                let id = self.builder.action(NewAction {
                    lane,
                    kind: ActionKind::Copy(payload),
                    subject: Subject::work(forward.stage, forward.microbatch),
                    reads: accesses(reads),
                    writes: accesses(writes),
                    work: *work,
                    flows: Vec::new(),
                    guard: None,
                });
                edges.extend(before.map(|before| edge(before, id, IdleCause::Order)));
                before = Some(id);
                self.copied.insert(*step, id);
            }
        }
        edges.extend(offloading.barriers.iter().filter_map(|barrier| {
            let cause = if barrier.for_memory { IdleCause::Memory } else { IdleCause::Order };
            Some(edge(self.action_of(&barrier.from)?, self.action_of(&barrier.to)?, cause))
        }));
        for edge in edges {
            self.builder.edge(edge);
        }
    }

    /// Adds the data dependencies between stages, with latency between devices. Both parts of an
    /// overlapped pair start after the inputs of both, and their readers after the end of both.
    fn join(&mut self, order: &Order) {
        let pairs: BTreeMap<Token, Token> = order.overlapped().map(|[forward, backward]| (forward, backward)).collect();
        let stages = order.stages();
        for token in order.devices().iter().flatten() {
            for input in [Some(token), pairs.get(token)].into_iter().flatten() {
                let Some((source, cause)) = self.source(input, stages) else { continue };
                let from = pairs.get(&source).copied().unwrap_or(source);
                let same = self.device_of[from.stage.index()] == self.device_of[token.stage.index()];
                let (Some(from), Some(to)) = (self.added[from], self.added[*token]) else { continue };
                let lag = if same { SimTime::ZERO } else { self.times.latency };
                self.builder.edge(Edge { from, to, anchor: Anchor::EndToStart, distance: 0, lag, cause });
            }
        }
    }

    /// The action of a pass or copy that has been added.
    fn action_of(&self, step: &Step) -> Option<ActionId> {
        match step {
            Step::Pass(token) => self.added[*token],
            Step::Offload(_) | Step::Reload(_) => self.copied.get(step).copied(),
        }
    }

    /// The pass of a neighbouring stage, or the backward-input, that `token` waits for.
    fn source(&self, token: &Token, stages: usize) -> Option<(Token, IdleCause)> {
        match token.pass {
            Pass::Forward => {
                let before = token.stage.index().checked_sub(1)?;
                Some((Token { stage: before.into(), ..*token }, IdleCause::Activation))
            }
            Pass::BackwardWeight => Some((Token { pass: Pass::BackwardInput, ..*token }, IdleCause::Gradient)),
            Pass::Backward | Pass::BackwardInput => {
                let after = StageId::from(Some(token.stage.index() + 1).filter(|after| *after < stages)?);
                let fused = Token { stage: after, pass: Pass::Backward, ..*token };
                let split = Token { stage: after, pass: Pass::BackwardInput, ..*token };
                let from = if self.added[fused].is_some() { fused } else { split };
                Some((from, IdleCause::Gradient))
            }
        }
    }
}

fn accesses(saved: Saved) -> Vec<Access> {
    saved.into_iter().flatten().map(|buffer| Access::new(buffer, 1)).collect()
}
