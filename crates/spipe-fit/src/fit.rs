//! The fit: which constants the runs determine, their values, and the errors of all runs.

use crate::{
    Class, ConstantError, LeftOut, PredictError, Run, Usage,
    constants::{Scale, named as constant_named, range},
    least_squares::{Problem, pivoted},
};
use spipe_base::{Bytes, Diagnostic, Seconds};
use spipe_hardware::Constant;
use std::collections::BTreeMap;

/// The error of measurements of equal runs, at least: runs of one kind on many machines of one kind
/// differ by 2 to 5 % (123 runs of BERT-large on H100 SXM in `lambdal/deeplearning-benchmark` lie
/// within 3.5 % of their median).
const NOISE: f64 = 0.03;

/// A constant is determined if the noise of the runs leaves it this uncertain at most, as a fraction
/// of its value or of the unit of its scale.
const UNCERTAINTY: f64 = 0.3;

/// The constants of a fit and the errors of all runs.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// Every constant that was asked for.
    pub constants: Vec<FittedConstant>,
    /// The runs that were predicted.
    pub runs: Vec<Outcome>,
    /// The runs that their machines cannot hold.
    pub left_out: Vec<LeftOut>,
}

/// A constant after a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedConstant {
    /// The constant.
    pub constant: Constant,
    /// Its value before the fit.
    pub start: f64,
    /// Its value, if the runs determine one.
    pub value: Option<f64>,
}

/// A run with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The run's name.
    pub name: String,
    /// Its use.
    pub usage: Usage,
    /// Its class.
    pub class: Class,
    /// The measured time of an iteration, if one is stated.
    pub measured: Option<Seconds>,
    /// The predicted time.
    pub predicted: Seconds,
    /// Measured and predicted peak of each memory with a measured peak, by name.
    pub peaks: Vec<(String, Bytes, Bytes)>,
    /// Why its errors do not count, if they do not.
    pub not_counted: Option<String>,
    /// Whether memory was short in the run itself.
    pub out_of_memory: bool,
}

impl Outcome {
    /// Returns (predicted − measured) ÷ measured.
    pub fn error(&self) -> Option<f64> {
        self.measured.map(|measured| self.predicted.get() / measured.get() - 1.0)
    }
}

/// The errors of a group of runs, as fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// The number of runs.
    pub count: usize,
    /// The mean of the absolute errors.
    pub mean_absolute: f64,
    /// The mean error: below zero if predictions are too fast.
    pub bias: f64,
    /// The largest absolute error.
    pub largest: f64,
}

impl Errors {
    /// Returns the errors of these runs.
    pub fn of(errors: impl Iterator<Item = f64>) -> Self {
        let all: Vec<f64> = errors.collect();
        let count = all.len().max(1) as f64;
        Self {
            count: all.len(),
            mean_absolute: all.iter().map(|error| error.abs()).sum::<f64>() / count,
            bias: all.iter().sum::<f64>() / count,
            largest: all.iter().fold(0.0, |largest, error| error.abs().max(largest)),
        }
    }
}

impl Fitted {
    /// Returns the errors of the runs of this use that count, and of this class if one is given.
    pub fn errors(&self, usage: Usage, class: Option<Class>) -> Errors {
        let counts = |run: &Outcome| run.usage == usage && run.not_counted.is_none();
        let wanted = |run: &&Outcome| counts(run) && class.is_none_or(|class| run.class == class);
        Errors::of(self.runs.iter().filter(wanted).filter_map(Outcome::error))
    }

    /// Returns the values of the constants that were determined.
    pub fn values(&self) -> BTreeMap<String, f64> {
        self.constants
            .iter()
            .filter_map(|constant| Some((constant.constant.name().to_owned(), constant.value?)))
            .collect()
    }
}

