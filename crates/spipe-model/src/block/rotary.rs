//! The frequencies of rotary positions, and their scaling for longer texts than those of the pretraining.
//!
//! ```text
//! angle of pair i at position p = p · frequency(i)      frequency(i) = base^(−2i/d), then scaled
//! ```

use std::f64::consts::TAU;

/// A scaling of rotary frequencies, with the parameters and the arithmetic of `transformers` 5.24
/// (`modeling_rope_utils.py`). It costs nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// Every frequency is divided by `factor`.
    Linear {
        /// The ratio of the longer text to the original one.
        factor: f64,
    },
    /// The base grows with the length of a sequence beyond the original places.
    Dynamic {
        /// The slope of that growth.
        factor: f64,
        /// The number of positions up to which the frequencies are the plain ones.
        original: u64,
    },
    /// Fast pairs of channels keep their frequency, slow ones are divided by a factor, with a ramp between
    /// (Peng et al. 2023, arXiv 2309.00071, section 3.2).
    Yarn(Yarn),
    /// The same with a ramp over frequencies instead of channels (Llama 3.1).
    Llama3 {
        /// The ratio of the longer text to the original one.
        factor: f64,
        /// The number of positions of the pretraining.
        original: u64,
        /// Turns within the original places below which a frequency is divided by `factor`.
        low: f64,
        /// Turns within the original places above which a frequency is kept.
        high: f64,
    },
    /// A divisor for each pair of channels (Phi-3); its divisors are not kept, so it is planned only.
    Longrope,
}

/// The parameters of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The ratio of the longer text to the original one.
    pub factor: f64,
    /// The number of positions of the pretraining.
    pub original: u64,
    /// Turns within the original places at which the ramp starts.
    pub beta_fast: f64,
    /// Turns within the original places at which the ramp ends.
    pub beta_slow: f64,
    /// The factor of cosines and sines; derived from the others if absent.
    pub attention_factor: Option<f64>,
    /// The weight of log `factor` in the numerator of the derived factor; only with `mscale_all_dim`.
    pub mscale: Option<f64>,
    /// The same in its denominator.
    pub mscale_all_dim: Option<f64>,
    /// Whether the ramp starts and ends at whole channels.
    pub truncate: bool,
}

/// The frequencies of the rotating pairs of channels.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    /// Radians per position of each pair.
    pub frequencies: Vec<f64>,
    /// The factor of cosines and sines.
    pub attention_factor: f64,
}

impl RotaryScaling {
    /// Returns its name in configs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Dynamic { .. } => "dynamic",
            Self::Yarn(_) => "yarn",
            Self::Llama3 { .. } => "llama3",
            Self::Longrope => "longrope",
        }
    }

    /// Returns the reason why it is not computed, if it is not.
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Longrope => Some("the scaling `longrope` of rotary positions is not computed"),
            Self::Linear { .. } | Self::Dynamic { .. } | Self::Yarn(_) | Self::Llama3 { .. } => None,
        }
    }

    /// Returns `base` for sequences of `seq_len` tokens.
    fn base(self, base: f64, turned: f64, seq_len: u64) -> f64 {
        let Self::Dynamic { factor, original } = self else { return base };
        let (places, original) = (seq_len.max(original) as f64, original as f64);
        base * (factor * places / original - (factor - 1.0)).powf(turned / (turned - 2.0))
    }

    /// Returns the scaled frequency of pair `pair`.
    fn scaled(self, pair: usize, frequency: f64, ramp: (f64, f64)) -> f64 {
        let share = |kept: f64, factor: f64| frequency * (kept + (1.0 - kept) / factor);
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, original, low, high } => {
                let turns = original as f64 * frequency / TAU;
                share(((turns - low) / (high - low)).clamp(0.0, 1.0), factor)
            }
            Self::Yarn(yarn) => {
                let (start, end) = ramp;
                share(1.0 - ((pair as f64 - start) / (end - start)).clamp(0.0, 1.0), yarn.factor)
            }
            Self::Dynamic { .. } | Self::Longrope => frequency,
        }
    }
}

