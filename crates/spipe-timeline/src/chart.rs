//! The static chart, in SVG and in pixels, drawn by plotters through one function.
//!
//! ```text
//! heading, facts, notes, faults          header
//! legend of actions and of idle causes   legend
//! device  lane   ▇▇▇▇▇▇▇▇▇▇▇▇▇▇  busy    lanes
//!                0    10    20 ms        lanes (axis)
//! memory         ▁▂▅▇▅▂▁         peak    memory
//! ```
//!
//! Everything is laid out in points, of which a pixel of the picture is a fraction; the medium says which.

mod canvas;
mod header;
mod lanes;
mod layout;
mod memory;

use crate::{DrawError, Picture, scene::Scene};
use canvas::{Canvas, Medium, register_fonts};
use layout::Layout;
use plotters::{
    backend::{BitMapBackend, DrawingBackend, SVGBackend},
    drawing::IntoDrawingArea,
};

/// The largest picture that is drawn with two pixels per point; larger ones get one.
const FINE_PIXELS: u64 = 30_000_000;

/// The chart as SVG.
pub fn svg(picture: &Picture) -> Result<String, DrawError> {
    register_fonts()?;
    let scene = Scene::of(picture);
    let layout = Layout::of(&scene);
    let medium = Medium::svg();
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, medium.pixels(&layout)), medium, &scene, &layout)?;
    Ok(with_header(&text, &scene, &layout))
}

/// The chart as the bytes of a PNG file.
pub fn png(picture: &Picture) -> Result<Vec<u8>, DrawError> {
    register_fonts()?;
    let scene = Scene::of(picture);
    let layout = Layout::of(&scene);
    let points = layout.width as u64 * layout.height as u64;
    let medium = Medium::bitmap(if points * 4 <= FINE_PIXELS { 2 } else { 1 });
    let (width, height) = medium.pixels(&layout);
    let mut pixels = vec![255; width as usize * height as usize * 3];
    draw(BitMapBackend::with_buffer(&mut pixels, (width, height)), medium, &scene, &layout)?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // Rows of a chart resemble the row above them.
    encoder.set_filter(png::FilterType::Up);
    encoder.set_compression(png::Compression::Default);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(file)
}

fn draw<DB: DrawingBackend>(backend: DB, medium: Medium, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    let canvas = Canvas::new(&area, medium);
    canvas.rect((0.0, 0.0, layout.width, layout.height), [255; 3])?;
    header::draw(&canvas, layout)?;
    lanes::draw(&canvas, scene, layout)?;
    memory::draw(&canvas, scene, layout)?;
    canvas.finish()
}

/// plotters writes the size in pixels and no title. The size here is in points, so that the file opens at a sensible
/// size with fractions of points in it, and screen readers get the facts.
fn with_header(svg: &str, scene: &Scene, layout: &Layout) -> String {
    let body = svg.split_once('\n').map_or("", |(_, body)| body);
    let (width, height) = Medium::svg().pixels(layout);
    let facts: Vec<String> = scene.facts().into_iter().chain(scene.notes()).chain(scene.faults()).collect();
    format!(
        "<svg width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\n\
         <title>{}</title>\n<desc>{}</desc>\n{body}",
        layout.width,
        layout.height,
        escape(&scene.title),
        escape(&facts.join("; ")),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
