//! Warnings about plans that are valid but probably not intended.
//!
//! - The devices compute in a wider type than the workload's ([`precision_remark`]).
//! - A contrastive loss is split over microbatches ([`contrast_remark`]).
//! - A generation plan has no memory for the prompts ([`prompt_remark`]).
//! - The rates of a GPU are defaults ([`estimate_remark`]).
//! - A plan trains in a way that is planned and simulated only ([`beyond_plain_training`],
//!   [`beyond_execution`]).
//! - A plan fills nearly all of a memory ([`fullness_remarks`]).
//! - A pipeline over GPUs and CPU sockets has one of four faults ([`hybrid_remarks`]): a socket is
//!   so slow that the GPUs starve; a socket is on the far side of the machine; adjacent CPU stages
//!   could be merged; or a boundary takes longer to copy than its stages take to compute.

use crate::{Context, Placement, Plan, Stage};
use spipe_base::{
    Bytes, DeviceId, Diagnostic, MemoryId, Seconds, StageId,
    readable::{percent, ranges},
};
use spipe_cost::{BaseFormat, DataShape, Formats, GradientFormat, Mode, Optimizer, Source, Workload, product_type};
use spipe_hardware::{DataType, Device};
use spipe_model::{LayerKind, Precision};
use std::collections::BTreeMap;

/// The part of a plan's training that is not plain: adapters, other optimizers than AdamW, and other
/// formats than those of plain mixed precision.
pub fn beyond_plain_training(context: &Context<'_>) -> Option<Diagnostic> {
    let adapters = context.model.lora().map(|lora| format!("adapters of rank {}", lora.rank));
    planned_only(context, adapters.into_iter().collect(), PLAIN)
}

/// Optimizers and formats that an engine executes.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// The optimizers.
    pub optimizers: &'a [Optimizer],
    /// The formats of frozen matrices, besides that of the precision.
    pub bases: &'a [BaseFormat],
    /// The formats of gradients, besides that of the parameters.
    pub gradients: &'a [GradientFormat],
}

/// The optimizers and formats of plain training.
const PLAIN: Executed<'static> = Executed { optimizers: &[Optimizer::Adamw], bases: &[], gradients: &[] };

/// The part of a plan's training that is planned and simulated, but not executed, where `executed` is.
/// Plain adapters are executed.
pub fn beyond_execution(context: &Context<'_>, executed: Executed<'_>) -> Option<Diagnostic> {
    let mut parts = Vec::new();
    if let Some(lora) = context.model.lora() {
        parts.extend(lora.dora.then(|| "magnitudes of adapters (DoRA)".to_owned()));
        parts.extend((lora.dropout > 0.0).then(|| format!("dropout of {} in adapters", lora.dropout)));
        let narrow = context.workload().precision != Precision::Fp32;
        parts.extend((lora.embeddings && narrow).then(|| "trained copies of embedding and head in 16 bits".to_owned()));
        let infers = context.workload().mode != Mode::Train;
        parts.extend(infers.then(|| "adapters that are not trained".to_owned()));
    }
    // Packed text is what runs read: full sequences of one stream.
    if !(DataShape { packing: false, ..context.workload().data }).is_plain() {
        parts.push("padded sequences or documents of different lengths".into());
    }
    parts.extend(repeated(context));
    parts.extend(beyond_replicas(context));
    planned_only(context, parts, executed)
}

/// The answers about a mesh that no execution has: replicas of a pipeline that trains all its parameters are executed.
fn beyond_replicas(context: &Context<'_>) -> Vec<String> {
    let (mesh, trains) = (context.mesh(), context.workload().mode == Mode::Train);
    let untrained = !trains || context.model.lora().is_some();
    let answers = [
        (mesh.tensor() > 1, format!("teams of {} devices that share layers", mesh.tensor())),
        (mesh.context > 1, format!("sequences that {} devices divide (context parallelism)", mesh.context)),
        (mesh.expert > 1, format!("experts that {} devices divide (expert parallelism)", mesh.expert)),
        (
            mesh.data() > 1 && untrained,
            format!("{} replicas of a model whose own parameters are not trained", mesh.data()),
        ),
    ];
    answers.into_iter().filter(|(has, _)| *has).map(|(_, answer)| answer).collect()
}

