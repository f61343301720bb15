//! The contents of the memories of a plan: one bar for each memory, with its parts one behind the other.
//!
//! ```text
//! heading, notes
//! gpu0   ▇▇▇▇▇▇▇▒▒▒▒░░░▓▓▓▓        ┊  23.0 of 23.4 GiB
//! dram0  ▇▇▇▇▒▒▒▒▒▒▒▒▒▒▒           ┊  100.4 of 122.0 GiB
//!        ▇ weights  ▒ optimizer state  ░ activations  …
//! ```
//!
//! Every bar has the length of its capacity, so that small memories can be read beside large ones.

use crate::{
    DrawError,
    canvas::{Align, Canvas, Medium, Type, bitmap, register_fonts, with_header},
    heading::{Heading, LINE, MARGIN, NOTE},
    palette::{Color, ink_on},
};
use plotters::{
    backend::{DrawingBackend, SVGBackend},
    drawing::IntoDrawingArea,
};
use spipe_base::Bytes;

/// The height of a bar with its gap, and of the bar alone.
const STEP: f64 = 34.0;
const BAR: f64 = 24.0;
/// The length of a bar that is full.
const FULL: f64 = 520.0;
/// The room for the figures behind a bar.
const ROOM: f64 = 200.0;
/// The side of a swatch of the legend, and the distance between its entries.
const SWATCH: f64 = 12.0;
const ENTRY: f64 = 22.0;
const NAME: Type = Type::new(12.0).align(Align::Right);
const VALUE: Type = Type::new(12.0);
/// The colours of the parts, in the order in which they are first named (Okabe and Ito 2008,
/// distinguishable without hue by their lightness).
const COLORS: [Color; 7] = [
    [0x00, 0x72, 0xB2],
    [0xE6, 0x9F, 0x00],
    [0x00, 0x9E, 0x73],
    [0x56, 0xB4, 0xE9],
    [0xCC, 0x79, 0xA7],
    [0xF0, 0xE4, 0x42],
    [0x99, 0x99, 0x99],
];

/// The contents of the picture.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    /// The heading.
    pub title: String,
    /// Smaller lines below the heading.
    pub notes: Vec<String>,
    /// The memories, from top to bottom.
    pub memories: Vec<FilledMemory>,
}

/// A memory with its parts.
#[derive(Clone, Debug, Default)]
pub struct FilledMemory {
    /// Its name.
    pub name: String,
    /// The bytes that can be used.
    pub capacity: Bytes,
    /// The parts by name, from left to right.
    pub parts: Vec<(String, Bytes)>,
}

impl FilledMemory {
    fn used(&self) -> Bytes {
        self.parts.iter().map(|(_, bytes)| *bytes).sum()
    }

    /// The length of a full bar in bytes: what is used, if that is more than the capacity.
    fn full(&self) -> f64 {
        self.capacity.max(self.used()).as_f64().max(1.0)
    }
}

/// The places of the parts, in points.
struct Layout {
    heading: Heading,
    left: f64,
    top: f64,
    size: (f64, f64),
    /// The names of the parts, in the order of their colours.
    legend: Vec<String>,
}

impl Layout {
    fn of(fill: &Fill) -> Self {
        let names = fill.memories.iter().map(|memory| NAME.width(&memory.name)).fold(0.0, f64::max);
        let left = MARGIN + names + 8.0;
        let width = left + FULL + ROOM + MARGIN;
        let heading = Heading::of(&fill.title, &fill.notes, width);
        let top = heading.bottom();
        let mut legend: Vec<String> = Vec::new();
        for (part, _) in fill.memories.iter().flat_map(|memory| &memory.parts) {
            if !legend.contains(part) {
                legend.push(part.clone());
            }
        }
        let height = top + fill.memories.len() as f64 * STEP + 2.0 * LINE + MARGIN;
        Self { heading, left, top, size: (width, height), legend }
    }

    fn color(&self, part: &str) -> Color {
        let index = self.legend.iter().position(|name| name == part).unwrap_or(0);
        COLORS[index % COLORS.len()]
    }
}

