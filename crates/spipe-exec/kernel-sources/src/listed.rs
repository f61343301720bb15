//! The kernels in the source of `spipe-exec`.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// The folder of the source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src");

/// The paths of all functions with `#[cube(launch, …)]`, `nn::fused::rotary::turn`.
///
/// # Errors
/// The source cannot be read.
pub fn kernels() -> io::Result<BTreeSet<String>> {
    let mut kernels = BTreeSet::new();
    for file in files(Path::new(SOURCE))? {
        let module = module(&file);
        let text = fs::read_to_string(&file)?;
        kernels.extend(functions(&text).map(|function| format!("{module}::{function}")));
    }
    Ok(kernels)
}

/// All files of Rust below a folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The path of the module in a file.
fn module(file: &Path) -> String {
    let inside = file.strip_prefix(SOURCE).unwrap_or(file).with_extension("");
    let names = inside.iter().map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "mod");
    names.collect::<Vec<_>>().join("::")
}

/// The names of the kernels in a text.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[cube(").skip(1).filter_map(|rest| {
        let (attribute, rest) = rest.split_once(")]")?;
        let (_, function) = rest.split_once("fn ").filter(|_| attribute.contains("launch"))?;
        function.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
    })
}
