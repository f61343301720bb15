//! More or fewer stages whose parameters stay on their device although others are streamed.

use crate::systems::{socket, with_more_kept};
use spipe_plan::{Context, Placement, Stage, Weights};

/// One, two or four more or fewer of the first stages kept.
pub(super) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if !placement.system.may_keep() {
        return Vec::new();
    }
    let of = |count| [Some(with_more_kept(context, placement, count)), with_fewer(context, placement, count)];
    let list = [1, 2, 4].into_iter().flat_map(of).flatten();
    list.filter(|other| other != placement).collect()
}

/// `placement` with so many of its last kept stages streamed.
fn with_fewer(context: &Context<'_>, placement: &Placement, count: usize) -> Option<Placement> {
    let mut fewer = placement.clone();
    let stages = fewer.stages.as_slice().iter().enumerate().rev();
    let last = stages.filter(|(_, stage)| matches!(stage.weights, Weights::Resident)).map(|(index, _)| index);
    let last: Vec<usize> = last.take(count).collect();
    for (_, stage) in fewer.stages.iter_mut().enumerate().filter(|(index, _)| last.contains(index)) {
        let home = context.hardware.host_memory(stage.device)?;
        let streamed = Stage::new(stage.device, stage.layers).with_weights_in(home);
        let optimizer = socket(context, stage.device);
        *stage = Stage { recomputed: stage.recomputed, offload: stage.offload, optimizer, ..streamed };
    }
    Some(fewer)
}
