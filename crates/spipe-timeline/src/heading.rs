//! The heading of a picture of bars, and smaller lines below it.

use crate::{
    DrawError,
    canvas::{Canvas, Type},
};
use plotters::backend::DrawingBackend;

/// The margin around a picture, in points.
pub(crate) const MARGIN: f64 = 20.0;
/// The height of a small line.
pub(crate) const LINE: f64 = 18.0;
/// The letters of small lines.
pub(crate) const NOTE: Type = Type::new(12.0).color([0x55; 3]);
/// The height of a line of the heading.
const HEAD: f64 = 22.0;
const TITLE: Type = Type::new(16.0).bold();

/// A heading with its notes, in lines that fit a picture.
pub(crate) struct Heading {
    title: Vec<String>,
    notes: Vec<String>,
}

impl Heading {
    /// The heading of a picture of `width` points.
    pub fn of(title: &str, notes: &[String], width: f64) -> Self {
        let room = width - 2.0 * MARGIN;
        Self { title: TITLE.wrap(title, room), notes: notes.iter().flat_map(|note| NOTE.wrap(note, room)).collect() }
    }

    /// The place where the picture goes on.
    pub fn bottom(&self) -> f64 {
        MARGIN + self.title.len() as f64 * HEAD + self.notes.len() as f64 * LINE + 10.0
    }

    /// Draws the heading.
    pub fn draw<DB: DrawingBackend>(&self, canvas: &Canvas<'_, DB>) -> Result<(), DrawError> {
        let mut y = MARGIN;
        for line in &self.title {
            y += HEAD;
            canvas.text(line, (MARGIN, y - 6.0), TITLE)?;
        }
        for line in &self.notes {
            y += LINE;
            canvas.text(line, (MARGIN, y - 5.0), NOTE)?;
        }
        Ok(())
    }
}
