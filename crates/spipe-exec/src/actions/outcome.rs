//! The result of an action.

use super::store::Instance;
use spipe_base::Bytes;

/// The result of an action, as the run state records it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Real sizes of buffers after the action.
    pub held: Vec<(Instance, Bytes)>,
    /// A microbatch and its loss.
    pub loss: Option<(usize, f64)>,
    /// The norm of all gradients.
    pub norm: Option<f64>,
    /// Whether the check skips all steps of the iteration because some gradients are not finite.
    pub left_out: bool,
    /// When the action ended, if that was before the lane's thread noticed.
    pub end: Option<std::time::Instant>,
}
