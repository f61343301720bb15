//! The command as a process that is not started yet.

use std::{path::Path, process::Command};

/// The words of a command line: a list, or a text that is split at spaces.
pub trait Words {
    fn words(&self) -> Vec<&str>;
}

impl Words for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<&str> {
        self.as_str().words()
    }
}

impl Words for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Words for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

impl<T: Words + ?Sized> Words for &T {
    fn words(&self) -> Vec<&str> {
        (*self).words()
    }
}

/// The command with these words in `folder`, without colours and at its own width.
pub fn command(folder: impl AsRef<Path>, words: &(impl Words + ?Sized)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spipe"));
    command.args(words.words()).current_dir(folder).env("NO_COLOR", "1").env_remove("COLUMNS");
    command
}
