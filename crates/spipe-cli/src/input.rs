//! Input: models, profiles, plans and traces by path, or by the name of a shipped file.

pub use crate::text_files::{bytes, text};
use crate::{Failure, model_files, names, options::OPTIONS};
use spipe_base::{Diagnostic, Position, Seconds};
use spipe_cost::Mode;
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Architecture, Model};
use spipe_plan::Plan;
use spipe_trace::{ReadTraceError, Trace};
use std::time::Duration;

/// The largest time limit.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A model by path or name: a model file, a config in JSON, or a folder with one.
pub fn model(given: &str) -> Result<Model, Failure> {
    model_part(given, None)
}

/// The same; `part` is the name of a part of a pipeline of models. A model that is only counted is
/// refused.
pub fn model_part(given: &str, part: Option<&str>) -> Result<Model, Failure> {
    let model = shown_part(given, part)?;
    if let Architecture::Counted(counted) = model.architecture() {
        let message = format!("`{}` is a `{}`, which is counted and not planned", model.name(), counted.what);
        return Err(Failure::argument(message, "`spipe model show` counts it; plan its language model alone"));
    }
    Ok(model)
}

/// The same, with models that are only counted.
pub fn shown_part(given: &str, part: Option<&str>) -> Result<Model, Failure> {
    if model_files::is_folder(given) || given.ends_with("model_index.json") {
        return model_files::folder(given, part).map(model_files::with_remarks);
    }
    if let Some(part) = part {
        return Err(model_files::no_parts(given, part));
    }
    let (file, text) = find(given, "model", spipe_model::shipped(), model_hint)?;
    if model_files::is_json(&text) {
        return model_files::config(&file, &text).map(model_files::with_remarks);
    }
    Ok(Model::from_toml(&file, &text)?)
}

/// The given sequence length, or the model's own.
pub fn seq_len(model: &Model, given: Option<u64>) -> Result<u64, Failure> {
    Ok(spipe_search::seq_len(model, given, OPTIONS)?)
}

/// The given mode, if the model has it.
pub fn mode(model: &Model, mode: Mode) -> Result<Mode, Failure> {
    Ok(spipe_search::mode(model, mode, OPTIONS)?)
}

/// A machine by path or name.
pub fn hardware(given: &str) -> Result<Hardware, Failure> {
    let (file, text) = find(given, "hardware profile", spipe_hardware::shipped(), hardware_hint)?;
    Ok(Hardware::from_toml(&file, &text)?)
}

/// A runtime by path or name.
pub fn runtime(given: &str) -> Result<Runtime, Failure> {
    let (file, text) = find(given, "runtime", spipe_hardware::shipped_runtimes(), |_| None)?;
    Ok(Runtime::from_toml(&file, &text)?)
}

/// The machine as `runtime` finds it, with the constants that it was fitted to have under it.
pub fn under(hardware: Hardware, runtime: Runtime) -> Result<Hardware, Failure> {
    Ok(spipe_search::under(hardware, runtime)?)
}

/// The text of a machine by path or name.
pub fn hardware_text(given: &str) -> Result<String, Failure> {
    Ok(find(given, "hardware profile", spipe_hardware::shipped(), hardware_hint)?.1)
}

/// The part of a machine with these devices; all of it if none are named.
pub fn part(hardware: Hardware, devices: &[String]) -> Result<Hardware, Failure> {
    if devices.is_empty() { Ok(hardware) } else { hardware.restricted_to(devices).map_err(Failure::Arguments) }
}

/// A file if `given` looks like a path or exists, otherwise a shipped file of that name.
/// `hint` says what else the name may mean.
fn find(
    given: &str,
    what: &str,
    shipped: &[(&str, &str)],
    hint: impl Fn(&str) -> Option<String>,
) -> Result<(String, String), Failure> {
    let is_path = given == "-" || given.contains(['/', '\\']) || given.ends_with(".toml");
    if is_path || std::path::Path::new(given).is_file() {
        return Ok((given.into(), text(given)?));
    }
    match shipped.iter().find(|(name, _)| *name == given) {
        Some((name, toml)) => Ok((format!("{name}.toml"), (*toml).to_owned())),
        None => {
            let names: Vec<&str> = shipped.iter().map(|(name, _)| *name).collect();
            let all = || format!("give the path of a file, or one of {}", names.join(", "));
            let diagnostic = Diagnostic::error(format!("there is no {what} `{given}`"));
            Err(Failure::input(diagnostic.hint(hint(given).unwrap_or_else(all))))
        }
    }
}

