//! The values of Megatron's configurations.

use super::refusal;
use serde_json::{Map, Value, json};
use spipe_base::{DeviceId, Diagnostic, Faults, LayerId};
use spipe_cost::{Optimizer, Workload};
use spipe_model::{LayerKind, Mlp, Norm, Positions, Precision, Transformer};
use spipe_plan::{Context, Knob, Layout, Mesh, Placement, Plan, Sharding};
use std::collections::BTreeSet;

/// The formats of products in 8 bits: more mantissa in the forward, more exponent for gradients (Micikevicius et al. 2022,
/// arXiv 2209.05433).
const FP8: &str = "hybrid";

/// How Megatron exchanges the tokens of experts: an all-to-all is what plans count.
const DISPATCHER: &str = "alltoall";

/// The settings of a plan.
pub struct Settings<'a> {
    context: Context<'a>,
    placement: &'a Placement,
    model: &'a Transformer,
    workload: Workload,
    /// The stages in Megatron's notation, if there are several.
    layout: Option<String>,
    recompute: Recompute,
}

/// The blocks whose activations are computed again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recompute {
    None,
    All,
    /// The first ones of each chunk of each device.
    First(u64),
}

impl<'a> Settings<'a> {
    /// The settings of `plan`.
    ///
    /// # Errors
    /// An answer that Megatron cannot express.
    pub fn new(plan: &'a Plan) -> Result<Self, Faults> {
        let model = refusal::check(plan)?;
        let (context, placement) = (plan.context(), plan.placement());
        let recompute = recompute(&context, placement)?;
        let several = placement.devices().len() > 1;
        let layout = several.then(|| Layout::of(&context, placement).map(|layout| layout.to_string()));
        let layout = match layout {
            Some(None) => {
                let fault = Diagnostic::error("its stages are in no layout of Megatron");
                return Err(fault.hint("give as many chunks to each device, with `option layout`").into());
            }
            Some(layout) => layout,
            None => None,
        };
        Ok(Self { context, placement, model, workload: context.cost.whole_workload(), layout, recompute })
    }

    fn mesh(&self) -> &Mesh {
        self.context.mesh()
    }

    fn pipeline(&self) -> u64 {
        self.placement.devices().len() as u64
    }

    /// The microbatches that pass through one chunk before the next, where the plan says how many.
    fn group(&self) -> Option<u64> {
        Knob::Group.of(self.placement)
    }

    fn divides_optimizer(&self) -> bool {
        self.placement.mesh.sharding == Sharding::Optimizer
    }

