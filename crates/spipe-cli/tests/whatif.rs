//! Machines to buy, on the command line: the answer, its files, shards, and bad input.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::path::Path;

const JOB: &str = r#"
format-version = 1
name = "a small job"
[[train]]
model = "gpt2"
tokens = "1 G"
seq-len = 512
global-batch = 8
[cost]
currency = "EUR"
rates = [{ from = "USD", rate = 0.9, date = 2026-11-20, source = "stated here" }]
[vary]
gpu = ["rtx3090", "rtx4090"]
gpus = [1, 2]
platform = ["epyc-7713p"]
dram = ["128 GiB"]
condition = ["used"]
"#;

#[test]
fn a_job_is_answered_in_all_formats() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("job.toml"), JOB).unwrap();
    let output = spipe(
        at,
        &["whatif", "job.toml", "--as-of", "2026-11-27", "--format", "json", "-o", "page.html", "--plots", "plots"],
    );
    assert_eq!(output.code, Some(0), "{}", output.err);
    let answer: Value = serde_json::from_str(&output.out).unwrap();
    let machines = answer["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 4);
    for row in machines {
        for key in [
            "rank",
            "tie",
            "machine",
            "price",
            "tokens-per-second",
            "error",
            "hours",
            "cost-of-job",
            "kwh",
            "watts",
            "system",
            "gap",
            "front",
        ] {
            assert!(row.get(key).is_some(), "{key}: {row}");
        }
        assert!(row["cost-of-job"]["low"].as_f64() <= row["cost-of-job"]["typical"].as_f64());
        let (hours, rate) = (row["hours"].as_f64().unwrap(), row["tokens-per-second"].as_f64().unwrap());
        assert!((hours * rate * 3600.0 / 1e9 - 1.0).abs() < 1e-6, "{row}");
        assert!(row["effort"]["high-tokens-per-second"].as_f64().unwrap() > 0.0);
        let known =
            |engine: &Value| ["run", "torch", "fsdp", "deepspeed", "megatron"].contains(&engine.as_str().unwrap());
        assert!(row["engines"].as_array().unwrap().iter().all(known), "{row}");
    }
    let exported = |row: &&Value| row["engines"].as_array().unwrap().contains(&"torch".into());
    assert!(machines.iter().any(|row| exported(&row)), "{machines:?}");
    let baselines = answer["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 4, "gpt2 fits on each GPU: {baselines:?}");
    for (baseline, row) in baselines.iter().zip(machines) {
        assert_eq!((&baseline["machine"], &baseline["price"]), (&row["machine"], &row["price"]));
        assert_eq!((&baseline["system"], row["system"] == "data-parallel"), (&"data-parallel".into(), false));
        for key in ["tokens-per-second", "hours", "cost-per-million-tokens", "kwh", "watts", "gpu-memory-bytes"] {
            assert!(baseline[key].as_f64().unwrap() > 0.0, "{key}: {baseline}");
        }
        assert!(baseline["cost-of-job"]["typical"].is_f64() && baseline.get("rank").is_none(), "{baseline}");
    }
    assert_eq!((answer["currency"].as_str(), answer["as-of"].as_str()), (Some("EUR"), Some("2026-11-27")));
    let counts = &answer["counts"];
    assert_eq!(
        counts["solved"].as_u64().unwrap() + counts["shared"].as_u64().unwrap() + counts["bounded"].as_u64().unwrap(),
        4
    );
    let page = std::fs::read_to_string(at.join("page.html")).unwrap();
    assert!(
        page.contains("<svg") && page.contains("What would change rank 1") && !page.contains("http-equiv=\"refresh\"")
    );
    let at_heading = |heading: &str| page.find(&format!("<h2>{heading}</h2>"));
    assert!(at_heading("Machines") < at_heading("Baselines"), "baselines stand below the ranking");
    assert!(!page.contains(" src=\"http") && !page.contains("@import"), "the page loads nothing");
    assert!(at.join("plots/cost-against-time.svg").exists());
    assert!(std::fs::read_to_string(at.join("plots/tornado.svg")).unwrap().contains("price of rtx"));
    let tornado = &answer["tornado"];
    assert_eq!((&tornado["machine"], &tornado["other"]), (&machines[0]["machine"], &machines[1]["machine"]));
    let inputs = tornado["inputs"].as_array().unwrap();
    for wanted in
        ["price of rtx4090", "residual value", "electricity", "use", "ownership", "rate of rank 1", "power at the wall"]
    {
        let swing = inputs.iter().find(|swing| swing["input"] == wanted);
        let swing = swing.unwrap_or_else(|| panic!("{wanted}: {tornado}"));
        assert!(swing["low"]["value"].as_f64() < swing["high"]["value"].as_f64(), "{swing}");
        assert!(swing["low"]["margin"].is_f64() && swing["high"]["cost"].is_f64(), "{swing}");
    }
    assert!(answer["error-source"].as_str().unwrap().starts_with("estimate"), "{answer}");
}

/// A text encoder with dropout is planned, but neither executed nor exported.
#[test]
fn a_machine_whose_plan_no_engine_runs_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 512}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("job.toml"), JOB.replace("gpt2", "config.json").replace("[1, 2]", "[1]"))
        .unwrap();
    let args = ["whatif", "job.toml", "--as-of", "2026-11-27", "-o", "answer.json"];
    let output = spipe(folder.path(), &args);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.contains("no engine runs it"), "{}", output.out);
    let answer: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("answer.json")).unwrap()).unwrap();
    let machines = answer["machines"].as_array().unwrap();
    assert!(!machines.is_empty() && machines.iter().all(|row| row["engines"] == Value::Array(Vec::new())), "{answer}");
    for row in machines {
        let notes = row["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("no engine runs its plan")), "{row}");
        assert!(["pytorch", "deepspeed"].contains(&row["runtime"].as_str().unwrap()), "{row}");
        assert_eq!(row["estimate"], !["fsdp", "gpu-only", "zero-infinity"].contains(&row["system"].as_str().unwrap()));
    }
}

