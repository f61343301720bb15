//! Open devices: a Burn device, and for CPU cores a thread pool of their own.

use super::{Backend, DeviceError, Executor, cores, simd};
#[cfg(feature = "cube")]
use super::{kernel_cache, launches};
use crate::{host::Tally, task_error::TaskError};
use burn::tensor::Device;
use rayon::{ThreadPool, ThreadPoolBuilder};
use spipe_base::Bytes;
use std::sync::Once;

/// An open device.
#[derive(Debug)]
pub(crate) struct DeviceContext {
    /// The Burn device of parameters, activations and gradients, without autodiff.
    pub device: Device,
    /// The pinned threads; none for a GPU.
    pool: Option<ThreadPool>,
    /// The work of these threads with memory.
    pub tallies: Vec<&'static Tally>,
    /// Whether the device has discrete memory, as GPUs do. It then computes in its storage type,
    /// while CPU cores are faster in f32.
    pub discrete_memory: bool,
    /// Whether copies to and from the device are paced.
    pub emulated: bool,
    /// Requests that could not be met.
    pub warnings: Vec<String>,
}

impl DeviceContext {
    /// Opens `executor`, whose cores have been chosen.
    pub fn open(executor: &Executor) -> Result<Self, DeviceError> {
        let cores = executor.cpu().map_or(0, |(_, cores)| cores.len().max(1));
        let tallies: Vec<_> = (0..cores).map(|_| Tally::new()).collect();
        let (device, pool, warnings) = match executor {
            Executor::Cuda { index } => (gpu("cuda", cuda(), *index)?, None, gpu_warnings()),
            Executor::Wgpu { index } => (gpu("wgpu", wgpu(), *index)?, None, gpu_warnings()),
            Executor::Cpu { backend, cores, .. } | Executor::Emulated { backend, cores, .. } => {
                keep_freed_memory();
                let (pool, warnings) = pinned_pool(executor, cores, &tallies)?;
                (cpu(*backend), Some(pool), warnings)
            }
        };
        tracing::debug!(%executor, "opened");
        let discrete_memory = matches!(executor, Executor::Cuda { .. } | Executor::Wgpu { .. });
        Ok(Self { device, pool, tallies, discrete_memory, emulated: executor.is_emulated(), warnings })
    }

    /// Bytes of its own memory that its allocator has reserved; none for CPU cores.
    pub fn reserved(&self) -> Option<Bytes> {
        let usage = if self.discrete_memory { self.device.memory_pool_usage() } else { None };
        usage.map(|usage| Bytes::new(usage.bytes_reserved))
    }

    /// Whether layers use this crate's kernels on the device.
    pub fn has_kernels(&self) -> bool {
        self.pool.is_some() && simd::has_fma()
    }

    /// Runs `work` on the device's own cores; on this thread if it has none.
    pub fn on_cores<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Number of the device's own cores; none for a GPU.
    pub fn cores(&self) -> Option<usize> {
        self.pool.as_ref().map(ThreadPool::current_num_threads)
    }

    /// Runs `work` on the device's own cores, and waits until the device has finished it.
    pub fn compute<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TaskError> {
        let result = self.on_cores(work);
        self.device.sync().map_err(TaskError::device)?;
        Ok(result)
    }
}

