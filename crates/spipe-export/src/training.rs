//! The ways of training that an engine has.

use crate::Modules;
use spipe_base::{Diagnostic, Faults};
use spipe_cost::{Base, BaseFormat, Formats, Mode, Optimizer};
use spipe_model::{Layer, Lora, Matrix, Model, Precision, Tensor};
use spipe_plan::Plan;

/// The formats of a base that bitsandbytes stores and trains adapters on.
const BASES: [BaseFormat; 3] = [BaseFormat::Nf4, BaseFormat::Fp4, BaseFormat::Int8];

/// The optimizers of an engine, whether it trains adapters, and on which bases, and whether it has meshes.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// The optimizers.
    pub optimizers: &'static [Optimizer],
    /// Whether it trains adapters, if the layers have them.
    pub adapters: bool,
    /// Whether frozen matrices under adapters may be stored in fewer bits.
    pub bases: bool,
    /// Whether several replicas train, and teams that share layers.
    pub meshes: bool,
}

impl Training {
    /// Refuses a plan that trains in a way that the engine does not have.
    ///
    /// # Errors
    /// One fault for each reason.
    pub fn check(self, plan: &Plan, modules: Modules) -> Result<(), Faults> {
        let (context, mut faults) = (plan.context(), Faults::new());
        let mut refuse = |what: &str, hint: &str| {
            faults.push(Diagnostic::error(format!("the plan has {what}, which this export does not have")).hint(hint));
        };
        let workload = context.workload();
        let mesh = context.mesh();
        let degrees = [
            (mesh.tensor(), "teams of devices that share layers", "tensor-parallel"),
            (mesh.context, "sequences that devices divide", "context-parallel"),
            (mesh.expert, "experts that devices divide", "expert-parallel"),
            (mesh.data(), "replicas of a pipeline", "data-parallel"),
        ];
        let refused = if self.meshes { &degrees[1..3] } else { &degrees[..] };
        if let Some((degree, what, option)) = refused.iter().find(|(degree, ..)| *degree > 1) {
            let hint = format!("plan with `option {option} 1`, or see whether `command export megatron` takes it");
            refuse(&format!("{what} (degree {degree})"), &hint);
        }
        if workload.precision == Precision::Fp8 {
            refuse("products in 8 bits", "`command export megatron` takes them, or plan with `option precision bf16`");
        }
        if !workload.recompute_ops.is_empty() {
            let what = format!("recomputed operations ({})", workload.recompute_ops);
            refuse(&what, "plan without `option recompute-ops`");
        }
        if let Some(lora) = context.model.lora() {
            self.check_adapters(lora, (context.model, modules), &mut refuse);
        }
        if let Some(base) = workload.formats.base {
            self.check_base(base, context.model, &mut refuse);
        }
        if workload.mode == Mode::Train {
            if !self.optimizers.contains(&workload.optimizer) {
                let known: Vec<&str> = self.optimizers.iter().map(|optimizer| optimizer.name()).collect();
                let what = format!("the optimizer `{}` instead of {}", workload.optimizer, known.join(", "));
                refuse(&what, "plan with another `option optimizer`, or run it with `command run`");
            }
            let formats = workload.formats;
            if (Formats { base: None, gradients: None, ..formats }) != Formats::PLAIN {
                refuse("other formats of states or master copies", "plan without these options");
            }
        }
        faults.or(())
    }

    fn check_base(self, base: Base, model: &Model, refuse: &mut impl FnMut(&str, &str)) {
        let what = format!("a base stored as {base}");
        if !self.bases {
            refuse(
                &what,
                "`command export torch` of a pipeline stores it, by bitsandbytes; or plan without `option base`",
            );
        } else if !BASES.contains(&base.format) {
            refuse(&what, "bitsandbytes has nf4, fp4 and int8");
        } else if model.lora().is_none() {
            refuse(&format!("{what} without adapters"), "plan with `option lora`, or without `option base`");
        } else if model.layers().iter().any(has_experts) {
            refuse(
                &format!("experts in {base}"),
                "bitsandbytes stores matrices of linear layers alone: plan without `option base`",
            );
        }
    }

    fn check_adapters(self, lora: &Lora, (model, modules): (&Model, Modules), refuse: &mut impl FnMut(&str, &str)) {
        let what = format!("adapters of rank {}", lora.rank);
        if !self.adapters {
            refuse(&what, "`command export torch` and `command export fsdp` train them, or `command run`");
        } else if modules == Modules::Own {
            refuse(&what, "`option modules transformers` has them, from PEFT");
        }
        let parts = [
            (lora.dora, "magnitudes of adapters (DoRA)"),
            (lora.dropout > 0.0, "dropout in adapters"),
            (lora.embeddings, "trained copies of embedding and head"),
            (matrices(model).contains(&Matrix::Table), "adapters of the embedding's table"),
        ];
        for (_, part) in parts.into_iter().filter(|(has, _)| *has) {
            refuse(part, "plan without them");
        }
    }
}

/// Whether a layer has one matrix for each expert, which classes of transformers keep in one parameter.
fn has_experts(layer: &Layer) -> bool {
    layer.quantised().iter().any(|tensor: &Tensor| tensor.count > 1)
}

/// The adapted matrices of a model.
pub fn matrices(model: &Model) -> Vec<Matrix> {
    let adapted = model.layers().iter().filter_map(|layer| layer.adaptation.as_ref());
    let mut found: Vec<Matrix> = adapted.flat_map(|it| it.matrices.iter().map(|one| one.matrix)).collect();
    found.sort_unstable();
    found.dedup();
    found
}