    /// The arguments of `pretrain_gpt.py`, a line for each with its values.
    pub fn arguments(&self) -> Vec<String> {
        let (block, mesh, workload) = (&self.model.block, self.mesh(), &self.workload);
        let mut all = Vec::new();
        let mut with = |name: &str, value: &dyn ToString| all.push(format!("--{name} {}", value.to_string()));
        with("tensor-model-parallel-size", &mesh.tensor());
        with("pipeline-model-parallel-size", &self.pipeline());
        if let Some(layout) = &self.layout {
            with("pipeline-model-parallel-layout", layout);
        }
        if let Some(group) = self.group() {
            with("microbatch-group-size-per-virtual-pipeline-stage", &group);
        }
        with("num-layers", &self.model.layers);
        with("hidden-size", &block.hidden);
        with("ffn-hidden-size", &block.intermediate);
        with("num-attention-heads", &block.heads);
        with("kv-channels", &block.head_dim);
        if block.kv_heads != block.heads {
            with("num-query-groups", &block.kv_heads);
        }
        with("seq-length", &workload.seq_len);
        with("max-position-embeddings", &self.places());
        with("vocab-size", &self.model.vocabulary);
        with("make-vocab-size-divisible-by", &1);
        with("normalization", &self.norm());
        with("norm-epsilon", &block.norm_epsilon);
        match block.positions {
            Positions::Rotary { base, fraction, .. } => {
                with("position-embedding-type", &"rope");
                with("rotary-base", &base);
                with("rotary-percent", &fraction);
            }
            _ => with("position-embedding-type", &"learned_absolute"),
        }
        let dropout = if block.dropout { 0.1 } else { 0.0 };
        with("attention-dropout", &dropout);
        with("hidden-dropout", &dropout);
        with("micro-batch-size", &workload.microbatch);
        with("global-batch-size", &workload.global_batch());
        with("optimizer", &self.optimizer());
        match self.recompute {
            Recompute::None => {}
            Recompute::All => {
                with("recompute-granularity", &"full");
                with("recompute-method", &"uniform");
                with("recompute-num-layers", &1);
            }
            Recompute::First(count) => {
                with("recompute-granularity", &"full");
                with("recompute-method", &"block");
                with("recompute-num-layers", &count);
            }
        }
        let switches = [
            ("group-query-attention", block.kv_heads != block.heads),
            ("swiglu", block.mlp == Mlp::Swiglu),
            ("disable-bias-linear", !block.mlp_bias),
            ("untie-embeddings-and-output-weights", !self.model.tied),
            ("sequence-parallel", mesh.sequence),
            ("use-distributed-optimizer", self.divides_optimizer()),
            ("overlap-grad-reduce", false),
            ("accumulate-allreduce-grads-in-fp32", stores_bf16(workload.precision)),
            ("bf16", stores_bf16(workload.precision)),
            ("fp16", workload.precision == Precision::Fp16),
        ];
        all.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| format!("--{name}")));
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        all.extend(self.divided().into_iter().map(|(name, _, value)| format!("--{name} {}", text(value))));
        if let Some(clip) = workload.clip_norm {
            all.push(format!("--clip-grad {}", clip.get()));
        }
        all
    }

    /// The settings of divided sequences, of experts and of products in 8 bits: the arguments, the fields of the
    /// configuration and their values.
    fn divided(&self) -> Vec<(&'static str, &'static str, Value)> {
        let (block, mesh) = (&self.model.block, self.mesh());
        let mut all = Vec::new();
        if mesh.context > 1 {
            all.push(("context-parallel-size", "context_parallel_size", json!(mesh.context)));
        }
        if let Some(experts) = block.experts {
            all.extend([
                ("expert-model-parallel-size", "expert_model_parallel_size", json!(mesh.expert)),
                ("num-experts", "num_moe_experts", json!(experts.count)),
                ("moe-router-topk", "moe_router_topk", json!(experts.per_token)),
                ("moe-ffn-hidden-size", "moe_ffn_hidden_size", json!(block.intermediate)),
                ("moe-token-dispatcher-type", "moe_token_dispatcher_type", json!(DISPATCHER)),
            ]);
            let shared = ("moe-shared-expert-intermediate-size", "moe_shared_expert_intermediate_size");
            all.extend((experts.shared > 0).then(|| (shared.0, shared.1, json!(experts.shared))));
        }
        if self.workload.precision == Precision::Fp8 {
            all.push(("fp8-format", "fp8", json!(FP8)));
        }
        all
    }

    /// The values of Megatron Core's configurations.
    pub fn to_json(&self) -> Value {
        let (block, mesh, workload) = (&self.model.block, self.mesh(), &self.workload);
        let half = match workload.precision {
            Precision::Bf16 | Precision::Fp8 => "bfloat16",
            Precision::Fp16 => "float16",
            Precision::Fp32 => "float32",
        };
        let (bf16, fp16) = (half == "bfloat16", half == "float16");
        let dropout = if block.dropout { 0.1 } else { 0.0 };
        let mut transformer = json!({
            "num_layers": self.model.layers, "hidden_size": block.hidden, "ffn_hidden_size": block.intermediate,
            "num_attention_heads": block.heads, "num_query_groups": block.kv_heads, "kv_channels": block.head_dim,
            "normalization": self.norm(), "layernorm_epsilon": block.norm_epsilon,
            "activation_func": if block.mlp == Mlp::Swiglu { "silu" } else { "gelu" },
            "gated_linear_unit": block.mlp == Mlp::Swiglu, "add_bias_linear": block.mlp_bias,
            "attention_dropout": dropout, "hidden_dropout": dropout,
            "tensor_model_parallel_size": mesh.tensor(), "sequence_parallel": mesh.sequence,
            "pipeline_model_parallel_size": self.pipeline(), "bf16": bf16, "fp16": fp16, "params_dtype": half,
        });
        let mut more: Map<String, Value> =
            self.divided().into_iter().map(|(_, field, value)| (field.to_owned(), value)).collect();
        if let Some(layout) = &self.layout {
            more.insert("pipeline_model_parallel_layout".into(), json!(layout));
            more.insert("pipeline_dtype".into(), json!(half));
        }
        if let Some(group) = self.group() {
            more.insert("microbatch_group_size_per_vp_stage".into(), json!(group));
        }
        let recompute = match self.recompute {
            Recompute::None => None,
            Recompute::All => Some(("uniform", 1)),
            Recompute::First(count) => Some(("block", count)),
        };
        if let Some((method, count)) = recompute {
            more.insert("recompute_granularity".into(), json!("full"));
            more.insert("recompute_method".into(), json!(method));
            more.insert("recompute_num_layers".into(), json!(count));
        }
        if let Value::Object(fields) = &mut transformer {
            fields.extend(more);
        }
        let divided = self.divides_optimizer();
        json!({
            "format-version": 1,
            "megatron-core": super::VERSION,
            "world-size": mesh.members() * self.pipeline() * mesh.data(),
            "transformer": transformer,
            "ddp": { "use_distributed_optimizer": divided, "grad_reduce_in_fp32": bf16, "overlap_grad_reduce": false },
            "optimizer": {
                "optimizer": self.optimizer(), "use_distributed_optimizer": divided, "bf16": bf16, "fp16": fp16,
                "params_dtype": half, "clip_grad": workload.clip_norm.map_or(0.0, spipe_cost::ClipNorm::get),
            },
        })
    }

    /// The words of the page.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let (mesh, workload) = (self.mesh(), &self.workload);
        let devices = &self.context.hardware.devices();
        let used: Vec<DeviceId> = self.placement.computing_in(&self.context);
        let nodes: BTreeSet<_> = used.iter().map(|device| devices[*device].node).collect();
        let name = |device: DeviceId| devices[device].name.as_str();
        let stages = self.placement.devices().into_iter().flat_map(|lead| self.context.runners(lead));
        let ranks: Vec<String> = stages.enumerate().map(|(rank, device)| format!("{rank} {}", name(device))).collect();
        let recompute = match self.recompute {
            Recompute::None => "none".into(),
            Recompute::All => "all blocks".into(),
            Recompute::First(count) => format!("the first {count} blocks of each chunk"),
        };
        vec![
            ("model", self.context.model.name().into()),
            ("machine", self.context.hardware.name().into()),
            ("gpus", used.len().to_string()),
            ("tensor", mesh.tensor().to_string()),
            ("sequence", if mesh.sequence { " with sequences divided" } else { "" }.into()),
            ("pipeline", self.pipeline().to_string()),
            ("data", mesh.data().to_string()),
            ("context", mesh.context.to_string()),
            ("expert", mesh.expert.to_string()),
            ("layout", self.layout.clone().unwrap_or_else(|| "one".into())),
            ("recompute", recompute),
            ("batch", workload.global_batch().to_string()),
            ("length", workload.seq_len.to_string()),
            ("microbatch", workload.microbatch.to_string()),
            ("nodes", nodes.len().to_string()),
            ("each", (used.len() / nodes.len().max(1)).to_string()),
            ("ranks", ranks.join(", ")),
        ]
    }

    /// The positions that learned embeddings have.
    fn places(&self) -> u64 {
        match self.model.block.positions {
            Positions::Learned { places } => places,
            _ => self.workload.seq_len,
        }
    }

    const fn norm(&self) -> &'static str {
        if matches!(self.model.block.norm, Norm::RmsNorm) { "RMSNorm" } else { "LayerNorm" }
    }

    fn optimizer(&self) -> &'static str {
        if self.workload.optimizer == Optimizer::Sgd { "sgd" } else { "adam" }
    }
}

