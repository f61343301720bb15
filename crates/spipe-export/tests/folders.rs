//! Exported folders, and the plans that are refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use spipe_base::LayerRange;
use spipe_cost::{Mode, Workload};
use spipe_export::{Beside, Folder, Modules, deepspeed, fingerprint, fsdp, torch};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Knob, Placement, Plan, Stage, System};
use spipe_schedule::Order;
use std::collections::{BTreeMap, BTreeSet};

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 64\nseq-len = 16\nhidden = 32\n\
                     layers = 6\nheads = 4\nintermediate = 48\n";

/// Nothing is written beside the folder.
const PLAIN: Beside = Beside { steps: None, modules: Modules::Own };

/// A machine of a socket and two GPUs.
fn machine() -> Hardware {
    let mut text = String::from(
        "format-version = 1\nname = \"test\"\n[[socket]]\nname = \"cpu0\"\ncores = 4\npeak = { f32 = \"50 GFLOP/s\" }\n\
         optimizer-rate = \"0.2 Gparam/s\"\nsource = \"estimate: a test\"\n\
         dram = { name = \"dram0\", capacity = \"16 GiB\", bandwidth = \"10 GB/s\" }\n",
    );
    for index in 0..2 {
        text += &format!(
            "[[gpu]]\nname = \"gpu{index}\"\nmemory = \"4 GiB\"\nmemory-bandwidth = \"100 GB/s\"\n\
             peak = {{ f32 = \"10 TFLOP/s\", bf16 = \"20 TFLOP/s\" }}\nsource = \"estimate: a test\"\n\
             [[link]]\nname = \"pcie{index}\"\nbetween = [\"gpu{index}\", \"dram0\"]\nbandwidth = \"10 GB/s\"\n\
             latency = \"10 us\"\nsource = \"estimate: a test\"\n"
        );
    }
    Hardware::from_toml("machine.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn workload() -> Workload {
    Workload {
        mode: Mode::Train,
        seq_len: 16,
        microbatch: 1,
        microbatches: 4,
        precision: Precision::Fp32,
        attention: Attention::Materialised,
        ..Workload::PLAIN
    }
}

/// A plan with a stage for each device, and equal numbers of layers.
fn plan(system: System, devices: &[&str], change: &dyn Fn(Stage, &Hardware) -> Stage, knobs: &[(Knob, u64)]) -> Plan {
    let (model, hardware) = (Model::from_toml("m.toml", MODEL).unwrap(), machine());
    let (layers, count) = (model.layers().len(), devices.len());
    let stage = |(index, name): (usize, &&str)| {
        let range = LayerRange::new((index * layers / count).into(), ((index + 1) * layers / count - 1).into());
        change(Stage::new(hardware.device(name).unwrap(), range.unwrap()), &hardware)
    };
    let stages: Vec<Stage> = devices.iter().enumerate().map(stage).collect();
    let placement = Placement::new(system, stages).with_options(knobs);
    let placement = if placement.shards_parameters() { placement.over_gpus(&hardware, None) } else { placement };
    Plan::new(model, hardware.clone(), workload(), placement).unwrap_or_else(|faults| panic!("{faults}"))
}

fn same(stage: Stage, _: &Hardware) -> Stage {
    stage
}

fn settings(folder: &Folder) -> Value {
    serde_json::from_str(&folder.files["plan.json"]).unwrap()
}

#[test]
fn a_pipeline_has_its_order_and_a_process_per_device() {
    let folder = torch(&plan(System::OneForwardOneBackward, &["gpu0", "gpu1"], &same, &[]), None, PLAIN).unwrap();
    let order = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";
    assert_eq!(folder.files["schedule.csv"], order);
    let settings = settings(&folder);
    let rank = |index: u32| {
        let name = format!("gpu{index}");
        json!({ "device": name, "kind": "gpu", "node": 0, "gpu": index, "socket": 0, "sockets": 1, "threads": 1 })
    };
    assert_eq!(settings["ranks"], json!([rank(0), rank(1)]));
    assert_eq!(settings["batch"], json!({ "microbatch": 1, "microbatches": 4, "sequences": 4, "seq-len": 16 }));
    assert_eq!(settings["stages"][1]["first-layer"], 4);
    assert!(folder.warnings.is_empty(), "{}", folder.warnings);
    for name in ["train.py", "pipeline.py", "model.py", "optimizer.py", "storage.py", "README.md"] {
        assert!(folder.files.contains_key(name), "{name}");
    }
    assert!(!folder.files["README.md"].contains("{{"), "every name in it has a value");
    // The only mention of code in model folders is that there is none.
    assert!(folder.files.values().all(|text| !text.contains("trust_remote_code") && !text.contains("pickle.load")));
}

#[test]
fn the_host_steps_where_the_plan_says_so_and_mixed_pipelines_are_called_untested() {
    let on_host = |stage: Stage, hardware: &Hardware| stage.with_optimizer_on(hardware.device("cpu0").unwrap());
    let folder = torch(&plan(System::ZeroOffload, &["gpu0"], &on_host, &[]), None, PLAIN).unwrap();
    assert_eq!(settings(&folder)["stages"][0]["optimizer-on-host"], true);
    let folder = torch(&plan(System::Hybrid, &["gpu0", "cpu0"], &same, &[]), None, PLAIN).unwrap();
    assert!(folder.warnings.to_string().contains("untested on a GPU"), "{}", folder.warnings);
    assert_eq!(settings(&folder)["ranks"][1]["kind"], "cpu");
}

#[test]
fn recomputed_stages_with_split_backwards_are_fused() {
    let recomputed = |stage: Stage, _: &Hardware| stage.with_recomputed(1);
    let plan = plan(System::ZbH1, &["gpu0", "gpu1"], &recomputed, &[]);
    let folder = torch(&plan, None, PLAIN).unwrap();
    let order: Order = folder.files["schedule.csv"].parse().unwrap();
    let text = order.to_string();
    assert!(text.contains("0I0") && text.contains("0W0") && text.contains("1B0") && !text.contains("1W0"), "{text}");
    assert!(folder.warnings.to_string().contains("recompute split ones three times"), "{}", folder.warnings);
}

#[test]
fn plans_of_another_system_device_or_choice_have_other_fingerprints() {
    let of = |system: System, devices: &[&str], change: &dyn Fn(Stage, &Hardware) -> Stage| {
        fingerprint(&plan(system, devices, change, &[]))
    };
    let own = of(System::OneForwardOneBackward, &["gpu0", "gpu1"], &same);
    assert_eq!(own, of(System::OneForwardOneBackward, &["gpu0", "gpu1"], &same));
    let again = |stage: Stage, _: &Hardware| stage.with_everything_recomputed();
    for other in [
        of(System::Gpipe, &["gpu0", "gpu1"], &same),
        of(System::OneForwardOneBackward, &["gpu1", "gpu0"], &same),
        of(System::OneForwardOneBackward, &["gpu0", "gpu1"], &again),
    ] {
        assert_ne!(own, other);
    }
}

#[test]
fn an_order_of_ones_own_is_checked_against_the_plan() {
    let plan = plan(System::Gpipe, &["gpu0", "gpu1"], &same, &[]);
    let own: Order = "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n".parse().unwrap();
    assert_eq!(torch(&plan, Some(&own), PLAIN).unwrap().files["schedule.csv"], own.to_string());
    let say = |text: &str| torch(&plan, Some(&text.parse().unwrap()), PLAIN).unwrap_err().to_string();
    assert!(say("0F0,0B0\n1F0,1B0\n").contains("the order has 1 microbatches, the plan has 4"));
    let rows: Vec<String> =
        (0..4).map(|microbatch| format!("0F{microbatch},1F{microbatch},1B{microbatch},0B{microbatch}")).collect();
    assert!(say(&(rows.join(",") + "\n")).contains("row 0 has stages of `gpu0` and of `gpu1`"));
}

/// Parameters that are streamed go into a program, which has every action, and a place for every parameter.
#[test]
fn streamed_plans_are_programs() {
    let streamed = |stage: Stage, hardware: &Hardware| {
        stage.with_weights_in(hardware.memory("dram0").unwrap()).with_optimizer_on(hardware.device("cpu0").unwrap())
    };
    let plan = plan(System::Mobius, &["gpu0", "gpu1", "gpu0", "gpu1"], &streamed, &[]);
    let folder = torch(&plan, None, PLAIN).unwrap();
    let file: Value = serde_json::from_str(&folder.files["program.json"]).unwrap();
    let program = spipe_schedule::lower(&plan.context(), plan.placement()).unwrap();
    let actions: usize =
        file["lanes"].as_array().unwrap().iter().map(|lane| lane["actions"].as_array().unwrap().len()).sum();
    assert_eq!(actions, program.actions().len());
    for buffer in file["buffers"].as_array().unwrap() {
        let has_place = ["parameters", "gradients", "optimizer-state"].contains(&buffer["content"].as_str().unwrap());
        assert_eq!(buffer.get("offset").is_some(), has_place, "{buffer}");
    }
    assert!(!folder.files.contains_key("schedule.csv") && !folder.files["README.md"].contains("{{"));
    assert!(folder.files["README.md"].contains("| 3 | 1 | gpu1 |"), "{}", folder.files["README.md"]);
}

/// Two buffers of one memory have common addresses only if the first is no longer used when the second is written: an
/// edge, or a chain of edges, lies between them. No edge closes a circle.
#[test]
fn places_are_free_before_they_are_written_again() {
    let streamed = |stage: Stage, hardware: &Hardware| {
        stage.with_weights_in(hardware.memory("dram0").unwrap()).with_optimizer_on(hardware.device("cpu0").unwrap())
    };
    let cases = [
        (System::Mobius, &[][..]),
        (System::Superpipeline, &[(Knob::Resident, 3)][..]),
        (System::NaiveSwap, &[(Knob::Resident, 2)][..]),
    ];
    for (system, knobs) in cases {
        let plan = plan(system, &["gpu0"; 8], &streamed, knobs);
        let folder = torch(&plan, None, PLAIN).unwrap();
        check_places(&serde_json::from_str(&folder.files["program.json"]).unwrap());
    }
}

/// The users of each buffer, in the file's order.
fn users(file: &Value) -> BTreeMap<u64, Vec<u64>> {
    let mut users: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for action in file["lanes"].as_array().unwrap().iter().flat_map(|lane| lane["actions"].as_array().unwrap()) {
        for key in ["reads", "writes"] {
            for access in action.get(key).and_then(Value::as_array).into_iter().flatten() {
                users.entry(access[0].as_u64().unwrap()).or_default().push(action["id"].as_u64().unwrap());
            }
        }
    }
    users
}

fn check_places(file: &Value) {
    // By action, those that follow it within an iteration.
    let mut after: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for lane in file["lanes"].as_array().unwrap() {
        for pair in lane["actions"].as_array().unwrap().windows(2) {
            after.entry(pair[0]["id"].as_u64().unwrap()).or_default().push(pair[1]["id"].as_u64().unwrap());
        }
    }
    for edge in file["edges"].as_array().unwrap().iter().filter(|edge| edge["distance"] == 0) {
        after.entry(edge["from"].as_u64().unwrap()).or_default().push(edge["to"].as_u64().unwrap());
    }
    let reaches = |from: u64, to: u64| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(action) = left.pop() {
            for next in after.get(&action).into_iter().flatten().filter(|next| seen.insert(**next)) {
                left.push(*next);
            }
        }
        seen.contains(&to)
    };
    let users = users(file);
    for action in users.values().flatten() {
        assert!(!reaches(*action, *action), "action {action} waits for itself");
    }
    let buffers: Vec<(u64, &Value)> = (0..).zip(file["buffers"].as_array().unwrap()).collect();
    let placed: Vec<_> = buffers.iter().filter(|(_, buffer)| buffer.get("offset").is_some()).collect();
    let range = |buffer: &Value| (buffer["offset"].as_u64().unwrap(), buffer["bytes"].as_u64().unwrap());
    let mut shared = 0;
    for (one, first) in &placed {
        for (other, second) in
            placed.iter().filter(|(other, second)| other > one && second["memory"] == first["memory"])
        {
            let ((start, size), (begin, length)) = (range(first), range(second));
            if start < begin + length && begin < start + size {
                shared += 1;
                let ordered = users[one].iter().all(|user| users[other].iter().all(|next| reaches(*user, *next)))
                    || users[other].iter().all(|user| users[one].iter().all(|next| reaches(*user, *next)));
                assert!(ordered, "{first} and {second}");
            }
        }
    }
    assert!(shared > 0, "no place is used twice");
}

