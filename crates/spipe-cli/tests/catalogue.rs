//! Parts, prices and composed machines on the command line.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, spipe};
use serde_json::Value;

fn json(output: &Run) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {}", output.err))
}

#[test]
fn the_shipped_catalogue_is_listed_shown_and_sound() {
    let folder = tempfile::tempdir().unwrap();
    let list = json(&spipe(folder.path(), "catalogue list --kind gpu --as-of 2026-11-27 --format json"));
    assert!(list["parts"].as_array().unwrap().len() >= 47);
    let shown = spipe(folder.path(), "catalogue show rtx4090 --as-of 2026-11-27");
    let said = &shown.out;
    for part in ["165.2 TFLOP/s", "NVIDIA Ada GPU Architecture whitepaper", "2026-05-01", "210", "used (counts)"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let unknown = spipe(folder.path(), "catalogue show rtx409");
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.err.contains("did you mean `rtx4090`"));
    let checked = spipe(folder.path(), "catalogue check --as-of 2026-09-01 --format json");
    assert_eq!((checked.code, json(&checked)["errors"].as_array().unwrap().len()), (Some(0), 0));
}

#[test]
fn a_wrong_figure_ends_a_check_with_code_6() {
    let folder = tempfile::tempdir().unwrap();
    let part = r#"
format-version = 1
name = "mine"
[[gpu]]
name = "my-card"
family = "geforce-40"
form = "pcie"
slots = 3
memory = "24 GiB"
memory-bandwidth = "1008 GB/s"
peak = { bf16 = "82.6 TFLOP/s", f32 = "82.6 TFLOP/s" }
pcie = { generation = 4, lanes = 16 }
power = { board = "450 W", training = 0.8, idle = "20 W", source = "estimate" }
date = 2026-05-01
source = "a throughput table; estimate"
"#;
    std::fs::write(folder.path().join("mine.toml"), part).unwrap();
    let output = spipe(folder.path(), "catalogue check mine.toml --as-of 2026-11-27");
    assert_eq!(output.code, Some(6));
    let said = &output.err;
    assert!(said.contains("`my-card` breaks the rule `tensor-ratio`") && said.contains("mine.toml:5:1"), "{said}");
    let used = spipe(folder.path(), "catalogue list --catalogue mine.toml");
    assert_eq!(used.code, Some(3), "the other commands refuse it");
    std::fs::write(folder.path().join("broken.toml"), "format-version = 1\nname = \"x\"\n[[gpu]]\nname = 3\n").unwrap();
    let broken = spipe(folder.path(), "catalogue check broken.toml");
    assert_eq!(broken.code, Some(3));
    assert!(broken.err.contains("broken.toml:4:8"), "{}", broken.err);
}

#[test]
fn a_composed_machine_is_planned_and_an_illegal_one_names_its_rule() {
    let folder = tempfile::tempdir().unwrap();
    let compose = "catalogue compose --gpu rtx3090 --gpus 2 --platform epyc-7713p --dram 8xddr4-rdimm-32g --nvme nvme4-2tb --bridge nvlink3-pair";
    let output = spipe(folder.path(), &format!("{compose} --as-of 2026-11-27 -o machine.toml"));
    let said = &output.out;
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(said.contains("h12ssl-i") && said.contains("without tax, at prices known on 2026-11-27"), "{said}");
    let plan = spipe(
        folder.path(),
        "plan --model gpt2 --hardware machine.toml --global-batch 8 --time-limit 2s --format json",
    );
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    let illegal =
        spipe(folder.path(), "catalogue compose --gpu h100-sxm --gpus 2 --platform xeon-8480 --dram 16xddr5-rdimm-64g");
    assert_eq!(illegal.code, Some(2));
    assert!(illegal.err.contains("the parts break the rule `gpu-count`"), "{}", illegal.err);
    let price = spipe(folder.path(), "catalogue price rtx3090=650..900EUR@2026-11-20,used");
    assert_eq!(
        price.out,
        "{ condition = \"used\", low = 650, typical = 775, high = 900, currency = \"EUR\", date = 2026-11-20, source = \"stated on \
         the command line\" },\n"
    );
    for bad in
        ["rtx3090=900..650EUR@2026-11-20", "rtx3090=650EUR", "rtx3090=650@2026-11-20", "rtx3090=-1EUR@2026-11-20"]
    {
        assert_eq!(spipe(folder.path(), &format!("catalogue price {bad}")).code, Some(2), "{bad}");
    }
}
