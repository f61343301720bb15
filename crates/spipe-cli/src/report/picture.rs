//! Pictures of traces.

use crate::{Failure, output::Target};
use spipe_timeline::Picture;
use spipe_trace::Trace;

/// Columns of a text picture in a file.
const TEXT_WIDTH: usize = 160;

/// A kind of picture.
#[derive(Clone, Copy)]
pub enum Kind {
    Svg,
    Png,
    Html,
    Text,
    Perfetto,
}

impl Kind {
    /// The kind of a file by the end of its name; text for `-`.
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
                format!("`{path}` does not name a kind of picture"),
                "let it end in .svg, .png, .html, .txt or .perfetto.json, or give - for text on stdout",
            )
        })
    }
}

/// Draws a picture.
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

/// Draws a picture into a file.
pub fn draw_into(target: Target, kind: Kind, picture: &Picture<'_>) -> Result<(), Failure> {
    match kind {
        Kind::Perfetto => target.write_with(|out| spipe_timeline::write_perfetto(picture, out)),
        _ => target.write(&draw(kind, picture)?),
    }
}

/// Draws `trace` into the file at `path`, or writes the trace itself if that ends in `.json`.
pub fn write(path: &str, trace: &Trace) -> Result<(), Failure> {
    let target = Target::open(path)?;
    if path.ends_with(".json") && !path.ends_with(".perfetto.json") {
        return target.write_with(|out| spipe_trace::write_json(trace, out));
    }
    let picture = Picture { trace, second: None, title: None };
    draw_into(target, Kind::of(path)?, &picture)
}