impl Yarn {
    /// Returns the factor of cosines and sines: 0.1 ln `factor` + 1, unless another is stated.
    pub fn attention_factor(&self) -> f64 {
        let growth = |weight: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * weight * self.factor.ln() + 1.0 };
        let weights = self.mscale.zip(self.mscale_all_dim).filter(|(above, below)| *above != 0.0 && *below != 0.0);
        let derived = || weights.map_or_else(|| growth(1.0), |(above, below)| growth(above) / growth(below));
        self.attention_factor.unwrap_or_else(derived)
    }

    /// Returns the pairs of channels between which frequencies change from kept to divided.
    fn ramp(&self, base: f64, turned: f64) -> (f64, f64) {
        let pair = |turns: f64| turned * (self.original as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
        let (start, end) = (pair(self.beta_fast), pair(self.beta_slow));
        let (start, end) = if self.truncate { (start.floor(), end.ceil()) } else { (start, end) };
        let (start, end) = (start.max(0.0), end.min(turned - 1.0));
        // As in `transformers`, against a division by zero.
        if (end - start).abs() > 0.0 { (start, end) } else { (start, end + 0.001) }
    }
}

impl RotaryFrequencies {
    /// Returns the frequencies of `turned` rotating channels, for sequences of `seq_len` tokens.
    pub fn new(base: f64, turned: u64, scaling: Option<RotaryScaling>, seq_len: u64) -> Self {
        let width = turned as f64;
        let base = scaling.map_or(base, |scaling| scaling.base(base, width, seq_len));
        let plain = (0..turned / 2).map(|pair| base.powf(-2.0 * pair as f64 / width));
        let Some(scaling) = scaling else { return Self { frequencies: plain.collect(), attention_factor: 1.0 } };
        let (ramp, attention_factor) = match scaling {
            RotaryScaling::Yarn(yarn) => (yarn.ramp(base, width), yarn.attention_factor()),
            _ => ((0.0, 1.0), 1.0),
        };
        let frequencies = plain.enumerate().map(|(pair, frequency)| scaling.scaled(pair, frequency, ramp));
        Self { frequencies: frequencies.collect(), attention_factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `tests/python/rotary_frequencies.py`.
    const TABLE: &str = include_str!("../../tests/fixtures/rotary_frequencies.json");

    #[test]
    fn frequencies_are_those_of_transformers() {
        let table: serde_json::Value = serde_json::from_str(TABLE).unwrap();
        let rows = table["rows"].as_array().unwrap();
        assert!(rows.len() >= 9, "{}", rows.len());
        for row in rows {
            let imported = crate::Model::from_hugging_face("config.json", &row["config"].to_string()).unwrap();
            assert!(imported.warnings.is_empty(), "{}", imported.warnings);
            let crate::Architecture::Transformer(transformer) = imported.model.architecture() else { panic!("{row}") };
            let block = &transformer.block;
            let crate::Positions::Rotary { base, fraction, scaling } = block.positions else { panic!("{row}") };
            assert_eq!(scaling.map(RotaryScaling::name), row["type"].as_str(), "{row}");
            let turned = (block.head_dim as f64 * fraction) as u64;
            let found = RotaryFrequencies::new(base, turned, scaling, row["seq-len"].as_u64().unwrap());
            assert!((found.attention_factor - row["attention-factor"].as_f64().unwrap()).abs() < 1e-6, "{row}");
            let expected: Vec<f64> = row["frequencies"].as_array().unwrap().iter().filter_map(|n| n.as_f64()).collect();
            assert_eq!(found.frequencies.len(), expected.len(), "{row}");
            for (found, expected) in found.frequencies.iter().zip(expected) {
                // The table has numbers of 32 bits, whose powers are off by a few units of the last place.
                assert!((found - expected).abs() <= 4e-6 * expected, "{found} {expected} {row}");
            }
        }
    }
}
