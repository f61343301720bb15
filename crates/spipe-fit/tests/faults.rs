//! Bad input: every fault names its run and its field, at its place.

use spipe_base::{Diagnostic, Seconds};
use spipe_fit::{Command, Field, Measured, Runs, Usage, torch::Profile};

/// A file with one run, whose keys besides the name are given.
fn one(keys: &str) -> String {
    format!("format-version = 1\n[[run]]\nname = \"one\"\n{keys}")
}

const GOOD: &str = r#"model = "gpt2"
options = ["--global-batch", "8"]
measured = { iteration = "10 ms" }
"#;

#[test]
fn a_run_is_read_as_it_is_stated() {
    let runs = Runs::read("runs.toml", &one(GOOD)).unwrap();
    let run = &runs.runs[0];
    assert_eq!((run.usage, run.model.as_str(), run.hardware.as_deref()), (Usage::Fit, "gpt2", None));
    assert_eq!(run.command, Command::Plan(vec!["--global-batch".into(), "8".into()]));
    assert_eq!(run.measured, Some(Measured::Iteration(Seconds::ms(10.0))));
    let rate = Measured::TokensPerSecond(1024.0);
    assert_eq!(rate.iteration(512), Seconds::s(0.5));
}

#[test]
fn faults_name_their_run() {
    let both = "model = \"gpt2\"\noptions = []\nbaseline = []\nmeasured = { iteration = \"1 ms\" }\n";
    for (keys, wanted) in [
        (GOOD.replace("10 ms", "0 ms"), "run `one`: the `measured` iteration takes no time"),
        (GOOD.replace("iteration = \"10 ms\"", "tokens-per-second = 0.0"), "tokens per second are not above zero"),
        (GOOD.replace("iteration = \"10 ms\"", "tokens-per-second = nan"), "tokens per second are not above zero"),
        (GOOD.replace("iteration = \"10 ms\"", ""), "run `one`: `measured` is empty"),
        (GOOD.replace("iteration = \"10 ms\"", "peak = { gpu0 = \"1 GiB\" }"), "no time is `measured`"),
        (
            GOOD.replace("\"10 ms\" }", "\"10 ms\", out-of-memory = true }"),
            "it was `out-of-memory`, and has a time or a peak",
        ),
        (GOOD.replace("\"10 ms\" }", "\"10 ms\", tokens-per-second = 1.0 }"), "both `iteration` and"),
        (GOOD.replace("options = [\"--global-batch\", \"8\"]", ""), "neither `options` nor `baseline`"),
        (both.into(), "both `options` and `baseline`"),
        (GOOD.replace("10 ms", "10 parsec"), "`parsec` is not a unit of duration"),
        (GOOD.replace("model", "modle"), "unknown field `modle`"),
        (GOOD.to_owned() + "[[run]]\nname = \"one\"\n" + GOOD, "two runs are called `one`"),
    ] {
        let faults = Runs::read("runs.toml", &one(&keys)).unwrap_err().to_string();
        assert!(faults.contains(wanted) && faults.contains("runs.toml:"), "{faults}");
    }
    assert!(Runs::read("r.toml", "format-version = 2\n").unwrap_err().to_string().contains("format version 2"));
    assert!(Runs::read("r.toml", "format-version = 1\n").unwrap_err().to_string().contains("no runs"));
}

#[test]
fn runs_that_do_not_count_need_no_options_and_peaks_have_a_quantity() {
    let listed = GOOD.replace("options = [\"--global-batch\", \"8\"]", "not-counted = \"the batch is not stated\"");
    let run = &Runs::read("runs.toml", &one(&listed)).unwrap().runs[0];
    assert_eq!((&run.command, run.not_counted.as_deref()), (&Command::Unplanned, Some("the batch is not stated")));
    let short =
        GOOD.replace("iteration = \"10 ms\"", "out-of-memory = true").replace("model", "use = \"predict\"\nmodel");
    assert!(Runs::read("runs.toml", &one(&short)).unwrap().runs[0].out_of_memory);
    let reserved = GOOD.replace("\"10 ms\" }", "\"10 ms\", peak = { gpus = \"1 GiB\" }, peak-of = \"reserved\" }");
    let run = &Runs::read("runs.toml", &one(&reserved)).unwrap().runs[0];
    assert_eq!((run.quantity, run.peaks.len()), (spipe_fit::Quantity::Reserved, 1));
}

