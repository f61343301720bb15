//! Compiles the CUDA source of every kernel of `spipe-exec` by NVRTC, for which no GPU is needed.
//!
//! ```text
//! kernels of spipe-exec, launched on tensors without numbers ─► Recorder ─► CUDA C++ ─► NVRTC ─► sm_80, sm_90a
//! functions with #[cube(launch)] in its source ─────────────────► each of them was launched
//! ```
//!
//! `kernel-sources FOLDER` writes all sources to FOLDER. `CUDA_PATH` names the folder of CUDA's headers.

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

pub use stand_in::{backend, cubecl, kernel, ops, tensor};

use recorder::{ARCHITECTURES, Architecture, recorded};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// A source of a kernel, unlike all others.
struct Source {
    kernel: String,
    architecture: Architecture,
    text: String,
    file: PathBuf,
}

/// A fault of a kernel, in words.
type Fault = String;

fn main() -> ExitCode {
    match check() {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            for fault in &faults {
                eprintln!("error: {fault}");
            }
            eprintln!("{} faults", faults.len());
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<String, Vec<Fault>> {
    let folder = std::env::args_os().nth(1).ok_or_else(|| vec!["name a folder for the sources".to_owned()])?;
    let headers = nvrtc::headers().map_err(|fault| vec![fault])?;
    let listed = listed::kernels().map_err(|error| vec![format!("the source of `spipe-exec`: {error}")])?;
    let mut faults = Vec::new();
    let sources = sources(Path::new(&folder), &mut faults);
    let launched: BTreeSet<String> = sources.iter().map(|source| source.kernel.clone()).collect();
    faults.extend(listed.difference(&launched).map(|kernel| format!("`{kernel}` is not launched by launches.rs")));
    faults.extend(launched.difference(&listed).map(|kernel| format!("`{kernel}` is not in the source")));
    faults.extend(write(Path::new(&folder), &sources).err());
    faults.extend(compile(&sources, &headers));
    let names = ARCHITECTURES.map(|architecture| architecture.name).join(" and ");
    let summary = || format!("{} kernels, {} sources compiled for {names}", listed.len(), sources.len());
    if faults.is_empty() { Ok(summary()) } else { Err(faults) }
}

/// The sources of all kernels for all architectures, each once.
fn sources(folder: &Path, faults: &mut Vec<Fault>) -> Vec<Source> {
    let mut sources = Vec::new();
    for architecture in ARCHITECTURES {
        let mut seen = BTreeSet::new();
        for launched in recorded(architecture, launches::launch_all) {
            let kernel = launched.kernel;
            match launched.source {
                Ok(text) if seen.insert(text.clone()) => {
                    let name = format!("{}.{}.{}.cu", kernel.replace("::", "-"), seen.len(), architecture.name);
                    sources.push(Source { kernel, architecture, text, file: folder.join(name) });
                }
                Ok(_) => {}
                Err(error) => faults.push(format!("`{kernel}` has no source: {error}")),
            }
        }
    }
    sources
}

fn write(folder: &Path, sources: &[Source]) -> Result<(), Fault> {
    let all = fs::create_dir_all(folder);
    let all = all.and_then(|()| sources.iter().try_for_each(|source| fs::write(&source.file, &source.text)));
    all.map_err(|error| format!("`{}`: {error}", folder.display()))
}

/// The faults of all sources, found on all cores.
fn compile(sources: &[Source], headers: &Path) -> Vec<Fault> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            let architecture = source.architecture.name;
            if let Err(log) = nvrtc::compile(&source.text, architecture, headers) {
                faults.push(format!("`{}` for {architecture}, {}:\n{log}", source.kernel, source.file.display()));
            }
        }
        faults
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker returns its faults")).collect()
    })
}
