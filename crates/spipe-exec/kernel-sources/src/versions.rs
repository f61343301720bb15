//! The versions of CubeCL, which are to be those of the workspace.

use std::collections::BTreeSet;

const OURS: &str = include_str!("../Cargo.lock");
const WORKSPACE: &str = include_str!("../../../../Cargo.lock");

/// The packages of CubeCL that the workspace has in another version, in words.
pub fn differing() -> Vec<String> {
    let workspace: BTreeSet<_> = packages(WORKSPACE).collect();
    let differing = packages(OURS).filter(|package| !workspace.contains(package));
    differing.map(|(name, version)| format!("`{name}` {version} is not that of the workspace's Cargo.lock")).collect()
}

/// Names and versions of CubeCL's packages in a lock file.
fn packages(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    lock.split("[[package]]").filter_map(|package| {
        let value = |key: &str| package.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix('"'));
        let name = value("name = \"").filter(|name| name.starts_with("cubecl"))?;
        Some((name, value("version = \"")?))
    })
}
