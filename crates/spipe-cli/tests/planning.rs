//! The options of `spipe plan`: pins, a plan to improve, the largest value that fits, and the gain
//! from more of each resource.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, spipe};
use serde_json::Value;

fn fixture(path: &str) -> String {
    format!("{}/../../tests/fixtures/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Plans six layers on a small GPU beside a socket.
fn plan(more: &[&str]) -> (Option<i32>, Value, String) {
    let (model, hardware) = (fixture("good/six-layers.toml"), fixture("good/small-gpu.toml"));
    let args = ["plan", "--model", &model, "--hardware", &hardware, "--global-batch", "8", "--format", "json"];
    let Run { code, out, err } = spipe(".", &[&args[..], more].concat());
    (code, serde_json::from_str(&out).unwrap_or(Value::Null), err)
}

fn time(plan: &Value) -> f64 {
    plan["simulated-iteration-ms"].as_f64().unwrap()
}

fn device_of(plan: &Value, layer: u64) -> String {
    let stages = plan["stages"].as_array().unwrap();
    let has = |stage: &&Value| {
        (stage["first-layer"].as_u64().unwrap()..=stage["last-layer"].as_u64().unwrap()).contains(&layer)
    };
    stages.iter().find(has).unwrap()["device"].as_str().unwrap().to_owned()
}

#[test]
fn the_plan_over_all_systems_is_no_slower_than_that_of_any() {
    let (code, all, err) = plan(&[]);
    assert_eq!(code, Some(0), "{err}");
    let (bound, best) = (all["objective-ms"].as_f64().unwrap(), time(&all));
    assert!(bound > 0.0 && bound <= best, "{all}");
    let gap = all["gap"].as_f64().unwrap();
    assert!((gap - (best - bound) / best).abs() < 1e-9, "{all}");
    for system in ["gpipe", "1f1b", "hybrid", "superpipeline", "mobius", "zero-offload", "cpu-only", "gpu-only", "fsdp"]
    {
        let (code, one, _) = plan(&["--system", system]);
        if code == Some(0) {
            assert!(best <= time(&one) * 1.006, "{system}: {best} but {}", time(&one));
            assert!(bound <= time(&one) + 1e-3, "{system}");
        }
    }
    let (code, two, err) = plan(&["--system", "gpipe,cpu-only"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(["gpipe", "cpu-only"].contains(&two["system"].as_str().unwrap()));
}

#[test]
fn pins_hold_whatever_they_cost() {
    let (_, free, _) = plan(&["--microbatch", "1"]);
    let (code, pinned, err) = plan(&["--microbatch", "1", "--pin", "layer=0..1:cpu0"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!((device_of(&pinned, 0), device_of(&pinned, 1)), ("cpu0".into(), "cpu0".into()));
    assert!(time(&pinned) >= time(&free));
    let (code, kind, err) = plan(&["--microbatch", "1", "--pin", "layer=5:gpu", "--pin", "stage=0:cpu0"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!((device_of(&kind, 5), device_of(&kind, 0)), ("gpu0".into(), "cpu0".into()));
    let (code, recomputed, err) = plan(&["--pin", "recompute=0..5", "--pin", "system=1f1b", "--pin", "microbatch=2"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!((&recomputed["system"], &recomputed["workload"]["microbatch"]), (&"1f1b".into(), &2.into()));
    for stage in recomputed["stages"].as_array().unwrap() {
        let choices = stage["choices"].as_array().unwrap();
        assert!(choices.iter().all(|choice| choice["activations"] == "recomputed"), "{stage}");
    }
}

/// Everything that a plan decides can be pinned.
#[test]
fn every_choice_can_be_pinned() {
    let stages = |plan: &Value| plan["stages"].as_array().unwrap().clone();
    let of_layer = |plan: &Value, layer: u64| -> Value {
        let has =
            |stage: &&Value| (stage["first-layer"].as_u64()..=stage["last-layer"].as_u64()).contains(&Some(layer));
        stages(plan).iter().find(has).unwrap().clone()
    };
    let pinned = |pins: &[&str]| {
        let words: Vec<&str> = pins.iter().flat_map(|pin| ["--pin", pin]).chain(["--microbatch", "1"]).collect();
        // A framework's context leaves this GPU too little room.
        let (code, plan, err) = plan(&[&words[..], &["--runtime", "spipe"]].concat());
        assert_eq!(code, Some(0), "{pins:?}: {err}{plan}");
        plan
    };
    let stepped = pinned(&["optimizer=2..3:cpu0", "layer=2..3:gpu0"]);
    assert!([2, 3].iter().all(|layer| of_layer(&stepped, *layer)["optimizer-on"] == "cpu0"), "{stepped}");
    let own = pinned(&["optimizer=0..5:gpu", "layer=0..5:gpu"]);
    assert!(stages(&own).iter().all(|stage| stage.get("optimizer-on").is_none()), "{own}");
    let offloaded = pinned(&["offload=1..2"]);
    assert!([1, 2].iter().all(|layer| of_layer(&offloaded, *layer)["offload-to"] == "dram0"), "{offloaded}");
    let saved = pinned(&["save=5", "system=1f1b"]);
    let last = of_layer(&saved, 5);
    assert_eq!(last["choices"].as_array().unwrap().last().unwrap()["activations"], "saved", "{saved}");
    let streamed = pinned(&["stream=0..1", "keep=5"]);
    assert_eq!(of_layer(&streamed, 0)["weights-in"], "dram0", "{streamed}");
    assert!(of_layer(&streamed, 5).get("weights-in").is_none(), "{streamed}");
    let knobs = pinned(&["resident=3", "swap=2", "system=superpipeline"]);
    assert_eq!((&knobs["order"]["resident"], &knobs["order"]["swap"]), (&3.into(), &2.into()), "{knobs}");
    let slots = pinned(&["offload-slots=3", "system=1f1b"]);
    assert_eq!(slots["offload"]["slots"], 3, "{slots}");
    for urgent in ["1", "0"] {
        let steps = pinned(&[&format!("urgent-steps={urgent}"), "system=1f1b", "optimizer=0..5:cpu"]);
        assert_eq!(steps["update"].get("urgent").is_some(), urgent == "1", "{steps}");
    }
    let ahead = pinned(&["head-start=1"]);
    assert_eq!((&ahead["system"], &ahead["order"]["head-start"]), (&"hybrid".into(), &1.into()), "{ahead}");
}

#[test]
fn clipping_is_part_of_the_plan_and_takes_time() {
    let offload = ["--system", "zero-offload", "--microbatch", "1", "--runtime", "spipe"];
    let (code, free, err) = plan(&offload);
    assert_eq!(code, Some(0), "{err}");
    let (code, clipped, err) = plan(&[&offload[..], &["--clip-norm", "0.5"]].concat());
    assert_eq!((code, clipped["workload"]["clip-norm"].as_f64()), (Some(0), Some(0.5)), "{err}");
    assert!(free["workload"].get("clip-norm").is_none() && time(&clipped) > time(&free), "{free} {clipped}");
    for (more, why) in [
        (&["--clip-norm", "0"][..], "above 0"),
        (&["--clip-norm", "1", "--mode", "infer"], "does nothing in inference"),
    ] {
        let (code, _, err) = plan(more);
        assert_eq!((code, err.contains(why)), (Some(2), true), "{err}");
    }
}

#[test]
fn contradictory_pins_are_refused_with_both_named() {
    for (pins, both) in [
        (["--pin", "layer=0..3:cpu0", "--pin", "layer=3:gpu0"], ["layer=0..3:cpu0", "layer=3:gpu0"]),
        (["--pin", "recompute=0..3", "--pin", "save=2"], ["recompute=0..3", "save=2"]),
        (["--pin", "stage=0:cpu0", "--pin", "stage=0:gpu0"], ["stage=0:cpu0", "stage=0:gpu0"]),
        (["--pin", "offload=0..3", "--pin", "save=3"], ["offload=0..3", "save=3"]),
        (["--pin", "stream=0..3", "--pin", "keep=3"], ["stream=0..3", "keep=3"]),
        (["--pin", "stream=0..3", "--pin", "layer=3:cpu0"], ["stream=0..3", "layer=3:cpu0"]),
        (["--pin", "layer=2..4:cpu", "--pin", "offload=0..3"], ["layer=2..4:cpu", "offload=0..3"]),
        (["--pin", "optimizer=0:gpu", "--pin", "optimizer=0:cpu"], ["optimizer=0:gpu", "optimizer=0:cpu"]),
        (["--pin", "resident=2", "--pin", "resident=3"], ["resident=2", "resident=3"]),
        (["--pin", "swap=5", "--pin", "resident=2"], ["swap=5", "resident=2"]),
        (["--pin", "stage=0:gpu", "--pin", "layer=0:cpu"], ["stage=0:gpu", "layer=0:cpu"]),
        (["--pin", "layer=0..5:cpu", "--pin", "optimizer=5:gpu"], ["layer=0..5:cpu", "optimizer=5:gpu"]),
        (["--pin", "optimizer=0..3:gpu0", "--pin", "stream=3..5"], ["optimizer=0..3:gpu0", "stream=3..5"]),
        (["--system", "1f1b", "--pin", "system=gpipe"], ["--system 1f1b", "system=gpipe"]),
        (["--microbatch", "4", "--pin", "microbatch=2"], ["--microbatch 4", "microbatch=2"]),
    ] {
        let (code, _, err) = plan(&pins);
        assert_eq!(code, Some(2), "{err}");
        assert!(both.iter().all(|pin| err.contains(&format!("`{pin}`"))) && err.contains("contradict"), "{err}");
    }
    for (pins, why) in [
        (&["--pin", "stage=99:gpu"][..], "no more stages"),
        (&["--pin", "resident=0"], "cannot be 0"),
        (&["--mode", "infer", "--pin", "recompute=2..3"], "does nothing in inference"),
        (&["--mode", "infer", "--pin", "optimizer=2..3:gpu"], "does nothing in inference"),
    ] {
        let (code, _, err) = plan(pins);
        assert_eq!((code, err.contains(why)), (Some(2), true), "{err}");
    }
    let (code, refused, err) = plan(&["--system", "gpu-only", "--microbatch", "1", "--pin", "layer=0..3:cpu0"]);
    assert_eq!(
        (code, &refused["reason"]),
        (Some(4), &"no placement of the allowed systems satisfies all pins".into()),
        "{err}"
    );
    assert!(refused["hint"].as_str().unwrap().contains("use `--system cpu-only` (2.5"), "the fastest: {refused}");
    let (code, _, err) = plan(&["--mode", "infer", "--system", "zero-offload"]);
    assert_eq!((code, err.contains("only train")), (Some(2), true), "{err}");
    let (code, _, err) = plan(&["--pin", "layer=9:cpu0", "--pin", "stage=0:cpu7", "--pin", "nonsense"]);
    assert_eq!(code, Some(2));
    assert_eq!(err.matches("error:").count(), 3, "all faults are reported: {err}");
}

#[test]
fn a_plan_can_be_improved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.json");
    let path = path.to_str().unwrap();
    let (code, slow, err) = plan(&["--microbatch", "1", "--system", "cpu-only", "-o", path]);
    assert_eq!(code, Some(0), "{err}");
    let Run { code, out, err } = spipe(".", &["plan", "--improve", path, "--format", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let better: Value = serde_json::from_str(&out).unwrap();
    assert!(time(&better) < time(&slow));
    assert_eq!(better["workload"], slow["workload"]);
    // Its model, its machine and how it trains are its own.
    for other in [&["--model", "gpt2"][..], &["--clip-norm", "1"], &["--mode", "infer"], &["--precision", "fp32"]] {
        let Run { code, err, .. } = spipe(".", &[&["plan", "--improve", path], other].concat());
        assert_eq!((code, err.contains(other[0])), (Some(2), true), "{err}");
    }
    // However little is looked at, what is given is not lost.
    let (code, best, err) = plan(&["-o", path]);
    assert_eq!(code, Some(0), "{err}");
    let Run { code, out, err } = spipe(".", &["plan", "--improve", path, "--gap", "99%", "--format", "json"]);
    let kept: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, time(&kept) <= time(&best)), (Some(0), true), "{err} {kept}");
}

/// A knob that no allowed system has is no question of time.
#[test]
fn knobs_of_other_systems_are_refused_at_once() {
    let pin = ["--pin", "head-start=1", "--time-limit", "5s"];
    let (code, refused, err) = plan(&[&["--system", "gpipe"], &pin[..]].concat());
    assert_eq!(code, Some(4), "{err}");
    assert!(refused["hint"].as_str().unwrap().contains("`--system hybrid`"), "{refused}");
    // Nor do systems without it count among those that might be faster.
    let (code, found, err) = plan(&pin);
    assert_eq!((code, found["system"].as_str()), (Some(0), Some("hybrid")), "{err}");
}

/// Remarks on plans that are accepted.
#[test]
fn remarks_are_made() {
    let small =
        ["--model", "llama2-7b", "--hardware", "rtx4090-pcie4-128gb", "--seq-len", "1024", "--system", "gpu-only"];
    let generate = ["plan", "--mode", "generate", "--global-batch", "18"];
    let Run { code, err, .. } = spipe(".", &[&generate, &small[..]].concat());
    assert_eq!((code, err.contains("memory for prompts of ")), (Some(0), true), "{err}");
    let (code, _, err) = plan(&["--mode", "generate"]);
    assert_eq!((code, err.contains("not of single tokens")), (Some(2), true), "{err}");
}

#[test]
fn the_largest_that_fits_fits_and_one_more_does_not() {
    let base = ["--system", "1f1b", "--microbatch", "1"];
    for (what, flag) in [("seq-len", "--seq-len"), ("layers", "")] {
        let (code, answer, err) = plan(&[&base[..], &["--solve-for", what]].concat());
        assert_eq!(code, Some(0), "{err}");
        let value = answer["value"].as_u64().unwrap();
        assert!(value > 0 && answer["unlimited"] == false, "{answer}");
        if !flag.is_empty() {
            let with = |value: u64| plan(&[&base[..], &[flag, &value.to_string()]].concat()).0;
            assert_eq!((with(value), with(value + 1)), (Some(0), Some(4)), "{what}");
        }
    }
    let (code, answer, err) = plan(&["--system", "1f1b", "--solve-for", "microbatch"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(8u64.is_multiple_of(answer["value"].as_u64().unwrap()), "{answer}");
}

/// A microbatch of more than 2^24 tokens is not counted; up to there everything fits on an H100.
#[test]
fn what_cannot_be_counted_was_not_looked_at() {
    let args = ["plan", "--model", "demo", "--hardware", "h100", "--system", "1f1b", "--format", "json"];
    let more = ["--global-batch", "65536", "--seq-len", "4096", "--solve-for", "microbatch"];
    let Run { code, out, err } = spipe(".", &[&args[..], &more].concat());
    assert_eq!(code, Some(0), "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((answer["value"].as_u64(), answer["unlimited"].as_bool()), (Some(4096), Some(true)), "{answer}");
}

#[test]
fn sensitivity_says_what_more_of_each_resource_gains() {
    let (code, answer, err) = plan(&["--microbatch", "1", "--sensitivity"]);
    assert_eq!(code, Some(0), "{err}");
    let gains = answer["sensitivity"].as_array().unwrap();
    let resources: Vec<&str> = gains.iter().map(|gain| gain["resource"].as_str().unwrap()).collect();
    assert_eq!(resources, ["vram", "dram", "dram-bandwidth", "pcie", "flops"]);
    for gain in gains {
        let speedup = gain["speedup"].as_f64().unwrap();
        assert!(speedup >= 1.0, "{gain}");
        assert!((speedup - time(&answer) / gain["iteration-ms"].as_f64().unwrap()).abs() < 1e-9, "{gain}");
    }
}

/// Greedy filling does worse with more memory here, so that the plan of the machine as it is must
/// stand in.
#[test]
fn more_of_a_resource_is_never_a_loss_and_no_gain_can_be_had_without_it() {
    let args =
        ["plan", "--model", "gpt2-xl", "--hardware", "v100-32g-x4-nvlink", "--global-batch", "16", "--format", "json"];
    let greedy = ["--planner", "greedy", "--system", "1f1b,gpipe"];
    let Run { code, out, err } = spipe(".", &[&args[..], &greedy, &["--sensitivity"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    for gain in plan["sensitivity"].as_array().unwrap() {
        assert!(gain["speedup"].as_f64().unwrap() >= 1.0, "{gain}");
    }
    let Run { out: alone, .. } = spipe(".", &[&args[..], &greedy].concat());
    assert!(time(&plan) <= time(&serde_json::from_str(&alone).unwrap()));
}

#[test]
fn the_largest_batch_is_found_where_gpus_share_it_out() {
    let largest = |more: &[&str]| {
        let args = ["plan", "--solve-for", "global-batch", "--format", "json", "--time-limit", "5s"];
        let Run { code, out, err } = spipe(".", &[&args[..], more].concat());
        assert_eq!(code, Some(0), "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        (answer["value"].as_u64().unwrap(), answer["unlimited"].as_bool().unwrap())
    };
    // Odd batches cannot be shared out between two GPUs, and a GPU alone has no room.
    let fsdp = ["--model", "llama2-7b", "--hardware", "a100-80g-x2", "--system", "fsdp"];
    assert_eq!(largest(&fsdp), (4096, true));
    // All microbatches are in flight at once; three are too few for four GPUs.
    let mobius =
        ["--model", "gpt2-xl", "--hardware", "rtx3090-x4-two-sockets", "--system", "mobius", "--microbatch", "1"];
    let (value, unlimited) = largest(&mobius);
    assert!(value >= 4, "{value}");
    if !unlimited {
        let with =
            |batch: u64| spipe(".", &[&["plan", "--global-batch", &batch.to_string()][..], &mobius].concat()).code;
        assert_eq!((with(value), with(value + 1)), (Some(0), Some(4)));
    }
}

#[test]
fn nothing_that_is_largest_is_refused_in_json_too() {
    let (code, refused, err) = plan(&["--system", "gpu-only", "--solve-for", "microbatch"]);
    assert_eq!((code, &refused["status"]), (Some(4), &"infeasible".into()), "{err}");
    assert_eq!(refused["reason"], "no plan fits, whatever the microbatch");
    let of_images =
        ["plan", "--model", "vit-b-16", "--hardware", "one-gpu", "--global-batch", "8", "--solve-for", "seq-len"];
    let Run { code, err, .. } = spipe(".", &of_images);
    assert_eq!((code, err.contains("reads images")), (Some(2), true), "{err}");
    for more in [["--pin", "layer=1:gpu0"], ["--freeze", "1"]] {
        let (code, _, err) = plan(&[&more[..], &["--solve-for", "layers"]].concat());
        assert_eq!((code, err.contains("of a model with other layers")), (Some(2), true), "{err}");
    }
}

#[test]
fn no_time_and_no_room_are_refused() {
    let (code, _, err) = plan(&["--threads", "0"]);
    assert_eq!((code, err.contains("`--threads` is zero")), (Some(2), true), "{err}");
    let (code, _, err) = plan(&["--time-limit", "0s"]);
    assert_eq!((code, err.contains("the time limit is zero")), (Some(2), true), "{err}");
    let (code, refused, err) = plan(&["--system", "gpu-only", "--microbatch", "8"]);
    assert_eq!(code, Some(4), "{err}");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.contains("`gpu0` needs at least "), "{reason}");
    assert!(refused["hint"].as_str().unwrap().contains("give `gpu0`"), "{refused}");
}

/// Choices that a system does not have are refused in plans edited by hand.
#[test]
fn plans_that_their_system_does_not_allow_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edited.json");
    let simulated = |plan: &Value| {
        std::fs::write(&path, plan.to_string()).unwrap();
        let Run { code, err, .. } = spipe(".", &["simulate", path.to_str().unwrap()]);
        (code, err)
    };
    let pinned = ["--system", "zero-offload", "--microbatch", "1", "--runtime", "spipe", "--pin", "gradients-leave=1"];
    let (code, offloaded, err) = plan(&pinned);
    assert_eq!((code, &offloaded["gradients-leave"]), (Some(0), &"each-microbatch".into()), "{err}");
    assert_eq!(simulated(&offloaded).0, Some(0));
    let mut other = offloaded.clone();
    other["system"] = "1f1b".into();
    let (code, err) = simulated(&other);
    assert_eq!((code, err.contains("gradients that leave after each microbatch")), (Some(3), true), "{err}");
    let mut here = offloaded;
    for stage in here["stages"].as_array_mut().unwrap() {
        stage.as_object_mut().unwrap().remove("optimizer-on");
    }
    let (code, err) = simulated(&here);
    assert_eq!((code, err.contains("runs on its device")), (Some(3), true), "{err}");
    let (code, mut streamed, err) = plan(&["--system", "zero-infinity", "--microbatch", "1", "--runtime", "spipe"]);
    assert_eq!(code, Some(0), "{err}");
    streamed["system"] = "fsdp".into();
    let (code, err) = simulated(&streamed);
    assert_eq!((code, err.contains("is streamed, but under system `fsdp`")), (Some(3), true), "{err}");
    let (code, mut moved, err) = plan(&["--system", "superpipeline", "--microbatch", "1"]);
    assert_eq!(code, Some(0), "{err}");
    let stage = moved["stages"][0].as_object_mut().unwrap();
    stage.retain(|key, _| key != "weights-in" && key != "optimizer-on");
    stage.insert("device".into(), "cpu0".into());
    let (code, err) = simulated(&moved);
    assert_eq!((code, err.contains("computes on GPUs")), (Some(3), true), "{err}");
}

#[test]
fn bounds_say_what_they_are_about() {
    for (planner, of) in
        [("ilp", "Lower bound of any plan: "), ("dp", "Lower bound of any plan with one stage on each device: ")]
    {
        let model = fixture("good/six-layers.toml");
        let machine = fixture("good/small-gpu.toml");
        let args = ["plan", "--model", &model, "--hardware", &machine, "--global-batch", "8", "--planner", planner];
        let Run { code, out, err } = spipe(".", &[&args[..], &["--system", "1f1b"]].concat());
        assert_eq!((code, out.contains(of)), (Some(0), true), "{err}{out}");
    }
    let (code, _, err) = plan(&["--system", "auto,fsdp"]);
    assert_eq!((code, err.contains("besides `auto`")), (Some(2), true), "{err}");
    let (code, _, err) = plan(&["--gap", "150%"]);
    assert_eq!((code, err.contains("not a fraction from 0 to 1")), (Some(2), true), "{err}");
}

#[test]
fn what_the_hint_names_helps_and_less_of_it_does_not() {
    let (model, folder) = (fixture("good/six-layers.toml"), tempfile::tempdir().unwrap());
    let machine = std::fs::read_to_string(fixture("good/small-gpu.toml")).unwrap();
    let path = folder.path().join("machine.toml");
    let plan = |memory: u64, more: &[&str]| {
        let had = machine.lines().find(|line| line.starts_with("memory = ")).unwrap();
        std::fs::write(&path, machine.replace(had, &format!("memory = \"{memory} B\""))).unwrap();
        let args = ["plan", "--model", &model, "--hardware", path.to_str().unwrap(), "--global-batch", "8"];
        spipe(".", &[&args[..], &["--runtime", "spipe", "--format", "json"], more].concat())
    };
    let gpu_only = ["--system", "gpu-only", "--microbatch", "8"];
    let Run { code, out, .. } = plan(512 << 20, &gpu_only);
    assert_eq!(code, Some(4));
    let refused: Value = serde_json::from_str(&out).unwrap();
    let hint = refused["hint"].as_str().unwrap();
    let amount = hint.split_once("give `gpu0` ").unwrap().1.split_once(" more").unwrap().0;
    let (number, unit) = amount.split_once(' ').unwrap();
    let unit = match unit {
        "MiB" => f64::from(1 << 20),
        "GiB" => f64::from(1 << 30),
        other => panic!("{other}"),
    };
    let with = |tenths: f64| {
        let more = (number.parse::<f64>().unwrap() * 10.0 + tenths).round() * unit / 10.0;
        plan((512 << 20) + more as u64, &gpu_only).code
    };
    assert_eq!((with(0.0), with(-1.0)), (Some(0), Some(4)), "{hint}");
    let system = hint.split_once("use `--system ").unwrap().1.split_once('`').unwrap().0;
    assert_eq!(plan(512 << 20, &["--system", system, "--microbatch", "8"]).code, Some(0), "{hint}");
    let one = |microbatch: &str| plan(512 << 20, &["--system", "1f1b", "--microbatch", microbatch]);
    let Run { code, out, .. } = plan(512 << 20, &["--system", "1f1b", "--microbatch", "8", "--pin", "layer=1..4:gpu0"]);
    assert_eq!(code, Some(4), "{out}");
    let refused: Value = serde_json::from_str(&out).unwrap();
    let hint = refused["hint"].as_str().unwrap();
    assert!(hint.contains("drop `--pin layer=1..4:gpu0`"), "{hint}");
    assert_eq!(one("8").code, Some(0), "without the pin there is a plan");
}

/// The least size of a memory is stated as proven, or as the least that was found.
#[test]
fn least_sizes_are_stated_where_they_are_not_proven_too() {
    for more in [&["--effort", "low"][..], &["--time-limit", "1s"]] {
        let (code, found, err) = plan(&[&["--microbatch", "1"], more].concat());
        assert_eq!(code, Some(0), "{err}");
        let sizes = found["least-bytes-found"].as_object().unwrap();
        assert_eq!(sizes.len(), found["peak-bytes"].as_object().unwrap().len(), "{found}");
        for (memory, size) in sizes {
            assert!(found["least-bytes"][memory].is_null() || found["least-bytes"][memory] == *size, "{found}");
            assert!(found["least-iteration-ms"][memory].as_f64().unwrap() > 0.0, "{found}");
        }
    }
}

/// The first candidates are feasible and need no bound, so that a search with hardly any time has a plan.
#[test]
fn a_tenth_of_a_second_is_enough_for_a_plan_of_a_large_model() {
    let pairs = [
        ("llama2-70b", "a100-80g-x8-nvlink"),
        ("pipeoffload-66.6b", "a100-80g-x8-nvlink"),
        ("spipe-88b", "a100-80g-x8-nvlink"),
        ("spipe-69b", "v100-32g-x16"),
    ];
    for (model, machine) in pairs {
        let line = format!("plan --model {model} --hardware {machine} --global-batch 64 --time-limit 100ms");
        let Run { code, err, .. } = spipe(".", &line);
        assert_eq!(code, Some(0), "{line}\n{err}");
    }
}

/// On equal devices the balanced partition is among the first candidates: low effort is not left with the greedy one,
/// which fills the first device.
#[test]
fn low_effort_balances_equal_devices() {
    for model in ["gpt2-xl", "zero-bubble-1.5b", "vit-bigG"] {
        let iteration = |effort: &str| {
            let line = format!("plan --model {model} --hardware a100-80g-x2 --global-batch 8 --system 1f1b");
            let Run { code, out, err } = spipe(".", &format!("{line} --effort {effort} --format json"));
            assert_eq!(code, Some(0), "{model} {effort}: {err}");
            time(&serde_json::from_str(&out).unwrap())
        };
        let (low, high) = (iteration("low"), iteration("high"));
        assert!(low <= 1.05 * high, "{model}: {low} ms at low effort, {high} ms at high");
    }
}

/// A remedy is planned with all options of the question: what a hint names is not refused when it is followed.
#[test]
fn hints_hold_with_the_options_of_the_question() {
    let line = "plan --model llama3-8b --hardware rtx4090-pcie4-128gb --global-batch 2 --microbatch 2 --seq-len 2048 \
                --runtime pytorch --optimizer paged-adamw-8bit --master none --optimizer-in-backward --loss chunked";
    let Run { code, err, .. } = spipe(".", &format!("{line} --system checkpointing"));
    assert_eq!(code, Some(4), "{err}");
    let named = err.split("`--system ").nth(1).and_then(|rest| rest.split('`').next());
    if let Some(system) = named {
        let followed = spipe(".", &format!("{line} --system {system}"));
        assert_eq!(followed.code, Some(0), "{err}{}", followed.err);
    }
    assert!(err.contains("hint: ") && !err.contains("superpipeline"), "{err}");
}
