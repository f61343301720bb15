//! The shipped machine that suits a wanted.

use crate::names::plain;
use spipe_base::Bytes;
use spipe_hardware::Hardware;
use spipe_model::Model;

/// The model where none is given: small enough for a first look.
pub const DEFAULT_MODEL: &str = "gpt2-xl";
/// The machine where none is given.
const DEFAULT_MACHINE: &str = "rtx4090-pcie4-128gb";
/// Bytes of training state per parameter, with a third more for activations and reserved memory.
const STATE: f64 = 16.0 * 1.3;

/// The machine of a wanted.
#[derive(Default)]
pub struct Wanted {
    /// A shipped machine or a path.
    pub hardware: Option<String>,
    /// A GPU, in lower case without separators.
    pub gpu: Option<String>,
    /// The number of GPUs.
    pub gpus: Option<usize>,
    /// The memory of a GPU.
    pub vram: Option<Bytes>,
    /// The memory of the host.
    pub ram: Option<Bytes>,
}

/// A shipped machine.
struct Machine {
    name: String,
    gpus: usize,
    /// The memory of one GPU.
    vram: Bytes,
    /// The DRAM of all sockets.
    dram: Bytes,
    /// All of it.
    memory: Bytes,
}

fn shipped() -> Vec<Machine> {
    let read = |(name, toml): &(&str, &'static str)| {
        let hardware = Hardware::from_toml(name, toml).ok()?;
        let gpus = hardware.devices().iter().filter(|device| device.is_gpu());
        let sizes: Vec<Bytes> = gpus.map(|gpu| hardware.memories()[gpu.memory].capacity).collect();
        let sockets = hardware.devices().iter().filter(|device| !device.is_gpu());
        let dram: Bytes = sockets.map(|socket| hardware.memories()[socket.memory].capacity).sum();
        let vram = sizes.iter().copied().max().unwrap_or_default();
        let memory = dram + sizes.iter().copied().sum();
        Some(Machine { name: (*name).into(), gpus: sizes.len(), vram, dram, memory })
    };
    spipe_hardware::shipped().iter().filter_map(read).collect()
}

/// The number of GPUs of a shipped machine.
pub fn gpus(name: &str) -> usize {
    shipped().iter().find(|machine| machine.name == name).map_or(0, |machine| machine.gpus)
}

/// The machine that was named, or the shipped one that suits the wish best: of those with the GPU, the
/// number of GPUs, and the memories, the smallest that holds the training state.
pub fn choose(wanted: &Wanted, model: Option<&Model>) -> String {
    let all = shipped();
    if let Some(name) = &wanted.hardware {
        let small = |machine: &Machine| machine.name == *name && wanted.gpus.is_some_and(|gpus| machine.gpus < gpus);
        if !all.iter().any(small) {
            return name.clone();
        }
    }
    let state = model.map_or(0.0, |model| model.parameters() as f64 * STATE);
    let misses = |machine: &Machine| {
        let size = |wanted: Option<Bytes>, has: Bytes| wanted.is_some_and(|wanted| off(wanted, has) > 0.35);
        let gpu = wanted.gpu.as_ref().is_some_and(|gpu| !plain(&machine.name).contains(gpu.as_str()));
        let gpus = wanted.gpus.is_some_and(|gpus| machine.gpus < gpus);
        let small = machine.memory.as_f64() < state;
        [small, gpus, gpu, size(wanted.vram, machine.vram), size(wanted.ram, machine.dram)]
    };
    let open = wanted.hardware.is_none()
        && wanted.gpu.is_none()
        && wanted.gpus.is_none()
        && wanted.vram.is_none()
        && wanted.ram.is_none();
    let default =
        all.iter().find(|machine| machine.name == DEFAULT_MACHINE && open && machine.memory.as_f64() >= state);
    let best = all.iter().min_by_key(|machine| {
        let missed = misses(machine);
        (missed.into_iter().filter(|miss| *miss).count(), missed, machine.gpus, machine.memory)
    });
    default.or(best).map_or_else(|| DEFAULT_MACHINE.into(), |machine| machine.name.clone())
}

/// The devices of a machine that has more GPUs than were asked for.
pub fn some_gpus(wanted: &Wanted, name: &str) -> Option<String> {
    let count = wanted.gpus.filter(|gpus| *gpus > 0)?;
    let toml = spipe_hardware::shipped().iter().find(|(shipped, _)| *shipped == name)?.1;
    let hardware = Hardware::from_toml(name, toml).ok()?;
    let (gpus, sockets): (Vec<_>, Vec<_>) = hardware.devices().iter().partition(|device| device.is_gpu());
    let names = gpus.iter().take(count).chain(&sockets).map(|device| device.name.as_str());
    (gpus.len() > count).then(|| names.collect::<Vec<_>>().join(","))
}

/// The relative difference of two sizes.
fn off(wanted: Bytes, has: Bytes) -> f64 {
    (wanted.as_f64() - has.as_f64()).abs() / wanted.as_f64().max(1.0)
}
