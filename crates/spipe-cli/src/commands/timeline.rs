//! `spipe timeline`.

use crate::{Failure, args, input, output::Target};
use spipe_timeline::Picture;
use spipe_trace::Trace;

/// Columns of a text picture in a file.
const TEXT_WIDTH: usize = 160;

/// Draws.
pub fn run(what: &args::Timeline) -> Result<(), Failure> {
    let inputs: Vec<&str> = std::iter::once(what.trace.as_str()).chain(what.second.as_deref()).collect();
    let target = Target::beside(&what.output, &inputs)?;
    let kind = Kind::of(&what.output)?;
    let trace = input::trace(&what.trace)?;
    let second = what.second.as_deref().map(input::trace).transpose()?;
    target.write(&draw(kind, &Picture { trace: &trace, second: second.as_ref(), title: None })?)
}

/// The kinds of pictures.
#[derive(Clone, Copy)]
pub enum Kind {
    Svg,
    Png,
    Html,
    Text,
    Perfetto,
}

impl Kind {
    /// By the end of a file's name.
    pub fn of(path: &str) -> Result<Self, Failure> {
        let kinds = [
            (".perfetto.json", Self::Perfetto),
            (".svg", Self::Svg),
            (".png", Self::Png),
            (".html", Self::Html),
            (".txt", Self::Text),
        ];
        if path == "-" {
            return Ok(Self::Text);
        }
        kinds.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, kind)| kind).ok_or_else(|| {
            Failure::argument(
                format!("`{path}` does not say what to draw"),
                "let it end in .svg, .png, .html, .txt or .perfetto.json, or give - for text on stdout",
            )
        })
    }
}

/// The bytes of a picture.
pub fn draw(kind: Kind, picture: &Picture<'_>) -> Result<Vec<u8>, Failure> {
    let failed = |error: spipe_timeline::DrawError| Failure::Bug(format!("the picture cannot be drawn: {error}"));
    Ok(match kind {
        Kind::Svg => spipe_timeline::svg(picture).map_err(failed)?.into_bytes(),
        Kind::Png => spipe_timeline::png(picture).map_err(failed)?,
        Kind::Html => spipe_timeline::html(picture).into_bytes(),
        Kind::Text => spipe_timeline::text(picture, TEXT_WIDTH).into_bytes(),
        Kind::Perfetto => spipe_timeline::perfetto(picture).into_bytes(),
    })
}

/// Draws `trace` into the file that was asked for, or writes the trace itself for `.json`.
pub fn write(path: &str, trace: &Trace) -> Result<(), Failure> {
    let target = Target::open(path)?;
    if path.ends_with(".json") && !path.ends_with(".perfetto.json") {
        return target.write(spipe_trace::to_json(trace).as_bytes());
    }
    let picture = Picture { trace, second: None, title: None };
    target.write(&draw(Kind::of(path)?, &picture)?)
}
