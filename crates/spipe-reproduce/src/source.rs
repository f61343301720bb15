//! The inputs of a table: its rows as text, and the models and machines that they name.

use spipe_base::Faults;
use spipe_hardware::Hardware;
use spipe_model::Model;

/// Finds models and machines by the names or paths that rows give.
#[derive(Clone, Copy)]
pub struct Library<'a> {
    /// The model with this name or path.
    pub model: &'a dyn Fn(&str) -> Result<Model, Faults>,
    /// The machine with this name or path.
    pub hardware: &'a dyn Fn(&str) -> Result<Hardware, Faults>,
}

/// The rows of one table.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The name of the file, for messages.
    pub file: &'a str,
    /// The TOML text of the file.
    pub text: &'a str,
    /// The models and machines that rows may name.
    pub library: Library<'a>,
}
