//! Bytes of optimizer states: as plans count them, and as the executor holds them.

use crate::{
    nn::layers::{Parameter, units},
    optimizer::{Extent, Optimizer, StepSettings},
    testing::{
        machine::{GPT, LLAMA},
        setup::Setup,
    },
};
use spipe_base::LayerId;
use spipe_cost::Optimizer as Kind;
use spipe_plan::System;

#[test]
fn states_have_the_bytes_that_plans_count() {
    let large = &LLAMA.replace("hidden = 32", "hidden = 96").replace("intermediate = 48", "intermediate = 130");
    let models = [(LLAMA, "cpu0 0..4"), (large, "cpu0 0..4"), (GPT, "cpu0 0..3")];
    for kind in Optimizer::EXECUTED {
        let optimizer = Optimizer::new(kind, StepSettings::default()).unwrap();
        for (model, stage) in models {
            let stages = &[stage];
            let (plan, _) =
                Setup { system: System::CpuOnly, optimizer: kind, model, stages, ..Setup::default() }.build();
            let context = plan.context();
            let device = context.hardware.device("cpu0").unwrap();
            for (layer, unit) in units(context.model).unwrap().iter().enumerate() {
                let held = |parameter: Parameter| optimizer.state_bytes(&Extent::whole(parameter.shape));
                let held: u64 = unit.parameters().into_iter().map(held).sum();
                let counted = context.cost.memory(LayerId::from(layer), device).optimizer.get();
                // Plans count a table of positions as vectors, which Adafactor does not sum over.
                let positions = model == GPT && layer == 0 && kind == Kind::Adafactor;
                let same = if positions { held < counted } else { held == counted };
                assert!(same, "{kind} {stage} {layer}: {held} held, {counted} counted");
            }
        }
    }
}
