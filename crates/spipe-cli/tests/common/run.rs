//! The command when it has ended, with what it has said.

pub mod command;

use command::Words;
use std::{path::Path, process::Output};

/// An ended process.
#[derive(Debug)]
pub struct Run {
    /// The exit code; none if a signal has ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let run = Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        let Self { code, out, err } = &run;
        assert!(*code != Some(1) && !err.contains("panicked at"), "a bug: exit code {code:?}\n{out}\n{err}");
        run
    }
}

/// Runs the command with these words in `folder`.
pub fn spipe(folder: impl AsRef<Path>, words: &(impl Words + ?Sized)) -> Run {
    command::command(folder, words).output().unwrap().into()
}