/// The error of a fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// A constant is not known.
    #[error(transparent)]
    Constant(#[from] ConstantError),
    /// No run is fitted.
    #[error("no run is to be fitted")]
    NoRuns,
    /// There are fewer runs than constants.
    #[error("{runs} cannot determine {constants}", runs = counted(*runs, "run"), constants = named(constants))]
    TooFew {
        /// The number of runs to fit.
        runs: usize,
        /// The constants that they depend on.
        constants: Vec<&'static str>,
    },
    /// A run cannot be predicted.
    #[error("run `{run}`: {error}")]
    Run {
        /// The run.
        run: String,
        /// The reason.
        error: PredictError,
    },
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn named(constants: &[&str]) -> String {
    let names: Vec<String> = constants.iter().map(|name| format!("`{name}`")).collect();
    format!("{}: {}", counted(constants.len(), "constant"), names.join(", "))
}

impl FitError {
    /// Whether it is about the constant of this name, which is unknown.
    pub fn is_about(&self, name: &str) -> bool {
        matches!(self, Self::Constant(ConstantError::Unknown { name: unknown }) if unknown == name)
    }

    /// Returns the message with its remedy.
    pub fn diagnostic(&self) -> Diagnostic {
        let diagnostic = Diagnostic::error(self.to_string());
        match self {
            Self::Constant(error) => diagnostic.hint(error.hint()),
            Self::NoRuns => diagnostic.hint("write use = \"fit\" for some runs that their machines can hold"),
            Self::TooFew { .. } => {
                diagnostic.hint("add runs, or name fewer constants in the file: constants = [\"product-efficiency\"]")
            }
            Self::Run { .. } => diagnostic.hint("leave this run out"),
        }
    }
}

/// Fits constants on the runs marked so, and predicts all runs with them.
///
/// Without `asked`, all constants are fitted that change the times of these runs and that the runs
/// tell apart. The others stay as they are.
///
/// # Errors
/// Unknown constants, no runs to fit, fewer runs than constants that their times depend on, and runs
/// that cannot be predicted.
pub fn fit(runs: &[Run], asked: Option<&[String]>, left_out: Vec<LeftOut>) -> Result<Fitted, FitError> {
    let constants = chosen(asked)?;
    let fitted: Vec<&Run> = runs.iter().filter(|run| run.stated.usage == Usage::Fit).collect();
    let Some(first) = fitted.first() else { return Err(FitError::NoRuns) };
    let runtime = first.work.hardware().runtime();
    let starts: Vec<f64> = constants.iter().map(|constant| runtime.constant(*constant)).collect();
    let fit = Fit { runs: &fitted, constants: &constants, starts: &starts };
    let values = fit.values(asked.is_some())?;
    let each = constants.iter().zip(&starts).zip(values);
    let constants =
        each.map(|((constant, start), value)| FittedConstant { constant: *constant, start: *start, value }).collect();
    let fitted = Fitted { constants, runs: Vec::new(), left_out };
    Ok(Fitted { runs: predicted(runs, &fitted.values())?, ..fitted })
}

/// Predicts all runs with these constants, and fits nothing.
///
/// # Errors
/// A run that cannot be predicted.
pub fn predicted(runs: &[Run], values: &BTreeMap<String, f64>) -> Result<Vec<Outcome>, FitError> {
    let outcome = |run: &Run| {
        let predicted = iteration(run, values)?;
        let counted = run.work.peaks(run.stated.quantity);
        let peaks = run.stated.peaks.iter();
        let peak = |(memory, measured): (&String, &Bytes)| Some((memory.clone(), *measured, *counted.get(memory)?));
        Ok(Outcome {
            name: run.stated.name.clone(),
            usage: run.stated.usage,
            class: run.work.class(),
            measured: run.measured(),
            predicted,
            peaks: peaks.filter_map(peak).collect(),
            not_counted: run.stated.not_counted.clone(),
            out_of_memory: run.stated.out_of_memory,
        })
    };
    runs.iter().map(outcome).collect()
}

fn iteration(run: &Run, values: &BTreeMap<String, f64>) -> Result<Seconds, FitError> {
    run.work.iteration(values).map_err(|error| FitError::Run { run: run.stated.name.clone(), error })
}

fn chosen(asked: Option<&[String]>) -> Result<Vec<Constant>, FitError> {
    let Some(asked) = asked else { return Ok(Constant::ALL.to_vec()) };
    let found: Result<Vec<Constant>, ConstantError> = asked.iter().map(|name| constant_named(name)).collect();
    let found = found?;
    Ok(Constant::ALL.into_iter().filter(|constant| found.contains(constant)).collect())
}

/// A fit of some constants on some runs.
struct Fit<'a> {
    runs: &'a [&'a Run],
    constants: &'a [Constant],
    starts: &'a [f64],
}

