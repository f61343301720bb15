//! Sequences and experts that devices divide: closed forms of times and bytes, plans that fit thanks to them, refusals.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{both, machine, mesh, model, spread, workload};
use spipe_base::{Bytes, DeviceId, LayerId, Seconds};
use spipe_cost::{AllToAll, CostTable, Rings, Workload};
use spipe_hardware::{CollectiveKind, Hardware, NetworkFile, Runtime};
use spipe_model::{Attention, Experts, Model, Op, Precision};
use spipe_plan::{Mesh, Placement, Plan, Sharding, Stage, System, check, check_mesh, footprint};
use spipe_schedule::lower;
use spipe_search::{Degrees, Setting, Spelling};
use spipe_sim::iteration_time;
use std::sync::Arc;

const GPU: DeviceId = DeviceId::new(0);
/// A block.
const BLOCK: LayerId = LayerId::new(3);

/// A decoder with eight experts, of which a token uses two.
fn experts() -> Arc<Model> {
    let text = "format-version = 1\nkind = \"transformer\"\nname = \"experts\"\nvocabulary = 8000\nseq-len = 4096\n\
                hidden = 1024\nlayers = 8\nheads = 16\nintermediate = 4096\nexperts = 8\nexperts-per-token = 2\n\
                norm = \"rms-norm\"\nmlp = \"swiglu\"\npositions = \"rotary\"\n";
    Arc::new(Model::from_toml("experts.toml", text).unwrap())
}

/// Teams of `tensor` × `context` members.
fn divided([tensor, context, pipeline, data]: [usize; 4], expert: u64, sharding: Sharding) -> Mesh {
    Mesh { context: context as u64, expert, ..mesh([tensor * context, pipeline, data], sharding) }
}

fn close(found: f64, wanted: f64, within: f64) {
    assert!((found / wanted - 1.0).abs() < within, "{found} instead of {wanted}");
}

#[test]
fn one_replica_takes_the_time_of_all() {
    let setups = [
        ("a100-80g-x8-nvlink", model("gpt2-xl"), [1, 2, 2, 2], 1),
        ("v100-32g-x8", model("gpt2-xl"), [1, 2, 1, 4], 1),
        ("rtx3090-x4-two-sockets", model("gpt2"), [1, 2, 1, 2], 1),
        ("a100-80g-x8-nvlink", experts(), [2, 1, 2, 2], 2),
        ("a100-80g-x8-nvlink", experts(), [1, 1, 2, 4], 2),
        ("a100-80g-x8-nvlink", experts(), [1, 2, 1, 4], 4),
        ("v100-32g-x8", experts(), [1, 1, 2, 4], 4),
    ];
    for (name, model, degrees, expert) in setups {
        let systems = [(System::OneForwardOneBackward, 1), (System::Interleaved, 2), (System::ZbH1, 1)];
        let shardings = [Sharding::None, Sharding::Optimizer];
        for (sharding, (system, chunks)) in shardings.into_iter().flat_map(|of| systems.map(|system| (of, system))) {
            let (mesh, hardware) = (divided(degrees, expert, sharding), machine(name));
            let setting = Setting::on(&model, &hardware, &workload(8 * degrees[3] as u64), &mesh).unwrap();
            let placement = spread(system, model.layers().len(), (&mesh, chunks));
            let [short, long] = both(&setting, &placement).map(|program| iteration_time(&program).unwrap());
            // The slowest hop of a ring stands for all: copies between chunks that share links with faster ones notice.
            close(short.to_ms(), long.to_ms(), if chunks > 1 { 1e-3 } else { 1e-5 });
        }
    }
}

/// The times of a block on a mesh of one team, and of the same block whose exchanges take no time.
fn passes(model: &Arc<Model>, hardware: &Hardware, (part, work, mesh): (&Model, &Workload, &Mesh)) -> [[f64; 2]; 2] {
    let of = |table: &CostTable| {
        let time = table.time(BLOCK, GPU).unwrap();
        [time.forward.get(), time.backward_input.get()]
    };
    let each = Workload { microbatches: work.microbatches / mesh.data(), ..*work };
    [CostTable::on(model, hardware, work, mesh).unwrap(), CostTable::new(part, hardware, &each).unwrap()]
        .map(|it| of(&it))
}

