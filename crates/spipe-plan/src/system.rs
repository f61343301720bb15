//! The systems that a plan can name.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way to train (or run) a model on a machine: in which order devices compute, and what moves between memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// All forwards, then all backwards (Huang et al., GPipe, 2019).
    Gpipe,
    /// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021).
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B over GPU and CPU stages, where a CPU stage and those before it run more warm-up forwards.
    Hybrid,
    /// 1F1B with several stages per device, dealt out in turn (Narayanan et al., Megatron-LM, 2021).
    #[serde(rename = "interleaved-1f1b")]
    Interleaved,
    /// Backwards split in two, at the memory of 1F1B (Qi et al., Zero Bubble, 2024).
    ZbH1,
    /// The same at about twice that memory.
    ZbH2,
    /// The automatic schedule of Zero Bubble at the memory of 1F1B.
    #[serde(rename = "zb-1p")]
    Zb1p,
    /// The same at twice that memory.
    #[serde(rename = "zb-2p")]
    Zb2p,
    /// Two stages per device in the shape of a V (Qi et al., controllable memory, 2024).
    ZbV,
    /// The same at about half the memory of 1F1B.
    VHalf,
    /// The same at about a third of it.
    VMin,
    /// Generalised interleaved schedule (Wan et al., PipeOffload, 2025).
    Gis,
    /// The same at about half the activation memory.
    GisH,
    /// Its building block with half of the chunks' activations offloaded to the host.
    PoH,
    /// The same with all of them offloaded.
    PoF,
    /// Stages swapped in from DRAM, forward and backward assigned apart from each other, optimizer steps on the CPU while the
    /// backward goes on (Ryu et al., SPipe, 2025).
    Spipe,
    /// Stages swapped in from DRAM, optimizer on the CPU after the backward (Feng et al., Mobius, 2023).
    Mobius,
    /// k layers on one GPU, of which k′ are exchanged at a time (Abbasi, Lim, Superpipeline, 2024); here also on several GPUs in turn,
    /// beside layers that stay.
    Superpipeline,
    /// The same without overlap: load, run, swap.
    NaiveSwap,
    /// Gradients out, optimizer on the CPU, parameters on the GPU (Ren et al., ZeRO-Offload, 2021).
    ZeroOffload,
    /// The same with the optimizer one step behind.
    ZeroOffloadDelayed,
    /// Parameters streamed from DRAM, each GPU a part (Rajbhandari et al., ZeRO-Infinity, 2021).
    ZeroInfinity,
    /// Everything sharded over GPUs, gathered when it is needed (Zhao et al., FSDP, 2023).
    Fsdp,
    /// Only the inputs of layers are kept for the backward (Chen et al., sublinear memory, 2016).
    Checkpointing,
    /// Everything on GPUs.
    GpuOnly,
    /// Everything on CPU sockets.
    CpuOnly,
}

/// What systems have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Stages keep their parameters on their device and take turns among microbatches.
    Pipeline,
    /// Parameters come from the host; a device runs all microbatches of a stage before the next stage.
    Rounds,
    /// Every device runs all layers on microbatches of its own; parameters are gathered from all.
    Sharded,
}

/// On which device each of several stages per device lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// One stage per device.
    Single,
    /// Stage s on device s mod p.
    RoundRobin,
    /// Two stages per device: down and up again, stage s of 2p where stage 2p − 1 − s is.
    Vee,
}

impl System {
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

    /// What it has in common with others.
    pub const fn family(self) -> Family {
        match self {
            Self::Spipe | Self::Mobius | Self::Superpipeline | Self::NaiveSwap => Family::Rounds,
            Self::ZeroInfinity | Self::Fsdp => Family::Sharded,
            _ => Family::Pipeline,
        }
    }

    /// How it deals stages out to devices.
    pub const fn dealing(self) -> Dealing {
        match self {
            Self::Interleaved | Self::Gis | Self::GisH | Self::PoH | Self::PoF => Dealing::RoundRobin,
            Self::ZbV | Self::VHalf | Self::VMin => Dealing::Vee,
            _ => Dealing::Single,
        }
    }

    /// Whether everything that is trained is stepped on the host.
    pub const fn steps_on_host(self) -> bool {
        matches!(self, Self::ZeroOffload | Self::ZeroOffloadDelayed)
    }

    /// Whether GPUs behind one switch take turns with what they offload, as PipeOffload's do; those of others share it.
    pub const fn staggers_offloads(self) -> bool {
        matches!(self, Self::Gis | Self::GisH | Self::PoH | Self::PoF)
    }

    /// Whether it also runs models forward only.
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

    /// Whether stages may keep their parameters on their device although others are streamed.
    pub const fn may_keep(self) -> bool {
        matches!(self, Self::Mobius | Self::Superpipeline)
    }

    /// Whether steps use gradients of parameters that are not the newest, so that losses are not those of plain training.
    pub const fn is_stale(self) -> bool {
        matches!(self, Self::ZeroOffloadDelayed)
    }

    /// Whether it splits the backward into the gradients of inputs and those of weights.
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
