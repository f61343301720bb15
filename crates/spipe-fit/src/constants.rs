//! The constants that can be fitted, in one table: unit, scale and bounds of each.

use spipe_base::{Faults, similar_word};
use spipe_hardware::{Constant, Hardware};
use std::collections::BTreeMap;

/// The scale on which a constant is varied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal ratios are equal distances; for factors on rates.
    Logarithmic,
    /// Equal differences are equal distances, and this one counts as 1; for times, which may be zero.
    Linear(f64),
}

impl Scale {
    /// Returns the coordinate of a value.
    pub fn to_coordinate(self, value: f64) -> f64 {
        match self {
            Self::Logarithmic => value.ln(),
            Self::Linear(unit) => value / unit,
        }
    }

    /// Returns the value at a coordinate.
    pub fn from_coordinate(self, coordinate: f64) -> f64 {
        match self {
            Self::Logarithmic => coordinate.exp(),
            Self::Linear(unit) => coordinate * unit,
        }
    }
}

/// How a constant is varied, and between which values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The scale.
    pub scale: Scale,
    /// The least value that a fit may find.
    pub least: f64,
    /// The largest value that a fit may find.
    pub most: f64,
}

/// A machine whose rates are off by more has another defect than a wrong figure.
const FACTOR: Range = Range { scale: Scale::Logarithmic, least: 0.05, most: 4.0 };

/// Launches of eager frameworks take 3 to 20 µs on hosts of 2018 to 2026.
const LAUNCH: Range = Range { scale: Scale::Linear(5e-6), least: 0.0, most: 200e-6 };

/// Data, logging and clocks take 1 to 100 ms per iteration.
const ITERATION: Range = Range { scale: Scale::Linear(10e-3), least: 0.0, most: 10.0 };

/// Returns how a constant is varied.
pub const fn range(constant: Constant) -> Range {
    match constant {
        Constant::Launch => LAUNCH,
        Constant::Iteration => ITERATION,
        _ => FACTOR,
    }
}

/// Returns the meaning of a constant, for people.
pub const fn meaning(constant: Constant) -> &'static str {
    match constant {
        Constant::Products => "× the rate of matrix products",
        Constant::Attention => "× the rate of attention kernels",
        Constant::Launch => "host's time per kernel launch",
        Constant::Iteration => "time per iteration beside kernels and copies",
        Constant::Links => "× the rates of copies and collectives",
        Constant::Optimizer => "× the rate of optimizer steps",
    }
}

/// Returns a value with its unit, for people.
pub fn shown(constant: Constant, value: f64) -> String {
    match constant {
        Constant::Launch => format!("{:.2} us", value * 1e6),
        Constant::Iteration => format!("{:.2} ms", value * 1e3),
        _ => format!("{value:.3}"),
    }
}

/// The error of constants that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConstantError {
    /// There is no constant of this name.
    #[error("there is no constant `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The runtime refuses a value.
    #[error("`{name}`: {faults}")]
    Refused {
        /// The name.
        name: String,
        /// The faults of the runtime.
        faults: Faults,
    },
}

impl ConstantError {
    /// Returns a remedy.
    pub fn hint(&self) -> String {
        let names = || Constant::ALL.into_iter().map(Constant::name);
        match self {
            Self::Unknown { name } => match similar_word(name, names()) {
                Some(near) => format!("did you mean `{near}`"),
                None => format!("known: {}", names().collect::<Vec<_>>().join(", ")),
            },
            Self::Refused { .. } => "`command schema runtime` prints what a runtime may hold".into(),
        }
    }
}

/// Returns the constant of this name.
///
/// # Errors
/// If there is none.
pub fn named(name: &str) -> Result<Constant, ConstantError> {
    Constant::named(name).ok_or_else(|| ConstantError::Unknown { name: name.into() })
}

/// Returns the machine under its runtime with these constants.
///
/// # Errors
/// The first constant that is unknown or out of range.
pub fn with_constants(hardware: &Hardware, values: &BTreeMap<String, f64>) -> Result<Hardware, ConstantError> {
    if values.is_empty() {
        return Ok(hardware.clone());
    }
    let mut runtime = hardware.runtime().clone();
    for (name, value) in values {
        let refused = |faults| ConstantError::Refused { name: name.clone(), faults };
        runtime = runtime.with_constant(named(name)?, *value).map_err(refused)?;
    }
    Ok(hardware.clone().under(runtime))
}
