//! Why a program could not be run.

use crate::{CheckpointError, DataError, WeightsError};
use spipe_base::{Bytes, Faults};
use spipe_trace::Shortage;

/// Why a run ended without a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The program, the model or the bindings ask for what cannot be done; nothing has run.
    #[error("{0}")]
    Unsupported(Faults),
    /// A device that is not here; nothing has run.
    #[error("`{device}` cannot be opened: {reason}")]
    NoDevice {
        /// The executor.
        device: String,
        /// Why not.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// The data does not suit the plan; nothing has run.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint cannot be written, or not be gone on from.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The training has left the numbers that there are; no checkpoint holds what it came to.
    #[error("{what} is not finite")]
    NotFinite {
        /// What is not, and after which step.
        what: String,
    },
    /// Weights that cannot be read or written, or are those of another model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Memory that nothing running could free.
    #[error(
        "{} needs {} in `{}`, which has {} free",
        .0.action, .0.needed, .0.memory, .0.free
    )]
    OutOfMemory(Box<Shortage>),
    /// More is held than the plan counts, and than the memory has room for.
    #[error("`{memory}` holds {held} after {done}, more than its {capacity}")]
    Exceeded {
        /// The memory.
        memory: String,
        /// What it can hold.
        capacity: Bytes,
        /// What is held.
        held: Bytes,
        /// What was done last.
        done: String,
    },
    /// An action failed; the other lanes have stopped.
    #[error("`{lane}` failed in {action}: {message}")]
    Lane {
        /// The lane.
        lane: String,
        /// The action and its step.
        action: String,
        /// What happened.
        message: String,
    },
    /// Actions wait for each other; the program's checker should have said so.
    #[error("nothing can go on: {waiting}")]
    Stalled {
        /// Who waits.
        waiting: String,
    },
}

impl RunError {
    /// What to do about it, if there is advice.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoDevice { hint, .. } => Some(hint.clone()),
            Self::OutOfMemory(shortage) => {
                let holders: Vec<String> = shortage
                    .holders
                    .iter()
                    .take(3)
                    .map(|holder| format!("{} hold {}", holder.what, holder.bytes))
                    .collect();
                Some(format!("{}; use a smaller microbatch, or recompute more layers", holders.join(", ")))
            }
            Self::Exceeded { held, capacity, .. } => Some(format!(
                "the plan counts less than what tensors come to here: plan with {} more of `reserved` in the profile",
                (*held - *capacity).up_to_printed()
            )),
            Self::Checkpoint(error) => error.hint(),
            Self::NotFinite { .. } => {
                Some("a smaller learning rate may help; checkpoints before that step are good".into())
            }
            Self::Weights(error) => error.hint().map(str::to_owned),
            Self::Data(DataError::TooShort { .. }) => Some("use a longer text or a shorter sequence".into()),
            Self::Data(DataError::Vocabulary { unit: "byte", known, .. }) => Some(format!(
                "a text that is read byte by byte takes a vocabulary of {known}; name the model's tokenizer with `--tokenizer`"
            )),
            Self::Data(DataError::Vocabulary { known, vocabulary, .. }) => Some(format!(
                "the tokenizer has {known} tokens, the model {vocabulary}; name the tokenizer that was made for it"
            )),
            _ => None,
        }
    }

    /// Whether the reason is a device that is not here.
    pub const fn is_missing_device(&self) -> bool {
        matches!(self, Self::NoDevice { .. })
    }
}

/// What one memory held, as the plan counts and as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its name.
    pub name: String,
    /// What it can hold, if that is limited.
    pub capacity: Option<Bytes>,
    /// The most that the program's own figures came to: what actions waited for.
    pub planned: Bytes,
    /// The most that was really held: tensors by their size, graphs by an estimate of what they keep, workspace as planned.
    pub held: Bytes,
    /// What the allocator of a device with a memory of its own had taken of it when the run ended: the most that it ever held, since it
    /// keeps what it has, and what lies unused between.
    pub reserved: Option<Bytes>,
}
