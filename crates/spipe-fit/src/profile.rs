//! Fitted profiles: `[[fitted]]` tables in hardware files.

use crate::{Class, ConstantError, Fitted, Usage, constants::named};
use spipe_base::Faults;
use spipe_hardware::{FittedFile, Hardware, HardwareFile, Runtime};

/// Returns the profile of `hardware` with the tables of a fit. Tables of other runtimes stay; those of
/// this runtime are replaced. The errors of a class are those of its predicted runs, or of the fitted
/// ones if none is predicted.
///
/// # Errors
/// The faults of the machine.
pub fn fitted_file(hardware: &Hardware, fitted: &Fitted, (runtime, source): (&str, &str)) -> Result<Hardware, Faults> {
    let mut file: HardwareFile = hardware.file().clone();
    file.fitted.retain(|table| table.runtime != runtime);
    for class in Class::ALL {
        let (predict, fit) = (fitted.errors(Usage::Predict, Some(class)), fitted.errors(Usage::Fit, Some(class)));
        let predicted = predict.count > 0;
        let errors = if predicted { predict } else { fit };
        if errors.count > 0 {
            file.fitted.push(FittedFile {
                runtime: runtime.to_owned(),
                class: class.name().to_owned(),
                count: u32::try_from(errors.count).unwrap_or(u32::MAX),
                predicted,
                mean_error: errors.mean_absolute,
                largest_error: errors.largest,
                constants: fitted.values(),
                source: Some(source.to_owned()),
            });
        }
    }
    Hardware::from_file(hardware.name(), file)
}

/// The error of a class of runs on a fitted machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorOfClass {
    /// The class.
    pub class: Class,
    /// The number of runs, their mean and their largest absolute error; none if no run of the class was
    /// measured.
    pub known: Option<(u32, f64, f64)>,
}

/// Returns the error of runs of `class` under `runtime`; none if the machine is not fitted for it.
pub fn error_of_class(hardware: &Hardware, runtime: &str, class: Class) -> Option<ErrorOfClass> {
    let tables = || hardware.file().fitted.iter().filter(|table| table.runtime == runtime);
    tables().next()?;
    let own = tables().find(|table| table.class == class.name());
    Some(ErrorOfClass { class, known: own.map(|table| (table.count, table.mean_error, table.largest_error)) })
}

/// Returns `runtime` with the constants that the machine was fitted to have under it.
///
/// # Errors
/// The first constant that is unknown or out of range.
pub fn fitted_runtime(hardware: &Hardware, runtime: Runtime) -> Result<Runtime, ConstantError> {
    let Some(table) = hardware.file().fitted.iter().find(|table| table.runtime == runtime.name()) else {
        return Ok(runtime);
    };
    table.constants.iter().try_fold(runtime, |runtime, (name, value)| {
        let refused = |faults| ConstantError::Refused { name: name.clone(), faults };
        runtime.with_constant(named(name)?, *value).map_err(refused)
    })
}
