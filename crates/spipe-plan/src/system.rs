//! Systems: the names of presets.

use crate::{Dealing, Knob, Preset, Sharding, preset::TABLE};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way to train or run a model on a machine that has a name. Its row in the table of presets fixes
/// some answers and leaves others to the plan.
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
    /// Answers that fit none of the others. No planner looks for such plans; files have them.
    Mixed,
}

impl System {
    /// Every system that planners look for.
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

    /// Its row in the table of presets.
    pub const fn preset(self) -> &'static Preset {
        &TABLE[self as usize]
    }

    /// Its name on the command line and in files.
    pub const fn name(self) -> &'static str {
        self.preset().name
    }

    /// Returns the name of the runtime of the framework that trains the system on a machine with `gpus`
    /// GPUs: the one that an export runs on.
    pub const fn framework(self, gpus: usize) -> &'static str {
        let [one, several] = self.preset().frameworks;
        if gpus > 1 { several } else { one }
    }

    /// Whether parameters stay on the device of their stage, and microbatches flow through the stages.
    pub const fn is_pipeline(self) -> bool {
        self.preset().order.is_pipeline() && !self.shards_parameters()
    }

    /// Whether parameters are divided among replicas.
    pub const fn shards_parameters(self) -> bool {
        matches!(self.preset().sharding, Sharding::Parameters { .. })
    }

    /// How the system's order assigns stages to devices.
    pub const fn dealing(self) -> Dealing {
        self.preset().order.dealing()
    }

    /// Whether all optimizer steps run on the host.
    pub const fn steps_on_host(self) -> bool {
        self.preset().steps_on_host
    }

    /// Whether GPUs behind one switch take turns with their offloads, as in PipeOffload. With other
    /// systems they share the switch.
    pub const fn staggers_offloads(self) -> bool {
        self.preset().in_turn
    }

    /// Whether the system also runs inference.
    pub const fn infers(self) -> bool {
        self.preset().infers
    }

    /// Whether some stages may keep their parameters on their device while others are streamed.
    pub const fn may_keep(self) -> bool {
        self.preset().may_keep
    }

    /// Whether parameters may be streamed from a drive.
    pub const fn streams_from_drives(self) -> bool {
        self.preset().may_stream
    }

    /// Whether optimizer steps use stale gradients, so that losses differ from those of plain
    /// training.
    pub const fn is_stale(self) -> bool {
        matches!(self.preset().update, crate::Update::Delayed)
    }

    /// Whether the system splits the backward into gradients of inputs and gradients of weights.
    pub const fn splits_backward(self) -> bool {
        self.preset().order.splits_backward()
    }
}

impl Knob {
    /// Whether `system` leaves the option to the plan.
    pub fn is_of(self, system: System) -> bool {
        system.preset().free.contains(&self)
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
        assert_eq!(serde_json::to_string(&System::Mixed).unwrap(), "\"mixed\"");
        assert!("mixed".parse::<System>().is_err(), "no planner looks for it");
    }
}
