//! Tables that fit the terminal.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, TableStyle, Width};
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
}

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
    let longest = |heading: &&str| heading.split(' ').map(|word| word.chars().count()).max();
    let words = headings.iter().map(|heading| longest(heading).and_then(|word| u16::try_from(word).ok()));
    Table { table, right: right.to_vec(), words: words.map(Option::unwrap_or_default).collect() }
}

/// The same for many columns of numbers, with a single space between columns.
pub fn dense_table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = table(headings, right);
    table.tighten();
    table
}

impl Table {
    /// Adds a row.
    pub fn add_row(&mut self, row: impl Into<Row>) {
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

    /// Whether the columns of numbers leave room for the words of all headings, with a space between columns.
    fn has_room_for_words(&self) -> bool {
        self.fits(|index, _| self.words[index].into(), self.words.len().saturating_sub(1))
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
        let mut fitted = Self { table: self.table.clone(), right: self.right.clone(), words: self.words.clone() };
        if !fitted.has_room() {
            fitted.tighten();
        }
        let (whole, words) = (fitted.has_room(), fitted.has_room_for_words());
        for (index, word) in self.words.iter().enumerate() {
            let Some(column) = fitted.table.column_mut(index) else { continue };
            let least = Width::Fixed(word + column.padding_width());
            match self.right.contains(&index) {
                true if whole => column.set_constraint(ColumnConstraint::ContentWidth),
                false if words => column.set_constraint(ColumnConstraint::LowerBoundary(least)),
                _ => column,
            };
        }
        fitted.table.fmt(f)
    }
}

/// `COLUMNS` where it is set, otherwise the width of the terminal, or 100 where there is none.
pub fn width() -> u16 {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    given.filter(|width| *width > 0).or_else(|| terminal().map(|(width, _)| width.0)).unwrap_or(WIDTH)
}
