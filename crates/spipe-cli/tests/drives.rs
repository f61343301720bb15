//! Plans with parameters, state or activations on a drive, from the plan to the run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/machine.rs"]
mod machine;
#[path = "common/run.rs"]
mod run;

use machine::Machine;
use run::{Run, command::command, spipe};
use serde_json::Value;
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

fn json(folder: &Path, line: &str) -> Value {
    let output = spipe(folder, &format!("{line} --format json"));
    assert!(output.code == Some(0), "{line}: {}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

/// 13 billion parameters at 16 bytes are more than 128 GiB and 24 GiB; the drive takes what DRAM does
/// not hold. The plan, its simulation and its picture agree on it.
#[test]
fn a_drive_makes_room_where_dram_is_short() {
    let folder = tempfile::tempdir().unwrap();
    let job =
        "--model llama2-13b --hardware rtx4090-pcie4-128gb --global-batch 8 --microbatch 1 --system zero-infinity";
    let plan = json(folder.path(), &format!("plan {job} --time-limit 4s -o plan.json"));
    let on_drive = &plan["memory-parts"]["nvme0"]["optimizer-state"];
    assert!(plan["peak-bytes"]["nvme0"] == *on_drive && on_drive.as_u64() > Some(0), "{plan}");
    let stages = plan["stages"].as_array().unwrap();
    let kept = stages.iter().filter(|stage| stage["state-on"] == "nvme0").count();
    assert!(0 < kept && kept < stages.len(), "{kept} of {}", stages.len());
    let simulated = json(folder.path(), "simulate plan.json -o trace.json");
    assert_eq!(simulated["peak-bytes"]["nvme0"], plan["peak-bytes"]["nvme0"]);
    assert_eq!(simulated["iteration-ms"], plan["simulated-iteration-ms"]);
    let drawn = spipe(folder.path(), "timeline trace.json -o x.svg");
    assert!(drawn.code == Some(0), "{}", drawn.err);
    let picture = std::fs::read_to_string(folder.path().join("x.svg")).unwrap();
    assert!(picture.contains("nvme0"), "the device of the lanes");
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
    let lanes: Vec<&str> = trace["lanes"].as_array().unwrap().iter().filter_map(|lane| lane["name"].as_str()).collect();
    assert!(lanes.contains(&"nvme0.read") && lanes.contains(&"nvme0.write"), "{lanes:?}");
    let human = spipe(folder.path(), &format!("plan {job} --effort low"));
    assert!(human.out.contains("state on"), "{}", human.err);
}

#[test]
fn a_named_drive_holds_all_state_and_an_unknown_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 4 --effort low";
    let plan = json(folder.path(), &format!("{job} --system zero-offload --state-on nvme0"));
    assert!(plan["stages"].as_array().unwrap().iter().all(|stage| stage["state-on"] == "nvme0"), "{plan}");
    let plain = json(folder.path(), &format!("{job} --system zero-offload"));
    assert!(plain["peak-bytes"].get("nvme0").is_none(), "{plain}");
    let unknown = spipe(folder.path(), &format!("{job} --state-on nvme7"));
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.err.contains("has no drive `nvme7`\nhint: its drives are nvme0"), "{}", unknown.err);
    let none = spipe(folder.path(), &format!("{job} --system gpu-only --state-on nvme0"));
    assert_eq!(none.code, Some(4), "{}", none.err);
    assert!(none.err.contains("keeps its optimizer state on the drive"), "{}", none.err);
    let infers = spipe(folder.path(), &format!("{job} --mode infer --state-on nvme0"));
    assert_eq!(infers.code, Some(2), "{}", infers.err);
}

