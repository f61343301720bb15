//! The imports between the modules of a folder, and the cycles that they form.
//!
//! The modules of a folder are the children of one module; those of the crate's root are its
//! top-level modules. An arrow `a -> b` means that code of `a`, or of a module below it, mentions an
//! item of `b`. A name that another module re-exports stands for the module that defines it, unless
//! the path leads through a module of the folder. The parent itself is not a module of the graph:
//! arrows neither start nor end there.

use super::source::{Mention, Modules, Path};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

/// A file and a line of it.
pub type Place = (String, usize);

/// The arrows from each module of a folder, each with the first place that makes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph(pub BTreeMap<String, BTreeMap<String, Place>>);

/// A strongly connected component of at least two modules.
#[derive(Debug, PartialEq, Eq)]
pub struct Component {
    /// Its modules, in alphabetical order.
    pub modules: BTreeSet<String>,
    /// The arrows of one of its shortest cycles.
    pub cycle: Vec<(String, String, Place)>,
}

/// A mention of an item of the same crate.
pub struct Reference {
    /// The module whose code mentions it.
    from: Path,
    /// The path from the root as it is written.
    written: Path,
    /// The module that defines the item.
    definer: Option<Path>,
    place: Place,
}

/// All mentions of items of the same crate, outside tests.
pub fn references(modules: &Modules) -> Vec<Reference> {
    let mut references = Vec::new();
    for (from, module) in modules.iter().filter(|(_, module)| !module.test) {
        for mention in &module.mentions {
            let Some(written) = from_root(modules, from, mention) else { continue };
            let definer = definer(modules, &[], &written, &mut Seen::new());
            references.push(Reference {
                from: from.clone(),
                written,
                definer,
                place: (module.file.clone(), mention.line),
            });
        }
    }
    references
}

/// The folders of a crate: the paths of the modules that have modules below them.
pub fn folders(modules: &Modules) -> BTreeSet<Path> {
    let paths = modules.iter().filter(|(_, module)| !module.test).filter_map(|(path, _)| path.split_last());
    paths.map(|(_, folder)| folder.to_vec()).collect()
}

impl Graph {
    /// The graph of the modules of `folder`, a path from the root, in a crate with these modules.
    pub fn of(modules: &Modules, references: &[Reference], folder: &[String]) -> Self {
        let child = |path: &[String]| path.strip_prefix(folder)?.first().cloned();
        let known = |name: &String| {
            let path = [folder, std::slice::from_ref(name)].concat();
            modules.get(&path).is_some_and(|module| !module.test)
        };
        let all = modules.keys().filter_map(|path| child(path)).filter(known);
        let mut graph = Self(all.map(|name| (name, BTreeMap::new())).collect());
        for reference in references {
            let Some(from) = child(&reference.from).filter(known) else { continue };
            let named = child(&reference.written).filter(known);
            let to = named.or_else(|| child(reference.definer.as_ref()?).filter(known));
            if let Some(to) = to.filter(|to| *to != from) {
                graph.0.entry(from).or_default().entry(to).or_insert_with(|| reference.place.clone());
            }
        }
        graph
    }

    /// The strongly connected components of at least two modules: none if there is no cycle.
    pub fn components(&self) -> Vec<Component> {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            self.0.keys().map(|from| (from, self.reached(from))).collect();
        let mut components: Vec<Component> = Vec::new();
        for module in self.0.keys() {
            let known = components.iter().any(|component| component.modules.contains(module));
            if !known && reached[module].contains(module) {
                let both = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(module));
                let modules: BTreeSet<String> =
                    reached[module].iter().filter(both).map(|other| (*other).clone()).collect();
                let cycles = modules.iter().filter_map(|from| self.cycle(from));
                let cycle = cycles.min_by_key(Vec::len).unwrap_or_default();
                components.push(Component { modules, cycle });
            }
        }
        components
    }

    /// The modules at the ends of all paths from `from`.
    fn reached<'a>(&'a self, from: &'a String) -> BTreeSet<&'a String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            let next = self.0.get(module).into_iter().flatten().map(|(to, _)| to);
            open.extend(next.filter(|to| reached.insert(*to)));
        }
        reached
    }

    /// A shortest cycle through `start`, by breadth-first search.
    fn cycle(&self, start: &String) -> Option<Vec<(String, String, Place)>> {
        let mut before: BTreeMap<&String, (&String, &Place)> = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(module) = open.pop_front() {
            for (to, place) in self.0.get(module).into_iter().flatten() {
                if !before.contains_key(to) {
                    before.insert(to, (module, place));
                    open.push_back(to);
                }
            }
        }
        let mut cycle = Vec::new();
        let mut end = start;
        loop {
            let (from, place) = before.get(end)?;
            cycle.insert(0, ((*from).clone(), end.clone(), (*place).clone()));
            end = from;
            if end == start {
                return Some(cycle);
            }
        }
    }
}

