//! Changes of a placement that all GPUs share.

use crate::space::sharded::ShardedMode;
use spipe_plan::{Context, Placement};

/// Gives each stage another choice.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let shards = placement.shard_groups().size();
    let choices = ShardedMode::of((placement.system, shards), context);
    let mut list = Vec::new();
    for (id, stage) in placement.stages.enumerate() {
        let others = choices.iter().filter_map(|choice| choice.stage(context, stage.layers));
        for other in others.filter(|other| other != stage) {
            let mut changed = placement.clone();
            changed.stages[id] = other;
            list.push(changed);
        }
    }
    list
}
