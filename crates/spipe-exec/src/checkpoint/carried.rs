//! Programs of which a checkpoint does not hold everything.

use spipe_base::Diagnostic;
use spipe_schedule::{Lifetime, Program};

/// Refuses programs that carry data from one step to the next beside parameters and optimizer state, such as the gradients of
/// a step that is made one step later: a checkpoint does not hold it.
pub(crate) fn refuse_carried(program: &Program) -> Result<(), Diagnostic> {
    let carried = program.buffers().iter().find(|buffer| matches!(buffer.lifetime, Lifetime::Leaves { .. }));
    match carried {
        None => Ok(()),
        Some(buffer) => {
            let what = buffer.content.group();
            Err(Diagnostic::error(format!("{what} go from one step to the next, which checkpoints do not hold"))
                .hint("use a plan whose steps end with the iteration, or run without `--checkpoint-dir`"))
        }
    }
}