/// The answer of a command that succeeds, as JSON.
fn answer(folder: &Path, args: &[&str]) -> Value {
    let output = spipe(folder, &[args, &["--format", "json"]].concat());
    assert_eq!(output.code, Some(0), "{args:?}: {}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn shards_and_resumed_sweeps_give_the_same_machines() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("job.toml"), JOB).unwrap();
    let day = ["whatif", "job.toml", "--as-of", "2026-11-27"];
    for part in ["1/2", "2/2"] {
        let file = format!("part-{}.json", &part[..1]);
        let output = spipe(at, &[&day[..], &["--shard", part, "-o", &file]].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
    }
    let merged = answer(at, &["whatif", "merge", "part-1.json", "part-2.json", "-o", "table.csv"]);
    assert_eq!(merged["machines"].as_array().unwrap().len(), 4);
    assert_eq!(std::fs::read_to_string(at.join("table.csv")).unwrap().lines().count(), 5);
    let whole = answer(at, &[&day[..], &["--resume", "plans.json", "--threads", "1"]].concat());
    let again = answer(at, &[&day[..], &["--resume", "plans.json"]].concat());
    assert_eq!(whole["machines"], merged["machines"]);
    assert_eq!(whole["machines"], again["machines"]);
    assert_eq!(again["counts"]["solved"], 0);
    let other = spipe(at, &[&day[..], &["--resume", "plans.json", "--tokens", "2G"]].concat());
    assert_eq!((other.code, other.err.contains("the plans of another job")), (Some(2), true));
    let old = std::fs::read_to_string(at.join("plans.json")).unwrap();
    std::fs::write(at.join("old.json"), old.replacen("\"format-version\": 3", "\"format-version\": 1", 1)).unwrap();
    let refused = spipe(at, &[&day[..], &["--resume", "old.json"]].concat());
    assert_eq!((refused.code, refused.err.contains("have format version 1")), (Some(3), true), "{}", refused.err);
    let missing = spipe(at, &["whatif", "merge", "part-1.json"]);
    assert_eq!((missing.code, missing.err.contains("the parts 2 are missing")), (Some(3), true));
}

/// The bound of an iteration of GPT-2 with sequences of 512 on a machine, over all sizes of microbatches.
fn least_iteration_ms(machine: &str, global_batch: u64) -> f64 {
    let hardware = spipe_hardware::Hardware::from_toml("m.toml", machine).unwrap();
    let (name, text) = spipe_model::shipped().iter().find(|(name, _)| *name == "gpt2").unwrap();
    let model = spipe_model::Model::from_toml(name, text).unwrap();
    let sizes = (0..).map(|power| 1 << power).take_while(|size| *size <= global_batch);
    let bound = |microbatch: u64| {
        let workload = spipe_cost::Workload {
            mode: spipe_cost::Mode::Train,
            seq_len: 512,
            microbatch,
            microbatches: global_batch / microbatch,
            precision: spipe_model::Precision::Bf16,
            ..spipe_cost::Workload::PLAIN
        };
        let table = spipe_cost::CostTable::new(&model, &hardware, &workload).unwrap();
        spipe_cost::least_iteration(&table, &hardware, false).to_ms()
    };
    sizes.map(bound).fold(f64::INFINITY, f64::min)
}

#[test]
fn rates_are_those_of_plans_with_little_effort() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("job.toml"), JOB).unwrap();
    let found = answer(at, &["whatif", "job.toml", "--as-of", "2026-11-27", "--vary", "gpu=rtx3090"]);
    let parts = ["--platform", "epyc-7713p", "--dram", "8xddr4-rdimm-16g", "-o", "m.toml"];
    for (gpus, name) in [("1", "1xrtx3090"), ("2", "2xrtx3090")] {
        let composed = spipe(at, &[&["catalogue", "compose", "--gpu", "rtx3090", "--gpus", gpus], &parts[..]].concat());
        assert_eq!(composed.code, Some(0), "{}", composed.err);
        let flags = ["--seq-len", "512", "--global-batch", "8", "--effort", "low", "-o", "plan.json"];
        let plan = answer(at, &[&["plan", "--model", "gpt2", "--hardware", "m.toml"], &flags[..]].concat());
        let iteration = plan["simulated-iteration-ms"].as_f64().unwrap();
        let bound = least_iteration_ms(&std::fs::read_to_string(at.join("m.toml")).unwrap(), 8);
        assert!(
            bound <= iteration && iteration < 10.0 * bound,
            "{name}: at least {bound} ms, simulated {iteration} ms"
        );
        let rate = 8.0 * 512.0 / iteration * 1e3;
        let rows = found["machines"].as_array().unwrap();
        let row = rows.iter().find(|row| row["machine"].as_str().unwrap().starts_with(name)).unwrap();
        let low = row["effort"]["low-tokens-per-second"].as_f64().unwrap();
        // `spipe plan` prefers readable plans within 1 %.
        assert!((low / rate - 1.0).abs() < 0.011, "{name}: {low} {rate}");
    }
}

