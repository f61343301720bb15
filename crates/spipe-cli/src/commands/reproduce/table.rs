//! Tables of results: figures of others, ours beside them, and what was fitted on what.

use super::plots::Picture;
use crate::tables::table;
use serde::Serialize;

/// Where a figure is in pictures.
#[derive(Clone, Debug)]
pub struct Place {
    /// Which picture, where a table has several of a kind.
    pub picture: String,
    pub series: String,
    /// The horizontal axis.
    pub x: Option<f64>,
}

/// One figure of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cell {
    /// What the row is about.
    pub row: String,
    /// The column.
    pub column: String,
    /// What others measured; nothing where they could not, or did not say.
    pub published: Option<f64>,
    /// What is found here; nothing where it cannot be.
    pub ours: Option<f64>,
    /// (ours − published) ÷ published for times and ratios; ours − published for rates and shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// What was fitted on this figure, if anything was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fitted: Option<String>,
    /// What else is to be said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip)]
    pub place: Option<Place>,
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

    /// A figure without one of others beside it.
    pub fn alone(row: impl Into<String>, column: impl Into<String>, ours: f64) -> Self {
        let (row, column) = (row.into(), column.into());
        Self { row, column, published: None, ours: Some(ours), error: None, fitted: None, note: None, place: None }
    }

    /// A figure of others that cannot be, and why.
    pub fn refused(row: impl Into<String>, column: impl Into<String>, published: f64, why: &str) -> Self {
        Self { ours: None, note: Some(why.into()), ..Self::alone(row, column, 0.0).published(published) }
    }

    fn published(self, published: f64) -> Self {
        Self { published: Some(published), ..self }
    }

    /// The same, fitted if `what` says on what.
    pub fn fitted(self, what: Option<String>) -> Self {
        Self { fitted: what, ..self }
    }

    /// The same with something else to be said.
    pub fn note(self, what: Option<String>) -> Self {
        Self { note: what, ..self }
    }

    /// The same with its place in pictures.
    pub fn at(self, picture: impl Into<String>, series: impl Into<String>, x: Option<f64>) -> Self {
        Self { place: Some(Place { picture: picture.into(), series: series.into(), x }), ..self }
    }

    fn remark(&self) -> String {
        let parts: Vec<&str> = [&self.fitted, &self.note].into_iter().filter_map(|part| part.as_deref()).collect();
        parts.join("; ")
    }
}

/// A table with where it comes from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reproduction {
    pub format_version: u32,
    pub table: String,
    pub source: String,
    /// What figures and errors are.
    pub unit: String,
    pub cells: Vec<Cell>,
    /// What the figures add up to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

impl Reproduction {
    /// A table of `cells`; its name is that of its rows.
    pub fn new(source: &str, unit: impl Into<String>, cells: Vec<Cell>) -> Self {
        let (table, source) = (String::new(), source.to_owned());
        Self { format_version: super::rows::FORMAT_VERSION, table, source, unit: unit.into(), cells, findings: vec![] }
    }

    /// The largest and the mean error of each column: of what was predicted; of what was fitted, where nothing was predicted.
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

    /// A section of an index.
    pub fn section(&self, pictures: &[Picture]) -> String {
        let mut text = format!("## [{}]({}.md)\n\n{}\n\n", self.table, self.table, self.source);
        for line in self.findings.iter().cloned().chain(self.summary()) {
            text += &format!("- {line}\n");
        }
        for Picture { name, plot } in pictures {
            text += &format!("\n[![{}]({name}.png)]({name}.svg)\n", plot.title);
        }
        text
    }

    /// For a terminal.
    pub fn human(&self) -> String {
        let mut rows = table(&["row", "column", "published", "ours", "error", "fitted; notes"], &[2, 3, 4]);
        for cell in &self.cells {
            rows.add_row(self.columns(cell).to_vec());
        }
        let ends: Vec<String> = self.findings.iter().cloned().chain(self.summary()).collect();
        format!("{}: {}\n{}\n\n{rows}\n\n{}", self.table, self.source, self.unit, ends.join("\n"))
    }

    /// For the web.
    pub fn markdown(&self, pictures: &[Picture]) -> String {
        let mut text = format!("# {}\n\n{}\n\n{}\n\n", self.table, self.source, self.unit);
        for line in self.findings.iter().cloned().chain(self.summary()) {
            text += &format!("- {line}\n");
        }
        for Picture { name, plot } in pictures {
            text += &format!("\n![{}]({name}.png)\n", plot.title);
        }
        text += "\n| row | column | published | ours | error | fitted; notes |\n|---|---|---|---|---|---|\n";
        for cell in &self.cells {
            text += &format!("| {} |\n", self.columns(cell).join(" | "));
        }
        text
    }

    fn columns(&self, cell: &Cell) -> [String; 6] {
        let error = cell.error.map_or_else(String::new, |error| format!("{:+.2} %", 100.0 * error));
        let published = cell.published.map_or_else(String::new, figure);
        let ours = cell.ours.map_or_else(String::new, figure);
        [cell.row.clone(), cell.column.clone(), published, ours, error, cell.remark()]
    }
}

/// Four digits that count, or all before the point.
pub fn figure(number: f64) -> String {
    match number.abs() {
        small if small < 10.0 => format!("{number:.4}"),
        middle if middle < 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}
