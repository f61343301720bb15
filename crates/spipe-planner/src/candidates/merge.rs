//! Merge of streamed stages, where the merged stage needs no more buffer than the largest stage
//! anyway.
//!
//! A device holds the input of each of its stages for all microbatches, and buffers for the
//! parameters of the largest. Fewer stages leave more memory, so that fewer layers must be
//! recomputed. The first stage stays as it is: nothing hides its optimizer step.

use crate::{
    candidates::residency::{may_stay, streams, with_least_recompute},
    costs::bytes_of,
    hosts::fits,
};
use spipe_base::LayerRange;
use spipe_cost::LayerMemory;
use spipe_plan::{Context, Placement, Stage};

/// Limits on the layers of merged stages that keep their parameters: all their recomputed
/// activations are present at once.
const KEPT: [usize; 4] = [1, 2, 3, 4];

/// Returns variants of `placement`, whose stages are all on one device, with fewer streamed stages,
/// perhaps fewer kept ones, and the least recompute that fits; empty if nothing changes or fits.
pub(crate) fn merged(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let [device] = placement.devices()[..] else { return Vec::new() };
    let moved = |memory: &LayerMemory| memory.parameters + memory.gradients;
    let bytes = |stage: &Stage| bytes_of(context, (stage.layers, device), moved);
    let most = placement.stages.iter().filter(|stage| streams(stage)).map(bytes).max().unwrap_or_default();
    let with = |kept: usize| {
        let mut stages: Vec<Stage> = Vec::new();
        for (index, stage) in placement.stages.iter().enumerate() {
            let last = stages.last_mut().filter(|_| index > 1);
            let joined = last.as_ref().and_then(|last| joined(context, last, stage));
            let small =
                |joined: &Stage| if streams(joined) { bytes(joined) <= most } else { joined.layers.count() <= kept };
            match (last, joined.filter(small)) {
                (Some(last), Some(joined)) => *last = joined,
                _ => stages.push(*stage),
            }
        }
        let mut merged = Placement { stages: stages.into_iter().collect(), ..placement.clone() };
        with_least_recompute(context, &mut merged, device);
        merged
    };
    let mut list: Vec<Placement> = KEPT.into_iter().map(with).collect();
    list.dedup();
    list.retain(|merged| merged.stages.len() < placement.stages.len() && fits(context, merged));
    list
}

/// Returns two neighbours as one stage, if both are streamed or both kept, and both fully
/// recomputed.
fn joined(context: &Context<'_>, first: &Stage, second: &Stage) -> Option<Stage> {
    let may = |stage: &Stage| stage.recomputed == stage.layers.count() && may_stay(context, stage);
    let alike = streams(first) == streams(second) && may(first) && may(second);
    let layers = LayerRange::new(first.layers.first(), second.layers.last()).filter(|_| alike)?;
    Some(Stage { layers, ..*first }.with_everything_recomputed())
}
