//! Why a run failed.

use crate::{
    data::DataError,
    device::DeviceError,
    persist::{checkpoint::CheckpointError, weights::WeightsError},
    task_error::TaskError,
};
use spipe_base::{Bytes, Faults};
use spipe_trace::Shortage;

/// Why a run ended without a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The program, the model or the bindings ask for something that cannot be done; nothing has
    /// run.
    #[error("{0}")]
    Unsupported(Faults),
    /// A device that does not exist here; nothing has run.
    #[error(transparent)]
    NoDevice(#[from] DeviceError),
    /// The data does not suit the plan; nothing has run.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint cannot be written, or not be resumed from.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The training has diverged; no checkpoint holds its numbers.
    #[error("{what} is not finite")]
    NotFinite {
        /// The quantity that is not finite, and its step.
        what: String,
    },
    /// Weights that cannot be read or written, or that belong to another model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file of a drive cannot be made or filled; nothing has run.
    #[error("{0}")]
    Drive(TaskError),
    /// An action needs memory that no running action can free.
    #[error(
        "{} needs {} in `{}`, which has {} free",
        .0.action, .0.needed, .0.memory, .0.free
    )]
    OutOfMemory(Box<Shortage>),
    /// More bytes are held than the plan counts and than the memory has.
    #[error("`{memory}` holds {held} after {done}, more than its {capacity}")]
    Exceeded {
        /// The memory.
        memory: String,
        /// Its capacity.
        capacity: Bytes,
        /// Bytes held.
        held: Bytes,
        /// The last action.
        done: String,
    },
    /// An action failed; the other lanes have stopped.
    #[error("`{lane}` failed in {action}: {error}")]
    Lane {
        /// The lane.
        lane: String,
        /// The action and its step.
        action: String,
        /// The failure.
        error: TaskError,
    },
    /// Actions wait for each other. The program's checker should have found it.
    #[error("nothing can go on: {waiting}")]
    Stalled {
        /// The actions that wait.
        waiting: String,
    },
}

impl RunError {
    /// Advice, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoDevice(error) => Some(error.hint.clone()),
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
            Self::Lane { error: TaskError::Drive { .. }, .. } => {
                Some("checkpoints are as they were: mend the drive, then go on with `option resume`".into())
            }
            Self::Drive { .. } => Some("name a folder with enough room with `option drive NAME=FOLDER`".into()),
            Self::Checkpoint(error) => error.hint(),
            Self::NotFinite { .. } => {
                Some("a smaller learning rate may help; checkpoints before that step are good".into())
            }
            Self::Weights(error) => error.hint().map(str::to_owned),
            Self::Data(DataError::TooShort { .. }) => Some("use a longer text or a shorter sequence".into()),
            Self::Data(DataError::Vocabulary { unit: "byte", known, .. }) => Some(format!(
                "a text that is read byte by byte takes a vocabulary of {known}; name the model's tokenizer with `option tokenizer`"
            )),
            Self::Data(DataError::Vocabulary { known, vocabulary, .. }) => Some(format!(
                "the tokenizer has {known} tokens, the model {vocabulary}; name the tokenizer that was made for it"
            )),
            _ => None,
        }
    }

    /// Whether the reason is a device that does not exist here.
    pub const fn is_missing_device(&self) -> bool {
        matches!(self, Self::NoDevice(_))
    }
}
