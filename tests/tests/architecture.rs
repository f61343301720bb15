//! The arrows between the crates, as `crates/README.md` draws them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What each crate may use directly, and through that.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("spipe-base", &[]),
    ("spipe-model", &["spipe-base"]),
    ("spipe-hardware", &["spipe-base"]),
    ("spipe-trace", &["spipe-base"]),
    ("spipe-cost", &["spipe-model", "spipe-hardware"]),
    ("spipe-plan", &["spipe-cost"]),
    ("spipe-schedule", &["spipe-plan"]),
    ("spipe-sim", &["spipe-schedule", "spipe-trace"]),
    ("spipe-planner", &["spipe-schedule"]),
    ("spipe-timeline", &["spipe-trace"]),
    ("spipe-exec", &["spipe-schedule", "spipe-trace"]),
    ("spipe", &["spipe-sim", "spipe-planner", "spipe-timeline", "spipe-exec"]),
];

/// The crates that may be used by others only through the one named: no other crate may depend on them.
const KEPT_INSIDE: [(&str, &str); 5] = [
    ("petgraph", "spipe-hardware"),
    ("good_lp", "spipe-planner"),
    ("plotters", "spipe-timeline"),
    ("burn", "spipe-exec"),
    ("clap", "spipe"),
];

fn reach<'a>(name: &'a str, all: &BTreeMap<&'a str, &'a [&'a str]>, into: &mut BTreeSet<&'a str>) {
    for next in all[name] {
        if into.insert(next) {
            reach(next, all, into);
        }
    }
}

/// What cargo says of the workspace's own packages.
fn packages() -> Vec<Value> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = std::process::Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path", manifest])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn dependencies_point_downwards() {
    let all: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut seen = BTreeSet::new();
    for package in packages().iter().filter(|package| package["name"] != "spipe-tests") {
        let name = package["name"].as_str().unwrap();
        let (name, _) = all.get_key_value(name).unwrap_or_else(|| panic!("`{name}` is not in the table"));
        let mut allowed = BTreeSet::new();
        reach(name, &all, &mut allowed);
        seen.insert(*name);
        // Cargo writes the kind of a normal dependency as null.
        let dependencies = package["dependencies"].as_array().unwrap();
        for dependency in dependencies.iter().filter(|dependency| dependency["kind"].is_null()) {
            let used = dependency["name"].as_str().unwrap();
            if all.contains_key(used) {
                assert!(allowed.contains(used), "`{name}` must not use `{used}`");
            }
            if let Some((_, keeper)) = KEPT_INSIDE.iter().find(|(kept, _)| *kept == used) {
                assert_eq!(name, keeper, "only `{keeper}` uses `{used}`");
            }
        }
    }
    assert_eq!(seen, all.keys().copied().collect(), "the table and the workspace agree");
}

/// Below the command, nobody opens files, prints, reads the clock or the environment; the executor, which must, excepted, and
/// the planner's clock for its time limit.
#[test]
fn the_core_is_pure() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
    let forbidden = ["std::fs", "std::env", "std::io::stdin", "SystemTime", "println!", "Instant::now"];
    let excepted = |name: &str, word: &str| {
        matches!(name, "spipe-cli" | "spipe-exec" | "cubecl-llvm")
            || (name == "spipe-planner" && word == "Instant::now")
    };
    let mut looked_at = 0;
    for folder in std::fs::read_dir(crates).unwrap().map(Result::unwrap) {
        let name = folder.file_name().into_string().unwrap();
        let mut open = vec![folder.path().join("src")];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|end| end == "rs") {
                looked_at += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                for word in forbidden.into_iter().filter(|word| !excepted(&name, word)) {
                    assert!(!text.contains(word), "{} uses {word}", path.display());
                }
            }
        }
    }
    assert!(looked_at > 50, "only {looked_at} files were found");
}