/// The shipped model that is meant, or how to come by another.
fn model_hint(given: &str) -> Option<String> {
    let other = "a Hugging Face folder or its config.json does; `spipe model list` prints the shipped models";
    Some(match (names::model(given), names::model_of_size(given)) {
        (Some(meant), _) => format!("do you mean `{meant}`? Otherwise {other}"),
        (None, Some(near)) => format!("{other}; `{near}` is the nearest in size"),
        (None, None) => other.into(),
    })
}

/// The shipped machines that are meant, or how to compose one.
fn hardware_hint(given: &str) -> Option<String> {
    let meant: Vec<String> = names::machines(given).map(|name| format!("`{name}`")).collect();
    if !meant.is_empty() {
        return Some(format!("do you mean {}?", meant.join(" or ")));
    }
    let (count, gpu) = names::counted(given);
    let alike: Vec<String> = names::machines(gpu).map(|name| format!("`{name}`")).collect();
    let command = names::composition(gpu, count).map(|command| format!("`{command}` composes a machine of parts"));
    match (alike.is_empty(), command) {
        (true, command) => command.map(|command| format!("no machine with this GPU is shipped; {command}")),
        (false, command) => {
            let alike = format!("with this GPU there is {}", alike.join(", "));
            Some(command.map_or(alike.clone(), |command| format!("{alike}; {command}")))
        }
    }
}

/// A plan file.
pub fn plan(path: &str) -> Result<Plan, Failure> {
    Ok(Plan::from_json(path, &text(path)?)?)
}

/// A trace file.
pub fn trace(path: &str) -> Result<Trace, Failure> {
    let text = text(path)?;
    spipe_trace::from_json(&text).map_err(|error| {
        let diagnostic = match error {
            ReadTraceError::Json { message, line, column, truncated } => {
                let position = Position { file: path.into(), line: line.max(1), column: column.max(1) };
                let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
                let diagnostic = Diagnostic::error(format!("not a trace: {message}")).at(position);
                diagnostic.hint(if truncated {
                    "the file ends too early; write it again".to_owned()
                } else if is_plan(&text) {
                    format!("it is a plan; `spipe simulate {path} -o trace.json` predicts its trace")
                } else {
                    "`spipe schema trace` prints what a trace file may hold".to_owned()
                })
            }
            other => Diagnostic::error(other.to_string()).at(Position { file: path.into(), line: 1, column: 1 }),
        };
        Failure::input(diagnostic)
    })
}

/// Whether a text is a plan's, valid or not.
fn is_plan(text: &str) -> bool {
    let keys = ["system", "workload", "stages"];
    serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| keys.iter().all(|key| value.get(key).is_some()))
}

/// A time limit.
pub fn limit(given: Seconds) -> Result<Duration, Failure> {
    if given.get() <= 0.0 {
        return Err(Failure::argument("the time limit is zero", "give the work some time, such as 10s"));
    }
    let limit = Duration::try_from_secs_f64(given.get()).ok().filter(|limit| *limit <= LONGEST);
    limit.ok_or_else(|| Failure::argument("the time limit is more than a year", "give the work less, such as 10min"))
}

/// A fraction such as `0.5%` or `0.005`.
pub fn fraction(given: &str) -> Result<f64, Failure> {
    let parsed = match given.trim().strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => given.trim().parse::<f64>(),
    };
    parsed.ok().filter(|fraction| (0.0..=1.0).contains(fraction)).ok_or_else(|| {
        Failure::argument(format!("`{given}` is not a fraction from 0 to 1"), "write it like 0.5% or 0.005")
    })
}