/// Activations that leave go to the drive, over lanes of its own.
#[test]
fn activations_that_leave_go_to_the_named_drive() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 8 --microbatch 1 --effort low";
    let offloads = format!("{job} --system po-h --devices gpu0");
    let plan = json(folder.path(), &format!("{offloads} --activations-on nvme0 -o plan.json"));
    let stages = plan["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["offload-to"] == "nvme0"), "{plan}");
    assert!(plan["memory-parts"]["nvme0"]["activations"].as_u64() > Some(0), "{plan}");
    let simulated = json(folder.path(), "simulate plan.json -o trace.json");
    assert_eq!(simulated["iteration-ms"], plan["simulated-iteration-ms"]);
    assert_eq!(simulated["peak-bytes"]["nvme0"], plan["peak-bytes"]["nvme0"]);
    for lane in ["nvme0.read", "nvme0.write"] {
        let trace: Value = serde_json::from_slice(&std::fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
        assert!(trace["lanes"].as_array().unwrap().iter().any(|known| known["name"] == lane), "{lane}");
    }
    let in_dram = json(folder.path(), &offloads);
    assert!(in_dram["peak-bytes"].get("nvme0").is_none(), "{in_dram}");
    let none = spipe(folder.path(), &format!("{job} --system superpipeline --activations-on nvme0"));
    assert_eq!(none.code, Some(4), "{}", none.err);
    assert!(none.err.contains("offloads activations to the drive"), "{}", none.err);
}

/// With everything on the drives that are named, the GPU lacks memory, or DRAM for gradients and slots:
/// that is said, and not that nothing uses the drive.
#[test]
fn where_a_named_drive_does_not_help_the_shortage_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --hardware rtx4090-pcie4-128gb --global-batch 8 --microbatch 1 --effort low";
    for (what, memory) in [
        ("--model llama2-13b --system po-h --devices gpu0 --activations-on nvme0", "`gpu0`"),
        ("--model llama2-70b --system superpipeline --parameters-on nvme0 --state-on nvme0", "`"),
        ("--model llama2-70b --system zero-infinity --parameters-on nvme0 --state-on nvme0", "`dram0`"),
    ] {
        let refused = spipe(folder.path(), &format!("{job} {what}"));
        assert_eq!(refused.code, Some(4), "{what}: {}", refused.err);
        let short = &refused.err;
        assert!(short.contains(&format!("more in {memory}")) && !short.contains("on the drive"), "{what}: {short}");
    }
}

/// A search with a limit on its steps may try nothing that uses the drive: then it says what would.
#[test]
fn a_search_that_stops_says_how_a_plan_comes_to_the_drive() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 8 --effort low --system 1f1b";
    let stopped = spipe(folder.path(), &format!("{job} --activations-on nvme0"));
    assert_eq!(stopped.code, Some(5), "{}", stopped.err);
    assert!(stopped.err.contains("a plan that offloads activations to the drive; "), "{}", stopped.err);
    assert!(stopped.err.contains("`--pin offload=0..3` does, or allow more time"), "{}", stopped.err);
    let pinned = json(folder.path(), &format!("{job} --activations-on nvme0 --pin offload=2..5"));
    assert!(pinned["stages"].as_array().unwrap().iter().any(|stage| stage["offload-to"] == "nvme0"), "{pinned}");
}

/// A GPU alone has no socket to whose DRAM stages of 1F1B offload.
#[test]
fn offloads_without_a_socket_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 8 --effort low --pin offload=2..5";
    let refused = spipe(folder.path(), &format!("{job} --system 1f1b --devices gpu0"));
    assert_eq!(refused.code, Some(4), "{}", refused.err);
    let wanted = "`offload=2..5`: `1f1b` offloads to the DRAM of a CPU socket, and `rtx4090-pcie4-128gb` has none here\n\
                  hint: name a socket in `--devices` too, or use `--system po-h`";
    assert!(refused.err.contains(wanted), "{}", refused.err);
    for other in ["--system 1f1b --devices gpu0,cpu0", "--system po-h --devices gpu0"] {
        let plan = json(folder.path(), &format!("{job} {other}"));
        assert!(plan["stages"].as_array().unwrap().iter().any(|stage| stage["offload-to"] == "dram0"), "{plan}");
    }
}

/// ZeRO-Infinity's states on a drive are DeepSpeed's `offload_optimizer` on NVMe.
#[test]
fn deepspeed_gets_the_drive_of_the_states() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan --model gpt2 --hardware rtx4090-pcie4-128gb --global-batch 4 --effort low";
    json(folder.path(), &format!("{job} --system zero-infinity --state-on nvme0 -o plan.json"));
    let export = |line: &str| spipe(folder.path(), &format!("export {line}"));
    let mounted = export("deepspeed plan.json --nvme /mnt/nvme -o job");
    assert!(mounted.code == Some(0), "{}", mounted.err);
    let config = std::fs::read(folder.path().join("job/ds_config.json")).unwrap();
    let zero = &serde_json::from_slice::<Value>(&config).unwrap()["zero_optimization"];
    assert_eq!(
        (&zero["offload_optimizer"]["device"], &zero["offload_param"]["device"]),
        (&"nvme".into(), &"cpu".into())
    );
    assert_eq!(zero["offload_optimizer"]["nvme_path"], "/mnt/nvme");
    json(folder.path(), &format!("{job} --system zero-offload --state-on nvme0 -o other.json"));
    for (line, reason) in [
        ("deepspeed plan.json -o a", "name it with `--nvme PATH`"),
        ("deepspeed other.json --nvme /mnt/nvme -o b", "keeps no optimizer state of `zero-offload` on a drive"),
        ("fsdp plan.json -o c", "FSDP2 keeps everything in memory"),
    ] {
        let refused = export(line);
        assert!(refused.code != Some(0) && refused.err.contains(reason), "{line}: {}", refused.err);
    }
    let interpreted = export("torch other.json -o d");
    assert!(interpreted.code == Some(0), "{}", interpreted.err);
}

