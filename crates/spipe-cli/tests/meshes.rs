//! Plans on meshes: refusals of degrees and networks, and pictures in which a lane stands for a team and its replicas.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::{Run, command::command, spipe};
use std::{fs, path::Path};

const EIGHT: &str = "--hardware a100-80g-x8-nvlink --global-batch 32 --microbatch 1";

fn ran(folder: &Path, args: &str) -> Run {
    command(folder, args).output().unwrap().into()
}

/// Exit code and messages of refused plans, one after the other.
fn refusals(folder: &Path, all: &[String]) -> String {
    let refusal = |args: &String| {
        let run = ran(folder, &format!("plan {args} -o plan.json"));
        assert_eq!((run.out.as_str(), folder.join("plan.json").exists()), ("", false), "nothing is written: {args}");
        format!("{args}\nexit code {}\n{}", run.code.unwrap(), run.err)
    };
    all.iter().map(refusal).collect::<Vec<_>>().join("\n")
}

#[test]
fn degrees_that_divide_nothing_are_named_with_the_nearest_that_do() {
    let folder = tempfile::tempdir().unwrap();
    let dense = ["--tp 3", "--tp 16", "--tp 2 --pp 3 --dp 2", "--dp 3", "--cp 3", "--ep 2", "--pp 0"];
    let dense = dense.iter().map(|degrees| format!("--model llama3-8b {EIGHT} {degrees}"));
    let nodes = "--nodes 8 --network 8x400Gb";
    let experts = ["--ep 3".to_owned(), "--ep 8 --dp 4".to_owned(), format!("{nodes} --pp 40")];
    let experts = experts.iter().map(|degrees| format!("--model mixtral-8x7b {EIGHT} {degrees}"));
    insta::assert_snapshot!(refusals(folder.path(), &dense.chain(experts).collect::<Vec<_>>()));
}

#[test]
fn networks_without_cards_or_rate_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let machine = "--model llama3-8b --hardware a100-80g-x8-nvlink --global-batch 32";
    let profile = shipped("a100-80g-x8-nvlink") + "\n[network]\ncards = 8\n";
    fs::write(folder.path().join("no-rate.toml"), profile).unwrap();
    let networks = ["--nodes 2", "--nodes 2 --network 200Gb", "--nodes 2 --network 4x", "--nodes 2 --network 4x0Gb"];
    let networks = networks.iter().map(|network| format!("{machine} {network}"));
    let file = "--model llama3-8b --hardware no-rate.toml --global-batch 32 --nodes 2".to_owned();
    insta::assert_snapshot!(refusals(folder.path(), &networks.chain([file]).collect::<Vec<_>>()));
}

/// Unlike GPUs in a team, sockets as teams and replicas, drives, small groups, and systems without meshes.
#[test]
fn devices_that_are_no_team_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let two = shipped("rtx3090-x4-two-sockets");
    let (gpu, rest) = two.split_once("[[gpu]]").unwrap().1.split_once("[[link]]").unwrap();
    let unlike = two.replace(gpu, &gpu.replace("{0..3}", "{0..1}"));
    let larger = gpu.replace("{0..3}", "{2..3}").replace("24 GiB", "48 GiB");
    let unlike = unlike.replace(rest, &format!("{rest}\n[[gpu]]{larger}"));
    fs::write(folder.path().join("unlike.toml"), unlike).unwrap();
    let drive =
        "\n[[nvme]]\nname = \"nvme0\"\ncapacity = \"2 TB\"\nread = \"7 GB/s\"\nwrite = \"5 GB/s\"\nsource = \"test\"\n";
    let link =
        "\n[[link]]\nname = \"m2\"\nbetween = [\"nvme0\", \"root0\"]\nbandwidth = \"7 GB/s\"\nsource = \"test\"\n";
    fs::write(folder.path().join("drive.toml"), format!("{two}{drive}{link}")).unwrap();
    let on = |machine: &str, more: &str| format!("--model gpt2 --hardware {machine} --global-batch 16 {more}");
    let all = [
        on("unlike.toml", "--tp 4"),
        on("unlike.toml", "--tp 1 --pp 1 --dp 4"),
        on("rtx3090-x4-two-sockets", "--tp 2 --devices cpu0,cpu1"),
        on("rtx3090-x4-two-sockets", "--dp 2 --devices cpu0,cpu1"),
        on("rtx3090-x4-two-sockets", "--dp 2 --system cpu-only"),
        on("drive.toml", "--dp 2 --sharding optimizer --system zero-offload --state-on nvme0"),
        on("rtx3090-x4-two-sockets", "--pp 4 --group 2"),
        on("rtx3090-x4-two-sockets", "--pp 4 --pin group=2"),
    ];
    insta::assert_snapshot!(refusals(folder.path(), &all));
}

/// The text of a shipped profile.
fn shipped(name: &str) -> String {
    fs::read_to_string(format!("../../hardware-profiles/{name}.toml")).unwrap()
}

/// Lanes, memories and tables name the team and the number of replicas, and a picture may come from `simulate` itself.
#[test]
fn pictures_show_a_lane_for_each_team() {
    let folder = tempfile::tempdir().unwrap();
    let plan = "plan --model llama3-8b --hardware a100-80g-x8-nvlink --global-batch 8 --microbatch 1 --system 1f1b";
    let made = ran(folder.path(), &format!("{plan} --tp 2 --pp 2 --dp 2 --effort low -o plan.json"));
    assert_eq!(made.code, Some(0), "{}", made.err);
    let table = ran(folder.path(), "simulate plan.json -o trace.json");
    assert!(table.out.contains("gpu0..gpu1.compute × 2") && table.out.contains("gpu4..gpu5 × 2"), "{}", table.out);
    for name in ["x.html", "x.svg", "x.txt", "x.perfetto.json"] {
        let drawn = ran(folder.path(), &format!("simulate plan.json --once -o {name}"));
        assert_eq!(drawn.code, Some(0), "{}", drawn.err);
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        let label = if name == "x.txt" { "gpu0..gpu1.compute × 2" } else { "gpu0..gpu1 × 2" };
        assert!(text.contains(label), "{name} has {label}");
        assert!(name == "x.svg" || text.contains("reduce-scatter") || text.contains("= collective"), "{name}");
    }
    let page = fs::read_to_string(folder.path().join("x.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "a page, no trace");
    let trace = spipe(folder.path(), &["timeline", "trace.json"]);
    assert!(trace.out.contains("gpu4..gpu5.compute × 2"), "{}", trace.out);
}

/// GPUs that a mesh leaves idle are named with the degrees that leave them.
#[test]
fn a_mesh_says_which_gpus_it_leaves_idle_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let plan =
        "plan --model gpt2 --hardware a100-80g-x8-nvlink --global-batch 6 --microbatch 1 --system 1f1b --effort low";
    for (degrees, why) in [
        ("--tp 1 --pp 1 --dp 3 --cp 2", "gpu6..gpu7 (the mesh is 1 × 1 × 3 × 2 (tensor, pipeline, data, context))"),
        ("--tp 2 --pp 1 --dp 3", "gpu6..gpu7 (the mesh is 2 × 1 × 3 (tensor, pipeline, data))"),
    ] {
        let made = ran(folder.path(), &format!("{plan} {degrees}"));
        let idle: Vec<&str> = made.out.lines().filter(|line| line.starts_with("idle: ")).collect();
        assert!(idle.len() == 1 && idle[0].contains(why), "{degrees}: {}{}", made.out, made.err);
    }
}