/// Where links are fast, attention hides the exchange of keys and values; where they are slow, the rest of each step is
/// exposed, and the last gradients always are.
#[test]
fn attention_hides_the_exchange_of_keys() {
    let model = model("llama2-7b");
    for (name, seq_len, is_hidden) in [("a100-80g-x8-nvlink", 65_536, true), ("rtx3090-x4-two-sockets", 2048, false)] {
        let (hardware, mesh) = (machine(name), divided([1, 2, 1, 1], 1, Sharding::None));
        let work = Workload { seq_len, precision: Precision::Bf16, ..workload(1) };
        let part = model.with_sequences_divided(2).unwrap();
        let [[forward, backward], [alone, alone_backward]] = passes(&model, &hardware, (&part, &work, &mesh));
        let keys = seq_len / 2 * 2 * 4096 * 2;
        let rings = Rings::single(&hardware, [&[GPU, DeviceId::new(1)][..]]).unwrap();
        let step = |times: u64| rings.step(Bytes::new(keys * times)).get();
        let device = &hardware.devices()[GPU];
        let attention = |op: &&Op| matches!(op, Op::Attention { .. });
        let layer_work = part.layers()[BLOCK].work(work.batch());
        let half = |ops: &[Op]| {
            let op = ops.iter().find(attention).unwrap();
            let Op::Attention { seq_q, seq_k, .. } = *op else { unreachable!() };
            assert_eq!([seq_q * 2, seq_k], [seq_len, seq_len]);
            let rate = device.matmul_rate(spipe_hardware::DataType::Bf16, op.flops()).unwrap();
            let floor = device.launch_floor.get() * f64::from(op.kernels(Attention::Fused));
            (floor + (op.flops() / rate).get()) / 2.0
        };
        let exposed = [
            (step(1) - half(&layer_work.forward)).max(0.0),
            (step(2) - half(&layer_work.backward_input)).max(0.0) + step(1),
        ];
        assert_eq!(exposed[0] <= 0.0, is_hidden, "{name}: {exposed:?}");
        close(forward, alone + exposed[0], 1e-9);
        close(backward, alone_backward + exposed[1], 1e-9);
    }
}

/// Each of n devices sends (n − 1) ÷ n of the rows of its tokens' experts, twice in each pass.
#[test]
fn tokens_go_to_their_experts_and_back() {
    let (model, hardware, mesh) = (experts(), machine("a100-80g-x8-nvlink"), divided([1, 1, 1, 4], 4, Sharding::None));
    let work = workload(4);
    let part = model.with_experts_divided(4).unwrap();
    let [[forward, backward], [alone, alone_backward]] = passes(&model, &hardware, (&part, &work, &mesh));
    let rows = (1024.0 * 2.0 * Experts::LOAD) as u64;
    let group: Vec<DeviceId> = (0..4).map(DeviceId::new).collect();
    let once = AllToAll::of(&hardware, [group.as_slice()]).unwrap().time(Bytes::new(rows * 1024 * 2)).get();
    close(forward, alone + 2.0 * once, 1e-9);
    close(backward, alone_backward + 2.0 * once, 1e-9);
    let memory = |device: usize| hardware.devices()[DeviceId::from(device)].memory;
    let route = hardware.route(memory(0), memory(1)).unwrap();
    let port = route.links.iter().map(|link| hardware.links()[*link].bandwidth.get()).fold(f64::INFINITY, f64::min);
    close(once, route.latency.get() + (rows * 1024 * 2) as f64 * 0.75 / port, 1e-9);
}

/// Without a pipeline nothing overlaps: passes, the reduction of gradients over replicas and contexts, and the step.
#[test]
fn gradients_are_reduced_over_replicas_and_contexts() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    for (degrees, holders) in [([1, 4, 1, 1], 4_u64), ([1, 2, 1, 4], 8)] {
        let (mesh, work) = (divided(degrees, 1, Sharding::None), workload(16));
        let setting = Setting::on(&model, &hardware, &work, &mesh).unwrap();
        let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
        let simulated = iteration_time(&lower(&setting.context(), &placement).unwrap()).unwrap();
        let table = setting.table();
        let pass = |layer| {
            let time = table.time(layer, GPU).unwrap();
            time.forward + time.backward()
        };
        let passes: Seconds = table.layers().map(pass).sum();
        let gradients: Bytes = table.layers().map(|layer| table.memory(layer, GPU).gradients).sum();
        let group: Vec<DeviceId> = (0..holders as u32).map(DeviceId::new).collect();
        let reduction = Rings::of(&hardware, [group.as_slice()]).unwrap().time(CollectiveKind::AllReduce, gradients);
        let step = table.optimizer_time(model.parameters(), GPU);
        let each = table.workload().microbatches as f64;
        close(simulated.to_ms(), (passes * each + reduction + step).get() * 1e3, 0.01);
    }
}

