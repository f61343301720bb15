//! The task of each action, derived from its kind and from the contents of the buffers that it
//! reads and writes.

use spipe_base::{
    ActionId, ActionKind, BufferId, Collective, DeviceId, Diagnostic, Faults, IdVec, LaneRole, LayerId, LayerRange,
    MicrobatchId, Payload, StageId,
};
use spipe_schedule::{Access, Action, Content, Lifetime, Program};
use std::collections::BTreeSet;

/// An action, ready for execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Forward {
        work: Work,
        outputs: Vec<(LayerId, BufferId)>,
        keeps: Option<SavedGraph>,
    },
    Recompute {
        work: Work,
        layers: LayerRange,
        split: bool,
        into: BufferId,
    },
    Backward {
        work: Work,
        graphs: Vec<BufferId>,
        gradients: GradientSums,
        crossing: BoundaryGradients,
    },
    BackwardInput {
        work: Work,
        graphs: Vec<BufferId>,
        crossing: BoundaryGradients,
    },
    BackwardWeight {
        later: BufferId,
        gradients: GradientSums,
        stage: StageId,
    },
    /// Copies an activation, a checkpoint or a gradient to another device.
    Send {
        from: BufferId,
        to: BufferId,
    },
    /// Copies saved activations to host memory, or back.
    Offload {
        from: BufferId,
        to: BufferId,
    },
    /// Copies parameters or gradients to another memory.
    Move {
        from: Vec<BufferId>,
        to: Vec<BufferId>,
        adds: bool,
    },
    /// Copies parameters that layers of two stages share to another memory.
    CopyTied {
        from: BufferId,
        to: BufferId,
    },
    /// Adds gradients of shared parameters, from another stage's use, to those of their owner.
    Accumulate {
        from: BufferId,
        to: BufferId,
    },
    /// All-gather: joins parameters from the parts of all devices.
    Gather {
        from: Vec<BufferId>,
        to: BufferId,
    },
    /// Reduce-scatter: one part of the sum of several devices' gradients.
    Reduce {
        from: Vec<BufferId>,
        to: BufferId,
        adds: bool,
    },
    /// Sums the squares of gradients.
    Norm {
        gradients: BufferId,
        to: BufferId,
    },
    /// Reads optimizer state from a drive.
    ReadState {
        from: BufferId,
        to: BufferId,
    },
    /// Writes optimizer state to a drive.
    WriteState {
        from: BufferId,
        to: BufferId,
    },
    Step(Step),
    /// Checks the norm of all gradients, before the steps that wait for it or after speculative
    /// steps.
    Check {
        norms: Vec<BufferId>,
        states: Vec<BufferId>,
    },
    Rollback {
        step: Step,
        undo: BufferId,
    },
    /// Only orders other actions.
    Barrier,
}

/// One microbatch in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub stage: StageId,
    pub microbatch: usize,
    pub parameters: BufferId,
    /// The parameters that one of its layers shares with a layer of another stage.
    pub shared: Option<BufferId>,
    /// The activation that has arrived; none if the stage reads data.
    pub input: Option<BufferId>,
    /// The cache of keys and values.
    pub cache: Option<BufferId>,
}

/// The graph that a forward leaves for its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedGraph {
    /// The buffer of the graph.
    pub graph: BufferId,
    /// The first layer in the graph.
    pub from: usize,
    /// Whether weight gradients are computed in an action of their own.
    pub split: bool,
    /// Whether activations are offloaded before the backward, which then rebuilds the graph from
    /// them.
    pub offloads: bool,
    /// Whether the parameters leave the device before the backward.
    pub leaves: bool,
}

/// A buffer of parameter gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub buffer: BufferId,
    /// Whether gradients are added to the buffer's value.
    pub adds: bool,
}

/// Gradients of a stage's own parameters, and of the parameters that it shares with another stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GradientSums {
    pub own: Sum,
    pub shared: Option<Sum>,
}

/// Gradients of activations that arrive and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundaryGradients {
    pub incoming: Option<BufferId>,
    pub outgoing: Option<BufferId>,
}

/// An optimizer step, or its rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub device: DeviceId,
    pub gradients: Option<BufferId>,
    pub state: BufferId,
    /// Parameters before the step, and after it.
    pub before: Vec<BufferId>,
    pub after: Vec<BufferId>,
    /// The undo log that it writes.
    pub log: Option<BufferId>,
}

