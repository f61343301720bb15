//! Two GPUs and a socket that is nine times slower, computed by hand.

use super::*;
use crate::{
    common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    problem::Options,
};
use spipe_cost::Mode;

const GPUS: usize = 2;
const SLOWDOWN: u32 = 9;
const LAYERS: u64 = 12;
const MICROBATCHES: u64 = 6;

#[test]
fn what_computes_counts_as_much_as_it_is_fast() {
    let layer = |index: u64| LayerText {
        count: 1,
        times: [10, 10, 10],
        slowdown: SLOWDOWN,
        parameters: (8 << 20) + index,
        boundary: 1,
        saved: 16,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(4000, 20); GPUS], root: 40, sockets: vec![8000] };
    let layers: Vec<LayerText> = (0..LAYERS).map(layer).collect();
    let instance = Instance::new(&model_text(&layers), &machine_text(&machine), &workload(MICROBATCHES, Mode::Train));
    let costs = CostSums::new(instance.context(), &Options::default());
    let gpu = (0..costs.devices.len()).find(|device| !costs.devices[*device].is_cpu).unwrap();
    let alone = MICROBATCHES as f64 * costs.devices[gpu].pass((0, costs.layers), true);
    let socket = 1.0 / f64::from(SLOWDOWN);
    let speeds = [
        (DeviceSet::All, GPUS as f64 + socket),
        (DeviceSet::Gpus, GPUS as f64),
        (DeviceSet::OneGpu, 1.0),
        (DeviceSet::Only(gpu), 1.0),
        (DeviceSet::FirstGpu, 1.0),
        (DeviceSet::Sockets, socket),
    ];
    for (computing, speed) in speeds {
        let ratio = of(&costs, computing).ms_or(0.0) * speed / alone;
        assert!((ratio - 1.0).abs() < 1e-9, "{computing:?}: {ratio}");
    }
    // All GPUs share the layers; fewer of them would take longer.
    assert!((of_shared(&costs).ms_or(0.0) * GPUS as f64 / alone - 1.0).abs() < 1e-9);
}
