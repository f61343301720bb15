//! A device that compiles what is launched to CUDA C++, keeps the source, and runs nothing.
//!
//! Properties and options are those that CubeCL's CUDA runtime finds on a device of the same
//! architecture (`cubecl-cuda`, `runtime.rs`).

use crate::cubecl::{
    bytes::Bytes,
    device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId},
    environment::stream::StreamId,
    future::DynFut,
    ir::{
        AddressType, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, TargetProperties,
        features::Plane,
    },
    profile::{ProfileDuration, TimingMethod},
};
use cubecl_cpp::{
    register_supported_types,
    shared::{CompilationOptions, CppCompiler, CppSupportedFeatures},
    target::Cuda,
};
use cubecl_server::{
    allocator::PitchedMemoryLayoutPolicy,
    client::Client,
    dry_run::LaunchMode,
    kernel::{CompiledKernel, CubeKernel, define_kernel},
    logging::ServerLogger,
    memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport},
    server::{
        BufferBinding, CopyDescriptor, CubeCount, KernelArguments, ProfileError, ProfilingToken, Server,
        ServerCommunication, ServerError, ServerStorage, ServerUtilities,
    },
    storage::{BytesResource, BytesStorage, ManagedResource},
};
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of rows, in bytes.
const ROW_ALIGNMENT: usize = 512;
/// Units that run in step.
const WARP: u32 = 32;
/// More than any of the tensors needs.
const MEMORY: u64 = 1 << 40;

/// A kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// Its name for the compiler, as CubeCL spells it.
    pub name: &'static str,
    /// Ten times the major version, and the minor version.
    pub version: u16,
    /// Its number of multiprocessors, upon which sizes of cubes depend.
    pub multiprocessors: u32,
    /// Shared memory of a cube, in bytes.
    pub shared_memory: usize,
}

/// The A100 and the H100.
pub const ARCHITECTURES: [Architecture; 2] = [
    Architecture { name: "sm_80", version: 80, multiprocessors: 108, shared_memory: 163 << 10 },
    Architecture { name: "sm_90a", version: 90, multiprocessors: 132, shared_memory: 227 << 10 },
];

/// A kernel that was launched.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The path of its function in `spipe-exec`, `nn::fused::rotary::turn`.
    pub kernel: String,
    /// Its source, or why there is none.
    pub source: Result<String, String>,
}

/// The launches, in order.
type Launches = Arc<Mutex<Vec<Launched>>>;

/// The server of such a device.
#[derive(Debug)]
struct Recorder {
    utilities: Arc<ServerUtilities>,
    options: CompilationOptions,
    launches: Launches,
}

/// All that `launch` launches on a device of an architecture.
pub fn recorded(architecture: Architecture, launch: impl FnOnce(&Client)) -> Vec<Launched> {
    let launches = Launches::default();
    let device = DeviceId::new(0, architecture.version);
    let client = Client::init(device, Recorder::new(architecture, device, launches.clone()));
    launch(&client);
    client.flush().expect("nothing runs that could fail");
    std::mem::take(&mut launches.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Recorder {
    fn new(architecture: Architecture, device: DeviceId, launches: Launches) -> Self {
        let Architecture { version, .. } = architecture;
        let supports_features = CppSupportedFeatures {
            grid_constants: true,
            clusters: version >= 90,
            fast_math: true,
            fast_tanh: true,
            elect_sync: version >= 90,
            dp4a: true,
        };
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            "cuda",
            properties(architecture),
            TargetProperties::default(),
            Arc::new(ServerLogger::default()),
            PitchedMemoryLayoutPolicy::new(ROW_ALIGNMENT),
        );
        let options = CompilationOptions { warp_size: WARP as usize, supports_features, amd_wmma: None };
        Self { utilities: Arc::new(utilities), options, launches }
    }

    fn source(&self, kernel: &dyn CubeKernel) -> Result<String, String> {
        let compiled = define_kernel(kernel).and_then(|definition| {
            CompiledKernel::compile(kernel, definition, &mut CppCompiler::<Cuda>::default(), &self.options)
        });
        compiled.map(|kernel| kernel.source).map_err(|error| error.to_string())
    }

    fn note(&self, launched: Launched) {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).push(launched);
    }
}

fn properties(architecture: Architecture) -> DeviceProperties {
    let Architecture { name, version, multiprocessors, shared_memory } = architecture;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: WARP,
        plane_size_max: WARP,
        max_bindings: 1024,
        max_shared_memory_size: shared_memory,
        max_cube_count: (i32::MAX as u32, 65_535, 65_535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(multiprocessors),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: cubecl_core::ir::VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let memory = MemoryDeviceProperties::new(MEMORY / 4, ROW_ALIGNMENT as u64).with_max_memory(MEMORY);
    let identity = DeviceIdentity { name: name.into(), fingerprint: format!("ptx_sm{version}"), physical: None };
    let mut properties = DeviceProperties::new(Default::default(), memory, hardware, TimingMethod::Device, identity);
    register_supported_types(&mut properties);
    properties.register_address_type(AddressType::U64);
    properties.features.memory_reinterpret = true;
    properties.features.alignment = true;
    properties.features.device_memory_scope = true;
    for plane in [Plane::Sync, Plane::Ops, Plane::NonUniformControlFlow] {
        properties.features.plane.insert(plane);
    }
    properties
}

/// The path of a kernel's function, from the name of its type: without crate, type and parameters.
fn path(name: &str) -> String {
    let name = name.split('<').next().unwrap_or(name);
    let path = name.rsplit_once("::").map_or(name, |(path, _)| path);
    path.split_once("::").map_or(path, |(_, path)| path).to_owned()
}

impl DeviceService for Recorder {
    fn init(_: DeviceId) -> Self {
        unreachable!("a recorder is registered before its client asks for it")
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for Recorder {}

impl Server for Recorder {
    fn initialize_memory(&mut self, _: ManagedMemoryHandle, _: u64, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(&mut self, _: Vec<CopyDescriptor>, _: StreamId) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        unreachable!("there are no numbers to read")
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {
        unreachable!("there is no memory to write to")
    }

    fn sync(&mut self, _: Vec<BufferBinding>, _: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Ok(()) })
    }

    fn check(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    #[expect(unsafe_code, reason = "the method of the trait is unsafe; this one runs no kernel")]
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        _: CubeCount,
        _: KernelArguments,
        _: StreamId,
        _: LaunchMode,
    ) {
        let source = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.source(&*kernel)));
        let source = source.unwrap_or_else(|_| Err("CubeCL's compiler has panicked".into()));
        self.note(Launched { kernel: path(kernel.name()), source });
    }

    fn flush(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _: StreamId) -> Result<ProfilingToken, ServerError> {
        unreachable!("nothing runs that could be timed")
    }

    fn end_profile(&mut self, _: StreamId, _: ProfilingToken) -> Result<ProfileDuration, ProfileError> {
        unreachable!("nothing runs that could be timed")
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

impl ServerStorage for Recorder {
    type Storage = BytesStorage;

    fn get_resource(&mut self, _: BufferBinding, _: StreamId) -> Result<ManagedResource<BytesResource>, ServerError> {
        unreachable!("there is no memory to hand out")
    }
}
