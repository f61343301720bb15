//! Refusals of trainings that cannot be.

use crate::{Mode, Optimizer, StateFormat, Workload};
use spipe_base::{Diagnostic, Faults};
use spipe_model::Model;

/// Checks that `workload` can train `model`: that something is trained, that the trained part is not
/// stored in a quantised format, and that the optimizer has its formats.
///
/// # Errors
/// Every condition that does not hold.
pub fn check_training(model: &Model, workload: &Workload) -> Result<(), Faults> {
    let (mut faults, formats, optimizer) = (Faults::new(), &workload.formats, workload.optimizer);
    if workload.mode != Mode::Train {
        return Ok(());
    }
    if model.trained_parameters() == 0 {
        let message = format!("all layers of `{}` are frozen: there is nothing to train", model.name());
        faults.push(
            Diagnostic::error(message)
                .hint("leave a layer unfrozen, add `option lora`, or plan with `option mode infer`"),
        );
    }
    if let Some(base) = formats.base.filter(|base| base.is_quantised())
        && let Some(layer) = model.layers().iter().find(|layer| layer.trains && !layer.quantised().is_empty())
    {
        let message = format!("layer `{}` is to be trained, but its matrices are stored as {base}", layer.name);
        let hint = "a quantised base is frozen: add `option lora rank=16`, or freeze the blocks with `option freeze`";
        faults.push(Diagnostic::error(message).hint(hint));
    }
    if let Some(state) = formats.state.filter(|state| !optimizer.state_formats().contains(state)) {
        faults.push(no_such_state(optimizer, state));
    }
    if formats.optimizer_in_backward {
        if workload.microbatches > 1 {
            let message = format!(
                "an optimizer in the backward sees the gradients of one microbatch, but an iteration has {}",
                workload.microbatches
            );
            faults.push(Diagnostic::error(message).hint("give `option microbatch` the global batch"));
        }
        if workload.checks_gradients() {
            let message = "an optimizer in the backward cannot wait for all gradients";
            faults.push(
                Diagnostic::error(message).hint("leave `option clip-norm` out, and plan with `option precision bf16`"),
            );
        }
    }
    faults.or(())
}

fn no_such_state(optimizer: Optimizer, state: StateFormat) -> Diagnostic {
    let formats = optimizer.state_formats();
    let message = format!("the optimizer `{}` has no state of format `{state}`", optimizer.name());
    let words: Vec<String> = formats.iter().map(|format| format!("`{format}`")).collect();
    let other = Optimizer::ALL.into_iter().find(|other| {
        let name = optimizer.name();
        other.name().starts_with(name) && *other != optimizer && other.state_formats().contains(&state)
    });
    Diagnostic::error(message).hint(match (other, words.as_slice()) {
        (Some(other), _) => format!("use `option optimizer {}`", other.name()),
        (None, []) => "it keeps none; leave `option state` out".into(),
        (None, words) => format!("it has {}", words.join(", ")),
    })
}
