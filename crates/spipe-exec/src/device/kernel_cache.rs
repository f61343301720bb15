//! Compiled kernels and the tuner's choices of GPUs, kept from one process to the next.
//!
//! ```text
//! ~/.cache/spipe/kernels/version                              the version of all databases beside it
//!                        cuda-NVIDIA_H200-580.159.03.db       one for each set of devices and their driver
//! ```
//!
//! A run without such a folder compiles and tunes again; nothing else depends on it.

use burn::{backend::Cube, tensor::Device};
use burn_cubecl::cubecl::{
    config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig},
    environment,
    records::RecordLevel,
};
use cubecl_environment::persistence::{namespaces, open};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

/// The version of what is kept: the library's own, and ours of the kernels in this crate.
const VERSION: &str = "cubecl 0.11.3, kernels 1\n";
const VERSION_FILE: &str = "version";
/// The end of a database's name.
const DATABASE: &str = ".db";
/// The part of the library's namespaces that holds the tuner's choices.
const TUNED: &str = "autotune/";

/// Sets the library up before it opens a device; returns warnings. Later calls return the same.
pub(super) fn prepare() -> &'static [String] {
    static DONE: OnceLock<Vec<String>> = OnceLock::new();
    DONE.get_or_init(|| {
        let mut config = CubeClRuntimeConfig::default().override_from_env();
        config.environment.records.level = RecordLevel::Off;
        let folder = folder().ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".to_owned());
        let warnings = match folder.and_then(|folder| usable(&folder).map(|warning| (folder, warning))) {
            Ok((folder, warning)) => {
                config.environment.path = CacheConfig::Directory(folder);
                config.compilation.cache = true;
                warning.into_iter().collect()
            }
            Err(reason) => {
                config.autotune.disable_cache = true;
                config.throughput.disable_cache = true;
                vec![format!("kernels are compiled and tuned again by every run: {reason}")]
            }
        };
        CubeClRuntimeConfig::try_set(config);
        warnings
    })
}

/// The folder of the databases.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    Some(caches.or_else(|| Some(set("HOME")?.join(".cache")))?.join("spipe").join("kernels"))
}

/// Makes a folder ready; a warning if it held another version, which is removed.
///
/// # Errors
/// Why it cannot be written.
fn usable(folder: &Path) -> Result<Option<String>, String> {
    let fail = |error: io::Error| format!("`{}` cannot be written: {error}", folder.display());
    fs::create_dir_all(folder).map_err(fail)?;
    let version = folder.join(VERSION_FILE);
    let found = match fs::read_to_string(&version) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(fail)?),
    };
    let is_other = found.as_deref().is_some_and(|found| found != VERSION);
    if is_other {
        for entry in fs::read_dir(folder).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            // A database has companions, such as `.db-wal`.
            if path.file_name().is_some_and(|name| name.to_string_lossy().contains(DATABASE)) {
                fs::remove_file(&path).map_err(fail)?;
            }
        }
    }
    // Also where the version is right: a folder that can be read alone is found here.
    let new = folder.join(format!(".{VERSION_FILE}.{}.tmp", std::process::id()));
    fs::write(&new, VERSION).and_then(|()| fs::rename(&new, &version)).map_err(fail)?;
    let word = || found.as_deref().unwrap_or_default().trim().to_owned();
    Ok(is_other.then(|| {
        format!(
            "kernels are compiled and tuned again: `{}` held those of another version ({})",
            folder.display(),
            word()
        )
    }))
}

/// Chooses the database for `device`, which `library` has opened, and all devices that were opened
/// before.
pub(super) fn choose(library: &str, device: &Device) {
    static OPEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // A tensor is what the library hands out its client with.
    let tensor = burn::tensor::Tensor::<1>::from_floats([0.0], device);
    let Ok(tensor) = tensor.try_into_primitive::<Cube>() else { return };
    let identity = &tensor.client.properties().identity;
    let driver = driver(library, &identity.name).unwrap_or_else(|| identity.fingerprint.clone());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.insert(format!("{library}-{}-{driver}", identity.name)) {
        let all: Vec<String> =
            open.iter().map(|name| name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_")).collect();
        environment::activate(all.join("+"));
    }
}

/// The version of the driver of the device `name`, where the system says it.
fn driver(library: &str, name: &str) -> Option<String> {
    if library == "cuda" || name.contains("NVIDIA") {
        return kernel_module(&fs::read_to_string("/proc/driver/nvidia/version").ok()?);
    }
    vulkan_driver(name)
}

/// The version in the text of NVIDIA's kernel module.
fn kernel_module(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(feature = "wgpu")]
fn vulkan_driver(name: &str) -> Option<String> {
    use burn_cubecl::cubecl::{future::block_on, wgpu::wgpu};
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let found = adapters.iter().map(wgpu::Adapter::get_info).find(|info| info.name == name)?;
    Some(found.driver_info).filter(|text| !text.is_empty())
}

#[cfg(not(feature = "wgpu"))]
const fn vulkan_driver(_: &str) -> Option<String> {
    None
}

/// The tuner's choices: for the checksum of each question, the place of the kernel that was chosen.
pub(crate) fn choices() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for namespace in namespaces().into_iter().filter(|namespace| namespace.starts_with(TUNED)) {
        open(&namespace).scan(&mut |key, value| {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(namespace.as_bytes());
            hasher.update(key);
            all.extend(chosen(value).map(|chosen| (format!("{:08x}", hasher.finalize()), chosen)));
        });
    }
    all
}

/// The choice in an entry of the tuner.
fn chosen(entry: &[u8]) -> Option<u64> {
    let entry: ciborium::Value = ciborium::from_reader(entry).ok()?;
    let (_, chosen) = entry.as_map()?.iter().find(|(name, _)| name.as_text() == Some("fastest_index"))?;
    chosen.as_integer()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_in_the_text_of_its_module() {
        let text =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 12.3";
        assert_eq!(kernel_module(text), Some("580.159.03".into()));
        assert_eq!(kernel_module(""), None);
    }

    #[test]
    fn another_version_goes_and_is_said() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("spipe/kernels");
        assert_eq!(usable(&folder), Ok(None), "a new folder");
        fs::write(folder.join("cuda-x.db"), "kernels").unwrap();
        assert_eq!(usable(&folder), Ok(None), "the same version");
        assert!(folder.join("cuda-x.db").exists());
        fs::write(folder.join(VERSION_FILE), "cubecl 0.1\n").unwrap();
        let said = usable(&folder).unwrap().unwrap();
        assert!(said.contains("another version (cubecl 0.1)"), "{said}");
        assert!(!folder.join("cuda-x.db").exists());
        assert_eq!(usable(&folder), Ok(None));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        let said = usable(&file.join("kernels")).unwrap_err();
        assert!(said.contains("cannot be written"), "{said}");
    }
}