/// Whether several devices compute one layer, which other engines do.
fn shares_layers(context: &Context<'_>) -> bool {
    context.mesh().members() > 1 || context.mesh().expert > 1
}

fn repeated(context: &Context<'_>) -> Option<String> {
    let operations = context.workload().recompute_ops;
    (!operations.is_empty()).then(|| format!("recomputed operations ({operations})"))
}

/// The refusal of `parts`, and of optimizers and formats that are planned only.
fn planned_only(context: &Context<'_>, mut parts: Vec<String>, executed: Executed<'_>) -> Option<Diagnostic> {
    let workload = context.workload();
    parts.extend((workload.precision == Precision::Fp8).then(|| "products in 8 bits (precision fp8)".to_owned()));
    let formats = &workload.formats;
    if let Some(base) = formats.base.filter(|base| !executed.bases.contains(&base.format)) {
        parts.push(format!("a base stored as {base}"));
    }
    if workload.mode == Mode::Train {
        if !executed.optimizers.contains(&workload.optimizer) {
            let known: Vec<&str> = executed.optimizers.iter().map(|optimizer| optimizer.name()).collect();
            parts.push(format!("the optimizer `{}` instead of {}", workload.optimizer, known.join(", ")));
        }
        if let Some(format) = formats.gradients.filter(|format| !executed.gradients.contains(format)) {
            parts.push(format!("gradients in {format}"));
        }
        if (Formats { base: None, gradients: None, ..*formats }) != Formats::PLAIN {
            parts.push("other formats of states or master copies".into());
        }
    }
    let message = format!("the plan has {}, which is planned and simulated only", parts.join(", "));
    let hint = match shares_layers(context) || workload.precision == Precision::Fp8 {
        true => "`command export megatron` has Megatron run it; `command simulate` predicts the plan as it is",
        false => "plan without these options to run it; `command simulate` predicts the plan as it is",
    };
    (!parts.is_empty()).then(|| Diagnostic::error(message).hint(hint))
}

/// The ratio of a socket's time per microbatch to the busiest GPU's from which the GPUs are said to
/// starve. A choice: below it, imbalance is ordinary.
const STARVES: f64 = 1.25;

/// A warning if GPUs of `placement` store and compute in a wider type than the workload's, because
/// their profile has no rate for that type.
pub fn precision_remark(context: &Context<'_>, placement: &Placement) -> Option<Diagnostic> {
    let wanted = context.workload().precision;
    let wider = |device: &DeviceId| {
        let multiplies = product_type(&context.hardware.devices()[*device], wanted);
        let has = if wanted == Precision::Fp8 { multiplies == DataType::Fp8 } else { multiplies == wanted.data_type() };
        !context.is_cpu(*device) && !has
    };
    let devices: Vec<DeviceId> = placement.computing().into_iter().filter(wider).collect();
    let stored = context.cost.storage(*devices.first()?);
    let names = ranges(devices.iter().map(|device| context.hardware.devices()[*device].name.as_str()));
    let message =
        format!("`{}`: the profile has no rate for {wanted}, so {stored} is used instead", names.join("`, `"));
    Some(
        Diagnostic::warning(message)
            .hint("choose another type with `option precision`, or add the rate to the profile"),
    )
}

/// A warning if a contrastive loss, which compares the samples of a microbatch with each other, is
/// trained with several microbatches: it differs from the loss over the whole batch.
pub fn contrast_remark(context: &Context<'_>) -> Option<Diagnostic> {
    let workload = context.workload();
    let contrasts = context.model.layers().iter().any(|layer| matches!(layer.kind, LayerKind::Contrast(_)));
    (contrasts && workload.mode == Mode::Train && workload.microbatches > 1).then(|| {
        let (batch, each) = (workload.global_batch(), workload.microbatch);
        let message =
            format!("a contrastive loss over microbatches of {each} differs from that over a batch of {batch}");
        Diagnostic::warning(message).hint(format!("use `option microbatch {batch}` for the loss over the batch"))
    })
}

