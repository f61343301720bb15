//! Crates that read a plan's answers, never the name of its system.

/// The crates below and beside the planner whose sources name no system. Of the executor, helpers of tests may.
const CRATES: [&str; 7] = ["schedule", "sim", "exec", "export", "cost", "whatif", "fit"];

/// The names that stand for systems in `spipe_plan` and in the planner.
const NAMES: [&str; 4] = ["System", "SystemSpec", "Preset", "Family"];

/// The places of `text` that import a name of systems, or read a placement's system.
fn namings(text: &str) -> Vec<String> {
    let imported = |list: &str| {
        let mut words = list.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.any(|word| NAMES.contains(&word))
    };
    let imports = ["use spipe_plan::", "use spipe_planner::"].into_iter().flat_map(|start| text.split(start).skip(1));
    let imports = imports.filter_map(|rest| rest.split(';').next()).filter(|list| imported(list)).map(str::to_owned);
    let paths = NAMES.map(|name| format!("spipe_plan::{name}")).into_iter();
    let reads = ["placement.system", "placement().system"].map(str::to_owned).into_iter();
    imports.chain(paths.chain(reads).filter(|found| text.contains(found))).collect()
}

/// The finds of `find` in the sources of some crates, each with its file; those of helpers of tests are left out.
pub fn found_in(crates: &[&str], find: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let sources = crate::sources();
    let mut found = Vec::new();
    for name in crates {
        let files = &sources[&format!("spipe-{name}")];
        for (file, text) in files.iter().filter(|(file, _)| !file.contains("/testing/")) {
            found.extend(find(text).into_iter().map(|found| format!("{file}: {found}")));
        }
    }
    found
}

#[test]
fn answers_are_read_instead_of_names() {
    assert_eq!(found_in(&CRATES, namings), [""; 0]);
}

#[test]
fn namings_are_found_however_they_are_written() {
    assert_eq!(namings("use spipe_plan::{\n    Context, System,\n};"), ["{\n    Context, System,\n}"]);
    assert_eq!(namings("fn f(p: &spipe_plan::Placement) { p; }"), [""; 0]);
    assert_eq!(namings("match placement.system { _ => {} }"), ["placement.system"]);
    assert_eq!(namings("let of: spipe_plan::Preset = x;"), ["spipe_plan::Preset"]);
    assert_eq!(namings("use crate::System;\nuse spipe_plan::{PresetName, Stage};"), [""; 0]);
}