#[test]
fn a_deadline_that_nothing_meets_ends_with_code_4_and_the_closest() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("job.toml"), JOB).unwrap();
    let output = spipe(at, &["whatif", "job.toml", "--as-of", "2026-11-27", "--deadline", "1min", "--vary", "gpus=1"]);
    assert_eq!(output.code, Some(4), "{}", output.err);
    assert!(output.out.contains("The closest is 1xrtx4090"), "{}", output.out);
    assert!(output.err.contains("no machine meets the deadline of 1 min"));
}

/// A machine without a plan is mended by the cheapest part of the catalogue, though the sweep does not vary it.
#[test]
fn repairs_are_the_cheapest_of_the_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let job = JOB.replace("\"gpt2\"", "\"llama3-8b\"").replace("[\"rtx3090\", \"rtx4090\"]", "[\"rtx3090\"]");
    let job = job.replace("[1, 2]", "[1]").replace("epyc-7713p", "ryzen-9950x").replace("128 GiB", "64 GiB");
    std::fs::write(at.join("job.toml"), &job).unwrap();
    let asked = |name: &str, rows: &str| {
        let output = spipe(at, &["whatif", name, "--as-of", "2026-11-27", "--format", "json", "--top", rows]);
        serde_json::from_str::<Value>(&output.out).unwrap_or_else(|_| panic!("{}", output.err))
    };
    let alone = asked("job.toml", "1");
    let broken = &alone["infeasible"][0];
    assert_eq!((alone["status"].as_str(), broken["repair-is-cheapest"].as_bool()), (Some("infeasible"), Some(true)));
    let repair = &broken["repair"];
    let price = repair["price"].as_f64().unwrap();
    assert!(repair["change"].as_str().unwrap().contains(" → "), "{repair}");
    // No machine with more memory, another card of 24 GiB or more, or a second card is both cheaper and has a plan.
    for (from, to) in [
        ("\"64 GiB\"", "\"64 GiB\", \"96 GiB\", \"128 GiB\""),
        ("gpus = [1]", "gpus = [1, 2]"),
        ("[\"rtx3090\"]", "[\"rtx3090\", \"rtx4090\", \"rtx5090\", \"rtx-a6000\"]"),
    ] {
        std::fs::write(at.join("wider.toml"), job.replace(from, to)).unwrap();
        let wider = asked("wider.toml", "20");
        let own = wider["infeasible"].as_array().unwrap().iter().find(|one| one["machine"] == broken["machine"]);
        let own = own.unwrap_or_else(|| panic!("{wider}"));
        assert_eq!(own["repair"], *repair, "{from} → {to}");
        for row in wider["machines"].as_array().unwrap() {
            let typical = |machine: &Value| machine["price"]["typical"].as_f64().unwrap();
            assert!(price <= typical(row) - typical(own) + 1e-6, "{row}");
        }
    }
}

