//! Systems and families.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way to train or run a model on a machine. It fixes the order in which devices compute, and the
/// data that moves between memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// All forwards, then all backwards (Huang et al., GPipe, 2019).
    Gpipe,
    /// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021).
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B over GPU and CPU stages, where a CPU stage and those before it run more warm-up
    /// forwards.
    Hybrid,
    /// 1F1B with several stages per device, assigned round-robin (Narayanan et al., Megatron-LM,
    /// 2021).
    #[serde(rename = "interleaved-1f1b")]
    Interleaved,
    /// Split backwards at the memory of 1F1B (Qi et al., Zero Bubble, 2024).
    ZbH1,
    /// Split backwards at about twice the memory of 1F1B.
    ZbH2,
    /// The automatic schedule of Zero Bubble at the memory of 1F1B.
    #[serde(rename = "zb-1p")]
    Zb1p,
    /// The automatic schedule of Zero Bubble at twice the memory of 1F1B.
    #[serde(rename = "zb-2p")]
    Zb2p,
    /// Two stages per device in the shape of a V (Qi et al., controllable memory, 2024).
    ZbV,
    /// A V at about half the memory of 1F1B.
    VHalf,
    /// A V at about a third of the memory of 1F1B.
    VMin,
    /// Generalised interleaved schedule (Wan et al., PipeOffload, 2025).
    Gis,
    /// The generalised interleaved schedule at about half the activation memory.
    GisH,
    /// The building block of `gis-h` with half of the chunks' activations offloaded to the host.
    PoH,
    /// The building block of `gis-h` with the activations of all chunks offloaded to the host.
    PoF,
    /// Stages streamed from DRAM, separate stages for forward and backward, optimizer steps on the
    /// CPU during the backward (Ryu et al., SPipe, 2025).
    Spipe,
    /// Stages streamed from DRAM, optimizer on the CPU after the backward (Feng et al., Mobius,
    /// 2023).
    Mobius,
    /// k resident layers on one GPU, exchanged k′ at a time (Abbasi, Lim, Superpipeline, 2024).
    /// Here it also runs on several GPUs in turn, and some layers may stay on their GPU.
    Superpipeline,
    /// Superpipeline without overlap: load, run, swap.
    NaiveSwap,
    /// Gradients out, optimizer on the CPU, parameters on the GPU (Ren et al., ZeRO-Offload, 2021).
    ZeroOffload,
    /// ZeRO-Offload with the optimizer one iteration behind.
    ZeroOffloadDelayed,
    /// Parameters sharded over GPUs and streamed from DRAM (Rajbhandari et al., ZeRO-Infinity,
    /// 2021).
    ZeroInfinity,
    /// Everything sharded over GPUs, gathered before use (Zhao et al., FSDP, 2023).
    Fsdp,
    /// Only the inputs of layers are saved for the backward (Chen et al., sublinear memory, 2016).
    Checkpointing,
    /// Everything on GPUs.
    GpuOnly,
    /// Everything on CPU sockets.
    CpuOnly,
}

/// A group of systems with the same way of moving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Parameters stay on the device of their stage, and microbatches flow through the stages.
    Pipeline,
    /// Parameters are streamed from the host; a device runs all microbatches of a stage before its
    /// next stage.
    Streamed,
    /// Every device runs all layers on its own microbatches; parameters are sharded and gathered
    /// from all devices.
    Sharded,
}

/// How stages are assigned to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// One run of consecutive stages per device.
    Single,
    /// Stage s on device s mod p.
    RoundRobin,
    /// Two stages per device, down the devices and up again: stages s and 2p − 1 − s share a
    /// device.
    Vee,
}