const MODEL: &str = "format-version = 1\nkind = \"transformer\"\nname = \"small\"\nvocabulary = 256\nseq-len = 32\nhidden = 32\n\
                     layers = 3\nheads = 4\nintermediate = 64\n";

const DRIVE: &str = "[[nvme]]\nname = \"nvme0\"\ncapacity = \"1 GB\"\nread = \"2 GB/s\"\nwrite = \"1 GB/s\"\n\
                     source = \"estimate: a test\"\n[[link]]\nname = \"m2\"\nbetween = [\"nvme0\", \"dram0\"]\nbandwidth = \"4 GB/s\"\n";

/// A plan with all optimizer state on a drive, and a text.
fn site() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("model.toml", MODEL);
    write("machine.toml", &format!("{}{DRIVE}", Machine { accelerators: 1, ..Machine::default() }.text()));
    write("text", &"the quick brown fox jumps over the lazy dog; ".repeat(50));
    std::fs::create_dir(folder.path().join("drive")).unwrap();
    json(
        folder.path(),
        "plan --model model.toml --hardware machine.toml --global-batch 4 --microbatch 1 --precision fp32 \
         --materialised-attention --system zero-offload --state-on nvme0 --effort low -o plan.json",
    );
    folder
}

/// Parameters and states on a drive: planned, simulated and run.
#[test]
fn parameters_are_streamed_from_the_named_drive() {
    let site = site();
    let job = "--model model.toml --hardware machine.toml --global-batch 4 --microbatch 1 --precision fp32 \
               --materialised-attention --effort low";
    let on = "--parameters-on nvme0 --state-on nvme0";
    let plan = json(site.path(), &format!("plan {job} --system superpipeline {on} -o streamed.json"));
    assert!(plan["stages"].as_array().unwrap().iter().any(|stage| stage["weights-in"] == "nvme0"), "{plan}");
    let parts = &plan["memory-parts"]["nvme0"];
    assert!(parts["weights"].as_u64() > Some(0) && parts["optimizer-state"].as_u64() > Some(0), "{plan}");
    let simulated = json(site.path(), "simulate streamed.json");
    assert_eq!(simulated["peak-bytes"]["nvme0"], plan["peak-bytes"]["nvme0"]);
    let ran = spipe(site.path(), "run streamed.json --data text --steps 3 --drive nvme0=drive --format json");
    assert!(ran.code == Some(0), "{}", ran.err);
    assert_eq!(losses(&ran.out).len(), 3);
    let none = spipe(site.path(), &format!("plan {job} --system 1f1b {on}"));
    assert_eq!(none.code, Some(4), "{}", none.err);
    assert!(none.err.contains("streams its parameters from the drive"), "{}", none.err);
}

