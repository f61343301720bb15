//! Tables for people.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A line under the headings and nothing else: rows that belong together stay together.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table with these headings; columns named in `right` are aligned to the right.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(headings.to_vec());
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A fraction as a percentage with one decimal.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A signed fraction as a percentage with one decimal.
pub fn signed_percent(fraction: f64) -> String {
    format!("{:+.1} %", fraction * 100.0)
}

/// A count in the largest unit that leaves at least one: `6.74 B`.
pub fn count(number: f64) -> String {
    let scales = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)];
    match scales.into_iter().find(|(_, factor)| number >= *factor) {
        Some((unit, factor)) => format!("{:.2} {unit}", number / factor),
        None => format!("{number:.0}"),
    }
}

/// A rate: in whole numbers, but with two digits where it is below ten.
pub fn per_second(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.2}") } else { grouped(rate.round() as u64) }
}

/// A count with its thousands apart: `6 738 415 616`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(" ")
}