/// The path from the crate's root that `mention` stands for in the module at `path`; none if it leads
/// to another crate, or to a name that the module itself brings in.
fn from_root(modules: &Modules, path: &Path, mention: &Mention) -> Option<Path> {
    if let Some(absolute) = absolute(path, &mention.path) {
        return Some(absolute);
    }
    let module = &modules[path];
    let first = mention.path.first()?;
    let below = [path.as_slice(), std::slice::from_ref(first)].concat();
    let imported = module.imports.iter().any(|import| import.name.as_ref() == Some(first));
    if module.items.contains(first) || imported || modules.contains_key(&below) {
        return None;
    }
    // A glob of a module brings in all names there that the module does not define or import.
    let globs = module.imports.iter().filter(|import| import.name.is_none());
    let mut globbed = globs.filter_map(|import| absolute(path, &import.path)).filter(|path| modules.contains_key(path));
    globbed.find_map(|glob| {
        definer(modules, &glob, &mention.path, &mut Seen::new())?;
        Some([glob.as_slice(), &mention.path].concat())
    })
}

/// The path from the crate's root that `written` stands for in the module at `path`, if it begins
/// with `crate`, `self` or `super`.
fn absolute(path: &[String], written: &[String]) -> Option<Path> {
    let first = written.first()?.as_str();
    if !["crate", "self", "super"].contains(&first) {
        return None;
    }
    let start = if first == "crate" { &[] } else { path };
    let names = written.iter().skip_while(|name| ["crate", "self", "super"].contains(&name.as_str()));
    let ups = written.iter().take_while(|name| ["crate", "self", "super"].contains(&name.as_str()));
    let ups = ups.filter(|name| *name == "super").count();
    let start = &start[..start.len().saturating_sub(ups)];
    Some(start.iter().chain(names).cloned().collect())
}

/// Names that have been looked up: where, and which.
type Seen = BTreeSet<(Path, Path)>;

/// The module that defines the item to which `path` leads from within the module `at`; none if it
/// is of another crate.
fn definer(modules: &Modules, at: &[String], path: &[String], seen: &mut Seen) -> Option<Path> {
    if !seen.insert((at.to_vec(), path.to_vec())) {
        return None;
    }
    named(modules, at, path, seen).or_else(|| {
        let globs = modules.get(at)?.imports.iter().filter(|import| import.name.is_none());
        globs.into_iter().find_map(|glob| {
            let from = match absolute(at, &glob.path) {
                Some(from) => from,
                None => named(modules, at, &glob.path, seen)?,
            };
            definer(modules, &from, path, seen)
        })
    })
}

/// The same without the globs of `at`.
fn named(modules: &Modules, at: &[String], path: &[String], seen: &mut Seen) -> Option<Path> {
    let module = modules.get(at)?;
    let Some((first, rest)) = path.split_first() else { return Some(at.to_vec()) };
    let below = [at, std::slice::from_ref(first)].concat();
    if modules.contains_key(&below) {
        return definer(modules, &below, rest, seen);
    }
    if module.items.contains(first) {
        return Some(at.to_vec());
    }
    let imports = module.imports.iter().filter(|import| import.name.as_ref() == Some(first));
    imports.into_iter().find_map(|import| match absolute(at, &import.path) {
        Some(absolute) => definer(modules, &[], &[absolute.as_slice(), rest].concat(), seen),
        None if import.path.first() == Some(first) && import.path.len() == 1 => None,
        None => definer(modules, at, &[import.path.as_slice(), rest].concat(), seen),
    })
}

impl fmt::Display for Component {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        writeln!(formatter, "  {} modules import each other: {}", modules.len(), modules.join(", "))?;
        for (from, to, (file, line)) in &self.cycle {
            writeln!(formatter, "    {from} -> {to} ({file}:{line})")?;
        }
        Ok(())
    }
}
