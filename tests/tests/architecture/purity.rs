//! Paths and macros by which code reaches files, the terminal, the clock or the environment.

use super::source::{Mention, Module, Path};

/// The paths, each with all that lies below it.
const PATHS: [&str; 10] = [
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net",
    "std::os",
    "std::process",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// The macros.
const MACROS: [&str; 5] = ["dbg", "eprint", "eprintln", "print", "println"];

/// How often an alias may stand for another.
const ALIASES: usize = 4;

/// The impure paths and macros that `module` mentions, each with its line.
pub fn impurities(module: &Module) -> Vec<(&'static str, usize)> {
    let mut found = Vec::new();
    for mention in &module.mentions {
        found.extend(path(module, mention).map(|path| (path, mention.line)));
        found.extend(called(mention).map(|name| (name, mention.line)));
    }
    found
}

/// The impure path that `mention` stands for.
fn path(module: &Module, mention: &Mention) -> Option<&'static str> {
    let mut meanings = vec![mention.path.clone()];
    let mut new = 0;
    for _ in 0..ALIASES {
        let more: Vec<Path> = meanings[new..].iter().flat_map(|path| imported(module, path)).collect();
        new = meanings.len();
        meanings.extend(more);
    }
    let is_below = |path: &Path, top: &str| {
        top.split("::").enumerate().all(|(at, name)| path.get(at).is_some_and(|own| own == name))
    };
    PATHS.into_iter().find(|top| meanings.iter().any(|path| is_below(path, top)))
}

/// The paths that `path` may stand for by the imports of `module`.
fn imported(module: &Module, path: &Path) -> Vec<Path> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let of = |import: &super::source::Import| match &import.name {
        Some(name) if name == first && import.path != *path => Some([import.path.as_slice(), rest].concat()),
        None if import.path.first().is_some_and(|top| top == "std") => Some([&import.path, path.as_slice()].concat()),
        _ => None,
    };
    module.imports.iter().filter_map(of).collect()
}

/// The impure macro that `mention` calls.
fn called(mention: &Mention) -> Option<&'static str> {
    MACROS.into_iter().find(|name| mention.call && mention.path.last().is_some_and(|last| last == name))
}