/// Shards of parameters and states of ZeRO-Infinity on a drive: planned, simulated, drawn, run with the
/// losses of the same plan in memory, and exported.
#[test]
fn shards_of_parameters_are_on_the_named_drive() {
    let site = site();
    let job = "plan --model model.toml --hardware machine.toml --global-batch 4 --microbatch 1 --precision fp32 \
               --materialised-attention --effort low --system zero-infinity";
    let plan = json(site.path(), &format!("{job} --parameters-on nvme0 --state-on nvme0 -o shards.json"));
    assert!(plan["stages"].as_array().unwrap().iter().any(|stage| stage["weights-in"] == "nvme0"), "{plan}");
    let parts = &plan["memory-parts"]["nvme0"];
    assert!(parts["weights"].as_u64() > Some(0) && parts["optimizer-state"].as_u64() > Some(0), "{plan}");
    assert!(plan["objective-ms"].as_f64().unwrap() <= plan["simulated-iteration-ms"].as_f64().unwrap(), "{plan}");
    let simulated = json(site.path(), "simulate shards.json -o trace.json");
    assert_eq!(simulated["peak-bytes"]["nvme0"], plan["peak-bytes"]["nvme0"]);
    assert_eq!(simulated["iteration-ms"], plan["simulated-iteration-ms"]);
    let drawn = spipe(site.path(), "timeline trace.json -o x.svg");
    assert!(drawn.code == Some(0), "{}", drawn.err);
    assert!(std::fs::read_to_string(site.path().join("x.svg")).unwrap().contains("nvme0"), "the device of the lanes");
    let run = |plan: &str| {
        let ran = spipe(site.path(), &format!("run {plan} --data text --steps 4 --drive nvme0=drive --format json"));
        assert!(ran.code == Some(0), "{plan}: {}", ran.err);
        losses(&ran.out)
    };
    let text = std::fs::read_to_string(site.path().join("shards.json")).unwrap();
    let mut in_memory: Value = serde_json::from_str(&text).unwrap();
    for stage in in_memory["stages"].as_array_mut().unwrap() {
        stage.as_object_mut().unwrap().remove("state-on");
        stage["weights-in"] = "dram0".into();
    }
    std::fs::write(site.path().join("memory.json"), in_memory.to_string()).unwrap();
    let (ours, theirs) = (run("shards.json"), run("memory.json"));
    assert!(ours.len() == 4 && ours == theirs, "{ours:?} {theirs:?}");
    let exported = spipe(site.path(), "export deepspeed shards.json --nvme /mnt/nvme -o job");
    assert!(exported.code == Some(0), "{}", exported.err);
    let config = std::fs::read(site.path().join("job/ds_config.json")).unwrap();
    let zero = &serde_json::from_slice::<Value>(&config).unwrap()["zero_optimization"];
    for part in ["offload_param", "offload_optimizer"] {
        assert_eq!((&zero[part]["device"], &zero[part]["nvme_path"]), (&"nvme".into(), &"/mnt/nvme".into()), "{zero}");
    }
    json(site.path(), &format!("{job} --parameters-on nvme0 -o parameters.json"));
    let exported = spipe(site.path(), "export deepspeed parameters.json --nvme /mnt/nvme -o other");
    assert!(exported.code == Some(0), "{}", exported.err);
    let config = std::fs::read(site.path().join("other/ds_config.json")).unwrap();
    let zero = &serde_json::from_slice::<Value>(&config).unwrap()["zero_optimization"];
    assert_eq!(
        (&zero["offload_param"]["device"], &zero["offload_optimizer"]["device"]),
        (&"nvme".into(), &"cpu".into())
    );
    let unmounted = spipe(site.path(), "export deepspeed parameters.json -o none");
    assert!(unmounted.err.contains("the plan keeps parameters on a drive, which has no mount point"), "{unmounted:?}");
}

fn losses(out: &str) -> Vec<(u64, u64)> {
    let lines = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = lines.filter(|line| line["event"] == "step");
    steps.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap().to_bits())).collect()
}

/// Most of the time of these steps is spent reading and writing state.
#[test]
fn a_run_that_is_killed_in_its_writes_goes_on() {
    let site = site();
    let run = "run plan.json --data text --steps 40 --drive nvme0=drive --format json";
    let whole = spipe(site.path(), run);
    assert!(whole.code == Some(0), "{}", whole.err);
    let whole = losses(&whole.out);
    assert_eq!(whole.len(), 40);
    let resumed = format!("{run} --checkpoint-dir kept --checkpoint-every 3 --resume");
    let (mut kills, mut patience, mut seen) = (0, 0, 0);
    loop {
        let mut command = command(site.path(), &resumed);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + 41 * (kills * 5 % 7) + patience));
        let _ = child.kill();
        let output = Run::from(child.wait_with_output().unwrap());
        let more = losses(&output.out);
        assert!(more.iter().all(|step| whole.contains(step)), "{more:?}");
        if output.code == Some(0) {
            break;
        }
        assert_eq!(output.code, None, "{}", output.err);
        // Starting takes longer on a busy machine.
        patience = if more.len() > seen { patience / 2 } else { patience + 150 };
        (kills, seen) = (kills + 1, more.len().min(3));
        assert!(kills < 200, "it gets nowhere");
    }
    assert!(kills > 0, "it was never killed");
}

/// A limit on the size of files stands for a full drive.
#[test]
fn a_full_drive_is_said_before_the_first_step() {
    let site = site();
    let run = format!(
        "trap '' XFSZ; ulimit -f 8; exec {} run plan.json --data text --steps 2 --drive nvme0=drive",
        env!("CARGO_BIN_EXE_spipe")
    );
    let full = Run::from(Command::new("sh").args(["-c", &run]).current_dir(site.path()).output().unwrap());
    assert_eq!(full.code, Some(3), "{}", full.err);
    assert!(full.err.contains("drive/nvme0.state` cannot be written: "), "{}", full.err);
    assert!(full.err.contains("--drive NAME=FOLDER"), "{}", full.err);
    let missing = spipe(site.path(), "run plan.json --data text --steps 2");
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    assert!(missing.err.contains("name one with `--drive nvme0=FOLDER`"), "{}", missing.err);
    let unknown = spipe(site.path(), "run plan.json --data text --steps 2 --drive nvme0=nowhere");
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
}
