//! The formats in which parameters, gradients and states are stored.

use crate::words::words;
use serde::{Deserialize, Serialize};
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
    /// The formats of plain mixed precision.
    pub const PLAIN: Self =
        Self { base: None, state: None, gradients: None, master: None, optimizer_in_backward: false };

    /// Whether all formats are those of plain mixed precision.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

words!(StateFormat: "f32" => Self::F32, "bf16" => Self::Bf16, "8bit" => Self::EightBit);
words!(GradientFormat: "f32" => Self::F32, "bf16" => Self::Bf16);
words!(Master: "f32" => Self::F32, "none" => Self::None);