#[test]
fn bad_jobs_say_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("job.toml"), JOB).unwrap();
    std::fs::write(at.join("empty.toml"), "format-version = 1\nname = \"empty\"\n").unwrap();
    for (args, code, wanted) in [
        (&["whatif"][..], 2, "there is no job"),
        (&["whatif", "--model", "gpt2"], 2, "--tokens"),
        (&["whatif", "job.toml", "--budget", "100 CHF"], 3, "no rate from CHF to EUR"),
        (&["whatif", "job.toml", "--budget", "1 EUR"], 4, "no machine is left of the sweep"),
        (&["whatif", "job.toml", "--vary", "gpu=rtx3090", "--vary", "gpu=l4"], 2, "is there twice"),
        (&["whatif", "job.toml", "--vary", "colour=red"], 2, "nothing varies by `colour`"),
        (&["whatif", "job.toml", "--vary", "gpu=rtx3091"], 3, "did you mean `rtx3090`"),
        (&["whatif", "job.toml", "--vary", "nodes=0"], 3, "a machine of 0 nodes"),
        (&["whatif", "job.toml", "--vary", "network=connectx7-400g"], 3, "there is one node"),
        (
            &["whatif", "job.toml", "--vary", "nodes=1,2", "--vary", "network=connectx8"],
            3,
            "no network-card `connectx8`",
        ),
        (&["whatif", "job.toml", "--shard", "3/2", "-o", "x.json"], 2, "is not a part of a sweep"),
        (&["whatif", "job.toml", "--catalogue", "empty.toml"], 3, "the catalogue has no part"),
        (&["whatif", "job.toml", "--rent", "moon"], 2, "no rented machine is `moon`"),
    ] {
        let output = spipe(at, args);
        let said = &output.err;
        assert_eq!(output.code, Some(code), "{args:?}: {said}");
        assert!(said.contains(wanted) && said.contains("\nhint: "), "{args:?}: {said}");
    }
}

