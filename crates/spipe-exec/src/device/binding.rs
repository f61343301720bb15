//! Bindings: the executor of each device of a program.

use spipe_base::{Diagnostic, Faults};
use std::{fmt, str::FromStr};

/// A device of the program, and what executes it.
///
/// Its text is `DEVICE=KIND:INDEX`, for CPU cores with a backend and a set of cores if they are not
/// to be chosen:
///
/// ```
/// use spipe_exec::{Backend, Binding, Executor};
///
/// let binding: Binding = "gpu0=emulated:0:ndarray@0..1,4".parse()?;
/// assert_eq!(binding.executor, Executor::Emulated { index: 0, backend: Backend::Ndarray, cores: vec![0, 1, 4] });
/// assert_eq!(binding.to_string(), "gpu0=emulated:0:ndarray@0..1,4");
/// assert!("gpu0=tpu:0".parse::<Binding>().is_err());
/// # Ok::<(), spipe_base::Faults>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its name in the program, `gpu0`.
    pub device: String,
    /// The executor.
    pub executor: Executor,
}

/// A device of this machine that computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executor {
    /// Cores of a CPU.
    Cpu {
        /// Its number among the CPU devices of a run.
        index: u32,
        /// The library that computes.
        backend: Backend,
        /// The cores by number; if empty, a share of those that no other device names.
        cores: Vec<usize>,
    },
    /// Cores that emulate an accelerator: its memory is capped, its links are paced.
    Emulated {
        /// Its number among the emulated accelerators of a run.
        index: u32,
        /// The library that computes.
        backend: Backend,
        /// The cores by number; if empty, a share of those that no other device names.
        cores: Vec<usize>,
    },
    /// A CUDA device; run on an NVIDIA H200.
    Cuda {
        /// Its number as CUDA counts.
        index: u32,
    },
    /// A Vulkan, Metal or Direct3D device, or a program that emulates one. Tested with Mesa's
    /// llvmpipe, a Vulkan device in software; untested on a GPU.
    Wgpu {
        /// Its number as wgpu counts.
        index: u32,
    },
}

/// A library that computes on CPU cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// `burn-ndarray`. It computes in f32; numbers of 16 bits are stored, and expanded where they
    /// are computed with.
    #[default]
    Ndarray,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 1] = [Self::Ndarray];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ndarray => "ndarray",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = spipe_base::UnknownWord;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == word)
            .ok_or_else(|| spipe_base::UnknownWord::new(word, "backend", &Self::ALL.map(Self::name)))
    }
}

impl Executor {
    /// Whether it emulates an accelerator.
    pub const fn is_emulated(&self) -> bool {
        matches!(self, Self::Emulated { .. })
    }

    /// The library and the cores; none for a GPU.
    pub fn cpu(&self) -> Option<(Backend, &[usize])> {
        match self {
            Self::Cpu { backend, cores, .. } | Self::Emulated { backend, cores, .. } => Some((*backend, cores)),
            Self::Cuda { .. } | Self::Wgpu { .. } => None,
        }
    }

    /// The same executor on the cores `chosen`; a GPU has none.
    pub fn on_cores(&self, chosen: Vec<usize>) -> Self {
        let mut copy = self.clone();
        if let Self::Cpu { cores, .. } | Self::Emulated { cores, .. } = &mut copy {
            *cores = chosen;
        }
        copy
    }

    /// The same executor with the backend `chosen`; a GPU has none.
    pub fn with_backend(&self, chosen: Backend) -> Self {
        let mut copy = self.clone();
        if let Self::Cpu { backend, .. } | Self::Emulated { backend, .. } = &mut copy {
            *backend = chosen;
        }
        copy
    }
}

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, index, backend, cores) = match self {
            Self::Cuda { index } => return write!(f, "cuda:{index}"),
            Self::Wgpu { index } => return write!(f, "wgpu:{index}"),
            Self::Cpu { index, backend, cores } => ("cpu", index, backend, cores),
            Self::Emulated { index, backend, cores } => ("emulated", index, backend, cores),
        };
        write!(f, "{kind}:{index}:{backend}")?;
        if cores.is_empty() { Ok(()) } else { write!(f, "@{}", write_cores(cores)) }
    }
}