fn cpu(backend: Backend) -> Device {
    match backend {
        Backend::Ndarray => {
            keep_matrix_products_on_their_thread();
            cores()
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Option<Vec<Device>> {
    kernel_cache::prepare();
    Some(Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect())
}

/// None if not compiled in.
#[cfg(not(feature = "cuda"))]
const fn cuda() -> Option<Vec<Device>> {
    None
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Option<Vec<Device>> {
    kernel_cache::prepare();
    Some(Device::enumerate(burn::tensor::DeviceType::Wgpu).into_iter().collect())
}

/// None if not compiled in.
#[cfg(not(feature = "wgpu"))]
const fn wgpu() -> Option<Vec<Device>> {
    None
}

/// Device `index` of those that `library` finds, if the library is compiled in.
fn gpu(library: &str, found: Option<Vec<Device>>, index: u32) -> Result<Device, DeviceError> {
    let refuse = |reason, hint: &str| DeviceError { device: format!("{library}:{index}"), reason, hint: hint.into() };
    let Some(mut found) = found else {
        let hint = format!("build with `--features {library}`, or bind the program's device to `emulated:0`");
        return Err(refuse(format!("{library} is not compiled in"), &hint));
    };
    let (index, count) = (index as usize, found.len());
    if index < count {
        let device = found.swap_remove(index);
        #[cfg(feature = "cube")]
        {
            kernel_cache::choose(library, &device);
            launches::observe();
        }
        Ok(device)
    } else {
        let hint = "bind the program's device to `emulated:0` or `cpu:0`";
        Err(refuse(format!("{count} devices of {library} are there"), hint))
    }
}

/// Requests of every GPU that could not be met.
#[cfg(feature = "cube")]
fn gpu_warnings() -> Vec<String> {
    kernel_cache::prepare().to_vec()
}

/// Without GPUs, there are none.
#[cfg(not(feature = "cube"))]
const fn gpu_warnings() -> Vec<String> {
    Vec::new()
}

fn pinned_pool(
    executor: &Executor,
    cores: &[usize],
    tallies: &[&'static Tally],
) -> Result<(ThreadPool, Vec<String>), DeviceError> {
    let known = core_affinity::get_core_ids().unwrap_or_default();
    let missing: Vec<usize> =
        cores.iter().copied().filter(|core| !known.iter().any(|known| known.id == *core)).collect();
    let mut warnings = Vec::new();
    if !missing.is_empty() {
        warnings.push(format!("`{executor}` cannot be bound to cores {missing:?}: this process may not use them"));
    }
    let wanted = cores.to_vec();
    let name = executor.to_string();
    let (begin, end) = (tallies.to_vec(), tallies.to_vec());
    let pool = ThreadPoolBuilder::new()
        .num_threads(tallies.len())
        .thread_name(move |index| format!("{name} #{index}"))
        .exit_handler(move |index| end[index].end())
        .start_handler(move |index| {
            begin[index].begin();
            let id = wanted.get(index).and_then(|core| known.iter().find(|known| known.id == *core));
            if let Some(id) = id {
                // If the system refuses, the thread still runs, only less evenly.
                let _ = core_affinity::set_for_current(*id);
            }
        })
        .build()
        .map_err(|error| DeviceError {
            device: executor.to_string(),
            reason: error.to_string(),
            hint: "name fewer cores".into(),
        })?;
    Ok((pool, warnings))
}

/// The matrix products of `burn-ndarray` have one thread pool for the whole process. Its size is
/// this variable, or else the number of cores, which would let every device use every core.
fn keep_matrix_products_on_their_thread() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("MATMUL_NUM_THREADS").is_none() {
            // SAFETY: Rust's own readers and writers of the environment share a lock. Only C code
            // could read it in another thread at this moment; this runs once, before the devices of
            // a run have any threads.
            #[expect(unsafe_code, reason = "the library has no other switch")]
            unsafe {
                std::env::set_var("MATMUL_NUM_THREADS", "1");
            }
        }
    });
}

/// Makes the C library's allocator keep freed memory, in one heap for all threads. By default it returns every
/// large block to the system, and the next tensor of that size is mapped and cleared page by page; with a heap for
/// each thread, memory that one thread has freed is mapped anew for another. Measured on two cores, with four
/// blocks of 50 M parameters in bf16: a step of ZeRO-Offload takes 5.3 s in place of 10.1 s, 25,000 page faults in
/// place of 1.1 million, and 0.4 GB less of memory.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Blocks that are mapped by themselves; heaps; the free memory kept at the end of a heap; the growth of
            // a heap.
            for (what, value) in [
                (libc::M_MMAP_MAX, 0),
                (libc::M_ARENA_MAX, 1),
                (libc::M_TRIM_THRESHOLD, 1 << 30),
                (libc::M_TOP_PAD, 64 << 20),
            ] {
                // SAFETY: only numbers go in; a value that is refused changes nothing.
                #[expect(unsafe_code, reason = "a call of the C library")]
                unsafe {
                    libc::mallopt(what, value);
                }
            }
        });
    }
}

