//! Stages whose parameters stay on their device although others are streamed: no copies, and no step on a socket.
//!
//! The backward ends with the first stages, whose steps on a socket nothing hides: these are kept first.

use crate::bisect::first_of;
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage, Weights, check};

/// Into how many shares layers are divided for recompute.
const SHARES: usize = 4;

/// `placement` with as many of its first stages kept as fit; none if not one does, or its system keeps none.
pub(super) fn as_many_as_fit(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let most = streamed(context, placement).len();
    let fit = |count: usize| check(context, &with_more(context, placement, count)).is_ok();
    if !fit(1) {
        return None;
    }
    let count = first_of((2, most + 1), |count| !fit(count)) - 1;
    Some(with_more(context, placement, count))
}

/// `placement` with several shares of its layers recomputed, from the front, and as many stages kept as then fit.
pub(super) fn mixed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let layers = context.model.layers().len();
    let recomputed = |count: usize| {
        let mut mixed = placement.clone();
        for stage in mixed.stages.iter_mut() {
            let own = count.saturating_sub(stage.layers.first().index()).min(stage.layers.count());
            *stage = stage.with_recomputed(own);
        }
        mixed
    };
    let shares = if context.workload().mode == Mode::Train { SHARES } else { 0 };
    let counts = (0..=shares).map(|share| layers * share / SHARES);
    // What does not fit where more is recomputed fits nowhere before.
    counts.rev().map_while(|count| as_many_as_fit(context, &recomputed(count))).collect()
}

/// `placement` with so many more of its first stages kept.
pub(crate) fn with_more(context: &Context<'_>, placement: &Placement, count: usize) -> Placement {
    let mut kept = placement.clone();
    let more: Vec<usize> = streamed(context, placement).into_iter().take(count).collect();
    for (_, stage) in kept.stages.iter_mut().enumerate().filter(|(index, _)| more.contains(index)) {
        *stage = Stage { weights: Weights::Resident, optimizer: None, ..*stage };
    }
    kept
}

/// The stages of `placement` that could be kept, and are not.
fn streamed(context: &Context<'_>, placement: &Placement) -> Vec<usize> {
    let shares =
        |stage: &Stage| context.model.borrows(stage.layers).is_some() || context.model.lends(stage.layers).is_some();
    let may =
        |stage: &Stage| placement.system.may_keep() && matches!(stage.weights, Weights::Streamed(_)) && !shares(stage);
    let stages = placement.stages.iter().enumerate();
    stages.filter(|(_, stage)| may(stage)).map(|(index, _)| index).collect()
}
