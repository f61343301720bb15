//! Why a device could not be opened.

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{device}` cannot be opened: {reason}")]
pub struct DeviceError {
    /// The executor, as a binding writes it.
    pub device: String,
    /// The reason.
    pub reason: String,
    /// Advice.
    pub hint: String,
}
