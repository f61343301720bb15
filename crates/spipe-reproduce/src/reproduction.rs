//! Tables of results: published figures, ours beside them, and the rows that constants were fitted
//! on.

use crate::rows::FORMAT_VERSION;
use serde::Serialize;
use spipe_timeline::Plot;

/// A picture and the name of its files.
pub struct Picture {
    /// The name, without an extension.
    pub name: String,
    /// The points and lines.
    pub plot: Plot,
}

/// The place of a figure in pictures.
#[derive(Clone, Debug)]
pub struct FigurePlace {
    /// The picture, where a table has several of a kind; otherwise empty.
    pub picture: String,
    /// The series of the picture.
    pub series: String,
    /// The position on the horizontal axis.
    pub x: Option<f64>,
}

/// One figure of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cell {
    /// The name of the row.
    pub row: String,
    /// The name of the column.
    pub column: String,
    /// The published figure, where there is one.
    pub published: Option<f64>,
    /// Our figure; none where it cannot be found.
    pub ours: Option<f64>,
    /// (ours − published) ÷ published for times and ratios; ours − published for rates and shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// The constants that were fitted on this figure; none for a prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fitted: Option<String>,
    /// Another remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its place in pictures.
    #[serde(skip)]
    pub place: Option<FigurePlace>,
}

impl Cell {
    /// A prediction with its relative error.
    pub fn relative(row: impl Into<String>, column: impl Into<String>, published: f64, ours: f64) -> Self {
        let error = Some((ours - published) / published);
        Self { error, ..Self::alone(row, column, ours).published(published) }
    }

    /// A prediction of a rate or share, whose error is the difference.
    pub fn difference(row: impl Into<String>, column: impl Into<String>, published: f64, ours: f64) -> Self {
        Self { error: Some(ours - published), ..Self::alone(row, column, ours).published(published) }
    }

    /// One of our figures, without a published one beside it.
    pub fn alone(row: impl Into<String>, column: impl Into<String>, ours: f64) -> Self {
        let (row, column) = (row.into(), column.into());
        Self { row, column, published: None, ours: Some(ours), error: None, fitted: None, note: None, place: None }
    }

    /// A published figure that is not possible here, and why.
    pub fn refused(row: impl Into<String>, column: impl Into<String>, published: f64, why: &str) -> Self {
        Self { ours: None, note: Some(why.into()), ..Self::alone(row, column, 0.0).published(published) }
    }

    fn published(self, published: f64) -> Self {
        Self { published: Some(published), ..self }
    }

    /// The same with the constants that were fitted on it, if any.
    pub fn fitted(self, what: Option<String>) -> Self {
        Self { fitted: what, ..self }
    }

    /// The same with another remark.
    pub fn note(self, what: Option<String>) -> Self {
        Self { note: what, ..self }
    }

    /// The same with its place in pictures.
    pub fn at(self, picture: impl Into<String>, series: impl Into<String>, x: Option<f64>) -> Self {
        Self { place: Some(FigurePlace { picture: picture.into(), series: series.into(), x }), ..self }
    }

    /// The cell as a row of text, under [`Reproduction::HEADINGS`].
    pub fn columns(&self) -> [String; 6] {
        let error = self.error.map_or_else(String::new, |error| format!("{:+.2} %", 100.0 * error));
        let published = self.published.map_or_else(String::new, figure);
        let ours = self.ours.map_or_else(String::new, figure);
        [self.row.clone(), self.column.clone(), published, ours, error, self.remark()]
    }

    fn remark(&self) -> String {
        let parts: Vec<&str> = [&self.fitted, &self.note].into_iter().filter_map(|part| part.as_deref()).collect();
        parts.join("; ")
    }
}

/// A table of figures with its source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reproduction {
    /// The version of the JSON format.
    pub format_version: u32,
    /// The name of the table.
    pub table: String,
    /// The paper or article that the figures are from.
    pub source: String,
    /// The units of figures and errors, in words.
    pub unit: String,
    /// The figures, row by row.
    pub cells: Vec<Cell>,
    /// Sentences that sum the figures up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

impl Reproduction {
    /// A table of `cells`, without a name yet.
    pub fn new(source: &str, unit: impl Into<String>, cells: Vec<Cell>) -> Self {
        let (table, source) = (String::new(), source.to_owned());
        Self { format_version: FORMAT_VERSION, table, source, unit: unit.into(), cells, findings: vec![] }
    }

    /// The largest and the mean error of each column, over its predicted cells, or over its fitted
    /// ones if none is predicted.
    fn summary(&self) -> Vec<String> {
        let mut columns: Vec<&str> = self.cells.iter().map(|cell| cell.column.as_str()).collect();
        columns.sort_unstable();
        columns.dedup();
        columns.into_iter().filter_map(|column| self.column(column)).collect()
    }

    fn column(&self, column: &str) -> Option<String> {
        let of = |fitted: bool| {
            let cells = self.cells.iter().filter(move |cell| cell.column == column && cell.fitted.is_some() == fitted);
            cells.filter_map(|cell| cell.error).map(f64::abs).collect::<Vec<f64>>()
        };
        let (errors, what) = match of(false) {
            predicted if predicted.is_empty() => (of(true), "fitted"),
            predicted => (predicted, "predicted"),
        };
        let most = errors.iter().copied().reduce(f64::max)?;
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let (most, mean, count) = (100.0 * most, 100.0 * mean, errors.len());
        Some(format!("{column}: largest error {most:.2} %, mean {mean:.2} %, over {count} {what}."))
    }

    /// The findings, then the errors of each column, one line each.
    pub fn conclusions(&self) -> Vec<String> {
        self.findings.iter().cloned().chain(self.summary()).collect()
    }

    /// The headings of [`Cell::columns`].
    pub const HEADINGS: [&str; 6] = ["row", "column", "published", "ours", "error", "fitted; notes"];

    /// The table as a section of an index.
    pub fn section(&self, pictures: &[Picture]) -> String {
        let mut text = format!("## [{}]({}.md)\n\n{}\n\n", self.table, self.table, self.source);
        for line in self.conclusions() {
            text += &format!("- {line}\n");
        }
        for Picture { name, plot } in pictures {
            text += &format!("\n[![{}]({name}.png)]({name}.svg)\n", plot.title);
        }
        text
    }

    /// The table as a page of its own.
    pub fn markdown(&self, pictures: &[Picture]) -> String {
        let mut text = format!("# {}\n\n{}\n\n{}\n\n", self.table, self.source, self.unit);
        for line in self.conclusions() {
            text += &format!("- {line}\n");
        }
        for Picture { name, plot } in pictures {
            text += &format!("\n![{}]({name}.png)\n", plot.title);
        }
        text += "\n| row | column | published | ours | error | fitted; notes |\n|---|---|---|---|---|---|\n";
        for cell in &self.cells {
            text += &format!("| {} |\n", cell.columns().join(" | "));
        }
        text
    }
}

/// At least four significant digits, and all digits before the point.
fn figure(number: f64) -> String {
    match number.abs() {
        small if small < 10.0 => format!("{number:.4}"),
        middle if middle < 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}
