//! `spipe fit`: constants from measured runs, and the errors of predictions.

use crate::{Failure, args, args::Format, input, output, output::Target, planning::measured, report::fit as tables};
use spipe_base::Diagnostic;
use spipe_fit::{Runs, torch};
use spipe_hardware::Hardware;
use spipe_timeline::plot_svg;
use std::path::Path;

/// Fits constants on measured runs, or shows the kernels of a trace.
pub fn run(what: &args::Fit, format: Format) -> Result<(), Failure> {
    match (&what.trace, &what.runs, &what.hardware) {
        (Some(path), ..) => trace(path, format),
        (None, Some(runs), Some(hardware)) => fit(what, (runs, hardware), format),
        _ => Err(Failure::argument("there are no runs", "name a file of runs and its machine, or a `--trace`")),
    }
}

fn trace(path: &str, format: Format) -> Result<(), Failure> {
    let profile = torch::Profile::read(path, &input::text(path)?)?;
    output::report(format, &tables::kernels(&profile), &profile)
}

fn fit(what: &args::Fit, (path, machine): (&str, &str), format: Format) -> Result<(), Failure> {
    let inputs = [path, machine];
    let target = what.output.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let picture = what.plot.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let hardware = input::hardware(machine)?;
    let runs = Runs::read(path, &input::text(path)?)?;
    let beside = |name: &str| beside(path, name);
    let reader = measured::Reader {
        model: &|name| input::model(&beside(name)),
        hardware: &|name| name.map_or_else(|| Ok(hardware.clone()), |name| input::hardware(&beside(name))),
        runtime: &|name| input::runtime(&beside(name)),
    };
    let (ready, left_out) = spipe_fit::prepared(&runs, &|run| measured::prepare(run, &reader))?;
    let runtime = measured::only_runtime(&runs, &ready)?;
    let fitted = spipe_fit::fit(&ready, runs.constants.as_deref(), left_out).map_err(|error| {
        let place = runs.constants.iter().flatten().position(|name| error.is_about(name));
        let diagnostic = error.diagnostic();
        Failure::input(match place {
            Some(index) => runs.constant_fault(index, diagnostic),
            None => diagnostic,
        })
    })?;
    let report = spipe_fit::report(&fitted, &runtime);
    let title = Path::new(path).file_stem().map_or_else(|| "runs".into(), |stem| stem.to_string_lossy().into_owned());
    if let Some(picture) = picture {
        let plot = spipe_reproduce::runs::scatter(&format!("{title}: measured and predicted iterations"), &fitted);
        let drawn = plot_svg(&plot)
            .map_err(|error| Failure::input(Diagnostic::error(format!("cannot draw the runs: {error}"))))?;
        picture.write(drawn.as_bytes())?;
    }
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        let source = format!("spipe fit {title}.toml");
        let profile: Hardware = spipe_fit::fitted_file(&hardware, &fitted, (&runtime, &source))?;
        target.write(profile.to_toml().as_bytes())?;
    }
    if to_stdout {
        return Ok(());
    }
    output::report(format, &tables::human(&fitted, &runtime, what.output.as_deref()), &report)
}

/// The name of a model or machine as the file of runs states it: a path is relative to that file.
fn beside(runs: &str, name: &str) -> String {
    let is_path = name.contains(['/', '\\']) || name.ends_with(".toml");
    match Path::new(runs).parent() {
        Some(folder) if is_path && runs != "-" && !Path::new(name).is_absolute() => {
            folder.join(name).display().to_string()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_are_relative_to_the_runs() {
        for (runs, name, found) in [
            ("a/runs.toml", "gpt.toml", "a/gpt.toml"),
            ("runs.toml", "gpt.toml", "gpt.toml"),
            ("a/runs.toml", "gpt2", "gpt2"),
            ("a/runs.toml", "../b/gpt", "a/../b/gpt"),
            ("-", "gpt.toml", "gpt.toml"),
        ] {
            assert_eq!(super::beside(runs, name), found, "{runs} {name}");
        }
    }
}
