//! Plans that the interpreter cannot run.

use spipe_base::{Diagnostic, Faults};
use spipe_cost::Mode;
use spipe_plan::{Plan, Update};

/// Refuses what the interpreter does not have.
///
/// # Errors
/// One fault for each reason, with the nearest plan that can be exported.
pub fn check(plan: &Plan) -> Result<(), Faults> {
    let (context, placement) = (plan.context(), plan.placement());
    let name = placement.name();
    let mut faults = Faults::new();
    let mut refuse = |reason: &str, nearest: &str| {
        faults.push(Diagnostic::error(format!("this plan of `{name}` cannot be exported: {reason}")).hint(nearest));
    };
    if context.workload().mode != Mode::Train {
        refuse("the scripts train, and the plan is for inference", "plan with `option mode train`");
    }
    if matches!(placement.update, Update::DuringBackward { arithmetic_undo: true }) {
        refuse("its steps are undone by arithmetic", "plan without `arithmetic-undo`: steps are undone from a log");
    }
    if super::sockets_compute(plan) {
        refuse(
            "a CPU socket computes a stage, and the interpreter's stages are GPUs'",
            "nearest: a plan with GPUs in `option devices`",
        );
    }
    if !super::is_one_computer(plan) {
        refuse(
            "its devices are of several computers, and the interpreter's processes share the memory of one",
            "nearest: a plan with `option devices` of one computer",
        );
    }
    faults.or(())
}
