//! Stages at the border of a CPU socket on its other side, with every head start: a socket that has one stage more needs to begin earlier,
//! and gains nothing by that alone.

use crate::problem::LARGEST_HEAD_START;
use crate::space::stage_edits::stepped_on_socket;
use spipe_base::DeviceId;
use spipe_plan::{Context, Knobs, Placement, Stage, System};

/// How many stages cross at once.
const COUNTS: [usize; 3] = [1, 2, 4];

/// One, two or four stages over each border between a socket and a GPU, where either keeps another one; those that leave the socket are
/// stepped on their GPU or, if the host may help, on the socket.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Placement> {
    let stages = placement.stages.as_slice();
    let mut list = Vec::new();
    let borders = (1..stages.len()).filter(|next| {
        let [here, there] = [next - 1, *next].map(|index| context.is_cpu(stages[index].device));
        here != there
    });
    for next in borders {
        for count in COUNTS {
            let (before, behind) = (next.checked_sub(count).map(|from| (from, next)), Some((next, next + count)));
            let sides = [(before, stages[next].device), (behind, stages[next - 1].device)];
            for ((from, to), device) in sides.into_iter().filter_map(|(range, device)| Some((range?, device))) {
                let stepping = host_offload && !context.is_cpu(device);
                for steps in [false, true].into_iter().filter(|steps| !steps || stepping) {
                    list.extend(moved(context, stages, ((from, to), device), steps));
                }
            }
        }
    }
    list.into_iter().flat_map(|stages| with_head_starts(placement, &stages)).collect()
}

/// Stages `from..to` on a device; none where their own keeps no other.
fn moved(
    context: &Context<'_>,
    stages: &[Stage],
    ((from, to), device): ((usize, usize), DeviceId),
    steps: bool,
) -> Option<Vec<Stage>> {
    let own = stages.get(from..to)?.first()?.device;
    let all_of_it = stages.iter().filter(|stage| stage.device == own).count();
    if stages[from..to].iter().any(|stage| stage.device != own) || all_of_it == to - from {
        return None;
    }
    let mut all = stages.to_vec();
    for stage in &mut all[from..to] {
        *stage = Stage { device, optimizer: None, offload: None, ..*stage };
        if steps {
            *stage = stepped_on_socket(context, stage)?;
        }
    }
    Some(all)
}

fn with_head_starts(placement: &Placement, stages: &[Stage]) -> Vec<Placement> {
    let with = |head_start: u64| Placement {
        stages: stages.iter().copied().collect(),
        knobs: Knobs { head_start, ..placement.knobs },
        ..placement.clone()
    };
    if placement.system == System::Hybrid {
        (0..=LARGEST_HEAD_START).map(with).collect()
    } else {
        vec![with(placement.knobs.head_start)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use spipe_base::LayerRange;
    use spipe_cost::Mode;

    /// Five layers, those before `border` on the socket.
    fn split(instance: &Instance, border: usize, system: System) -> Placement {
        let device = |name: &str| instance.hardware.device(name).unwrap();
        let stage = |layer: usize| {
            let layers = LayerRange::new(layer.into(), layer.into()).unwrap();
            Stage::new(device(if layer < border { "cpu0" } else { "gpu0" }), layers)
        };
        Placement::new(system, (0..5).map(stage))
    }

    fn instance() -> Instance {
        let times = [10, 10, 10];
        let layer = LayerText { count: 5, times, slowdown: 9, parameters: 9, boundary: 1, saved: 2, workspace: 0 };
        let machine = MachineText { gpus: vec![(900, 20)], root: 20, sockets: vec![8000] };
        Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(6, Mode::Train))
    }

    #[test]
    fn one_two_or_four_stages_cross_and_each_side_keeps_one() {
        let instance = instance();
        let context = instance.context();
        let gpu = instance.hardware.device("gpu0").unwrap();
        let borders = |border: usize, system: System| -> Vec<(usize, u64)> {
            let list = changed(&context, &split(&instance, border, system), false);
            let on_socket = |one: &Placement| one.stages.iter().filter(|stage| stage.device != gpu).count();
            list.iter().map(|one| (on_socket(one), one.knobs.head_start)).collect()
        };
        assert_eq!(borders(3, System::OneForwardOneBackward), [(2, 0), (4, 0), (1, 0)]);
        assert_eq!(borders(4, System::Hybrid), [3, 2].map(|count| [0, 1, 2].map(|head| (count, head))).concat());
        assert_eq!(borders(0, System::Hybrid), []);
    }

    #[test]
    fn what_leaves_the_socket_may_still_be_stepped_there() {
        let instance = instance();
        let list = changed(&instance.context(), &split(&instance, 3, System::OneForwardOneBackward), true);
        let stepped = |one: &Placement| one.stages.iter().filter(|stage| stage.optimizer.is_some()).count();
        assert_eq!(list.iter().map(stepped).collect::<Vec<_>>(), [0, 1, 0, 0, 2]);
    }
}
