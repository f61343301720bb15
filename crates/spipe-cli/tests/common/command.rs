//! The command as a process, with what it says.

use std::process::Command;

pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn spipe(args: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_spipe")).args(args).env("NO_COLOR", "1").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}
