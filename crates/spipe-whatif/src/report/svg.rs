//! SVG written by hand: marks with tooltips, which the timeline's plots do not have.

use std::fmt::Write;

/// The colours of kinds of marks: a palette that colour-blind readers can tell apart (Okabe and Ito, 2008).
pub(super) const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#999999"];

/// The height of a line of text, in points.
pub(super) const LINE: f64 = 18.0;

/// A picture under construction.
pub(super) struct Svg {
    body: String,
    title: String,
}

impl Svg {
    /// A picture with a heading and smaller lines below it; returns it with the height that they take.
    pub fn new(title: &str, notes: &[String]) -> (Self, f64) {
        let mut svg = Self { body: String::new(), title: title.into() };
        svg.text((12.0, 22.0), ("start", 16, "#222222"), title);
        let mut top = 30.0;
        for note in notes {
            top += 16.0;
            svg.text((12.0, top), ("start", 12, "#5c5c5c"), note);
        }
        (svg, top + 12.0)
    }

    /// Text at its baseline, with anchor, size and colour.
    pub fn text(&mut self, (x, y): (f64, f64), (anchor, size, colour): (&str, u32, &str), text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{text}</text>"#
        );
    }

    /// A rectangle with a tooltip.
    pub fn rect(&mut self, (x, y, width, height): (f64, f64, f64, f64), colour: &str, tip: &str) {
        let tip = escaped(tip);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"><title>{tip}</title></rect>"#
        );
    }

    /// A line.
    pub fn line(&mut self, (from, to): ((f64, f64), (f64, f64)), (colour, width): (&str, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// A disc, or a ring, with a tooltip.
    pub fn mark(&mut self, (x, y): (f64, f64), (colour, filled): (&str, bool), tip: &str) {
        let (fill, tip) = (if filled { colour } else { "#ffffff" }, escaped(tip));
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"><title>{tip}</title></circle>"#
        );
    }

    /// The file.
    pub fn finish(self, (width, height): (f64, f64)) -> String {
        let title = escaped(&self.title);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" font-family="DejaVu Sans, Verdana, sans-serif"><title>{title}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
{}</svg>
"##,
            self.body
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A cell of a grid: a bar from one value to another, and its text.
pub(super) struct Cell {
    pub from: f64,
    pub to: f64,
    pub text: String,
}

/// Bars in rows and columns; each column has its own scale, up to its longest bar or to `whole`.
pub(super) struct Grid {
    pub title: String,
    pub notes: Vec<String>,
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<Option<Cell>>)>,
    /// The value of a full bar, in every column.
    pub whole: Option<f64>,
}

impl Grid {
    /// Leaves out the columns without a cell.
    pub fn without_empty_columns(mut self) -> Self {
        for column in (0..self.columns.len()).rev() {
            if self.rows.iter().all(|(_, cells)| cells.get(column).is_none_or(Option::is_none)) {
                self.columns.remove(column);
                for (_, cells) in &mut self.rows {
                    if column < cells.len() {
                        cells.remove(column);
                    }
                }
            }
        }
        self
    }

    /// Draws the grid.
    pub fn svg(&self) -> String {
        // About 7 points a letter at this size.
        let longest = |texts: &mut dyn Iterator<Item = usize>| 7.0 * texts.max().unwrap_or(0) as f64;
        let name = 30.0 + longest(&mut self.rows.iter().map(|(name, _)| name.chars().count()));
        let width = (560.0 / self.columns.len().max(1) as f64).clamp(90.0, 400.0);
        let texts = self.rows.iter().flat_map(|(_, cells)| cells).flatten().map(|cell| cell.text.chars().count());
        let room = 8.0 + longest(&mut texts.into_iter());
        let (mut svg, top) = Svg::new(&self.title, &self.notes);
        for (column, heading) in self.columns.iter().enumerate() {
            let left = name + column as f64 * (width + room + 8.0);
            svg.text((left, top + 8.0), ("start", 12, "#5c5c5c"), heading);
            let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column)?.as_ref());
            let (low, high) = cells.fold((0.0f64, self.whole.unwrap_or(f64::MIN_POSITIVE)), |ends, cell| {
                (ends.0.min(cell.from.min(cell.to)), ends.1.max(cell.from.max(cell.to)))
            });
            // The text of a bar stands behind it.
            let place = |value: f64| left + (value - low) / (high - low) * width;
            for (row, (machine, cells)) in self.rows.iter().enumerate() {
                let y = top + 16.0 + row as f64 * LINE;
                if column == 0 {
                    svg.text((name - 10.0, y + 11.0), ("end", 12, "#222222"), machine);
                }
                let Some(Some(cell)) = cells.get(column) else { continue };
                let (from, to) = (place(cell.from.min(cell.to)), place(cell.from.max(cell.to)));
                let tip = format!("{machine}: {heading} {}", cell.text);
                svg.rect((from, y, (to - from).max(1.0), LINE - 5.0), COLOURS[column % COLOURS.len()], &tip);
                svg.text((to + 4.0, y + 11.0), ("start", 12, "#222222"), &cell.text);
            }
            if low < 0.0 {
                let bottom = top + 16.0 + self.rows.len() as f64 * LINE;
                svg.line(((place(0.0), top + 12.0), (place(0.0), bottom)), ("#222222", 1.0));
            }
        }
        let height = top + 28.0 + self.rows.len() as f64 * LINE;
        svg.finish((name + self.columns.len() as f64 * (width + room + 8.0) + 20.0, height))
    }
}