#[test]
fn plans_that_cannot_be_expressed_are_refused_with_the_nearest_that_can() {
    let on_host = |stage: Stage, hardware: &Hardware| stage.with_optimizer_on(hardware.device("cpu0").unwrap());
    let leave = &[(Knob::GradientsLeave, 1)];
    // An order of one's own runs in PyTorch's runtime, whatever else the plan has.
    let own: Order = "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n".parse().unwrap();
    let cases: [(Plan, Option<&Order>, &str, &str); 3] = [
        (plan(System::ZeroOffloadDelayed, &["gpu0"], &on_host, &[]), Some(&own), "one iteration old", "zero-offload"),
        (
            plan(System::ZeroOffload, &["gpu0"], &on_host, leave),
            Some(&own),
            "with each microbatch",
            "without `gradients-leave`",
        ),
        (plan(System::Fsdp, &["gpu0", "gpu0"], &same, &[]), None, "no pipeline", "command export fsdp"),
    ];
    for (plan, order, reason, nearest) in &cases {
        let said = torch(plan, *order, PLAIN).unwrap_err().to_string();
        assert!(said.contains(reason) && said.contains(nearest), "{said}");
        assert!(
            order.is_none() || torch(plan, None, PLAIN).is_ok_and(|folder| folder.files.contains_key("program.json"))
        );
    }
    let said = fsdp(&plan(System::Gpipe, &["gpu0", "gpu1"], &same, &[]), PLAIN).unwrap_err().to_string();
    assert!(said.contains("use `command export torch`"), "{said}");
    let said = deepspeed(&plan(System::Gpipe, &["gpu0", "gpu1"], &same, &[]), None, PLAIN).unwrap_err().to_string();
    assert!(said.contains("is none of DeepSpeed's"), "{said}");
}

