//! The bytes and the text of files, and of stdin for `-`.

use crate::Failure;
use spipe_base::{Bytes, Diagnostic};
use std::io::Read;

/// The most bytes that are read from a pipe or a device, which may have no end: 1 GiB.
const LONGEST_STREAM: u64 = 1 << 30;

/// The text of a file, or of stdin for `-`.
pub fn text(path: &str) -> Result<String, Failure> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Failure::input(Diagnostic::error(format!("`{path}` is not UTF-8 text: byte {offset} is invalid")))
    })
}

/// The bytes of a file, or of stdin for `-`.
pub fn bytes(path: &str) -> Result<Vec<u8>, Failure> {
    if path == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(|error| Failure::file("stdin", "read", &error))?;
        return Ok(bytes);
    }
    let fail = |error: std::io::Error| Failure::file(path, "read", &error);
    if std::fs::metadata(path).map_err(fail)?.is_file() {
        return std::fs::read(path).map_err(fail);
    }
    let mut bytes = Vec::new();
    let stream = std::fs::File::open(path).map_err(fail)?;
    stream.take(LONGEST_STREAM + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > LONGEST_STREAM {
        let message = format!("`{path}` has more than {}, and may have no end", Bytes::new(LONGEST_STREAM));
        return Err(Failure::argument(message, "write the needed part into a file"));
    }
    Ok(bytes)
}
