//! A canvas measured in points, on a drawing area of any plotters backend.

use crate::{DrawError, palette::Color};
use plotters::{
    backend::BitMapBackend,
    coord::Shift,
    drawing::DrawingArea,
    element::{PathElement, Polygon, Rectangle},
    prelude::DrawingBackend,
    style::{
        FontDesc, FontFamily, FontStyle, RGBColor, ShapeStyle, TextStyle, register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};
use std::sync::LazyLock;

/// The font family in SVG files, also the name under which the embedded font is registered. Verdana
/// has the same widths.
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
const REGULAR: &[u8] = include_bytes!("../fonts/DejaVuSans-subset.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/DejaVuSans-Bold-subset.ttf");

/// Ascent plus descent of the embedded font in ems (`hhea`: (1901 + 483) / 2048). ab_glyph takes
/// this height as the size.
const FONT_HEIGHT: f64 = 2384.0 / 2048.0;
/// plotters-svg divides the size by this to get `font-size`.
const SVG_SIZE: f64 = 1.24;
/// plotters-svg places the baseline of top-anchored text this many ems lower.
const SVG_BASELINE: f64 = 0.76;
/// ab_glyph draws the baseline this fraction of the size below the top.
const BITMAP_BASELINE: f64 = 0.5;

/// Registers the embedded fonts with plotters, once.
pub(crate) fn register_fonts() -> Result<(), DrawError> {
    static REGISTERED: LazyLock<bool> = LazyLock::new(|| {
        register_font(FONT, FontStyle::Normal, REGULAR).is_ok() && register_font(FONT, FontStyle::Bold, BOLD).is_ok()
    });
    if *REGISTERED { Ok(()) } else { Err(DrawError::Font) }
}

/// The conversion of points into a backend's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Medium {
    pixels_per_point: f64,
    /// Requested font size divided by the resulting em.
    size: f64,
    /// Baseline below the top, in ems.
    baseline: f64,
}

impl Medium {
    /// Returns the medium of SVG files: quarters of points, because plotters has integer
    /// coordinates.
    pub(crate) const fn svg() -> Self {
        Self { pixels_per_point: 4.0, size: SVG_SIZE, baseline: SVG_BASELINE }
    }

    /// Returns the medium of bitmaps.
    pub(crate) fn bitmap(pixels_per_point: u32) -> Self {
        let pixels_per_point = f64::from(pixels_per_point);
        Self { pixels_per_point, size: FONT_HEIGHT, baseline: BITMAP_BASELINE * FONT_HEIGHT }
    }

    /// Converts the size of a picture from points to the backend's units.
    pub(crate) fn pixels(self, (width, height): (f64, f64)) -> (u32, u32) {
        let pixels = |points: f64| (points * self.pixels_per_point).round() as u32;
        (pixels(width), pixels(height))
    }
}

/// The horizontal alignment of text relative to its point on the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Center,
    Right,
}

/// A text style.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type {
    /// The em in points.
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) color: Color,
    pub(crate) align: Align,
}

impl Type {
    /// Creates a regular, black, left-aligned style.
    pub(crate) const fn new(size: f64) -> Self {
        Self { size, bold: false, color: [0x22; 3], align: Align::Left }
    }

    pub(crate) const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub(crate) const fn color(self, color: Color) -> Self {
        Self { color, ..self }
    }

    pub(crate) const fn align(self, align: Align) -> Self {
        Self { align, ..self }
    }

    fn font(self, size: f64) -> FontDesc<'static> {
        let style = if self.bold { FontStyle::Bold } else { FontStyle::Normal };
        FontDesc::new(FontFamily::Name(FONT), size, style)
    }

    /// Returns the width of `text` in points, which is equal in every medium.
    pub(crate) fn width(self, text: &str) -> f64 {
        const FINENESS: f64 = 16.0;
        let width = self.font(self.size * FONT_HEIGHT * FINENESS).box_size(text).map_or(0, |(width, _)| width);
        f64::from(width) / FINENESS
    }

    /// Shortens `text` with an ellipsis to at most `width` points.
    pub(crate) fn fit(self, text: &str, width: f64) -> String {
        if self.width(text) <= width {
            return text.to_owned();
        }
        let mut kept: Vec<char> = text.chars().take((width / self.size * 4.0) as usize).collect();
        while let Some(_dropped) = kept.pop() {
            let shorter: String = kept.iter().collect::<String>() + "…";
            if self.width(&shorter) <= width {
                return shorter;
            }
        }
        String::new()
    }

    /// Breaks `text` between words into lines of at most `width` points.
    pub(crate) fn wrap(self, text: &str, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}")) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(self.fit(word, width)),
            }
        }
        lines
    }
}

/// Left, top, right, bottom, in points.
pub(crate) type Frame = (f64, f64, f64, f64);

/// A drawing area measured in points.
pub(crate) struct Canvas<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    medium: Medium,
}

