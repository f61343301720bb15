//! Files of other tools where a model or an order is named: Hugging Face configs and folders,
//! PyTorch's printed orders, times by stage.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::{fs, path::Path};

const LLAMA: &str = "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \
                     \"num_attention_heads\": 4, \"intermediate_size\": 128, \"vocab_size\": 100}";

fn json(folder: &Path, args: &str) -> Value {
    let output = spipe(folder, &format!("{args} --format json"));
    assert_eq!(output.code, Some(0), "{args}: {}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn a_config_or_its_folder_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("tiny")).unwrap();
    for path in ["other.txt", "config.json", "tiny/config.json"] {
        fs::write(at.join(path), LLAMA).unwrap();
    }
    let counted = json(at, "model show tiny")["parameters"].clone();
    assert_eq!(json(at, "model show tiny")["name"], "tiny");
    for path in ["other.txt", "config.json", "tiny/config.json"] {
        assert_eq!(json(at, &format!("model show {path}"))["parameters"], counted, "{path}");
    }
    let plan = json(at, "plan --model tiny --hardware one-gpu --seq-len 64 --global-batch 2 --time-limit 2s");
    assert_eq!(plan["model"]["name"], "tiny");
    fs::write(
        at.join("tiny/adapter_config.json"),
        "{\"peft_type\": \"LORA\", \"r\": 4, \"target_modules\": [\"q_proj\"]}",
    )
    .unwrap();
    let shown = spipe(at, "model show tiny");
    assert!(shown.err.contains("LoRA of rank 4 on q_proj"), "{}", shown.err);
    let refused = spipe(at, "model show tiny/adapter_config.json");
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    fs::create_dir(at.join("demo")).unwrap();
    assert_eq!(json(at, "model show demo")["name"], "demo", "a folder of results hides no shipped model");
    let empty = spipe(at, "model show .");
    assert_eq!(empty.code, Some(0), "{}", empty.err);
}

#[test]
fn a_pipeline_lists_its_parts_and_one_is_picked() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let index = "{\"_class_name\": \"SomePipeline\", \"scheduler\": [\"diffusers\", \"PNDMScheduler\"], \
                 \"text\": [\"transformers\", \"LlamaForCausalLM\"], \"vae\": [\"diffusers\", \"AutoencoderKL\"], \
                 \"checker\": [null, null]}";
    fs::create_dir_all(at.join("sd/text")).unwrap();
    fs::create_dir_all(at.join("sd/vae")).unwrap();
    fs::write(at.join("sd/model_index.json"), index).unwrap();
    fs::write(at.join("sd/text/config.json"), LLAMA).unwrap();
    fs::write(at.join("sd/vae/config.json"), "{\"_class_name\": \"AutoencoderKL\"}").unwrap();
    for name in ["sd", "sd/model_index.json"] {
        let listed = json(at, &format!("model show {name}"));
        let parts: Vec<(&str, &Value)> = listed["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| (part["component"].as_str().unwrap(), &part["parameters"]))
            .collect();
        assert_eq!(parts.len(), 3, "{parts:?}");
        assert!(parts[0] == ("scheduler", &Value::from(0)) && parts[1].1.is_u64() && parts[2] == ("vae", &Value::Null));
    }
    assert_eq!(json(at, "model show sd --component text")["layers"].as_array().unwrap().len(), 4);
    let plan = "plan --hardware one-gpu --seq-len 64 --global-batch 2 --time-limit 2s --model sd";
    assert_eq!(json(at, &format!("{plan} --component text"))["model"]["name"], "text");
    for (args, code, words) in [
        (plan.to_owned(), 2, "pick one with `--component text`"),
        (format!("{plan} --component nothing"), 2, "its parts are scheduler, text, vae"),
        (format!("{plan} --component scheduler"), 2, "which has no parameters"),
        (format!("{plan} --component vae"), 3, "unknown class `AutoencoderKL`"),
        ("model show gpt2 --component text".to_owned(), 2, "it is one model"),
    ] {
        let output = spipe(at, &args);
        assert!(output.code == Some(code) && output.err.contains(words), "{args}: {}", output.err);
    }
}

#[test]
fn printed_orders_are_read_with_what_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let comms = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n\
                 1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0\n";
    fs::write(at.join("comms.csv"), comms).unwrap();
    fs::write(at.join("only.csv"), "0F0,,0B0\n1F0,1B0\n").unwrap();
    let spans = ["comms.csv", "only.csv"]
        .map(|file| json(at, &format!("schedule custom {file} --latency 0.5ms"))["span-ms"].clone());
    assert_eq!(spans, [Value::from(7.0), Value::from(7.0)]);
    let output = spipe(at, "schedule custom comms.csv");
    assert!(
        output.err.contains("skipped 14 actions that take no compute time (1 RECV_B, 1 RECV_F, 2 REDUCE_GRAD"),
        "{}",
        output.err
    );
    fs::write(at.join("wrong.csv"), "0F0,0SYNC0,0SYNC1,0B0\n1F0,1SYNC0,1B0\n").unwrap();
    let wrong = spipe(at, "schedule custom wrong.csv");
    assert_eq!((wrong.code, wrong.err.matches("error:").count()), (Some(3), 1), "{}", wrong.err);
    assert!(wrong.err.contains("wrong.csv:1:5") && wrong.err.contains("the first of 3"), "{}", wrong.err);
}