/// A warning if a generation plan has no memory to process prompts of its sequence length at once,
/// with the longest prompt that fits.
pub fn prompt_remark(plan: &Plan) -> Option<Diagnostic> {
    let workload = *plan.context().workload();
    let reads = |seq_len: u64| plan.with_workload(Workload { mode: Mode::Infer, seq_len, ..workload }).is_ok();
    if workload.mode != Mode::Generate || reads(workload.seq_len) {
        return None;
    }
    let (mut fits, mut too_long) = (0, workload.seq_len);
    while fits + 1 < too_long {
        let between = fits.midpoint(too_long);
        if reads(between) { fits = between } else { too_long = between }
    }
    let message = match fits {
        0 => "the plan has no memory for prompts".to_owned(),
        fits => format!("the plan has memory for prompts of at most {fits} tokens at once"),
    };
    Some(Diagnostic::warning(message).hint("plan with `option mode infer` and the length of the prompts"))
}

/// Warnings about a pipeline over GPUs and CPU sockets, in the order of its stages. Empty if
/// `placement` has stages on only one kind of device.
pub fn hybrid_remarks(context: &Context<'_>, placement: &Placement) -> Vec<Diagnostic> {
    let cpus = placement.stages.iter().filter(|stage| context.is_cpu(stage.lead())).count();
    if cpus == 0 || cpus == placement.stages.len() {
        return Vec::new();
    }
    let mut all: Vec<Diagnostic> = starving(context, placement).into_iter().collect();
    all.extend(placement.stages.ids().skip(1).flat_map(|id| {
        let before = &placement.stages[StageId::from(id.index() - 1)];
        boundary(context, before, &placement.stages[id], id)
    }));
    all
}

/// The compute time of a stage per microbatch, without recompute.
fn work(context: &Context<'_>, stage: &Stage) -> Seconds {
    let times = stage.layers.iter().filter_map(|layer| context.cost.time(layer, stage.lead()));
    let backward = context.workload().mode == Mode::Train;
    times.map(|time| if backward { time.forward + time.backward() } else { time.forward }).sum()
}

/// A warning if some socket computes [`STARVES`] times as long per microbatch as the busiest GPU.
fn starving(context: &Context<'_>, placement: &Placement) -> Option<Diagnostic> {
    let mut loads: BTreeMap<DeviceId, Seconds> = BTreeMap::new();
    for stage in &placement.stages {
        let load = loads.entry(stage.lead()).or_insert(Seconds::ZERO);
        *load = *load + work(context, stage);
    }
    let busiest = |cpu: bool| {
        let of = loads.iter().filter(|(device, _)| context.is_cpu(**device) == cpu);
        of.max_by(|before, after| before.1.get().total_cmp(&after.1.get()))
    };
    let ((cpu, long), (gpu, short)) = (busiest(true)?, busiest(false)?);
    if long.get() < STARVES * short.get() {
        return None;
    }
    let slow = placement.stages.iter().filter(|stage| stage.lead() == *cpu).flat_map(|stage| stage.layers.iter());
    let worst = slow
        .filter_map(|layer| Some((layer, context.cost.time(layer, *cpu)?)))
        .max_by(|before, after| before.1.forward.get().total_cmp(&after.1.forward.get()))
        .map(|(layer, _)| layer)?;
    let name = |device: DeviceId| &context.hardware.devices()[device].name;
    let layer = &context.model.layers()[worst];
    let message =
        format!("`{}` computes {long} per microbatch, `{}` only {short}: the GPU starves", name(*cpu), name(*gpu));
    Some(Diagnostic::warning(message).hint(format!(
        "move layer {worst} (`{}`) to a GPU, or keep only layers with little arithmetic on the CPU: embeddings, norms, the head",
        layer.name
    )))
}