/// Activations are divided by contexts and parameters are not; experts, their gradients and states by the devices that
/// divide them, and a divided optimizer by all that hold the same.
#[test]
fn memory_is_divided_by_axis() {
    let hardware = machine("a100-80g-x8-nvlink");
    let state = |model: &Arc<Model>, mesh: &Mesh| {
        let setting = Setting::on(model, &hardware, &workload(8), mesh).unwrap();
        let placement = spread(System::OneForwardOneBackward, model.layers().len(), (mesh, 1));
        let needs = footprint(&setting.context(), &placement);
        let used = |device: DeviceId| -> f64 {
            needs[&hardware.devices()[device].memory].values().map(|need| need.state.as_f64()).sum()
        };
        let all: Vec<f64> = mesh.devices().map(used).collect();
        assert!(all.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits()), "{all:?}");
        all[0]
    };
    let plain = model("gpt2-xl");
    let parameters = plain.parameters() as f64;
    close(state(&plain, &divided([1, 4, 1, 2], 1, Sharding::None)), parameters * 16.0, 0.01);
    close(state(&plain, &divided([1, 4, 1, 2], 1, Sharding::Optimizer)), parameters * (4.0 + 12.0 / 8.0), 0.01);

    let model = experts();
    let of_experts = (8 * 8 * 3 * 1024 * 4096) as f64;
    let rest = model.parameters() as f64 - of_experts;
    let bytes = |mesh: Mesh, [rest_bytes, expert_bytes]: [f64; 2]| {
        close(state(&model, &mesh), rest * rest_bytes + of_experts * expert_bytes, 0.01);
    };
    bytes(divided([1, 1, 1, 8], 4, Sharding::None), [16.0, 16.0 / 4.0]);
    bytes(divided([1, 1, 1, 8], 8, Sharding::Optimizer), [4.0 + 12.0 / 8.0, 16.0 / 8.0]);
    bytes(divided([1, 1, 1, 8], 4, Sharding::Optimizer), [4.0 + 12.0 / 8.0, (4.0 + 12.0 / 2.0) / 4.0]);
    bytes(divided([2, 2, 1, 2], 2, Sharding::None), [16.0 / 2.0, 16.0 / 4.0]);

    let work = Workload { seq_len: 4096, ..workload(8) };
    let whole = CostTable::new(&plain, &hardware, &work).unwrap();
    let part = CostTable::on(&plain, &hardware, &work, &divided([1, 4, 1, 1], 1, Sharding::None)).unwrap();
    for layer in whole.layers().skip(1).take(48) {
        let [all, one] = [&whole, &part].map(|table| table.memory(layer, GPU));
        assert_eq!(all.parameters, one.parameters);
        for [all, one] in [[all.saved, one.saved], [all.input, one.input], [all.boundary, one.boundary]] {
            close(one.as_f64() * 4.0, all.as_f64(), 1e-6);
        }
    }
}

/// A stage for each layer of a team, recomputed one after the other.
fn recomputed(model: &Model, mesh: &Mesh) -> Placement {
    let layers = model.layers().len();
    let placement = spread(System::OneForwardOneBackward, layers, (mesh, layers));
    let again = |stage: &Stage| Stage { recomputed: stage.layers.count(), ..*stage };
    Placement { stages: placement.stages.iter().map(again).collect(), ..placement }
}

fn fits(model: &Arc<Model>, hardware: &Arc<Hardware>, (work, mesh): (&Workload, &Mesh)) -> bool {
    let setting = Setting::on(model, hardware, work, mesh).unwrap();
    check(&setting.context(), &recomputed(model, mesh)).is_ok()
}

/// A long sequence fits where eight or two GPUs divide it, and on none alone.
#[test]
fn long_sequences_fit_where_devices_divide_them() {
    let (model, hardware) = (model("llama2-7b"), machine("a100-80g-x8-nvlink"));
    let work = Workload { seq_len: 131_072, ..workload(8) };
    let on = |degrees| fits(&model, &hardware, (&work, &divided(degrees, 1, Sharding::Optimizer)));
    assert_eq!([[1, 8, 1, 1], [1, 2, 1, 4], [1, 1, 1, 8]].map(on), [true, true, false]);
}

