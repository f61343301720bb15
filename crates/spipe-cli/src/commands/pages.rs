//! Schemas, completions and the manual page.

use crate::{Failure, args, args::Given, idle::Idle, output};

/// Prints the JSON schema of a file format.
pub fn schema(what: &args::Schema) -> Result<(), Failure> {
    let schema = match what.name.as_str() {
        "model" => spipe_model::schema(),
        "hardware" => spipe_hardware::schema(),
        "runtime" => spipe_hardware::runtime_schema(),
        "job" => spipe_whatif::schema(),
        "catalogue" => spipe_market::schema(),
        "plan" => spipe_plan::schema(),
        "program" => spipe_export::schema(),
        "trace" => schemars::schema_for!(spipe_trace::Trace),
        "runs" => spipe_fit::schema(),
        other => {
            return Err(Failure::argument(
                format!("there is no format `{other}`"),
                "use model, hardware, runtime, catalogue, job, plan, program, trace or runs",
            ));
        }
    };
    output::print(&output::to_json(&schema)?)
}

/// Prints completions for a shell.
pub fn completions(what: &args::Completions, given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to a script", "leave it out").refuse()?;
    let mut script = Vec::new();
    clap_complete::generate(what.shell, &mut args::command(), "spipe", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Prints the manual page.
pub fn man(given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to a manual page", "leave it out").refuse()?;
    let mut page = Vec::new();
    clap_mangen::Man::new(args::command())
        .render(&mut page)
        .map_err(|error| Failure::Bug(format!("the manual page cannot be made: {error}")))?;
    output::print(&String::from_utf8_lossy(&page))
}