impl FromStr for Executor {
    type Err = Faults;

    fn from_str(text: &str) -> Result<Self, Faults> {
        let fault = |message: String| {
            Faults::from(
                Diagnostic::error(message)
                    .hint("write cpu:0, emulated:0, cuda:0, or with backend and cores cpu:0:ndarray@0..3"),
            )
        };
        let (head, cores) = match text.split_once('@') {
            Some((head, cores)) => {
                let cores = parse_cores(cores).ok_or_else(|| fault(format!("`{cores}` is not a list of cores")))?;
                (head, cores)
            }
            None => (text, Vec::new()),
        };
        let words: Vec<&str> = head.split(':').collect();
        let (kind, index, backend) = match words[..] {
            [kind, index] => (kind, index, Backend::default()),
            [kind, index, backend] => (kind, index, backend.parse().map_err(|error| fault(format!("{error}")))?),
            _ => return Err(fault(format!("`{text}` names no executor"))),
        };
        let index = index.parse().map_err(|_| fault(format!("`{index}` is not a number of a device")))?;
        match kind {
            "cpu" => Ok(Self::Cpu { index, backend, cores }),
            "emulated" => Ok(Self::Emulated { index, backend, cores }),
            "cuda" | "wgpu" if words.len() != 2 || !cores.is_empty() => {
                Err(fault(format!("a device of `{kind}` has neither backend nor cores to choose")))
            }
            "cuda" => Ok(Self::Cuda { index }),
            "wgpu" => Ok(Self::Wgpu { index }),
            _ => Err(fault(format!("`{kind}` is no kind of executor (known: cpu, emulated, cuda, wgpu)"))),
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.device, self.executor)
    }
}

impl FromStr for Binding {
    type Err = Faults;

    fn from_str(text: &str) -> Result<Self, Faults> {
        let Some((device, executor)) = text.split_once('=').filter(|(device, _)| !device.is_empty()) else {
            return Err(Diagnostic::error(format!("`{text}` binds nothing")).hint("write gpu0=emulated:0").into());
        };
        Ok(Self { device: device.into(), executor: executor.parse()? })
    }
}

/// Parses `0..1,4`, both ends of a range included.
fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                // No machine has more cores; a larger number is a typing error.
                if first > last || last > 4096 {
                    return None;
                }
                cores.extend(first..=last);
            }
            None => cores.push(part.parse().ok()?),
        }
    }
    Some(cores)
}

fn write_cores(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|before, after| before + 1 == *after);
    let words = runs.map(|run| match run {
        [only] => only.to_string(),
        _ => format!("{}..{}", run[0], run[run.len() - 1]),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["gpu0=emulated:0:ndarray@0..3,7", "cpu0=cpu:1:ndarray", "gpu1=cuda:2", "gpu0=wgpu:0"] {
            assert_eq!(text.parse::<Binding>().map(|binding| binding.to_string()), Ok(text.into()));
        }
        assert_eq!("a=cpu:0".parse::<Binding>().unwrap().to_string(), "a=cpu:0:ndarray");
    }

    #[test]
    fn refusals_name_the_word() {
        let message = |text: &str| text.parse::<Binding>().unwrap_err().to_string();
        assert!(message("gpu0").starts_with("error: `gpu0` binds nothing\nhint: "));
        assert!(message("gpu0=tpu:0").contains("`tpu` is no kind of executor"));
        assert!(message("gpu0=cpu:0:torch").contains("unknown backend `torch` (known: ndarray)"));
        assert!(message("gpu0=cpu:0@3..1").contains("`3..1` is not a list of cores"));
        assert!(message("gpu0=cuda:0@1").contains("neither backend nor cores"));
    }
}
