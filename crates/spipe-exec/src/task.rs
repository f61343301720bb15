//! What each action does, read off its kind and the contents of the buffers that it reads and writes.

use spipe_base::{ActionId, ActionKind, BufferId, DeviceId, Diagnostic, Faults, IdVec, MemoryId, Payload, StageId};
use spipe_schedule::{Access, Action, Content, Lifetime, Program};

/// An action, ready to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Forward { work: Work, input: Option<BufferId>, output: Option<BufferId>, saved: BufferId },
    Recompute { work: Work, saved: BufferId, recomputed: BufferId },
    Backward { work: Work, saved: BufferId, recomputed: Option<BufferId>, gradients: Sum, crossing: Crossing },
    Copy { from: BufferId, to: BufferId, sender: DeviceId, receiver: DeviceId },
    Step { stage: StageId, parameters: BufferId, gradients: BufferId, state: BufferId },
}

/// One microbatch in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub stage: StageId,
    pub microbatch: usize,
    pub parameters: BufferId,
}

/// Where gradients of parameters go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub buffer: BufferId,
    /// Whether they are added to what is there.
    pub adds: bool,
}

/// Gradients of activations that come in and go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    pub incoming: Option<BufferId>,
    pub outgoing: Option<BufferId>,
}

/// The tasks of `program`, or everything in it that cannot be executed yet.
pub(crate) fn tasks(program: &Program) -> Result<IdVec<ActionId, Task>, Faults> {
    let mut faults = Faults::new();
    if !program.shape().training {
        faults.push(Diagnostic::error("inference cannot be executed yet"));
    }
    for buffer in program.buffers() {
        if !matches!(buffer.lifetime, Lifetime::Transient | Lifetime::Resident) {
            let message =
                format!("{} is carried from one iteration to the next, which cannot be executed yet", buffer.content);
            faults.push(Diagnostic::error(message));
        }
    }
    let mut refused: Vec<ActionKind> = Vec::new();
    let mut tasks = IdVec::new();
    for (id, action) in program.actions().enumerate() {
        match task(program, action) {
            Ok(task) => {
                tasks.push(task);
            }
            Err(None) if refused.contains(&action.kind) => {}
            Err(None) => {
                refused.push(action.kind);
                faults.push(Diagnostic::error(format!("`{}` cannot be executed yet", action.kind)));
            }
            Err(Some(what)) => faults.push(Diagnostic::error(format!("{} {what}", program.describe(id)))),
        }
        if action.guard.is_some() {
            faults
                .push(Diagnostic::error(format!("{} is guarded, which cannot be executed yet", program.describe(id))));
        }
    }
    faults.or(tasks)
}

/// The task of one action; the error is none for a kind that is not known here, otherwise what the action lacks.
fn task(program: &Program, action: &Action) -> Result<Task, Option<String>> {
    let uses = Uses { program, action };
    match action.kind {
        ActionKind::Forward => uses.forward(),
        ActionKind::Recompute => uses.recompute(),
        ActionKind::Backward => uses.backward(),
        ActionKind::Copy(Payload::Activation | Payload::Gradient) => uses.copy(),
        ActionKind::OptimizerStep => uses.step(),
        _ => return Err(None),
    }
    .map_err(Some)
}

/// The buffers of one action by what they hold.
struct Uses<'a> {
    program: &'a Program,
    action: &'a Action,
}

impl Uses<'_> {
    fn find(&self, accesses: &[Access], wanted: fn(&Content) -> bool) -> Option<BufferId> {
        let holds = |access: &&Access| wanted(&self.program.buffers()[access.buffer].content);
        accesses.iter().find(holds).map(|access| access.buffer)
    }

    fn read(&self, wanted: fn(&Content) -> bool) -> Option<BufferId> {
        self.find(&self.action.reads, wanted)
    }

    fn write(&self, wanted: fn(&Content) -> bool) -> Option<BufferId> {
        self.find(&self.action.writes, wanted)
    }

    fn stage(&self) -> Result<StageId, String> {
        self.action.subject.stage.ok_or_else(|| "has no stage".into())
    }

    fn parameters(&self) -> Result<BufferId, String> {
        self.read(|content| matches!(content, Content::Parameters(_))).ok_or_else(|| "reads no parameters".into())
    }

    fn work(&self) -> Result<Work, String> {
        let microbatch = self.action.subject.microbatch.ok_or("has no microbatch")?;
        Ok(Work { stage: self.stage()?, microbatch: microbatch.index(), parameters: self.parameters()? })
    }

    fn forward(&self) -> Result<Task, String> {
        Ok(Task::Forward {
            work: self.work()?,
            input: self.read(|content| matches!(content, Content::Activation(..))),
            output: self.write(|content| matches!(content, Content::Activation(..))),
            saved: self.write(|content| matches!(content, Content::Saved(..))).ok_or("saves nothing")?,
        })
    }

    fn recompute(&self) -> Result<Task, String> {
        Ok(Task::Recompute {
            work: self.work()?,
            saved: self.read(|content| matches!(content, Content::Saved(..))).ok_or("reads nothing saved")?,
            recomputed: self.write(|content| matches!(content, Content::Recomputed(..))).ok_or("makes nothing")?,
        })
    }

    fn backward(&self) -> Result<Task, String> {
        let is_gradients: fn(&Content) -> bool = |content| matches!(content, Content::Gradients(_));
        Ok(Task::Backward {
            work: self.work()?,
            saved: self.read(|content| matches!(content, Content::Saved(..))).ok_or("reads nothing saved")?,
            recomputed: self.read(|content| matches!(content, Content::Recomputed(..))),
            gradients: Sum {
                buffer: self.write(is_gradients).ok_or("makes no gradients")?,
                adds: self.read(is_gradients).is_some(),
            },
            crossing: Crossing {
                incoming: self.read(|content| matches!(content, Content::Gradient(..))),
                outgoing: self.write(|content| matches!(content, Content::Gradient(..))),
            },
        })
    }

    fn copy(&self) -> Result<Task, String> {
        let crosses: fn(&Content) -> bool =
            |content| matches!(content, Content::Activation(..) | Content::Gradient(..));
        let from = self.read(crosses).ok_or("reads nothing")?;
        let to = self.write(crosses).ok_or("writes nothing")?;
        let owner = |buffer: BufferId| self.owner(self.program.buffers()[buffer].memory);
        Ok(Task::Copy { from, to, sender: owner(from)?, receiver: owner(to)? })
    }

    /// The device that computes stages in `memory`.
    fn owner(&self, memory: MemoryId) -> Result<DeviceId, String> {
        let mut devices = self.program.stages().iter().map(|stage| stage.device);
        devices
            .find(|device| self.program.devices()[*device].memory == memory)
            .ok_or_else(|| format!("moves data in `{}`, where no stage is", self.program.memories()[memory].name))
    }

    fn step(&self) -> Result<Task, String> {
        Ok(Task::Step {
            stage: self.stage()?,
            parameters: self.parameters()?,
            gradients: self.read(|content| matches!(content, Content::Gradients(_))).ok_or("reads no gradients")?,
            state: self.read(|content| matches!(content, Content::OptimizerState(_))).ok_or("reads no state")?,
        })
    }
}