/// Nodes are rows like any other, with the network among their parts; n rented ones cost n times one.
#[test]
fn nodes_are_bought_and_rented() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let job = JOB.replace("[\"rtx3090\", \"rtx4090\"]", "[\"a100-80-sxm\"]").replace("[1, 2]", "[4]");
    let job = job.replace("epyc-7713p", "epyc-7763").replace("global-batch = 8", "global-batch = 64");
    std::fs::write(at.join("job.toml"), job.replace("128 GiB", "512 GiB")).unwrap();
    let sweep = ["whatif", "job.toml", "--as-of", "2026-11-27", "--vary", "nodes=1,2", "--skip", "nodes = 3"];
    let answer = answer(at, &[&sweep[..], &["--rent", "aws-p4de", "-o", "answer.csv"]].concat());
    let machines = answer["machines"].as_array().unwrap();
    let of = |nodes: u64| machines.iter().find(|row| row["nodes"] == nodes).unwrap_or_else(|| panic!("{answer}"));
    let parts = |row: &Value| {
        row["parts"].as_array().unwrap().iter().map(|part| part.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for part in ["8 x a100-80-sxm", "8 x connectx7-400g", "1 x qm9700", "8 x optical-400g"] {
        assert!(parts(of(2)).contains(&part.to_owned()), "{part}: {:?}", parts(of(2)));
    }
    assert!(parts(of(1)).iter().all(|part| !part.contains("connectx")));
    let rate = |row: &Value| row["tokens-per-second"].as_f64().unwrap();
    assert!(rate(of(2)) > rate(of(1)));
    let rented = answer["rented"].as_array().unwrap();
    let hour =
        |nodes: u64| rented.iter().find(|one| one["nodes"] == nodes).unwrap()["hour"]["typical"].as_f64().unwrap();
    assert!((hour(2) / hour(1) - 2.0).abs() < 1e-9, "{rented:?}");
    assert_eq!(rented.len(), 2);
    let csv = std::fs::read_to_string(at.join("answer.csv")).unwrap();
    assert!(csv.starts_with("rank,tie,machine,nodes,price-low") && csv.contains(",2-nodes-of-4xa100-80-sxm_"), "{csv}");
    let alone = spipe(at, &["whatif", "job.toml", "--vary", "nodes=2", "--rent", "vast-rtx3090"]);
    assert_eq!((alone.code, alone.err.contains("has no network that joins several")), (Some(2), true), "{}", alone.err);
}

/// Half of the tokens are padding: a job takes twice as long, whether its file or a flag says so.
#[test]
fn padding_takes_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let job = JOB.replace("\"rtx3090\", ", "").replace("[1, 2]", "[1]");
    std::fs::write(at.join("plain.toml"), &job).unwrap();
    let padded = job.replace("global-batch = 8\n", "global-batch = 8\ndata = { padding = 0.5 }\n");
    std::fs::write(at.join("padded.toml"), padded).unwrap();
    let hours = |args: &[&str]| {
        let all = answer(at, &[&["whatif", "--as-of", "2026-11-27"], args].concat());
        all["machines"][0]["hours"].as_f64().unwrap()
    };
    let (plain, file, flag) =
        (hours(&["plain.toml"]), hours(&["padded.toml"]), hours(&["plain.toml", "--padding", "50%"]));
    assert!((file / plain - 2.0).abs() < 0.02, "{file} {plain}");
    assert!((flag / file - 1.0).abs() < 1e-9, "{flag} {file}");
    let refused = spipe(at, &["whatif", "plain.toml", "--lengths", "600:1"]);
    assert!(refused.code != Some(0) && refused.err.contains("600"), "{}", refused.err);
}
