//! Why an action of a run failed.

use spipe_base::BufferId;
use std::{borrow::Cow, fmt::Debug, io, path::Path};

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The value of a buffer is missing, or of another kind than the buffer's content says.
    #[error("{buffer} of iteration {iteration} does not hold what it should")]
    WrongContent {
        /// The buffer.
        buffer: BufferId,
        /// The iteration.
        iteration: u32,
    },
    /// The program asks for something that its own buffers or layers, or the files it starts from,
    /// do not have.
    #[error("{0}")]
    Inconsistent(Cow<'static, str>),
    /// The library of a device reports a failure.
    #[error("{0}")]
    Device(String),
    /// Numbers that are not finite, which no loss scale explains.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// A file that cannot be read.
    #[error("`{file}` cannot be read: {reason}")]
    Io {
        /// The file, or the tensor in it.
        file: String,
        /// The system's words.
        reason: String,
    },
    /// The file of a drive cannot be read or written, or holds other bytes than were written.
    #[error("`{file}` cannot be {what}: {reason}")]
    Drive {
        /// The file.
        file: String,
        /// The attempt: "read" or "written".
        what: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The run has failed elsewhere.
    #[error("stopped")]
    Stopped,
    /// The thread of a lane cannot be started.
    #[error("{0}")]
    Thread(String),
    /// The action panicked.
    #[error("{0}")]
    Panicked(String),
}

/// Numbers that are not finite.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFinite {
    /// The norm of all gradients of a step.
    #[error("the norm of all gradients is not finite")]
    Norm,
    /// The gradients of some layers.
    #[error("the gradients of {layers} are not finite")]
    Gradients {
        /// The layers in words.
        layers: String,
    },
    /// A parameter that is to be saved.
    #[error("it is not finite")]
    Parameter,
    /// A tensor of the weights that a run starts from.
    #[error("`{tensor}` of the weights holds numbers that are not finite")]
    Weights {
        /// The tensor's name in the file.
        tensor: String,
    },
}

impl TaskError {
    /// The failure that a device's library reports as `error`.
    pub(crate) fn device(error: impl Debug) -> Self {
        Self::Device(format!("{error:?}"))
    }

    /// The failure to read `file`.
    pub(crate) fn io(file: impl Into<String>, error: &io::Error) -> Self {
        Self::Io { file: file.into(), reason: error.to_string() }
    }

    /// The failure of the file of a drive.
    pub(crate) fn drive(file: &Path, what: &'static str, error: &io::Error) -> Self {
        Self::Drive { file: file.display().to_string(), what, reason: error.to_string() }
    }

    /// A contradiction in the program or in a file.
    pub(crate) fn inconsistent(message: String) -> Self {
        Self::Inconsistent(message.into())
    }
}

impl From<&'static str> for TaskError {
    fn from(message: &'static str) -> Self {
        Self::Inconsistent(message.into())
    }
}
