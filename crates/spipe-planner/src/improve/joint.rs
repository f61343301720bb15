//! Joint changes of several stages, where one alone gains nothing: if two sockets are equally busy
//! with optimizer steps, both must have fewer before the iteration is shorter.

use crate::{
    problem::SYSTEMS,
    space::{
        distinct,
        stage_edits::{saved_in_host, stepped_on_socket},
    },
};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage};

/// A change of a stage; none where it is impossible.
type Change = fn(&Context<'_>, &Stage) -> Option<Stage>;

/// All choices of a stage on a GPU.
const CHANGES: [Change; 5] = [
    |_, stage| Some(Stage { optimizer: None, ..*stage }),
    stepped_on_socket,
    |_, stage| Some(Stage { offload: None, recomputed: 0, ..*stage }),
    saved_in_host,
    |_, stage| Some(Stage { offload: None, ..stage.with_everything_recomputed() }),
];

/// Selections of a device's stages, by index and count: all, the front half, the back half.
const PARTS: [fn(usize, usize) -> bool; 3] =
    [|_, _| true, |index, count| index < count / 2, |index, count| index >= count / 2];

/// Applies each change to the stages of all devices from each one on: to all of them, or to the
/// front or back half.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Vec<Stage>> {
    let stages = placement.stages.as_slice();
    let devices = placement.devices();
    if context.workload().mode != Mode::Train || !SYSTEMS.contains(&placement.system) || devices.len() == stages.len() {
        return Vec::new();
    }
    let mut list = Vec::new();
    for from in 0..devices.len() {
        for part in PARTS {
            for change in CHANGES {
                let mut all = stages.to_vec();
                for device in &devices[from..] {
                    let own: Vec<usize> = (0..stages.len()).filter(|index| stages[*index].lead() == *device).collect();
                    let chosen = own.iter().enumerate().filter(|(index, _)| part(*index, own.len()));
                    for (_, index) in chosen.filter(|_| !context.is_cpu(*device)) {
                        all[*index] = change(context, &stages[*index]).unwrap_or(stages[*index]);
                    }
                }
                list.push(all);
            }
        }
    }
    list.retain(|all| all != stages);
    distinct(list)
}