#[test]
fn stage_times_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let header = "forward,backward-input,backward-weight\n";
    let lines = |count: usize| format!("{header}{}", "1 ms,1 ms,1 ms\n".repeat(count));
    fs::write(at.join("four.csv"), lines(4)).unwrap();
    fs::write(at.join("eight.csv"), lines(8)).unwrap();
    fs::write(at.join("slow.csv"), lines(3) + "3 ms, 1ms, 1 ms\n").unwrap();
    for (system, file) in [
        ("gpipe", "four"),
        ("1f1b", "four"),
        ("zb-h1", "four"),
        ("zb-h2", "four"),
        ("zb-1p", "four"),
        ("zb-2p", "four"),
        ("interleaved-1f1b", "eight"),
        ("zb-v", "eight"),
        ("v-half", "eight"),
        ("v-min", "eight"),
        ("gis", "eight"),
        ("gis-h", "eight"),
        ("po-h", "eight"),
        ("po-f", "eight"),
    ] {
        let uniform = json(at, &format!("schedule {system}"));
        assert_eq!(json(at, &format!("schedule {system} --stage-times {file}.csv")), uniform, "{system}");
    }
    let slow = json(at, "schedule zb-1p --stage-times slow.csv");
    assert!(slow["span-ms"].as_f64().unwrap() >= 8.0 * 5.0, "{slow}");
    fs::write(at.join("bad.csv"), lines(1) + "1e300 s,1 ms,1 ms\n1 ms,1 ms\n").unwrap();
    for (args, code, words) in [
        ("schedule spipe --stage-times four.csv", 2, "`--stage-times` does nothing"),
        ("schedule mobius --stage-times four.csv", 2, "`--stage-times` does nothing"),
        ("schedule superpipeline --stage-times four.csv", 2, "`--stage-times` does nothing"),
        ("schedule 1f1b --stage-times four.csv --forward 2ms", 2, "`--forward` does nothing beside `--stage-times`"),
        ("schedule 1f1b --stage-times eight.csv", 3, "has times for 8 stages, the schedule has 4"),
        ("schedule 1f1b --stage-times bad.csv", 3, "bad.csv:3:1"),
    ] {
        let output = spipe(at, args);
        assert!(output.code == Some(code) && output.err.contains(words), "{args}: {}", output.err);
    }
}

/// All layers frozen, and rates out of their range.
#[test]
fn nothing_to_train_and_impossible_rates_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let frozen = spipe(at, "plan --model gpt2 --hardware one-gpu --global-batch 2 --freeze 0..13 --time-limit 2s");
    assert_eq!(frozen.code, Some(2), "{}", frozen.err);
    assert!(frozen.err.contains("there is nothing to train"), "{}", frozen.err);
    let toml = spipe_hardware::shipped().iter().find(|(name, _)| *name == "one-gpu").unwrap().1;
    for (from, to) in [("\"25 GB/s\"", "\"1e-320 GB/s\""), ("\"8 us\"", "\"1e300 s\"")] {
        fs::write(at.join("m.toml"), toml.replace(from, to)).unwrap();
        for args in [
            "plan --model gpt2 --hardware m.toml --global-batch 2 --time-limit 3s",
            "hardware transfer m.toml --flow dram0:gpu0:1GiB",
        ] {
            let output = spipe(at, args);
            assert_eq!(output.code, Some(3), "{args}: {}", output.err);
            assert!(
                output.err.contains("is out of range for a") && output.err.contains("--> m.toml:"),
                "{}",
                output.err
            );
        }
    }
}

#[test]
fn a_shortage_names_the_drive() {
    let folder = tempfile::tempdir().unwrap();
    let output = spipe(folder.path(), "plan --model llama2-70b --hardware rtx4090-pcie4-128gb --global-batch 8");
    let named = "`nvme0` (1.8 TiB) does not help: plans keep optimizer state on it, and parameters and activations \
                 with `--parameters-on` and `--activations-on` only";
    assert!(output.code == Some(4) && output.err.contains(named), "{}", output.err);
}

#[test]
fn parts_add_up_to_peaks() {
    let folder = tempfile::tempdir().unwrap();
    for system in ["1f1b", "superpipeline", "fsdp"] {
        let plan = json(
            folder.path(),
            &format!(
                "plan --model gpt2 --hardware rtx3090-x4-two-sockets --global-batch 4 --time-limit 2s --system {system} --plot x.svg"
            ),
        );
        let peaks = plan["peak-bytes"].as_object().unwrap();
        assert!(!peaks.is_empty());
        for (memory, peak) in peaks {
            let parts = plan["memory-parts"][memory].as_object().unwrap_or_else(|| panic!("{system}: {memory}"));
            let sum: u64 = parts.values().map(|bytes| bytes.as_u64().unwrap()).sum();
            assert_eq!(Some(sum), peak.as_u64(), "{system}: {memory}: {parts:?}");
        }
        let svg = fs::read_to_string(folder.path().join("x.svg")).unwrap();
        assert!(svg.contains("optimizer state") && svg.contains("weights"), "{system}");
    }
    let refused = spipe(folder.path(), "plan --model gpt2 --hardware one-gpu --global-batch 4 --plot x.txt");
    assert_eq!(refused.code, Some(2), "{}", refused.err);
}
