//! Rows of published tables, each with its position in its file.

use crate::source::Source;
use serde::{Deserialize, de::DeserializeOwned};
use spipe_base::{Diagnostic, Faults, position_of};
use toml::Spanned;

/// The version of row files and results.
pub const FORMAT_VERSION: u32 = 1;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File<T> {
    format_version: Spanned<u32>,
    #[serde(rename = "table")]
    _table: Option<String>,
    source: String,
    row: Vec<Spanned<T>>,
}

/// The table that a file of rows names, if it names one, with the error to report if there is no
/// such table.
///
/// # Errors
/// The syntax error of the file, with its place.
pub fn table_of(file: &str, text: &str) -> Result<Option<(String, Diagnostic)>, Faults> {
    /// The other keys are read once the table is known.
    #[derive(Deserialize)]
    struct Head {
        table: Option<Spanned<String>>,
    }
    let head: Head = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Diagnostic::error(error.message().to_owned()).at(position_of(file, text, at))
    })?;
    Ok(head.table.map(|name| {
        let fault = Diagnostic::error(format!("rows of table `{}` are not asked for", name.get_ref()));
        let fault = fault.at(position_of(file, text, name.span().start));
        (name.into_inner(), fault)
    }))
}

/// The use of a row.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Usage {
    /// Constants are fitted on it.
    Fit,
    /// It is compared with the prediction of the constants.
    Predict,
}

/// A row and its number in the file, from 0.
pub struct Row<T> {
    pub number: usize,
    pub is: T,
}

impl<T> std::ops::Deref for Row<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.is
    }
}

/// The rows of a file, in its order.
pub struct Rows<T> {
    pub source: String,
    pub rows: Vec<Row<T>>,
    starts: Vec<usize>,
    file: String,
    text: String,
}

impl<T: DeserializeOwned> Rows<T> {
    /// Reads the rows of `source`.
    ///
    /// # Errors
    /// The first fault of the file, with its place.
    pub fn read(source: &Source<'_>) -> Result<Self, Faults> {
        let Source { file, text, .. } = *source;
        let place = |offset: usize| position_of(file, text, offset);
        let read: File<T> = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let fault = Diagnostic::error(error.message().to_owned()).at(place(at));
            fault.hint("crates/spipe-reproduce/data has the built-in rows in the same format")
        })?;
        if *read.format_version.get_ref() != FORMAT_VERSION {
            let (version, at) = (read.format_version.get_ref(), read.format_version.span().start);
            let fault = Diagnostic::error(format!("format version {version} is not known here")).at(place(at));
            return Err(fault.hint(format!("write format-version = {FORMAT_VERSION}")).into());
        }
        if read.row.is_empty() {
            return Err(Diagnostic::error("there are no rows").at(place(0)).hint("add a [[row]]").into());
        }
        let starts = read.row.iter().map(|row| row.span().start).collect();
        let rows = read.row.into_iter().enumerate();
        let rows = rows.map(|(number, row)| Row { number, is: row.into_inner() }).collect();
        Ok(Self { source: read.source, rows, starts, file: file.into(), text: text.into() })
    }
}

impl<T> Rows<T> {
    /// An error about `row`, at its place.
    pub fn fault(&self, row: &Row<T>, message: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
        let at = position_of(&self.file, &self.text, self.starts[row.number]);
        Diagnostic::error(message).at(at).hint(hint)
    }

    /// The results of `make` for all rows, in order, or all faults, each at the place of its row.
    pub fn each<U>(&self, make: impl Fn(&Row<T>) -> Result<U, Faults>) -> Result<Vec<U>, Faults> {
        let mut made = Vec::new();
        let mut faults = Faults::new();
        for row in &self.rows {
            match make(row) {
                Ok(one) => made.push(one),
                Err(found) => found.iter().for_each(|fault| {
                    let at = position_of(&self.file, &self.text, self.starts[row.number]);
                    faults.push(Diagnostic { position: Some(at), ..fault.clone() });
                }),
            }
        }
        faults.or(made)
    }
}

/// Refuses a published figure that no relative error can be computed for.
pub fn above_zero(what: &str, published: f64) -> Result<(), Faults> {
    if published > 0.0 && published.is_finite() {
        return Ok(());
    }
    Err(Diagnostic::error(format!("the published {what} is not above zero"))
        .hint("leave it out if it is not known")
        .into())
}