/// ZeRO-Offload is an answer, whatever the name of the plan; over two GPUs it would have other layers on each.
#[test]
fn deepspeed_takes_steps_on_the_host_of_one_gpu() {
    let on_host = |stage: Stage, hardware: &Hardware| stage.with_optimizer_on(hardware.device("cpu0").unwrap());
    for system in [System::ZeroOffload, System::OneForwardOneBackward] {
        let folder = deepspeed(&plan(system, &["gpu0"], &on_host, &[]), None, PLAIN).unwrap();
        let config: Value = serde_json::from_str(&folder.files["ds_config.json"]).unwrap();
        assert_eq!(config["zero_optimization"]["stage"], 2, "{config}");
        let said = deepspeed(&plan(system, &["gpu0", "gpu1"], &on_host, &[]), None, PLAIN).unwrap_err().to_string();
        assert!(said.contains("a pipeline of 2 devices"), "{said}");
    }
    let here =
        deepspeed(&plan(System::OneForwardOneBackward, &["gpu0"], &same, &[]), None, PLAIN).unwrap_err().to_string();
    assert!(here.contains("is none of DeepSpeed's"), "{here}");
}

#[test]
fn deepspeed_gathers_as_far_ahead_as_the_plan() {
    let knobs = &[(Knob::Resident, 3)];
    let plan = plan(System::Fsdp, &["gpu0"; 4], &same, knobs);
    let folder = deepspeed(&plan, None, PLAIN).unwrap();
    let config: Value = serde_json::from_str(&folder.files["ds_config.json"]).unwrap();
    assert_eq!(config["gradient_accumulation_steps"], 2, "four microbatches over two GPUs");
    assert!(config.get("train_batch_size").is_none());
    let layers = plan.context().model.layers();
    let group = |stage: &Stage| stage.layers.iter().map(|layer| layers[layer].parameters).sum::<u64>();
    let largest = plan.placement().stages.iter().map(group).max().unwrap();
    let zero = &config["zero_optimization"];
    assert_eq!(zero["stage3_prefetch_bucket_size"], 2 * largest);
    assert_eq!(zero["stage3_max_live_parameters"], 3 * largest);
    assert_eq!(zero.get("offload_param"), None);
    assert!(deepspeed(&plan, Some("/mnt"), PLAIN).unwrap_err().to_string().contains("keeps nothing on a drive"));
    let folder = fsdp(&plan, PLAIN).unwrap();
    assert_eq!(
        (settings(&folder)["ranks"].as_array().unwrap().len(), settings(&folder)["prefetch"].clone()),
        (2, json!(2))
    );
}
