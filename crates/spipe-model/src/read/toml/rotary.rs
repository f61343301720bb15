//! The table `rotary-scaling` of model files.

use crate::{RotaryScaling, Yarn, read::check::Check};
use serde::{Deserialize, Serialize};
use spipe_base::Diagnostic;

/// A scaling of rotary positions, as in `rope_parameters` of configs of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct RotaryScalingTable {
    /// The kind of scaling.
    #[serde(rename = "type")]
    pub kind: RotaryScalingWord,
    /// The ratio of the longer text to the original one; required but with `longrope`.
    pub factor: Option<f64>,
    /// The number of positions of the pretraining; required with `dynamic`, `yarn` and `llama3`.
    pub original_places: Option<u64>,
    /// Turns within the original places below which a frequency is divided by the factor; required with
    /// `llama3`.
    pub low_frequency_factor: Option<f64>,
    /// Turns within the original places above which a frequency is kept; required with `llama3`.
    pub high_frequency_factor: Option<f64>,
    /// Turns within the original places at which the ramp starts; only with `yarn`, 32 if absent.
    pub beta_fast: Option<f64>,
    /// Turns within the original places at which the ramp ends; only with `yarn`, 1 if absent.
    pub beta_slow: Option<f64>,
    /// The factor of cosines and sines; only with `yarn`, 0.1 ln `factor` + 1 if absent.
    pub attention_factor: Option<f64>,
    /// The weight of ln `factor` in the numerator of a derived attention factor; only with `yarn` and
    /// `mscale-all-dim`.
    pub mscale: Option<f64>,
    /// The same in its denominator; only with `yarn` and `mscale`.
    pub mscale_all_dim: Option<f64>,
    /// Whether the ramp starts and ends at whole channels; only with `yarn`, `true` if absent.
    pub truncate: Option<bool>,
}

/// The kinds of scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RotaryScalingWord {
    /// Every frequency is divided by the factor.
    Linear,
    /// The base grows with the length of a sequence beyond the original places.
    Dynamic,
    /// Slow pairs of channels are divided by the factor, with a ramp over channels.
    Yarn,
    /// The same with a ramp over frequencies.
    Llama3,
    /// A divisor for each pair of channels, which the file does not have: planned only.
    Longrope,
}

/// Turns within the original places at which the ramp of YaRN starts and ends (arXiv 2309.00071, section 3.2).
const BETAS: (f64, f64) = (32.0, 1.0);

impl RotaryScalingWord {
    /// Returns the keys that it needs, and the others that it knows.
    const fn keys(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Linear => (&["factor"], &[]),
            Self::Dynamic => (&["factor", "original-places"], &[]),
            Self::Yarn => (
                &["factor", "original-places"],
                &["beta-fast", "beta-slow", "attention-factor", "mscale", "mscale-all-dim", "truncate"],
            ),
            Self::Llama3 => (&["factor", "original-places", "low-frequency-factor", "high-frequency-factor"], &[]),
            Self::Longrope => (&[], &[]),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Dynamic => "dynamic",
            Self::Yarn => "yarn",
            Self::Llama3 => "llama3",
            Self::Longrope => "longrope",
        }
    }
}

impl RotaryScalingTable {
    /// A table of a kind alone.
    pub(crate) const fn new(kind: RotaryScalingWord) -> Self {
        Self {
            kind,
            factor: None,
            original_places: None,
            low_frequency_factor: None,
            high_frequency_factor: None,
            beta_fast: None,
            beta_slow: None,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: None,
        }
    }

    /// Returns the keys, and whether each has a value.
    const fn stated(&self) -> [(&'static str, bool); 10] {
        [
            ("factor", self.factor.is_some()),
            ("original-places", self.original_places.is_some()),
            ("low-frequency-factor", self.low_frequency_factor.is_some()),
            ("high-frequency-factor", self.high_frequency_factor.is_some()),
            ("beta-fast", self.beta_fast.is_some()),
            ("beta-slow", self.beta_slow.is_some()),
            ("attention-factor", self.attention_factor.is_some()),
            ("mscale", self.mscale.is_some()),
            ("mscale-all-dim", self.mscale_all_dim.is_some()),
            ("truncate", self.truncate.is_some()),
        ]
    }

    /// Returns the scaling, and reports keys that are missing or have no effect.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Option<RotaryScaling> {
        let (needed, optional) = self.kind.keys();
        let name = self.kind.name();
        for (key, stated) in self.stated() {
            if stated && !needed.contains(&key) && !optional.contains(&key) {
                check.error(key, format!("`{key}` has no effect with the scaling `{name}`"));
            } else if !stated && needed.contains(&key) {
                check.add("type", Diagnostic::error(format!("the scaling `{name}` of rotary positions needs `{key}`")));
            }
        }
        if self.mscale.is_some() != self.mscale_all_dim.is_some() {
            let key = if self.mscale.is_some() { "mscale" } else { "mscale-all-dim" };
            check.error(key, "`mscale` and `mscale-all-dim` belong together".into());
        }
        Some(match self.kind {
            RotaryScalingWord::Linear => RotaryScaling::Linear { factor: self.factor? },
            RotaryScalingWord::Dynamic => {
                RotaryScaling::Dynamic { factor: self.factor?, original: self.original_places? }
            }
            RotaryScalingWord::Yarn => RotaryScaling::Yarn(Yarn {
                factor: self.factor?,
                original: self.original_places?,
                beta_fast: self.beta_fast.unwrap_or(BETAS.0),
                beta_slow: self.beta_slow.unwrap_or(BETAS.1),
                attention_factor: self.attention_factor,
                mscale: self.mscale,
                mscale_all_dim: self.mscale_all_dim,
                truncate: self.truncate.unwrap_or(true),
            }),
            RotaryScalingWord::Llama3 => RotaryScaling::Llama3 {
                factor: self.factor?,
                original: self.original_places?,
                low: self.low_frequency_factor?,
                high: self.high_frequency_factor?,
            },
            RotaryScalingWord::Longrope => RotaryScaling::Longrope,
        })
    }

    /// Returns the table of a scaling, without keys that have their default value.
    pub(crate) fn from_scaling(scaling: RotaryScaling) -> Self {
        let other = |number: f64, usual: f64| Some(number).filter(|number| (number - usual).abs() > 0.0);
        match scaling {
            RotaryScaling::Linear { factor } => Self { factor: Some(factor), ..Self::new(RotaryScalingWord::Linear) },
            RotaryScaling::Dynamic { factor, original } => {
                Self { factor: Some(factor), original_places: Some(original), ..Self::new(RotaryScalingWord::Dynamic) }
            }
            RotaryScaling::Yarn(yarn) => Self {
                factor: Some(yarn.factor),
                original_places: Some(yarn.original),
                beta_fast: other(yarn.beta_fast, BETAS.0),
                beta_slow: other(yarn.beta_slow, BETAS.1),
                attention_factor: yarn.attention_factor,
                mscale: yarn.mscale,
                mscale_all_dim: yarn.mscale_all_dim,
                truncate: Some(yarn.truncate).filter(|truncate| !truncate),
                ..Self::new(RotaryScalingWord::Yarn)
            },
            RotaryScaling::Llama3 { factor, original, low, high } => Self {
                factor: Some(factor),
                original_places: Some(original),
                low_frequency_factor: Some(low),
                high_frequency_factor: Some(high),
                ..Self::new(RotaryScalingWord::Llama3)
            },
            RotaryScaling::Longrope => Self::new(RotaryScalingWord::Longrope),
        }
    }
}