#[test]
fn a_fault_of_a_model_stands_at_the_model() {
    let runs = Runs::read("runs.toml", &one(GOOD)).unwrap();
    let fault =
        runs.fault(&runs.runs[0], Field::Model, &Diagnostic::error("there is no model `gpt2`").hint("name one"));
    assert_eq!(
        fault.to_string(),
        "error: run `one`, `model`: there is no model `gpt2`\n  --> runs.toml:4:9\nhint: name one"
    );
}

/// A trace with two blocks and a head: forwards on thread 1, backwards on thread 2.
const TRACE: &str = r#"{"schemaVersion": 1, "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "tid": 1, "ts": 0, "dur": 1000},
 {"ph": "X", "cat": "python_function", "name": "nn.Module: GPT_0", "tid": 1, "ts": 10, "dur": 300},
 {"ph": "X", "cat": "python_function", "name": "nn.Module: Block_0", "tid": 1, "ts": 20, "dur": 80},
 {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "tid": 1, "ts": 30, "dur": 20},
 {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "tid": 1, "ts": 31, "dur": 10, "args": {"Sequence number": 7}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 33, "dur": 2, "args": {"correlation": 1}},
 {"ph": "X", "cat": "python_function", "name": "nn.Module: Block_1", "tid": 1, "ts": 110, "dur": 80},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 120, "dur": 2, "args": {"correlation": 2}},
 {"ph": "X", "cat": "cpu_op", "name": "AddmmBackward0", "tid": 2, "ts": 400, "dur": 50, "args": {"Sequence number": 7, "Fwd thread id": 1}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 2, "ts": 410, "dur": 2, "args": {"correlation": 3}},
 {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "tid": 1, "ts": 600, "dur": 100},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 610, "dur": 2, "args": {"correlation": 4}},
 {"ph": "X", "cat": "kernel", "name": "ampere_bf16_gemm", "tid": 7, "ts": 40, "dur": 500, "args": {"correlation": 1}},
 {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "tid": 7, "ts": 540, "dur": 250, "args": {"correlation": 2}},
 {"ph": "X", "cat": "kernel", "name": "ampere_bf16_gemm", "tid": 7, "ts": 800, "dur": 1000, "args": {"correlation": 3}},
 {"ph": "X", "cat": "kernel", "name": "multi_tensor_apply_kernel", "tid": 7, "ts": 1800, "dur": 125, "args": {"correlation": 4}},
 {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
]}"#;

#[test]
fn kernels_belong_to_the_layers_that_launch_them() {
    let profile = Profile::read("trace.json", TRACE).unwrap();
    let rows: Vec<(&str, &str, f64)> =
        profile.layers.iter().map(|layer| (layer.name.as_str(), layer.pass.name(), layer.kernel_ms)).collect();
    assert_eq!(
        rows,
        [
            ("Block_0", "forward", 0.5),
            ("Block_1", "forward", 0.25),
            ("Block_0", "backward", 1.0),
            ("Optimizer.step#AdamW.step", "–", 0.125)
        ]
    );
    assert_eq!((profile.kernels, profile.iterations, profile.kernel_ms, profile.span_ms), (4, 1, 1.875, 1.885));
    assert_eq!(profile.kinds["products"].kernels, 2);
}

#[test]
fn a_trace_without_kernels_is_refused() {
    let without = TRACE.replace("\"cat\": \"kernel\"", "\"cat\": \"gpu_memcpy\"");
    assert!(Profile::read("t.json", &without).unwrap_err().to_string().contains("the trace has no kernels"));
    let other = Profile::read("t.json", "{\"lanes\": []}").unwrap_err().to_string();
    assert!(other.contains("not a trace of torch.profiler: missing field `traceEvents`"), "{other}");
}
