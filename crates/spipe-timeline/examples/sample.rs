//! Draws a sample pipeline in every format: `cargo run -p spipe-timeline --example sample -- DIRECTORY`.

#[path = "../tests/sample/mod.rs"]
mod sample;

use sample::Pipeline;
use spipe_timeline::{Picture, html, perfetto, png, svg, text};
use spipe_trace::{Origin, Trace};
use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: sample DIRECTORY")?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let pipeline = |gpus, microbatches, origin| sample::trace(Pipeline { gpus, microbatches, origin });
    let (predicted, measured) = (pipeline(2, 8, Origin::Predicted), pipeline(2, 8, Origin::Measured));
    draw(directory, "single", &predicted, None)?;
    draw(directory, "double", &predicted, Some(&measured))?;
    draw(directory, "out-of-memory", &sample::out_of_memory(measured), None)?;
    draw(directory, "many-lanes", &pipeline(32, 96, Origin::Predicted), None)?;
    draw(directory, "many-spans", &pipeline(24, 500, Origin::Measured), None)
}

fn draw(directory: &Path, name: &str, trace: &Trace, second: Option<&Trace>) -> Result<(), Box<dyn Error>> {
    let picture = Picture { trace, second, title: None };
    fs::write(directory.join(format!("{name}.svg")), svg(&picture)?)?;
    fs::write(directory.join(format!("{name}.png")), png(&picture)?)?;
    fs::write(directory.join(format!("{name}.html")), html(&picture))?;
    fs::write(directory.join(format!("{name}.perfetto.json")), perfetto(&picture))?;
    fs::write(directory.join(format!("{name}.txt")), text(&picture, 120))?;
    Ok(())
}