/// Whether parameters are in bf16.
fn stores_bf16(precision: Precision) -> bool {
    matches!(precision, Precision::Bf16 | Precision::Fp8)
}

/// The recompute of a placement in Megatron's words: of all blocks, or of as many first blocks in each chunk.
fn recompute(context: &Context<'_>, placement: &Placement) -> Result<Recompute, Faults> {
    let is_block = |layer: &LayerId| matches!(context.model.layers()[*layer].kind, LayerKind::Block(_));
    let mut chunks: Vec<Vec<bool>> = Vec::new();
    for turn in placement.stages.as_slice().chunk_by(|one, next| one.team == next.team) {
        let of = |stage: &spipe_plan::Stage| {
            let again = stage.recomputed;
            stage
                .layers
                .iter()
                .enumerate()
                .filter(|(_, layer)| is_block(layer))
                .map(|(at, _)| at < again)
                .collect::<Vec<_>>()
        };
        chunks.push(turn.iter().flat_map(of).collect());
    }
    let blocks = || chunks.iter().flatten();
    if blocks().all(|again| !again) {
        return Ok(Recompute::None);
    }
    if blocks().all(|again| *again) {
        return Ok(Recompute::All);
    }
    let first = |chunk: &Vec<bool>| chunk.iter().take_while(|again| **again).count();
    let count = chunks.iter().map(first).max().unwrap_or(0);
    let alike = |chunk: &Vec<bool>| {
        first(chunk) == count.min(chunk.len()) && chunk.iter().filter(|again| **again).count() == first(chunk)
    };
    if chunks.iter().all(alike) {
        return Ok(Recompute::First(count as u64));
    }
    let fault = Diagnostic::error("Megatron recomputes all blocks, or as many first ones in each chunk");
    Err(fault.hint("nearest: `option pin recompute` of all blocks, or of none (`save`)").into())
}
