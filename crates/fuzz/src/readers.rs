//! Targets that read text.

use spipe_base::{Bytes, BytesPerSecond, Exact, Flops, FlopsPerSecond, LayerRange, ParamsPerSecond, Seconds, SimTime};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Batch, Model, Precision, Recompute};
use spipe_plan::Plan;
use spipe_schedule::{Order, Program, StageTimes, bare, lower};
use spipe_sim::{Iterations, Options, simulate};
use std::{fmt::Debug, str::FromStr};

/// The most actions of a program that is simulated here, so that one input takes milliseconds.
const MOST_ACTIONS: usize = 4000;

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// The value of `text` reads back from its exact form.
fn round_trip<T: FromStr + Exact + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert!(value.exact().parse().is_ok_and(|again: T| again == value), "{value:?} from `{text}`");
    }
}

/// Quantities and ranges of layers.
pub fn quantities(data: &[u8]) {
    let Some(text) = text(data) else { return };
    round_trip::<Bytes>(text);
    round_trip::<BytesPerSecond>(text);
    round_trip::<Flops>(text);
    round_trip::<FlopsPerSecond>(text);
    round_trip::<ParamsPerSecond>(text);
    round_trip::<Seconds>(text);
    round_trip::<LayerRange>(text);
}

/// A machine in TOML: it is written again, and one copy runs over every route.
pub fn hardware(data: &[u8]) {
    let Some(Ok(machine)) = text(data).map(|text| Hardware::from_toml("machine.toml", text)) else { return };
    let written = machine.to_toml();
    let again = Hardware::from_toml("again.toml", &written);
    assert!(again.is_ok_and(|again| again.to_toml() == written), "the file does not read back:\n{written}");
}

/// Work and sizes of every layer of a model.
fn figures(model: &Model) {
    let batch = Batch { microbatch: 1, seq_len: model.seq_len().clamp(1, 4096) };
    for layer in model.layers().iter() {
        for attention in [Attention::Fused, Attention::Materialised] {
            let _ = layer.saved(batch, Precision::Bf16, Recompute::None, attention);
            let _ = layer.workspace(batch, Precision::Bf16, attention);
        }
    }
    let _ = model.parameters();
}

/// A model in TOML.
pub fn model(data: &[u8]) {
    let Some(Ok(model)) = text(data).map(|text| Model::from_toml("model.toml", text)) else { return };
    figures(&model);
    let written = model.to_toml();
    let again = Model::from_toml("again.toml", &written);
    assert!(again.is_ok_and(|again| again == model), "the file does not read back:\n{written}");
}

/// A Hugging Face config.
pub fn config(data: &[u8]) {
    let Some(Ok(imported)) = text(data).map(|text| Model::from_hugging_face("config.json", text)) else { return };
    figures(&imported.model);
    let written = imported.model.to_toml();
    let again = Model::from_toml("again.toml", &written);
    assert!(again.is_ok_and(|again| again.parameters() == imported.model.parameters()), "not equal:\n{written}");
}

/// A plan file, its program and one iteration of it.
pub fn plan(data: &[u8]) {
    let Some(Ok(plan)) = text(data).map(|text| Plan::from_json("plan.json", text)) else { return };
    let written = plan.to_json();
    let again = Plan::from_json("again.json", &written);
    assert!(again.is_ok_and(|again| again.to_json() == written), "the plan does not read back:\n{written}");
    let microbatches = plan.context().workload().microbatches;
    if microbatches.saturating_mul(plan.placement().stages.len() as u64) > 64 {
        return;
    }
    if let Ok(program) = lower(&plan.context(), plan.placement()) {
        one_iteration(&program);
    }
}

fn one_iteration(program: &Program) {
    if program.actions().len() > MOST_ACTIONS {
        return;
    }
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let simulation = simulate(program, &options);
    assert!(simulation.trace.spans.len() <= program.actions().len());
}

/// A trace.
pub fn trace(data: &[u8]) {
    let Some(Ok(trace)) = text(data).map(spipe_trace::from_json) else { return };
    let written = spipe_trace::to_json(&trace);
    let again = spipe_trace::from_json(&written);
    assert!(again.is_ok_and(|again| spipe_trace::to_json(&again) == written), "the trace does not read back");
}

/// An order, and its simulation where it is valid.
pub fn order(data: &[u8]) {
    let Some(Ok(order)) = text(data).map(str::parse::<Order>) else { return };
    assert!(order.to_string().parse().is_ok_and(|again: Order| again == order), "{order}");
    let times = StageTimes {
        forward: SimTime::ms(1),
        backward_input: SimTime::ms(1),
        backward_weight: SimTime::ms(1),
        latency: SimTime::ns(1000),
        weight_gradient_memory: StageTimes::UNIT.get(),
    };
    if order.stages().saturating_mul(order.microbatches()) <= 1024
        && let Ok(program) = bare("fuzz", &order, &times)
    {
        one_iteration(&program);
    }
}