/// Executors that a binding can name here, as `KIND:INDEX` or `KIND:INDEX:BACKEND`: those of the
/// compiled-in backends and, for GPUs, of the devices found now.
pub fn available() -> Vec<Executor> {
    let cpu = Backend::ALL.into_iter().flat_map(|backend| {
        [
            Executor::Cpu { index: 0, backend, cores: Vec::new() },
            Executor::Emulated { index: 0, backend, cores: Vec::new() },
        ]
    });
    let count = |found: Option<Vec<Device>>| 0..found.map_or(0, |found| found.len()) as u32;
    let cuda = count(cuda()).map(|index| Executor::Cuda { index });
    let wgpu = count(wgpu()).map(|index| Executor::Wgpu { index });
    cuda.chain(wgpu).chain(cpu).collect()
}

/// Chooses cores for executors that name none. Executor `i` gets `wanted[i]` cores while they last;
/// executors without a wish share the rest evenly. Each gets at least one core, a shared one if
/// there are too few.
pub fn assign_cores(executors: &mut [Executor], wanted: &[Option<usize>]) {
    let cores = core_affinity::get_core_ids().map(|ids| ids.iter().map(|id| id.id).collect()).unwrap_or_default();
    assign_from(cores, executors, wanted);
}

fn assign_from(all: Vec<usize>, executors: &mut [Executor], wanted: &[Option<usize>]) {
    let named: Vec<usize> = executors.iter().filter_map(Executor::cpu).flat_map(|(_, cores)| cores.to_vec()).collect();
    let all = if all.is_empty() { vec![0] } else { all };
    let mut free: Vec<usize> = all.iter().copied().filter(|core| !named.contains(core)).collect();
    let open: Vec<usize> = (0..executors.len())
        .filter(|index| executors[*index].cpu().is_some_and(|(_, cores)| cores.is_empty()))
        .collect();
    for (position, index) in open.iter().enumerate() {
        let after = open.len() - position - 1;
        let even = free.len().div_ceil(after + 1);
        let most = free.len().saturating_sub(after).max(1);
        let count = wanted.get(*index).copied().flatten().unwrap_or(even).clamp(1, most);
        let chosen: Vec<usize> = if free.is_empty() {
            vec![all[position % all.len()]]
        } else {
            free.drain(..count.min(free.len())).collect()
        };
        executors[*index] = executors[*index].on_cores(chosen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(all: usize, texts: &[&str], wanted: &[Option<usize>]) -> Vec<Vec<usize>> {
        let mut executors: Vec<Executor> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assign_from((0..all).collect(), &mut executors, wanted);
        executors.iter().map(|executor| executor.cpu().map(|(_, cores)| cores.to_vec()).unwrap_or_default()).collect()
    }

    #[test]
    fn cores_are_shared_out() {
        assert_eq!(cores(4, &["emulated:0", "cpu:0"], &[]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(cores(4, &["emulated:0", "cpu:0"], &[Some(3), Some(4)]), [vec![0, 1, 2], vec![3]]);
        assert_eq!(cores(4, &["emulated:0@1", "cpu:0"], &[]), [vec![1], vec![0, 2, 3]]);
        assert_eq!(cores(1, &["emulated:0", "cpu:0", "cuda:0"], &[]), [vec![0], vec![0], vec![]]);
    }

    #[test]
    fn work_runs_on_the_devices_own_threads() {
        let mut executors = ["cpu:0".parse::<Executor>().unwrap()];
        assign_cores(&mut executors, &[Some(1)]);
        let context = DeviceContext::open(&executors[0]).unwrap();
        let threads = context.compute(rayon::current_num_threads).unwrap();
        assert_eq!(threads, 1);
    }
}