/// Warnings about the boundary between `before` and stage `id`, which is `behind`.
fn boundary(context: &Context<'_>, before: &Stage, behind: &Stage, id: StageId) -> Vec<Diagnostic> {
    let mut all = Vec::new();
    let hardware = context.hardware;
    let name = |device: DeviceId| &hardware.devices()[device].name;
    let memory = |device: DeviceId| hardware.devices()[device].memory;
    let (from, to) = (before.lead(), behind.lead());
    if from == to {
        return all;
    }
    let previous = StageId::from(id.index() - 1);
    if context.is_cpu(from) && context.is_cpu(to) {
        let message = format!("stages `{previous}` and `{id}` are both on CPUs, and their boundary costs a copy");
        all.push(Diagnostic::warning(message).hint(format!("merge them into one stage on `{}`", name(from))));
    }
    let bytes = context.cost.memory(before.layers.last(), from).boundary;
    let time = copy(context, (memory(from), memory(to)), bytes);
    if context.is_cpu(from) != context.is_cpu(to) {
        let (gpu, cpu) = if context.is_cpu(from) { (to, from) } else { (from, to) };
        if let Some(near) = hardware.host_memory(gpu).filter(|near| hardware.pool(*near) != memory(cpu)) {
            let nearest = hardware.devices().iter().find(|device| device.memory == hardware.pool(near));
            let message =
                format!("`{}` is not the socket nearest to `{}`: every copy crosses the machine", name(cpu), name(gpu));
            let hint = nearest.map(|socket| format!("put the stage on `{}`", socket.name));
            let warning = Diagnostic::warning(message);
            all.push(match hint {
                Some(hint) => warning.hint(hint),
                None => warning,
            });
        }
    }
    let shorter = work(context, before).get().min(work(context, behind).get());
    // The activation and its gradient.
    let copies = if context.workload().mode == Mode::Train { 2.0 } else { 1.0 };
    if let Some(time) = time.filter(|time| time.get() * copies > shorter) {
        let message = format!(
            "the copy of a microbatch from `{}` to `{}` ({bytes}) takes {time}, longer than one of the two stages computes",
            name(from),
            name(to)
        );
        all.push(Diagnostic::warning(message).hint("give the shorter stage more layers, or use a faster link"));
    }
    all
}

/// The time of a copy without contention; `None` if no route joins the memories.
fn copy(context: &Context<'_>, (from, to): (MemoryId, MemoryId), bytes: Bytes) -> Option<Seconds> {
    let route = context.hardware.route(from, to)?;
    let links = route.links.iter().map(|link| context.hardware.links()[*link].bandwidth.get());
    let rate = links.chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min);
    Seconds::new(bytes.as_f64() / rate).map(|time| time + route.latency)
}

/// The share of a memory above which a plan gets a remark: allocators lose some of the rest.
const FULL: f64 = 0.95;

/// A remark on each memory of which `plan` fills nearly all.
pub fn fullness_remarks(plan: &Plan) -> Vec<Diagnostic> {
    let context = plan.context();
    let remark = |(id, peak): (MemoryId, Bytes)| {
        let memory = &context.hardware.memories()[id];
        let share = peak.as_f64() / memory.usable().as_f64().max(1.0);
        let message = || format!("the plan fills {} of `{}`", percent(share), memory.name);
        let hint = "leave room with `option head-room 10%` where a run may hold more than the schedule";
        (share > FULL).then(|| Diagnostic::warning(message()).hint(hint))
    };
    plan.peaks().into_iter().filter_map(remark).collect()
}

/// A remark if the rates of a GPU that computes layers from their shapes are defaults.
pub fn estimate_remark(context: &Context<'_>) -> Option<Diagnostic> {
    let computed = |device: DeviceId| {
        let source = |layer| context.cost.time(layer, device).map(|time| time.source);
        context.cost.layers().any(|layer| source(layer) == Some(Source::Roofline))
    };
    let guessed =
        |(id, device): &(DeviceId, &Device)| device.is_gpu() && device.efficiency.is_estimate() && computed(*id);
    let (_, device) = context.hardware.devices().enumerate().find(guessed)?;
    let message = format!("the rates of `{}` are estimates: its profile states no `efficiency`", device.name);
    Some(Diagnostic::warning(message).hint("state what its products reach, or measure them with `command calibrate`"))
}