/// The tasks of `program`, or everything in it that cannot be executed yet.
pub(crate) fn tasks(program: &Program) -> Result<IdVec<ActionId, Task>, Faults> {
    let mut faults = Faults::new();
    let split: BTreeSet<(StageId, MicrobatchId)> = program
        .actions()
        .iter()
        .filter(|action| action.kind == ActionKind::BackwardWeight)
        .filter_map(|action| action.subject.stage.zip(action.subject.microbatch))
        .collect();
    let offloads = program.actions().iter().filter(|action| action.kind == ActionKind::Copy(Payload::Offload));
    let leaving: BTreeSet<BufferId> =
        offloads.flat_map(|action| program.reads(action)).map(|read| read.buffer).collect();
    let mut refused: Vec<ActionKind> = Vec::new();
    let mut tasks = IdVec::new();
    for (id, action) in program.actions().enumerate() {
        match (ActionBuffers { program, action, split: &split, leaving: &leaving }).task() {
            Ok(task) => {
                tasks.push(task);
            }
            Err(Refusal::UnknownKind) if refused.contains(&action.kind) => {}
            Err(Refusal::UnknownKind) => {
                refused.push(action.kind);
                faults.push(Diagnostic::error(format!("`{}` cannot be executed yet", action.kind)));
            }
            Err(Refusal::Missing(what)) => faults.push(Diagnostic::error(format!("{} {what}", program.describe(id)))),
        }
    }
    faults.or(tasks)
}

/// The device that computes on each buffer; none for buffers that only copies and optimizer steps
/// use.
pub(crate) fn computed_on(program: &Program) -> IdVec<BufferId, Option<DeviceId>> {
    let mut devices: IdVec<BufferId, Option<DeviceId>> = program.buffers().iter().map(|_| None).collect();
    for action in program.actions() {
        let lane = &program.lanes()[action.lane];
        let adds = action.kind == ActionKind::Accumulate && lane.role == LaneRole::Compute;
        if action.kind.is_compute() || adds {
            // Parts of sharded buffers are in host memory.
            let whole = |access: &&Access| !adds || program.buffers()[access.buffer].part.is_none();
            for access in program.accesses(action).iter().filter(whole) {
                devices[access.buffer] = Some(lane.device);
            }
        }
    }
    devices
}

/// Why an action has no task.
enum Refusal {
    /// Actions of this kind are not executed.
    UnknownKind,
    Missing(&'static str),
}

/// Something that an action lacks, as a clause about it: "reads nothing".
struct Missing(&'static str);

/// The buffers of one action, found by content.
struct ActionBuffers<'a> {
    program: &'a Program,
    action: &'a Action,
    /// Stages and microbatches with a split backward.
    split: &'a BTreeSet<(StageId, MicrobatchId)>,
    /// Buffers of saved activations that are offloaded.
    leaving: &'a BTreeSet<BufferId>,
}

type ContentTest = fn(&Content) -> bool;

const PARAMETERS: ContentTest = |content| matches!(content, Content::Parameters(_) | Content::Updated(_));
const GRADIENTS: ContentTest = |content| matches!(content, Content::Gradients(_));
const SHARED: ContentTest = |content| matches!(content, Content::Shared(_));
const SHARED_GRADIENTS: ContentTest = |content| matches!(content, Content::SharedGradients(_));
const CACHE: ContentTest = |content| matches!(content, Content::Cache(_));
const STATE: ContentTest = |content| matches!(content, Content::OptimizerState(_));
const NORM: ContentTest = |content| matches!(content, Content::Norm(_));
const LOG: ContentTest = |content| matches!(content, Content::UndoLog(_));
const OUTPUT: ContentTest = |content| matches!(content, Content::Activation(..) | Content::Checkpoint(..));
const GRADIENT: ContentTest = |content| matches!(content, Content::Gradient(..));
const GRAPH: ContentTest =
    |content| matches!(content, Content::Saved(..) | Content::Recomputed(..) | Content::Reloaded(..));

impl ActionBuffers<'_> {
    /// The task of the action.
    fn task(&self) -> Result<Task, Refusal> {
        match self.action.kind {
            ActionKind::Forward => self.forward(),
            ActionKind::Recompute => self.recompute(),
            ActionKind::Backward => self.backward(),
            ActionKind::BackwardInput => self.backward_input(),
            ActionKind::BackwardWeight => self.backward_weight(),
            ActionKind::Copy(Payload::Activation | Payload::Gradient | Payload::Checkpoint) => {
                self.one(|content| OUTPUT(content) || GRADIENT(content)).map(|(from, to)| Task::Send { from, to })
            }
            ActionKind::Copy(Payload::Offload | Payload::Reload) => {
                self.one(GRAPH).map(|(from, to)| Task::Offload { from, to })
            }
            ActionKind::Copy(Payload::WeightsIn) if self.write(SHARED).is_some() => {
                self.one(|content| PARAMETERS(content) || SHARED(content)).map(|(from, to)| Task::CopyTied { from, to })
            }
            ActionKind::Copy(Payload::GradientsOut) if self.write(SHARED_GRADIENTS).is_some() => {
                Ok(self.moved(SHARED_GRADIENTS))
            }
            ActionKind::Accumulate => self.accumulate(),
            ActionKind::Copy(Payload::WeightsIn | Payload::WriteBack) => Ok(self.moved(PARAMETERS)),
            ActionKind::Copy(Payload::GradientsOut) => Ok(self.moved(GRADIENTS)),
            ActionKind::Copy(Payload::StateIn) => self.one(STATE).map(|(from, to)| Task::ReadState { from, to }),
            ActionKind::Copy(Payload::StateOut) => self.one(STATE).map(|(from, to)| Task::WriteState { from, to }),
            ActionKind::Collective(Collective::AllGather) => self.gather(),
            ActionKind::Collective(Collective::ReduceScatter) => self.reduce(),
            ActionKind::OptimizerStep => self.step().map(Task::Step),
            ActionKind::Norm => self.norm(),
            ActionKind::Check => {
                let read = |is_wanted| self.all(self.program.reads(self.action), is_wanted);
                Ok(Task::Check { norms: read(NORM), states: read(STATE) })
            }
            ActionKind::Rollback => self.rollback(),
            ActionKind::Barrier => Ok(Task::Barrier),
            ActionKind::Collective(Collective::AllReduce) => return Err(Refusal::UnknownKind),
        }
        .map_err(|Missing(what)| Refusal::Missing(what))
    }

