//! Tables that fit the terminal.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, TableStyle, Width};
use spipe_base::readable::{follows, range};
use std::{fmt, io::IsTerminal};

/// A line under the headings, and none between rows.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The width of tables where there is no terminal, in columns.
const WIDTH: u16 = 100;

/// The width that a column of text keeps beside columns of numbers: most names are no longer.
const LEAST: usize = 10;

/// A table that is printed no wider than the terminal. Its columns of text wrap; where that is not
/// enough, its columns of numbers do too.
pub struct Table {
    table: comfy_table::Table,
    right: Vec<usize>,
    /// The longest word of each heading, which is not broken.
    words: Vec<u16>,
    /// The same with the words of the rows, as far as they are names.
    names: Vec<u16>,
}

/// The longest name that is kept whole where there is room: `gpu100..gpu127`.
const NAME: usize = 14;

/// A table with these headings. The columns in `right` are aligned to the right.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width());
    table.set_header(headings.to_vec());
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let words: Vec<u16> = headings.iter().map(|heading| longest_word(heading, usize::MAX)).collect();
    Table { table, right: right.to_vec(), names: words.clone(), words }
}

/// The longest word of a text, of those of at most `most` characters.
fn longest_word(text: &str, most: usize) -> u16 {
    let words = text.split([' ', '\n']).map(|word| word.chars().count());
    words.filter(|word| *word <= most).max().and_then(|word| u16::try_from(word).ok()).unwrap_or_default()
}

/// The same for many columns of numbers, with a single space between columns.
pub fn dense_table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = table(headings, right);
    table.tighten();
    table
}

impl Table {
    /// Adds the rows of [`fold`].
    pub fn add_folded(&mut self, rows: impl IntoIterator<Item = Named>) {
        for Named { name, cells } in fold(rows) {
            self.add_row([vec![name], cells].concat());
        }
    }

    /// Adds a row.
    pub fn add_row(&mut self, row: impl Into<Row>) {
        let row = row.into();
        for (name, cell) in self.names.iter_mut().zip(row.cell_iter()) {
            *name = (*name).max(longest_word(&cell.content(), NAME));
        }
        self.table.add_row(row);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Leaves a single space between columns.
    fn tighten(&mut self) {
        self.table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 1));
        });
    }

    /// Whether the columns of numbers leave the columns of text their least width.
    fn has_room(&self) -> bool {
        self.fits(|_, width| width.min(LEAST), 0)
    }

    /// Whether the columns of numbers leave room for words of these lengths, with a space between columns.
    fn has_room_for(&self, words: &[u16]) -> bool {
        self.fits(|index, _| words[index].into(), words.len().saturating_sub(1))
    }

    /// Whether the columns of numbers, columns of text of `width`, given their number and content, and
    /// `between` fit.
    fn fits(&self, width: impl Fn(usize, usize) -> usize, between: usize) -> bool {
        let widths = self.table.column_max_content_widths();
        let padding: usize = self.table.column_iter().map(|column| usize::from(column.padding_width())).sum();
        let content = widths.iter().map(|width| usize::from(*width)).enumerate();
        let needed =
            content.map(|(index, content)| if self.right.contains(&index) { content } else { width(index, content) });
        needed.sum::<usize>() + padding + between <= usize::from(self.table.width().unwrap_or(WIDTH))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, names) = (self.words.clone(), self.names.clone());
        let mut fitted = Self { table: self.table.clone(), right: self.right.clone(), words, names };
        if !fitted.has_room() {
            fitted.tighten();
        }
        let whole = fitted.has_room();
        let words = [&self.names, &self.words].into_iter().find(|words| fitted.has_room_for(words));
        for (index, word) in words.unwrap_or(&self.words).iter().enumerate() {
            let Some(column) = fitted.table.column_mut(index) else { continue };
            let least = Width::Fixed(word + column.padding_width());
            match self.right.contains(&index) {
                true if whole => column.set_constraint(ColumnConstraint::ContentWidth),
                false if words.is_some() => column.set_constraint(ColumnConstraint::LowerBoundary(least)),
                _ => column,
            };
        }
        fitted.table.fmt(f)
    }
}

/// A row with the name in its first column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name of a device, of a memory or of a lane.
    pub name: String,
    /// The cells behind it.
    pub cells: Vec<String>,
}

/// One row for consecutive devices with equal cells, named `gpu0..gpu63`, in the place of the first of them. Lanes of
/// devices fold lane by lane.
pub fn fold(rows: impl IntoIterator<Item = Named>) -> Vec<Named> {
    /// A row with the name of its last device.
    struct Run {
        row: Named,
        last: String,
    }
    let mut runs: Vec<Run> = Vec::new();
    for row in rows {
        match runs.iter_mut().find(|run| follows(&run.last, &row.name) && run.row.cells == row.cells) {
            Some(run) => run.last = row.name,
            None => runs.push(Run { last: row.name.clone(), row }),
        }
    }
    runs.into_iter().map(|run| Named { name: range(&run.row.name, &run.last), ..run.row }).collect()
}

/// `COLUMNS` where it is set, otherwise the width of the terminal, or 100 where there is none.
pub fn width() -> u16 {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    given.filter(|width| *width > 0).or_else(|| terminal().map(|(width, _)| width.0)).unwrap_or(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_devices_share_a_row() {
        let row = |name: String, cell: &str| Named { name, cells: vec![cell.into()] };
        let gpus = (0..64).map(|gpu| row(format!("gpu{gpu}"), if gpu == 7 { "full" } else { "half full" }));
        let names: Vec<String> =
            fold(gpus.chain([row("dram0".into(), "full")])).into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["gpu0..gpu6", "gpu7", "gpu8..gpu63", "dram0"]);
        let lanes = (0..4).flat_map(|gpu| ["compute", "in"].map(|lane| row(format!("gpu{gpu}.{lane}"), lane)));
        let names: Vec<String> = fold(lanes).into_iter().map(|row| row.name).collect();
        assert_eq!(names, ["gpu0..gpu3.compute", "gpu0..gpu3.in"]);
    }
}