/// Sequences are divided where no device holds a layer otherwise, among as few as it takes, and nowhere else.
#[test]
fn sequences_are_divided_where_nothing_else_fits() {
    let (model, hardware) = (model("llama2-7b"), machine("a100-80g-x8-nvlink"));
    let contexts = |seq_len, degrees: Degrees| {
        let workloads = [Workload { seq_len, ..workload(8) }];
        let all = degrees.meshes((&model, &hardware), &workloads, Spelling::default()).unwrap();
        let mut contexts: Vec<u64> = all.iter().map(|mesh| mesh.context).collect();
        contexts.dedup();
        contexts
    };
    let narrow = Degrees { tensor: Some(1), ..Degrees::default() };
    let lengths = [4096, 131_072, 524_288, 1 << 20];
    assert_eq!(lengths.map(|length| contexts(length, narrow)), [[1], [1], [2], [4]]);
    assert_eq!(contexts(4096, Degrees { context: Some(8), ..narrow }), [8]);
}

/// Mixtral fits on sixteen GPUs of which eight divide its experts, and not on as many replicas that hold all of them.
#[test]
fn experts_fit_where_devices_divide_them() {
    let model = model("mixtral-8x7b");
    let network = NetworkFile::parse("8x400Gb").unwrap();
    let hardware = machine("h100-80g-x8-nvlink").on_nodes(2, Some(network)).unwrap();
    let hardware = Arc::new(hardware.under(Runtime::shipped("megatron").unwrap()));
    let work = Workload { seq_len: 4096, ..workload(64) };
    let on = |expert| fits(&model, &hardware, (&work, &divided([2, 1, 1, 8], expert, Sharding::Optimizer)));
    assert_eq!([8, 1].map(on), [true, false]);
}

/// Degrees and plan files that do not divide are refused with the nearest that do.
#[test]
fn degrees_that_do_not_divide_are_refused() {
    let hardware = machine("a100-80g-x8-nvlink");
    let refused = |model: &Model, degrees: Degrees| {
        degrees.meshes((model, &hardware), &[workload(8)], Spelling::default()).unwrap_err().to_string()
    };
    let (dense, with_experts, none) = (model("gpt2-xl"), experts(), Degrees::default());
    let image = model("vit-b-16");
    let mut lines = vec![
        refused(&dense, Degrees { context: Some(3), ..none }),
        refused(&dense, Degrees { context: Some(16), ..none }),
        refused(&image, Degrees { context: Some(2), ..none }),
        refused(&dense, Degrees { expert: Some(2), ..none }),
        refused(&with_experts, Degrees { expert: Some(3), ..none }),
        refused(&with_experts, Degrees { expert: Some(4), data: Some(2), ..none }),
        refused(&with_experts, Degrees { expert: Some(0), ..none }),
    ];
    let mesh = |context, expert| Mesh { context, expert, ..mesh([2, 1, 2], Sharding::None) };
    for (context, expert) in [(3, 1), (0, 1), (1, 4), (1, 0)] {
        let fault = check_mesh(&hardware, &mesh(context, expert)).unwrap_err();
        lines.push(fault.to_string());
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// A plan with divided sequences and experts survives its file.
#[test]
fn plans_are_read_back() {
    let (model, hardware) = (experts(), machine("a100-80g-x8-nvlink"));
    let mesh = divided([1, 2, 2, 2], 4, Sharding::Optimizer);
    let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
    let plan = Plan::new((*model).clone(), (*hardware).clone(), workload(16), placement).unwrap();
    let text = plan.to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let figures = ["data", "context", "tensor", "expert"].map(|key| json["mesh"][key].as_u64().unwrap());
    assert_eq!(figures, [2, 2, 1, 4]);
    assert_eq!(Plan::from_json("plan.json", &text).unwrap().placement(), plan.placement());
    // A sequence of an odd number of chunks.
    let text = text.replace("\"seq-len\": 1024", "\"seq-len\": 1026");
    let fault = Plan::from_json("plan.json", &text).unwrap_err().to_string();
    assert!(fault.contains("1026 tokens cannot be divided evenly among 2 devices"), "{fault}");
}
