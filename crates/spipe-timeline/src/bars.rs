//! Horizontal bars: one figure of each of several things.
//!
//! ```text
//! heading, notes
//! first   ▇▇▇▇▇▇▇▇▇▇▇ 31
//! second  ▇▇▇▇ 12
//! third   does not fit
//!         figure, unit
//! ```

use crate::{
    DrawError,
    canvas::{Align, Canvas, Medium, Type, bitmap, register_fonts, with_header},
    heading::{Heading, LINE, MARGIN, NOTE},
    palette::Family,
};
use plotters::{
    backend::{DrawingBackend, SVGBackend},
    drawing::IntoDrawingArea,
};

/// The height of a bar with its gap, and of the bar alone.
const STEP: f64 = 22.0;
const BAR: f64 = 16.0;
/// The width of the longest bar.
const LONGEST: f64 = 420.0;
/// The room for the figure behind a bar.
const ROOM: f64 = 190.0;
const NAME: Type = Type::new(12.0).align(Align::Right);
const VALUE: Type = Type::new(12.0);

/// The contents of the picture.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// The heading.
    pub title: String,
    /// Smaller lines below the heading.
    pub notes: Vec<String>,
    /// The quantity and its unit.
    pub label: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its length, 0 or more; `None` for no bar.
    pub value: Option<f64>,
    /// The text behind it: the figure, or why there is none.
    pub text: String,
}

/// The places of the parts, in points.
struct Layout {
    heading: Heading,
    left: f64,
    top: f64,
    size: (f64, f64),
    most: f64,
}

impl Layout {
    fn of(bars: &Bars) -> Result<Self, DrawError> {
        if let Some(bar) =
            bars.bars.iter().find(|bar| bar.value.is_some_and(|value| !(0.0..f64::INFINITY).contains(&value)))
        {
            return Err(DrawError::Drawing { message: format!("`{}` has no length", bar.name) });
        }
        let names = bars.bars.iter().map(|bar| NAME.width(&bar.name)).fold(0.0, f64::max);
        let left = MARGIN + names + 8.0;
        let width = left + LONGEST + ROOM + MARGIN;
        let heading = Heading::of(&bars.title, &bars.notes, width);
        let top = heading.bottom();
        let height = top + bars.bars.len() as f64 * STEP + LINE + MARGIN;
        let most = bars.bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max);
        Ok(Self { heading, left, top, size: (width, height), most })
    }
}

/// Draws the bars as SVG.
///
/// # Errors
///
/// A figure is negative or not finite.
pub fn bars_svg(bars: &Bars) -> Result<String, DrawError> {
    register_fonts()?;
    let layout = Layout::of(bars)?;
    let medium = Medium::svg();
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, medium.pixels(layout.size)), medium, (bars, &layout))?;
    Ok(with_header(&text, layout.size, &bars.title, &bars.notes.join("; ")))
}

/// Draws the bars as a PNG file with two pixels per point.
///
/// # Errors
///
/// The same as [`bars_svg`].
pub fn bars_png(bars: &Bars) -> Result<Vec<u8>, DrawError> {
    register_fonts()?;
    let layout = Layout::of(bars)?;
    bitmap(layout.size, 2, |backend, medium| draw(backend, medium, (bars, &layout)))
}

fn draw<DB: DrawingBackend>(backend: DB, medium: Medium, (bars, layout): (&Bars, &Layout)) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    let canvas = Canvas::new(&area, medium);
    canvas.rect((0.0, 0.0, layout.size.0, layout.size.1), [255; 3])?;
    layout.heading.draw(&canvas)?;
    for (index, bar) in bars.bars.iter().enumerate() {
        let top = layout.top + index as f64 * STEP;
        canvas.text(&bar.name, (layout.left - 8.0, top + 12.5), NAME)?;
        let length = bar.value.map_or(0.0, |value| LONGEST * value / layout.most.max(f64::MIN_POSITIVE));
        if bar.value.is_some() {
            canvas.rect((layout.left, top, layout.left + length.max(1.0), top + BAR), Family::Forward.color())?;
        }
        let style = if bar.value.is_some() { VALUE } else { VALUE.color([0x66; 3]) };
        let text = style.fit(&bar.text, LONGEST + ROOM - length - 6.0);
        canvas.text(&text, (layout.left + length + 6.0, top + 12.5), style)?;
    }
    let bottom = layout.top + bars.bars.len() as f64 * STEP;
    canvas.line(&[(layout.left, layout.top - 4.0), (layout.left, bottom)], [0x99; 3], 1.0)?;
    canvas.text(&bars.label, (layout.left, bottom + 12.0), NOTE)?;
    canvas.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(value: f64) -> Bars {
        let bar = |name: &str, value, text: &str| Bar { name: name.into(), value, text: text.into() };
        Bars {
            title: "systems".into(),
            label: "tokens/s".into(),
            bars: vec![bar("one", Some(value), "7"), bar("other", None, "does not fit")],
            ..Bars::default()
        }
    }

    #[test]
    fn a_bar_without_a_figure_says_why() {
        let svg = bars_svg(&bars(7.0)).unwrap();
        assert!(svg.contains("does not fit") && svg.contains("tokens/s"));
        assert!(bars_png(&bars(0.0)).is_ok(), "all bars may be empty");
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(bars_svg(&bars(value)).is_err(), "{value}");
        }
    }
}
