//! `spipe timeline`.

use crate::{
    Failure, args,
    args::Given,
    idle::Idle,
    input, output,
    output::Target,
    report::picture::{Kind, draw_into},
    tables,
};
use spipe_timeline::{Picture, Window};
use std::io::IsTerminal;

/// The usual number of lines above and below the lanes of a chart: heading, axis, memories, legend.
const OTHER_LINES: usize = 20;

/// The fewest lanes that are drawn, however low the window is.
const FEWEST: usize = 16;

/// Draws one trace, or two above each other: into a file, or on the terminal.
pub fn run(what: &args::Timeline, given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to a picture", "the end of `--output` says what is drawn").refuse()?;
    let inputs: Vec<&str> = std::iter::once(what.trace.as_str()).chain(what.second.as_deref()).collect();
    let file = |path: &String| Ok::<_, Failure>((Target::beside(path, &inputs)?, Kind::of(path)?));
    let file = what.output.as_ref().map(file).transpose()?;
    let trace = input::trace(&what.trace)?;
    let second = what.second.as_deref().map(input::trace).transpose()?;
    let picture = Picture { trace: &trace, second: second.as_ref(), title: None };
    match file {
        Some((target, kind)) => draw_into(target, kind, &picture),
        None => output::print(&spipe_timeline::text_in(&picture, window(second.is_some()))),
    }
}

/// The window of the terminal. Lanes that do not fit are left out only where there is a terminal.
fn window(double: bool) -> Window {
    let rows = std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten().map(|(_, height)| height.0);
    let lanes = rows.map(|rows| usize::from(rows).saturating_sub(OTHER_LINES).max(FEWEST) / if double { 2 } else { 1 });
    let colored = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    Window { width: usize::from(tables::width()), lanes, colored }
}