impl Fit<'_> {
    /// Returns the value of each constant; none where the runs do not determine it.
    fn values(&self, all_asked: bool) -> Result<Vec<Option<f64>>, FitError> {
        let everything: Vec<usize> = (0..self.constants.len()).collect();
        let start: Vec<f64> = everything.iter().map(|index| self.coordinate(*index, self.starts[*index])).collect();
        // At the start the model may be far off: a constant counts if it could matter.
        let felt = self.determined(&everything, &start, Some(NOISE))?;
        let needed = if all_asked { everything.len() } else { felt.feels.len() };
        if self.runs.len() < needed {
            let names = (0..self.constants.len()).filter(|index| all_asked || felt.feels.contains(index));
            let constants = names.map(|index| self.constants[index].name()).collect();
            return Err(FitError::TooFew { runs: self.runs.len(), constants });
        }
        let mut active = felt.kept;
        loop {
            if active.is_empty() {
                return Ok(vec![None; self.constants.len()]);
            }
            let residuals = |at: &[f64]| self.residuals(&active, at);
            let bounds = active.iter().map(|index| self.bounds(*index)).collect();
            let begin: Vec<f64> = active.iter().map(|index| self.coordinate(*index, self.starts[*index])).collect();
            let found = Problem { residuals: &residuals, bounds }.minimum(&begin)?;
            let kept = self.determined(&active, &found.at, None)?.kept;
            let inside = |index: &usize| {
                let at = active.iter().position(|own| own == index).map_or(0.0, |place| found.at[place]);
                let (least, most) = self.bounds(*index);
                let margin = 1e-6 * (most - least);
                at > least + margin && at < most - margin || self.may_end_at_bound(*index, at)
            };
            let kept: Vec<usize> = kept.into_iter().filter(inside).collect();
            if kept.len() == active.len() {
                let mut values = vec![None; self.constants.len()];
                for (index, at) in active.iter().zip(&found.at) {
                    values[*index] = Some(self.value(*index, *at));
                }
                return Ok(values);
            }
            active = kept;
        }
    }

    /// Whether a constant is a time that the runs show to be zero.
    fn may_end_at_bound(&self, index: usize, at: f64) -> bool {
        matches!(range(self.constants[index]).scale, Scale::Linear(_)) && at < 1e-9
    }

    fn coordinate(&self, index: usize, value: f64) -> f64 {
        let range = range(self.constants[index]);
        range.scale.to_coordinate(value.clamp(range.least, range.most))
    }

    fn value(&self, index: usize, coordinate: f64) -> f64 {
        let range = range(self.constants[index]);
        range.scale.from_coordinate(coordinate).clamp(range.least, range.most)
    }

    fn bounds(&self, index: usize) -> (f64, f64) {
        let range = range(self.constants[index]);
        (range.scale.to_coordinate(range.least), range.scale.to_coordinate(range.most))
    }

    /// Returns the relative errors of the runs with the `active` constants at these coordinates.
    fn residuals(&self, active: &[usize], at: &[f64]) -> Result<Vec<f64>, FitError> {
        let value = |(index, at): (&usize, &f64)| (self.constants[*index].name().to_owned(), self.value(*index, *at));
        let values: BTreeMap<String, f64> = active.iter().zip(at).map(value).collect();
        let error = |run: &&Run| {
            let measured = run.measured().map_or(f64::INFINITY, Seconds::get);
            Ok(iteration(run, &values)?.get() / measured - 1.0)
        };
        self.runs.iter().map(error).collect()
    }

    /// Returns which of the `active` constants the runs determine. `noise` is the error of a run; by
    /// default what the fit leaves.
    fn determined(&self, active: &[usize], at: &[f64], noise: Option<f64>) -> Result<Determined, FitError> {
        let residuals = |at: &[f64]| self.residuals(active, at);
        let bounds = active.iter().map(|index| self.bounds(*index)).collect();
        let problem = Problem { residuals: &residuals, bounds };
        let here = residuals(at)?;
        let left = (here.iter().map(|error| error * error).sum::<f64>() / here.len().max(1) as f64).sqrt();
        let noise = noise.unwrap_or(left.max(NOISE));
        let jacobian = problem.jacobian(at, &here)?;
        let norm = |column: &Vec<f64>| column.iter().map(|entry| entry * entry).sum::<f64>().sqrt();
        let least = noise / UNCERTAINTY;
        let feels: Vec<usize> =
            active.iter().zip(&jacobian).filter(|(_, column)| norm(column) >= least).map(|(index, _)| *index).collect();
        let order = pivoted(&jacobian);
        let mut kept: Vec<usize> =
            order.into_iter().filter(|(_, length)| *length >= least).map(|(place, _)| active[place]).collect();
        kept.sort_unstable();
        Ok(Determined { kept, feels })
    }
}

/// The constants that runs determine.
struct Determined {
    /// Constants that the runs tell apart.
    kept: Vec<usize>,
    /// Constants that change the times of the runs.
    feels: Vec<usize>,
}
