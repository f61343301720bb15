//! The files of the demo.

use super::{Summary, losses};
use crate::{
    Failure,
    output::Target,
    report::{
        comparison,
        picture::{Kind, draw},
        trace,
    },
};
use spipe_hardware::Hardware;
use std::path::Path;

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
                picture_name => draw(Kind::of(picture_name)?, &picture)?,
            };
            target.write(&content)?;
        }
        Ok(())
    }
}

/// The results of the demo as a page.
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
        trace::human(summary.predicted),
        losses(summary.report),
        trace::human(&summary.report.trace),
        comparison::human(&comparison),
    )
}
