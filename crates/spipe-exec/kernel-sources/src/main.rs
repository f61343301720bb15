//! Compiles the CUDA source of every kernel of `spipe-exec` by NVRTC, for which no GPU is needed.
//!
//! ```text
//! kernels of spipe-exec, launched on tensors without numbers ─► Recorder ─► CUDA C++ ─► NVRTC ─► sm_80, sm_90a
//! functions with #[cube(launch)] in its source ─────────────────► each of them was launched
//! ```
//!
//! `kernel-sources FOLDER` writes all sources to FOLDER, in one process for each architecture, as NVRTC compiles one source at a
//! time. `CUDA_PATH` names the folder of CUDA's headers.

// The launches name these two crates, whose part `stand_in` plays.
extern crate self as burn;
extern crate self as burn_cubecl;

mod launches;
mod listed;
mod nn;
mod nvrtc;
mod optimizer;
mod recorder;
mod stand_in;
mod versions;

pub use stand_in::{backend, cubecl, kernel, ops, tensor};

use recorder::{ARCHITECTURES, Architecture, recorded};
use std::{
    collections::BTreeSet,
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// A source of a kernel, unlike all others.
struct Source {
    kernel: String,
    text: String,
    file: PathBuf,
}

/// A fault of a kernel, in words.
type Fault = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let known = |name: &String| ARCHITECTURES.into_iter().find(|architecture| architecture.name == name);
    let summary = match &arguments[..] {
        [folder] => each_architecture(folder),
        [folder, name] => known(name)
            .ok_or_else(|| vec![format!("`{name}` is no architecture")])
            .and_then(|architecture| check(Path::new(folder), architecture)),
        _ => Err(vec!["name a folder for the sources".into()]),
    };
    match summary {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            faults.iter().for_each(|fault| eprintln!("error: {fault}"));
            ExitCode::FAILURE
        }
    }
}

/// Checks every architecture in a process of its own.
fn each_architecture(folder: &str) -> Result<String, Vec<Fault>> {
    let start =
        |architecture: Architecture| Command::new(env::current_exe()?).args([folder, architecture.name]).spawn();
    let started = ARCHITECTURES.map(start).into_iter().collect::<io::Result<Vec<_>>>();
    let processes = started.map_err(|error| vec![format!("a process for an architecture: {error}")])?;
    let failed = processes
        .into_iter()
        .map(|mut process| process.wait())
        .filter(|end| !matches!(end, Ok(code) if code.success()));
    match failed.count() {
        0 => Ok("every kernel compiles".into()),
        count => Err(vec![format!("kernels fail for {count} of {} architectures", ARCHITECTURES.len())]),
    }
}

/// Checks one architecture.
fn check(folder: &Path, architecture: Architecture) -> Result<String, Vec<Fault>> {
    let headers = nvrtc::headers().map_err(|fault| vec![fault])?;
    let listed = listed::kernels().map_err(|error| vec![format!("the source of `spipe-exec`: {error}")])?;
    let mut faults = versions::differing();
    let sources = sources(folder, architecture, &mut faults);
    let launched: BTreeSet<String> = sources.iter().map(|source| source.kernel.clone()).collect();
    faults.extend(listed.difference(&launched).map(|kernel| format!("launches.rs yields no source of `{kernel}`")));
    faults
        .extend(launched.difference(&listed).map(|kernel| format!("`{kernel}` is not in the source of `spipe-exec`")));
    faults.extend(write(folder, &sources).err());
    for Source { kernel, text, file } in &sources {
        let compiled = nvrtc::compile(text, architecture.name, &headers);
        faults.extend(
            compiled.err().map(|log| format!("`{kernel}` for {}, {}:\n{log}", architecture.name, file.display())),
        );
    }
    let summary = format!("{}: {} kernels, {} sources compiled", architecture.name, listed.len(), sources.len());
    if faults.is_empty() { Ok(summary) } else { Err(faults) }
}

/// The sources of all kernels for an architecture, each once.
fn sources(folder: &Path, architecture: Architecture, faults: &mut Vec<Fault>) -> Vec<Source> {
    let (mut sources, mut seen) = (Vec::new(), BTreeSet::new());
    for launched in recorded(architecture, launches::launch_all) {
        let kernel = launched.kernel;
        match launched.source {
            Ok(text) if seen.insert(text.clone()) => {
                let name = format!("{}.{}.{}.cu", kernel.replace("::", "-"), seen.len(), architecture.name);
                sources.push(Source { kernel, text, file: folder.join(name) });
            }
            Ok(_) => {}
            Err(error) => faults.push(format!("`{kernel}` has no source: {error}")),
        }
    }
    sources
}

fn write(folder: &Path, sources: &[Source]) -> Result<(), Fault> {
    let all = fs::create_dir_all(folder);
    let all = all.and_then(|()| sources.iter().try_for_each(|source| fs::write(&source.file, &source.text)));
    all.map_err(|error| format!("`{}`: {error}", folder.display()))
}
