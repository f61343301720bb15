//! The operations and bytes of an action.

use spipe_base::{ActionKind, DeviceId, LayerRange};
use spipe_model::Op;
use spipe_plan::Context;
use spipe_schedule::{Action, Program};

/// Operations of AdamW per parameter: two moments (3 + 4), their corrections (2), root, sum and
/// quotient (3), decay and update (4).
const ADAM: u64 = 16;

/// The work of the actions of a plan.
pub struct Work<'a> {
    pub context: Context<'a>,
    pub program: &'a Program,
}

impl Work<'_> {
    /// FLOPs, and bytes through the memory of the device; zero where neither is known.
    pub fn of(&self, action: &Action, device: DeviceId) -> (u64, u64) {
        let Some(layers) = action.subject.layers.or_else(|| self.of_stage(action)) else { return (0, 0) };
        let cost = self.context.cost;
        if action.kind == ActionKind::OptimizerStep {
            let parameters = layers.iter().map(|layer| cost.trained_parameters(layer)).sum::<u64>();
            return (parameters * ADAM, cost.optimizer_traffic(parameters, device).get());
        }
        let batch = self.context.workload().batch();
        let flops = |ops: &[Op]| ops.iter().map(|op| op.flops().get()).sum::<f64>();
        let (mut operations, mut bytes) = (0.0, 0);
        for layer in layers.iter() {
            let work = self.context.model.layers()[layer].work(batch);
            let traffic = cost
                .time(layer, device)
                .map_or([0; 2], |time| [time.forward_traffic.get(), time.backward_traffic.get()]);
            let (input, weight) = (flops(&work.backward_input), flops(&work.backward_weight));
            // The bytes of a backward are divided as its operations are.
            let part =
                |flops: f64| if input + weight > 0.0 { traffic[1] as f64 * flops / (input + weight) } else { 0.0 };
            let (more, moved) = match action.kind {
                ActionKind::Forward | ActionKind::Recompute => (flops(&work.forward), traffic[0]),
                ActionKind::Backward => (input + weight, traffic[1]),
                ActionKind::BackwardInput => (input, part(input) as u64),
                ActionKind::BackwardWeight => (weight, part(weight) as u64),
                _ => (0.0, 0),
            };
            operations += more;
            bytes += moved;
        }
        (operations as u64, bytes)
    }

    /// The layers that an action without layers of its own computes: those of its stage.
    fn of_stage(&self, action: &Action) -> Option<LayerRange> {
        let stage = &self.program.stages()[action.subject.stage?];
        if action.kind == ActionKind::Recompute { stage.recomputed } else { Some(stage.layers) }
    }
}
