//! The formats in which parameters, gradients and states are stored.

use crate::{Mode, Optimizer, Workload};
use serde::{Deserialize, Serialize};
use spipe_base::{Diagnostic, Faults};
use spipe_model::Model;
use std::{fmt, str::FromStr};

mod base;

pub use base::{Base, BaseFormat};

/// The format of optimizer states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StateFormat {
    /// 32 bits.
    F32,
    /// 16 bits.
    Bf16,
    /// 8 bits, with a 32-bit constant per block of 256.
    #[serde(rename = "8bit")]
    EightBit,
}

/// The format of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GradientFormat {
    /// 32 bits.
    F32,
    /// 16 bits.
    Bf16,
}

/// The master copy of parameters that are stored in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Master {
    /// A copy in 32 bits.
    F32,
    /// None: the optimizer updates the parameters themselves.
    None,
}

/// The formats that differ from those of plain mixed precision: parameters and gradients in the
/// workload's precision, states of 32 bits, a master copy of 32 bits if parameters are narrower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Formats {
    /// The storage of the matrices of frozen blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The optimizer's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFormat>,
    /// Gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<GradientFormat>,
    /// The master copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<Master>,
    /// Whether each layer is updated within the backward, so that only its own gradients exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optimizer_in_backward: bool,
}

impl GradientFormat {
    /// Returns the bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl Formats {
    /// Those of plain mixed precision.
    pub const PLAIN: Self =
        Self { base: None, state: None, gradients: None, master: None, optimizer_in_backward: false };

    /// Whether all formats are those of plain mixed precision.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the format of the optimizer's state.
    pub fn state_of(&self, optimizer: Optimizer) -> StateFormat {
        self.state.or(optimizer.state_formats().first().copied()).unwrap_or(StateFormat::F32)
    }
}

/// Checks that `workload` can train `model`: that something is trained, that the trained part is not
/// stored in a quantised format, and that the optimizer has its formats.
///
/// # Errors
/// Every condition that does not hold.
pub fn check_training(model: &Model, workload: &Workload) -> Result<(), Faults> {
    let (mut faults, formats, optimizer) = (Faults::new(), &workload.formats, workload.optimizer);
    if workload.mode != Mode::Train {
        return Ok(());
    }
    if model.trained_parameters() == 0 {
        let message = format!("all layers of `{}` are frozen: there is nothing to train", model.name());
        faults
            .push(Diagnostic::error(message).hint("leave a layer unfrozen, add `--lora`, or plan with `--mode infer`"));
    }
    if let Some(base) = formats.base.filter(|base| base.is_quantised())
        && let Some(layer) = model.layers().iter().find(|layer| layer.trains && !layer.quantised().is_empty())
    {
        let message = format!("layer `{}` is to be trained, but its matrices are stored as {base}", layer.name);
        let hint = "a quantised base is frozen: add `--lora rank=16`, or freeze the blocks with `--freeze`";
        faults.push(Diagnostic::error(message).hint(hint));
    }
    if let Some(state) = formats.state.filter(|state| !optimizer.state_formats().contains(state)) {
        faults.push(no_such_state(optimizer, state));
    }
    if formats.optimizer_in_backward {
        if workload.microbatches > 1 {
            let message = format!(
                "an optimizer in the backward sees the gradients of one microbatch, but an iteration has {}",
                workload.microbatches
            );
            faults.push(Diagnostic::error(message).hint("give `--microbatch` the global batch"));
        }
        if workload.checks_gradients() {
            let message = "an optimizer in the backward cannot wait for all gradients";
            faults.push(Diagnostic::error(message).hint("leave `--clip-norm` out, and plan with `--precision bf16`"));
        }
    }
    faults.or(())
}

fn no_such_state(optimizer: Optimizer, state: StateFormat) -> Diagnostic {
    let formats = optimizer.state_formats();
    let message = format!("the optimizer `{}` has no state of format `{state}`", optimizer.name());
    let words: Vec<String> = formats.iter().map(|format| format!("`{format}`")).collect();
    let other = Optimizer::ALL.into_iter().find(|other| {
        let name = optimizer.name();
        other.name().starts_with(name) && *other != optimizer && other.state_formats().contains(&state)
    });
    Diagnostic::error(message).hint(match (other, words.as_slice()) {
        (Some(other), _) => format!("use `--optimizer {}`", other.name()),
        (None, []) => "it keeps none; leave `--state` out".into(),
        (None, words) => format!("it has {}", words.join(", ")),
    })
}

macro_rules! words {
    ($name:ident: $($word:literal => $value:expr),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if *self == $value { return f.pad($word); })+
                Ok(())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                $(if word == $word { return Ok($value); })+
                Err(format!("unknown word `{word}` (known: {})", [$($word),+].join(", ")))
            }
        }
    };
}

words!(StateFormat: "f32" => Self::F32, "bf16" => Self::Bf16, "8bit" => Self::EightBit);
words!(GradientFormat: "f32" => Self::F32, "bf16" => Self::Bf16);
words!(Master: "f32" => Self::F32, "none" => Self::None);
