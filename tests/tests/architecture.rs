//! The dependencies between the crates, as `crates/README.md` draws them, and between the modules
//! of each crate.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "architecture/answers.rs"]
mod answers;
#[path = "architecture/fixtures.rs"]
mod fixtures;
#[path = "architecture/graph.rs"]
mod graph;
#[path = "architecture/messages.rs"]
mod messages;
#[path = "architecture/purity.rs"]
mod purity;
#[path = "architecture/source.rs"]
mod source;

use graph::{Graph, folders, references};
use purity::impurities;
use serde_json::Value;
use source::{Files, Modules};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The dependencies that each crate may have, besides those of its dependencies.
const MAY_USE: [(&str, &[&str]); 18] = [
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
    ("spipe-market", &["spipe-hardware"]),
    ("spipe-whatif", &["spipe-market", "spipe-cost", "spipe-timeline"]),
    ("spipe-exec", &["spipe-schedule", "spipe-trace"]),
    ("spipe-export", &["spipe-schedule", "spipe-trace"]),
    ("spipe-fit", &["spipe-sim"]),
    ("spipe-search", &["spipe-planner", "spipe-fit", "spipe-whatif"]),
    ("spipe-reproduce", &["spipe-planner", "spipe-fit", "spipe-timeline"]),
    ("spipe", &["spipe-search", "spipe-reproduce", "spipe-exec", "spipe-export"]),
];

/// The packages that only the crate named beside them may depend on.
const KEPT_INSIDE: [(&str, &str); 6] = [
    ("petgraph", "spipe-hardware"),
    ("good_lp", "spipe-planner"),
    ("highs", "spipe-planner"),
    ("plotters", "spipe-timeline"),
    ("burn", "spipe-exec"),
    ("clap", "spipe"),
];

/// Collects the dependencies of `name`, and theirs.
fn reach<'a>(name: &'a str, all: &BTreeMap<&'a str, &'a [&'a str]>, into: &mut BTreeSet<&'a str>) {
    for next in all[name] {
        if into.insert(next) {
            reach(next, all, into);
        }
    }
}

/// The workspace's own packages, from `cargo metadata`.
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

/// The sources of each folder of `crates/`, by the folder's name.
fn sources() -> BTreeMap<String, Files> {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut sources = BTreeMap::new();
    for folder in fs::read_dir(workspace.join("crates")).unwrap().map(Result::unwrap) {
        let mut files = Files::new();
        let mut open = vec![folder.path().join("src")];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(workspace).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
        if !files.is_empty() {
            sources.insert(folder.file_name().into_string().unwrap(), files);
        }
    }
    assert!(sources.len() > 10, "only {} crates were found", sources.len());
    sources
}

/// The modules of the library and of the program of the crate in `folder`.
fn roots(folder: &str, files: &Files) -> Vec<Modules> {
    let roots = ["lib.rs", "main.rs"].map(|name| format!("crates/{folder}/src/{name}"));
    roots.iter().filter(|root| files.contains_key(*root)).map(|root| source::modules(files, root)).collect()
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

/// The modules of every folder form no import cycle.
#[test]
fn modules_form_no_import_cycle() {
    let mut report = String::new();
    for (crate_folder, files) in &sources() {
        let mut read = BTreeSet::new();
        for modules in roots(crate_folder, files) {
            let references = references(&modules);
            for folder in folders(&modules) {
                let place = std::iter::once(crate_folder).chain(&folder).cloned().collect::<Vec<_>>().join("/");
                for component in Graph::of(&modules, &references, &folder).components() {
                    report.push_str(&format!("crates/{place}\n{component}"));
                }
            }
            read.extend(modules.into_values().map(|module| module.file));
        }
        let unread: Vec<&String> = files.keys().filter(|file| !read.contains(*file)).collect();
        assert!(unread.is_empty(), "no module of {crate_folder} declares {unread:?}");
    }
    assert!(report.is_empty(), "import cycles:\n{report}");
}

/// Below the command, no code opens files, prints, or reads the clock or the environment.
/// The executor is excepted, and so are the clocks of planner and search, for their time limits.
#[test]
fn the_core_is_pure() {
    let mut looked_at = 0;
    for (folder, files) in &sources() {
        if matches!(folder.as_str(), "spipe-cli" | "spipe-exec" | "cubecl-llvm") {
            continue;
        }
        for module in roots(folder, files).iter().flat_map(BTreeMap::values).filter(|module| !module.test) {
            looked_at += 1;
            for (what, line) in impurities(module) {
                let limited = matches!(folder.as_str(), "spipe-planner" | "spipe-search");
                let excepted = limited && what == "std::time::Instant";
                assert!(excepted, "{}:{line} uses `{what}`", module.file);
            }
        }
    }
    assert!(looked_at > 50, "only {looked_at} modules were found");
}