    fn content(&self, buffer: BufferId) -> &Content {
        &self.program.buffers()[buffer].content
    }

    fn all(&self, accesses: &[Access], is_wanted: ContentTest) -> Vec<BufferId> {
        let buffers = accesses.iter().map(|access| access.buffer);
        buffers.filter(|buffer| is_wanted(self.content(*buffer))).collect()
    }

    fn read(&self, is_wanted: ContentTest) -> Option<BufferId> {
        self.all(self.program.reads(self.action), is_wanted).first().copied()
    }

    fn write(&self, is_wanted: ContentTest) -> Option<BufferId> {
        self.all(self.program.writes(self.action), is_wanted).first().copied()
    }

    /// The one buffer that is read and the one that is written.
    fn one(&self, is_wanted: ContentTest) -> Result<(BufferId, BufferId), Missing> {
        Ok((
            self.read(is_wanted).ok_or(Missing("reads nothing"))?,
            self.write(is_wanted).ok_or(Missing("writes nothing"))?,
        ))
    }

    fn stage(&self) -> Result<StageId, Missing> {
        self.action.subject.stage.ok_or(Missing("has no stage"))
    }

    fn work(&self) -> Result<Work, Missing> {
        let microbatch = self.action.subject.microbatch.ok_or(Missing("has no microbatch"))?;
        let stage = self.stage()?;
        let first = self.program.stages()[stage].layers.first().index();
        let behind = |content: &Content| match content {
            Content::Activation(layer, _) | Content::Checkpoint(layer, _) => layer.index() + 1 == first,
            _ => false,
        };
        let input = self
            .program
            .reads(self.action)
            .iter()
            .map(|access| access.buffer)
            .find(|buffer| behind(self.content(*buffer)));
        if input.is_none() && first > 0 {
            return Err(Missing("reads no input"));
        }
        // A stage's own parameters come first. Shared ones are read in place or from a copy.
        let mut read = self.all(self.program.reads(self.action), PARAMETERS).into_iter();
        let parameters = read.next().ok_or(Missing("reads no parameters"))?;
        let shared = self.read(SHARED).or(read.next());
        Ok(Work { stage, microbatch: microbatch.index(), parameters, shared, input, cache: self.read(CACHE) })
    }

    fn is_split(&self) -> bool {
        let subject = self.action.subject;
        subject.stage.zip(subject.microbatch).is_some_and(|key| self.split.contains(&key))
    }

    fn forward(&self) -> Result<Task, Missing> {
        let work = self.work()?;
        let outputs = self.all(self.program.writes(self.action), OUTPUT).into_iter().filter_map(|buffer| {
            match self.content(buffer) {
                Content::Activation(layer, _) | Content::Checkpoint(layer, _) => Some((*layer, buffer)),
                _ => None,
            }
        });
        let stage = &self.program.stages()[work.stage];
        let recomputed = stage.recomputed.map_or(0, LayerRange::count);
        let from = (stage.layers.first().index() + recomputed).max(self.program.shape().without_backward);
        // If activations are saved in two buffers, the second is the one that leaves the device.
        let graph = self.all(self.program.writes(self.action), GRAPH).last().copied();
        let offloads = graph.is_some_and(|graph| self.leaving.contains(&graph));
        // Parameters that leave the device must not be held by a graph.
        let leaves = self.program.buffers()[work.parameters].lifetime == Lifetime::Transient;
        let split = leaves || self.is_split();
        let keeps = graph.map(|graph| SavedGraph { graph, from, split, offloads, leaves });
        Ok(Task::Forward { work, outputs: outputs.collect(), keeps })
    }

