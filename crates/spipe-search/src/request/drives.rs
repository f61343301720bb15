//! The drives that a request names.

use crate::error::SearchError;
use spipe_base::MemoryId;
use spipe_hardware::{Hardware, MemoryKind};
use spipe_plan::System;

/// The drives that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveFor {
    /// The drive for all parameters that are streamed; without it, they are in DRAM.
    pub parameters: Option<MemoryId>,
    /// The drive for all state that hosts step; without it, drives hold what DRAM does not.
    pub state: Option<MemoryId>,
    /// The drive for all activations that GPUs offload; without it, they are in DRAM.
    pub activations: Option<MemoryId>,
}

impl DriveFor {
    /// Whether a system may use the drives that are named: parameters are streamed, and pipelines offload
    /// activations.
    pub const fn suits(self, system: System) -> bool {
        (self.parameters.is_none() || system.streams_from_drives())
            && (self.activations.is_none() || system.is_pipeline())
    }

    /// Whether none is named.
    pub const fn is_none(self) -> bool {
        self.parameters.is_none() && self.state.is_none() && self.activations.is_none()
    }

    /// The drive of this name.
    ///
    /// # Errors
    /// The machine has no such drive.
    pub fn named(hardware: &Hardware, name: &str) -> Result<MemoryId, SearchError> {
        let is_drive = |id: &MemoryId| hardware.memories()[*id].kind == MemoryKind::Nvme;
        hardware.memory(name).filter(is_drive).ok_or_else(|| {
            let all = hardware.memories().iter().filter(|memory| memory.kind == MemoryKind::Nvme);
            let names: Vec<&str> = all.map(|memory| memory.name.as_str()).collect();
            let hint = match names.as_slice() {
                [] => "it has none: add `[[nvme]]` and its link to the hardware file".to_owned(),
                names => format!("its drives are {}", names.join(", ")),
            };
            SearchError::request(format!("`{}` has no drive `{name}`", hardware.name()), hint)
        })
    }
}
