//! Answers that no Program expresses together.

use super::found::Found;
use crate::{Context, GradientsLeave, OrderKind, Placement, Update, Weights};
use spipe_base::Diagnostic;

/// Checks that the update, the copies of gradients and activations, and the home of parameters go with the order.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let (order, update) = (placement.order, placement.update);
    let (streams, shards) = (!order.is_pipeline(), placement.shards_parameters());
    if shards && order != OrderKind::PLAIN_1F1B {
        let message = format!("the order `{order}` does not go with sharded parameters");
        faults.push(Diagnostic::error(message).hint("use the order `1f1b`, in which each replica computes"));
        return;
    }
    let others = match update {
        Update::AsReady { .. } | Update::Phase { .. } if !streams => None,
        Update::Delayed if !streams && !shards => None,
        Update::AfterBackward | Update::NeededFirst | Update::DuringBackward { .. } if streams => None,
        _ if streams => Some("`after-backward`, `needed-first` or `during-backward`"),
        _ if shards => Some("`as-ready` or `phase`"),
        _ => Some("`as-ready`, `phase` or `delayed`"),
    };
    if let Some(others) = others {
        let message = format!("the order `{order}` does not go with the update `{update}`");
        faults.push(Diagnostic::error(message).hint(format!("use the update {others}")));
    }
    if !placement.is_pipeline() {
        let mut refuse = |given: bool, what: &str| {
            if given {
                let hint = "leave it out, or use the order of a pipeline";
                faults.push(Diagnostic::error(format!("{} has no {what}", placement.fixed_by())).hint(hint));
            }
        };
        refuse(placement.gradients_leave != GradientsLeave::Complete, "gradients that leave after each microbatch");
        refuse(placement.offload.slots.is_some(), "slots for offloaded activations");
        refuse(placement.offload.in_turn, "offloads in turn");
    } else {
        check_streamed(context, placement, faults);
    }
    if !streams && !placement.backward.is_empty() {
        let message = format!("the order `{order}` has no stages of the backward's own");
        faults.push(Diagnostic::error(message).hint("leave `backward` out, or use the order `rounds`"));
    }
}

/// Checks that no stage of a pipeline streams its parameters. Drives have a check of their own.
fn check_streamed(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    for (id, stage) in placement.stages.enumerate() {
        if let Weights::Streamed(home) = stage.weights
            && !context.is_drive(home)
        {
            let home = &context.hardware.memories()[home].name;
            let message = format!(
                "stage `{id}` streams its parameters from `{home}`, but the order `{}` keeps them on devices",
                placement.order
            );
            let hint = "leave `weights-in` out, or use the order `rounds`, which streams and keeps";
            faults.push_at(id, Diagnostic::error(message).hint(hint));
        }
    }
}
