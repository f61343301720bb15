//! The static chart, drawn by plotters as SVG or as a bitmap.
//!
//! ```text
//! heading, facts, notes, faults          header
//! legend of actions and of idle causes   legend
//! device  lane   ▇▇▇▇▇▇▇▇▇▇▇▇▇▇  busy    lanes
//!                0    10    20 ms        lanes (axis)
//! memory         ▁▂▅▇▅▂▁         peak    memory
//! ```
//!
//! The layout is in points; the medium defines the pixels per point.

mod header;
mod lanes;
mod layout;
mod measures;
mod memory;

use crate::{
    DrawError, Picture,
    canvas::{Canvas, Medium, bitmap, register_fonts, with_header},
    scene::Scene,
};
use layout::Layout;
use plotters::{
    backend::{DrawingBackend, SVGBackend},
    drawing::IntoDrawingArea,
};

/// The largest picture, in pixels, that is drawn with two pixels per point; larger ones have one.
const FINE_PIXELS: u64 = 30_000_000;

/// Draws the chart as SVG.
pub fn svg(picture: &Picture) -> Result<String, DrawError> {
    register_fonts()?;
    let scene = Scene::of(picture);
    let layout = Layout::of(&scene);
    let medium = Medium::svg();
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, medium.pixels(layout.size())), medium, &scene, &layout)?;
    let facts: Vec<String> = scene.facts().into_iter().chain(scene.notes()).chain(scene.faults()).collect();
    Ok(with_header(&text, layout.size(), &scene.title, &facts.join("; ")))
}

/// Draws the chart as a PNG file.
pub fn png(picture: &Picture) -> Result<Vec<u8>, DrawError> {
    register_fonts()?;
    let scene = Scene::of(picture);
    let layout = Layout::of(&scene);
    let points = layout.width as u64 * layout.height as u64;
    let scale = if points * 4 <= FINE_PIXELS { 2 } else { 1 };
    bitmap(layout.size(), scale, |backend, medium| draw(backend, medium, &scene, &layout))
}

fn draw<DB: DrawingBackend>(backend: DB, medium: Medium, scene: &Scene, layout: &Layout) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    let canvas = Canvas::new(&area, medium);
    canvas.rect((0.0, 0.0, layout.width, layout.height), [255; 3])?;
    header::draw(&canvas, &layout.header)?;
    lanes::draw(&canvas, scene, layout)?;
    memory::draw(&canvas, scene, layout)?;
    canvas.finish()
}