impl<'a, DB: DrawingBackend> Canvas<'a, DB> {
    pub(crate) const fn new(area: &'a DrawingArea<DB, Shift>, medium: Medium) -> Self {
        Self { area, medium }
    }

    /// Returns the smallest visible width, in points.
    pub(crate) fn grain(&self) -> f64 {
        1.0 / self.medium.pixels_per_point.min(2.0)
    }

    /// Draws a filled rectangle.
    pub(crate) fn rect(&self, (left, top, right, bottom): Frame, color: Color) -> Result<(), DrawError> {
        let corners = [self.at((left, top)), self.at((right, bottom))];
        failed(self.area.draw(&Rectangle::new(corners, paint(color).filled())))
    }

    /// Draws a polyline, `width` points wide.
    pub(crate) fn line(&self, points: &[(f64, f64)], color: Color, width: f64) -> Result<(), DrawError> {
        let points: Vec<(i32, i32)> = points.iter().map(|point| self.at(*point)).collect();
        let width = (width * self.medium.pixels_per_point).round().max(1.0) as u32;
        failed(self.area.draw(&PathElement::new(points, paint(color).stroke_width(width))))
    }

    /// Draws a dashed horizontal line.
    pub(crate) fn dashes(&self, (left, right): (f64, f64), y: f64, color: Color) -> Result<(), DrawError> {
        let mut x = left;
        while x < right {
            self.line(&[(x, y), ((x + 6.0).min(right), y)], color, 1.0)?;
            x += 10.0;
        }
        Ok(())
    }

    /// Draws a filled polygon.
    pub(crate) fn area(&self, points: &[(f64, f64)], color: Color) -> Result<(), DrawError> {
        let points: Vec<(i32, i32)> = points.iter().map(|point| self.at(*point)).collect();
        failed(self.area.draw(&Polygon::new(points, paint(color).filled())))
    }

    /// Draws text whose baseline starts, is centred, or ends at `at`.
    pub(crate) fn text(&self, text: &str, at: (f64, f64), style: Type) -> Result<(), DrawError> {
        let em = style.size * self.medium.pixels_per_point;
        let (x, baseline) = self.at(at);
        let horizontal = match style.align {
            Align::Left => HPos::Left,
            Align::Center => HPos::Center,
            Align::Right => HPos::Right,
        };
        let [red, green, blue] = style.color;
        let color = RGBColor(red, green, blue);
        let style =
            TextStyle::from(style.font(em * self.medium.size)).color(&color).pos(Pos::new(horizontal, VPos::Top));
        let top = baseline - (em * self.medium.baseline).round() as i32;
        failed(self.area.draw_text(text, &style, (x, top)))
    }

    /// Completes the picture.
    pub(crate) fn finish(&self) -> Result<(), DrawError> {
        failed(self.area.present())
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let pixel = |points: f64| (points * self.medium.pixels_per_point).round() as i32;
        (pixel(x), pixel(y))
    }
}

fn paint(color: Color) -> ShapeStyle {
    let [red, green, blue] = color;
    ShapeStyle::from(&RGBColor(red, green, blue))
}

/// Draws a picture of `size` points as a PNG file with `scale` pixels per point.
pub(crate) fn bitmap(
    size: (f64, f64),
    scale: u32,
    draw: impl FnOnce(BitMapBackend<'_>, Medium) -> Result<(), DrawError>,
) -> Result<Vec<u8>, DrawError> {
    let medium = Medium::bitmap(scale);
    let (width, height) = medium.pixels(size);
    let mut pixels = vec![255; width as usize * height as usize * 3];
    draw(BitMapBackend::with_buffer(&mut pixels, (width, height)), medium)?;
    encode_png(&pixels, (width, height))
}

/// Encodes pixels of three bytes as a PNG file.
fn encode_png(pixels: &[u8], (width, height): (u32, u32)) -> Result<Vec<u8>, DrawError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // Each row of a chart resembles the row above it.
    encoder.set_filter(png::FilterType::Up);
    encoder.set_compression(png::Compression::Default);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}

/// Replaces the header of a plotters SVG: adds its size in points, a title and a description for
/// screen readers.
///
/// plotters writes the size in pixels and no title. With the size in points, the file opens at a
/// sensible size and still resolves fractions of points.
pub(crate) fn with_header(svg: &str, (width, height): (f64, f64), title: &str, description: &str) -> String {
    let body = svg.split_once('\n').map_or("", |(_, body)| body);
    let (across, down) = Medium::svg().pixels((width, height));
    format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {across} {down}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\n\
         <title>{}</title>\n<desc>{}</desc>\n{body}",
        escape(title),
        escape(description),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn failed<E: std::fmt::Display>(result: Result<(), E>) -> Result<(), DrawError> {
    result.map_err(|error| DrawError::Drawing { message: error.to_string() })
}