    fn recompute(&self) -> Result<Task, Missing> {
        let into = self.write(|content| matches!(content, Content::Recomputed(..))).ok_or(Missing("makes nothing"))?;
        let Content::Recomputed(layers, _) = *self.content(into) else { return Err(Missing("makes nothing")) };
        Ok(Task::Recompute { work: self.work()?, layers, split: self.is_split(), into })
    }

    fn gradients(&self) -> Result<GradientSums, Missing> {
        let sum = |is_wanted: ContentTest| {
            self.write(is_wanted).map(|buffer| Sum { buffer, adds: self.read(is_wanted).is_some() })
        };
        Ok(GradientSums { own: sum(GRADIENTS).ok_or(Missing("makes no gradients"))?, shared: sum(SHARED_GRADIENTS) })
    }

    fn accumulate(&self) -> Result<Task, Missing> {
        let from = self.read(SHARED_GRADIENTS).ok_or(Missing("adds nothing"))?;
        Ok(Task::Accumulate { from, to: self.write(GRADIENTS).ok_or(Missing("adds to nothing"))? })
    }

    fn crossing(&self) -> BoundaryGradients {
        BoundaryGradients { incoming: self.read(GRADIENT), outgoing: self.write(GRADIENT) }
    }

    fn backward(&self) -> Result<Task, Missing> {
        let graphs = self.all(self.program.reads(self.action), GRAPH);
        let (work, gradients, crossing) = (self.work()?, self.gradients()?, self.crossing());
        Ok(Task::Backward { work, graphs, gradients, crossing })
    }

    fn backward_input(&self) -> Result<Task, Missing> {
        let graphs = self.all(self.program.reads(self.action), GRAPH);
        if graphs.is_empty() {
            return Err(Missing("reads nothing saved"));
        }
        Ok(Task::BackwardInput { work: self.work()?, graphs, crossing: self.crossing() })
    }

    fn backward_weight(&self) -> Result<Task, Missing> {
        // The backward-input leaves its remainder in the first buffer that it reads.
        let later = self.read(GRAPH).ok_or(Missing("reads nothing saved"))?;
        Ok(Task::BackwardWeight { later, gradients: self.gradients()?, stage: self.stage()? })
    }

    fn moved(&self, is_wanted: ContentTest) -> Task {
        let to = self.all(self.program.writes(self.action), is_wanted);
        let read = self.all(self.program.reads(self.action), is_wanted);
        let adds = read.iter().any(|buffer| to.contains(buffer));
        Task::Move { from: read.into_iter().filter(|buffer| !to.contains(buffer)).collect(), to, adds }
    }

    fn gather(&self) -> Result<Task, Missing> {
        let gathered: ContentTest =
            |content| PARAMETERS(content) || SHARED(content) || GRADIENTS(content) || SHARED_GRADIENTS(content);
        let to = self.write(gathered).ok_or(Missing("gathers nothing"))?;
        let mut from = self.all(self.program.reads(self.action), gathered);
        from.sort_by_key(|buffer| self.program.buffers()[*buffer].part);
        Ok(Task::Gather { from, to })
    }

    fn reduce(&self) -> Result<Task, Missing> {
        let gradients: ContentTest = |content| GRADIENTS(content) || SHARED_GRADIENTS(content);
        let to = self.write(gradients).ok_or(Missing("reduces nothing"))?;
        let read = self.all(self.program.reads(self.action), gradients);
        let adds = read.contains(&to);
        Ok(Task::Reduce { from: read.into_iter().filter(|buffer| *buffer != to).collect(), to, adds })
    }

    fn norm(&self) -> Result<Task, Missing> {
        let gradients = self.read(GRADIENTS).ok_or(Missing("reads no gradients"))?;
        Ok(Task::Norm { gradients, to: self.write(NORM).ok_or(Missing("leaves no norm"))? })
    }

    fn step(&self) -> Result<Step, Missing> {
        Ok(Step {
            device: self.program.lanes()[self.action.lane].device,
            gradients: self.read(GRADIENTS),
            state: self.read(STATE).ok_or(Missing("reads no state"))?,
            before: self.all(self.program.reads(self.action), PARAMETERS),
            after: self.all(self.program.writes(self.action), PARAMETERS),
            log: self.write(LOG),
        })
    }

    fn rollback(&self) -> Result<Task, Missing> {
        let step = self.step()?;
        let undo =
            self.read(|content| LOG(content) || GRADIENTS(content)).ok_or(Missing("has nothing to undo from"))?;
        Ok(Task::Rollback { step, undo })
    }
}
