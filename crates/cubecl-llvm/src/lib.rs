//! A stand-in for upstream's `cubecl-llvm`, whose build script downloads a prebuilt LLVM.
//!
//! `cubecl-cuda` depends on that crate unconditionally, but with its `cpp` feature it compiles CUDA C++ through NVRTC and
//! never calls the LLVM path. This crate has the names that `cubecl-cuda` needs to compile, and a compiler that refuses.

use cubecl_core::{Compiler, ir::nvidia::SmArch, prelude::KernelDefinition};
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::{compiler::CompilationError, kernel::BufferIOAttr};
use nvptx::ptx_version::PtxVersion;
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget { #[default] Cpu, Nvptx }
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler { pub target: LlvmTarget }
#[derive(Clone, Debug, Default)]
pub struct PlironOptions { pub arch: Option<()>, pub sm_arch: Option<SmArch>, pub ptx_version: Option<PtxVersion>, pub grid_constants: bool, pub _rest: () }
#[derive(Clone, Debug)]
pub struct NvptxModule { pub ptx: Vec<core::ffi::c_char>, pub entrypoint: String, pub ir: String, pub shared_memory_size: usize, pub io: Vec<BufferIOAttr> }
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlironArtifact { NvptxCode(NvptxModule), Never }
impl core::fmt::Display for PlironArtifact { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { f.write_str("no LLVM") } }
impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;
    fn compile(&mut self, _: KernelDefinition, _: &PlironOptions) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic { reason: "built without LLVM: use the `cpp` backend".into(), backtrace: BackTrace::capture() })
    }
    fn extension(&self) -> &'static str { "ll" }
    fn lang_tag(&self) -> &'static str { "none" }
}
pub mod nvptx { pub mod ptx_version {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)] pub struct PtxVersion(u32);
    impl PtxVersion { pub fn for_driver(_: i32) -> Option<Self> { None } }
    impl core::fmt::Display for PtxVersion { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, "ptx{}", self.0) } }
} }
pub mod shared { pub mod lowered_features {
    pub enum GpuTarget { Nvptx }
    pub fn restrict_features(_: &mut cubecl_core::ir::DeviceProperties, _: GpuTarget) {}
} }
