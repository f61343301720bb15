//! `spipe compare`.

use crate::{
    Failure, args,
    args::Format,
    input, output,
    report::comparison::{data, human},
};
use spipe_base::{
    Diagnostic,
    readable::{percent, signed_percent},
};
use spipe_trace::{Origin, compare};

/// Compares a prediction with a measurement.
pub fn run(what: &args::Compare, format: Format) -> Result<(), Failure> {
    let tolerance = what.tolerance.as_deref().map(input::fraction).transpose()?;
    let (predicted, measured) = (input::trace(&what.predicted)?, input::trace(&what.measured)?);
    if measured.origin != Origin::Measured {
        let message = format!("`{}` was not measured", measured.name);
        output::talk(&Diagnostic::warning(message).hint("give the trace of a run as the second trace").to_string());
    }
    if predicted.name != measured.name {
        let message = format!("`{}` is compared with `{}`", predicted.name, measured.name);
        output::talk(&Diagnostic::warning(message).hint("compare a plan's run with its own prediction").to_string());
    }
    let comparison = compare(&predicted, &measured);
    output::report(format, &human(&comparison), &data(&comparison))?;
    let error = comparison.iteration.error();
    match (tolerance, error) {
        (Some(tolerance), Some(error)) if error.abs() > tolerance => Err(Failure::Check(Diagnostic::error(format!(
            "the predicted iteration is off by {}, more than {}",
            signed_percent(error),
            percent(tolerance)
        )))),
        (Some(_), None) => Err(Failure::Check(Diagnostic::error("the measured trace has no iteration"))),
        _ => Ok(()),
    }
}