impl System {
    /// Returns the name of the runtime that executes the system on GPUs, if it is a framework's: the
    /// others leave choices to the plan that only the runtime `spipe` executes.
    pub const fn framework(self) -> Option<&'static str> {
        match self {
            Self::Fsdp => Some("pytorch"),
            Self::ZeroOffload | Self::ZeroOffloadDelayed | Self::ZeroInfinity => Some("deepspeed"),
            _ => None,
        }
    }

    /// Every system.
    pub const ALL: [Self; 26] = [
        Self::Gpipe,
        Self::OneForwardOneBackward,
        Self::Hybrid,
        Self::Interleaved,
        Self::ZbH1,
        Self::ZbH2,
        Self::Zb1p,
        Self::Zb2p,
        Self::ZbV,
        Self::VHalf,
        Self::VMin,
        Self::Gis,
        Self::GisH,
        Self::PoH,
        Self::PoF,
        Self::Spipe,
        Self::Mobius,
        Self::Superpipeline,
        Self::NaiveSwap,
        Self::ZeroOffload,
        Self::ZeroOffloadDelayed,
        Self::ZeroInfinity,
        Self::Fsdp,
        Self::Checkpointing,
        Self::GpuOnly,
        Self::CpuOnly,
    ];

    /// Its name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Hybrid => "hybrid",
            Self::Interleaved => "interleaved-1f1b",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::Zb1p => "zb-1p",
            Self::Zb2p => "zb-2p",
            Self::ZbV => "zb-v",
            Self::VHalf => "v-half",
            Self::VMin => "v-min",
            Self::Gis => "gis",
            Self::GisH => "gis-h",
            Self::PoH => "po-h",
            Self::PoF => "po-f",
            Self::Spipe => "spipe",
            Self::Mobius => "mobius",
            Self::Superpipeline => "superpipeline",
            Self::NaiveSwap => "naive-swap",
            Self::ZeroOffload => "zero-offload",
            Self::ZeroOffloadDelayed => "zero-offload-delayed",
            Self::ZeroInfinity => "zero-infinity",
            Self::Fsdp => "fsdp",
            Self::Checkpointing => "checkpointing",
            Self::GpuOnly => "gpu-only",
            Self::CpuOnly => "cpu-only",
        }
    }

    /// The family of the system.
    pub const fn family(self) -> Family {
        match self {
            Self::Spipe | Self::Mobius | Self::Superpipeline | Self::NaiveSwap => Family::Streamed,
            Self::ZeroInfinity | Self::Fsdp => Family::Sharded,
            _ => Family::Pipeline,
        }
    }

    /// How the system assigns stages to devices.
    pub const fn dealing(self) -> Dealing {
        match self {
            Self::Interleaved | Self::Gis | Self::GisH | Self::PoH | Self::PoF => Dealing::RoundRobin,
            Self::ZbV | Self::VHalf | Self::VMin => Dealing::Vee,
            _ => Dealing::Single,
        }
    }

    /// Whether all optimizer steps run on the host.
    pub const fn steps_on_host(self) -> bool {
        matches!(self, Self::ZeroOffload | Self::ZeroOffloadDelayed)
    }

    /// Whether GPUs behind one switch take turns with their offloads, as in PipeOffload. With other
    /// systems they share the switch.
    pub const fn staggers_offloads(self) -> bool {
        matches!(self, Self::Gis | Self::GisH | Self::PoH | Self::PoF)
    }

    /// Whether the system also runs inference.
    pub const fn infers(self) -> bool {
        matches!(
            self,
            Self::Gpipe
                | Self::OneForwardOneBackward
                | Self::Hybrid
                | Self::Mobius
                | Self::Superpipeline
                | Self::NaiveSwap
                | Self::ZeroInfinity
                | Self::Fsdp
                | Self::GpuOnly
                | Self::CpuOnly
        )
    }

    /// Whether some stages may keep their parameters on their device while others are streamed.
    pub const fn may_keep(self) -> bool {
        matches!(self, Self::Mobius | Self::Superpipeline)
    }

    /// Whether parameters may be streamed from a drive.
    pub const fn streams_from_drives(self) -> bool {
        matches!(self.family(), Family::Streamed) || matches!(self, Self::ZeroInfinity)
    }

    /// Whether optimizer steps use stale gradients, so that losses differ from those of plain
    /// training.
    pub const fn is_stale(self) -> bool {
        matches!(self, Self::ZeroOffloadDelayed)
    }

    /// Whether the system splits the backward into gradients of inputs and gradients of weights.
    pub const fn splits_backward(self) -> bool {
        matches!(
            self,
            Self::ZbH1
                | Self::ZbH2
                | Self::Zb1p
                | Self::Zb2p
                | Self::ZbV
                | Self::VHalf
                | Self::VMin
                | Self::Gis
                | Self::GisH
                | Self::PoH
                | Self::PoF
        )
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|system| system.name() == word)
            .ok_or_else(|| format!("`{word}` is no system (known: {})", Self::ALL.map(Self::name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for system in System::ALL {
            assert_eq!(serde_json::to_string(&system).unwrap(), format!("\"{system}\""));
            assert_eq!(system.name().parse(), Ok(system));
        }
    }
}
