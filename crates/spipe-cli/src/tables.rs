//! Tables that fit the terminal.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle};
use std::io::IsTerminal;

/// A line under the headings, and none between rows.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The width of tables where there is no terminal, in columns.
const WIDTH: u16 = 100;

/// A table with these headings. The columns in `right` are aligned to the right and stay on one
/// line; the others wrap where the table would be wider than the terminal.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width());
    table.set_header(headings.to_vec());
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// The same for many columns of numbers, with a single space between columns.
pub fn dense_table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = table(headings, right);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    table
}

/// `COLUMNS` where it is set, otherwise the width of the terminal, or 100 where there is none.
pub fn width() -> u16 {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    given.filter(|width| *width > 0).or_else(|| terminal().map(|(width, _)| width.0)).unwrap_or(WIDTH)
}
