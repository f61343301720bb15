//! NVRTC with the options of CubeCL's CUDA runtime (`cubecl-cuda`, `compute/context.rs`).

use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};

/// The folder of CUDA's headers.
///
/// # Errors
/// It is not known, or not there.
pub fn headers() -> Result<PathBuf, String> {
    let cuda = std::env::var_os("CUDA_PATH").ok_or("CUDA_PATH does not name a folder with CUDA's headers")?;
    let headers = Path::new(&cuda).join("include");
    if headers.join("cuda_fp16.h").is_file() {
        Ok(headers)
    } else {
        Err(format!("`{}` has no cuda_fp16.h", headers.display()))
    }
}

/// Compiles a source for an architecture.
///
/// # Errors
/// The compiler's messages.
pub fn compile(source: &str, architecture: &'static str, headers: &Path) -> Result<(), String> {
    let folders = [headers.to_owned(), headers.join("cccl")];
    let include_paths = folders.iter().filter(|folder| folder.is_dir()).map(|folder| folder.display().to_string());
    let options = CompileOptions {
        arch: Some(architecture),
        include_paths: include_paths.collect(),
        options: vec!["-lineinfo".into()],
        ..CompileOptions::default()
    };
    match compile_ptx_with_opts(source, options) {
        Ok(_) => Ok(()),
        Err(CompileError::CompileError { log, .. }) => Err(log.to_string_lossy().into_owned()),
        Err(error) => Err(format!("{error:?}")),
    }
}
