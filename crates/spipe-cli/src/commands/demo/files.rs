//! What the demo reads and writes.

use super::{Summary, compare, losses, simulate};
use crate::{
    Failure,
    commands::timeline::{self, Kind},
    input,
    output::Target,
};
use spipe_hardware::Hardware;
use std::path::{Path, PathBuf};

/// Where the repository's own sources are.
const SOURCES: &str = "crates";

/// The user's text, or this repository's own sources; without those, the files that the binary carries.
pub fn training_text(given: Option<&str>) -> Result<Vec<u8>, Failure> {
    if let Some(path) = given {
        return input::bytes(path);
    }
    let mut paths = Vec::new();
    sources(Path::new(SOURCES), &mut paths);
    paths.sort();
    let mut text = Vec::new();
    for path in paths {
        text.extend(input::bytes(&path.display().to_string())?);
    }
    if text.is_empty() {
        let carried = spipe_model::shipped().iter().chain(spipe_hardware::shipped());
        text.extend(carried.flat_map(|(_, toml)| toml.bytes()));
    }
    Ok(text)
}

fn sources(folder: &Path, paths: &mut Vec<PathBuf>) {
    // A folder that cannot be read has no sources.
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, paths);
        } else if path.extension().is_some_and(|end| end == "rs") {
            paths.push(path);
        }
    }
}

/// The files of one demo, opened before the work.
pub struct Files {
    open: Vec<(&'static str, Target)>,
}

const NAMES: [&str; 10] = [
    "machine.toml",
    "plan.json",
    "predicted.json",
    "measured.json",
    "timeline.svg",
    "timeline.png",
    "timeline.html",
    "timeline.perfetto.json",
    "timeline.txt",
    "report.md",
];

impl Files {
    /// Opens all of them in `folder`.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        let open = NAMES.into_iter().map(|name| Ok((name, Target::in_folder(folder, name)?)));
        Ok(Self { open: open.collect::<Result<_, Failure>>()? })
    }

    /// Writes all of them.
    pub fn write(self, hardware: &Hardware, summary: &Summary<'_>) -> Result<(), Failure> {
        let picture = summary.picture();
        for (name, target) in self.open {
            let content = match name {
                "machine.toml" => hardware.to_toml().into_bytes(),
                "plan.json" => summary.found.plan.to_json().into_bytes(),
                "predicted.json" => spipe_trace::to_json(summary.predicted).into_bytes(),
                "measured.json" => spipe_trace::to_json(&summary.report.trace).into_bytes(),
                "report.md" => report(summary).into_bytes(),
                picture_name => timeline::draw(Kind::of(picture_name)?, &picture)?,
            };
            target.write(&content)?;
        }
        Ok(())
    }
}

/// The demo's findings as a page.
fn report(summary: &Summary<'_>) -> String {
    let comparison = spipe_trace::compare(summary.predicted, &summary.report.trace);
    let devices: Vec<String> = summary.report.devices.iter().map(ToString::to_string).collect();
    let notes: Vec<String> = summary.predicted.notes.iter().map(|note| format!("Note: {note}.\n\n")).collect();
    format!(
        "# spipe demo\n\n{}Ran on {}.\n\n![Predicted above measured](timeline.png)\n\n\
         ## Plan\n\n```text\n{}```\n\n\
         ## Prediction\n\n```text\n{}```\n\n\
         ## Measurement\n\n```text\n{}\n\n{}```\n\n\
         ## Predicted beside measured\n\n```text\n{}```\n",
        notes.concat(),
        devices.join(", "),
        summary.planned,
        simulate::human(summary.predicted),
        losses(summary.report),
        simulate::human(&summary.report.trace),
        compare::human(&comparison),
    )
}