/// Draws the memories as SVG.
///
/// # Errors
///
/// The font cannot be read, or the backend fails.
pub fn fill_svg(fill: &Fill) -> Result<String, DrawError> {
    register_fonts()?;
    let layout = Layout::of(fill);
    let medium = Medium::svg();
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, medium.pixels(layout.size)), medium, (fill, &layout))?;
    Ok(with_header(&text, layout.size, &fill.title, &fill.notes.join("; ")))
}

/// Draws the memories as a PNG file with two pixels per point.
///
/// # Errors
///
/// The same as [`fill_svg`].
pub fn fill_png(fill: &Fill) -> Result<Vec<u8>, DrawError> {
    register_fonts()?;
    let layout = Layout::of(fill);
    bitmap(layout.size, 2, |backend, medium| draw(backend, medium, (fill, &layout)))
}

fn draw<DB: DrawingBackend>(backend: DB, medium: Medium, (fill, layout): (&Fill, &Layout)) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    let canvas = Canvas::new(&area, medium);
    canvas.rect((0.0, 0.0, layout.size.0, layout.size.1), [255; 3])?;
    layout.heading.draw(&canvas)?;
    for (index, memory) in fill.memories.iter().enumerate() {
        bar(&canvas, memory, (layout, layout.top + index as f64 * STEP))?;
    }
    let mut x = layout.left;
    let bottom = layout.top + fill.memories.len() as f64 * STEP + 4.0;
    for part in &layout.legend {
        canvas.rect((x, bottom, x + SWATCH, bottom + SWATCH), layout.color(part))?;
        canvas.text(part, (x + SWATCH + 5.0, bottom + 10.5), NOTE)?;
        x += SWATCH + 5.0 + NOTE.width(part) + ENTRY;
    }
    canvas.finish()
}

/// Draws one memory; the part of the bar that is free is pale.
fn bar<DB: DrawingBackend>(
    canvas: &Canvas<'_, DB>,
    memory: &FilledMemory,
    (layout, top): (&Layout, f64),
) -> Result<(), DrawError> {
    let (left, baseline) = (layout.left, top + BAR / 2.0 + 4.5);
    canvas.text(&memory.name, (left - 8.0, baseline), NAME)?;
    canvas.rect((left, top, left + FULL, top + BAR), [0xEE; 3])?;
    let mut x = left;
    for (part, bytes) in &memory.parts {
        let length = FULL * bytes.as_f64() / memory.full();
        let color = layout.color(part);
        canvas.rect((x, top, x + length, top + BAR), color)?;
        let text = bytes.to_string();
        let style = VALUE.color(ink_on(color)).align(Align::Center);
        if style.width(&text) + 6.0 < length {
            canvas.text(&text, (x + length / 2.0, baseline), style)?;
        }
        x += length;
    }
    let end = left + FULL * memory.capacity.as_f64() / memory.full();
    canvas.line(&[(end, top - 3.0), (end, top + BAR + 3.0)], [0x33; 3], 1.0)?;
    let figures = format!("{} of {}", memory.used(), memory.capacity);
    canvas.text(&figures, (left + FULL + 8.0, baseline), VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_memory_and_part_is_named() {
        let memory = |name: &str, capacity, parts: &[(&str, u64)]| FilledMemory {
            name: name.into(),
            capacity,
            parts: parts.iter().map(|(part, gib)| ((*part).into(), Bytes::gib(*gib))).collect(),
        };
        let fill = Fill {
            title: "a plan".into(),
            notes: vec!["its peak".into()],
            memories: vec![
                memory("gpu0", Bytes::gib(24), &[("weights", 10), ("activations", 4)]),
                memory("dram0", Bytes::gib(1), &[("optimizer state", 3)]),
                memory("dram1", Bytes::ZERO, &[]),
            ],
        };
        let svg = fill_svg(&fill).unwrap();
        for word in ["gpu0", "dram0", "dram1", "weights", "activations", "optimizer state", "14.0 GiB of 24.0 GiB"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(fill_png(&fill).is_ok() && fill_svg(&Fill::default()).is_ok());
    }
}
