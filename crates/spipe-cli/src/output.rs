//! Output: stdout for data, stderr for messages, files written whole or not at all.

use crate::{Failure, args::Format, options::OPTIONS};
use serde::Serialize;
use spipe_base::Diagnostic;
use std::{
    fs::OpenOptions,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// The longest chain of symbolic links that is followed, as in the Linux kernel; a longer one is a
/// circle.
const MOST_LINKS: usize = 40;

/// Sends log messages to stderr: warnings, and more with each `-v`.
pub fn start_log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPIPE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .log_internal_errors(false)
        .without_time()
        .with_target(false);
    // A second start in one process (tests) keeps the first log.
    let _ = log.try_init();
}

/// Prints a message to stderr; if that is closed, the work goes on.
pub fn talk(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", spelled(message));
}

/// A message with options and commands as this command has them: libraries write `option seq-len 512` and
/// `command simulate` in backticks.
pub fn spelled(message: &str) -> String {
    OPTIONS.spell(message).replace("`command ", "`spipe ")
}

/// Prints warnings to stderr, one for each kind.
pub fn warn<'a>(all: impl IntoIterator<Item = &'a Diagnostic>) {
    Diagnostic::folded(all).iter().for_each(|one| talk(&one.to_string()));
}

/// Shows what is under way on the last line of a terminal, in place of what was shown before;
/// nothing where stderr is no terminal.
pub fn progress(message: &str) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr().lock(), "\r\x1b[K{message}");
    }
}

/// Prints data to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    unless_closed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Prints `human`, or `data` as JSON.
pub fn report(format: Format, human: &str, data: &impl Serialize) -> Result<(), Failure> {
    match format {
        Format::Human => print(&spelled(human)),
        Format::Json => print(&to_json(data)?),
    }
}

/// Prints data as indented JSON as it is made, for data that is large as text.
pub fn print_json(data: &impl Serialize) -> Result<(), Failure> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    let written = serde_json::to_writer_pretty(&mut stdout, data).map_err(io::Error::from);
    unless_closed(written.and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush()))
}

/// Writing to stdout; that its reader has closed the pipe (`spipe … | head`) is no failure.
fn unless_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::file("stdout", "write", &error)),
        Ok(()) => Ok(()),
    }
}

/// Data as indented JSON, with a newline at the end.
pub fn to_json(data: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(data)
        .map(|json| spelled(&json) + "\n")
        .map_err(|error| Failure::Bug(format!("a result cannot be written as JSON: {error}")))
}

/// An output file. Opening it tries the path, so that a bad one fails before long work.
/// [`Target::write`] puts the file in place whole; until then nothing is left in its folder, even
/// if the process is killed.
pub enum Target {
    /// Standard output, `-`.
    Stdout,
    /// A device or a pipe, which is written to and not replaced.
    Special {
        /// The path as given.
        path: String,
    },
    /// A file.
    File {
        /// The path, with links followed.
        path: PathBuf,
    },
}

impl Target {
    /// Opens a target; its folder must exist.
    pub fn open(path: &str) -> Result<Self, Failure> {
        if path == "-" {
            return Ok(Self::Stdout);
        }
        let target = followed(Path::new(path)).map_err(|error| Failure::file(path, "write", &error))?;
        if target.is_dir() {
            return Err(Failure::argument(format!("`{path}` is a folder"), "name a file in it"));
        }
        if target.exists() && !target.is_file() {
            return Ok(Self::Special { path: path.to_owned() });
        }
        temporary(&target).map_err(|error| Failure::file(path, "write", &error))?;
        Ok(Self::File { path: target })
    }

    /// Opens a target that must not be one of the input files.
    pub fn beside(path: &str, inputs: &[&str]) -> Result<Self, Failure> {
        let place = |path: &str| Path::new(path).canonicalize().ok().filter(|place| place.is_file());
        let same = |input: &&&str| place(path).is_some_and(|place_of| place(input) == Some(place_of));
        if path != "-"
            && let Some(input) = inputs.iter().find(same)
        {
            let message = format!("`{path}` would overwrite its input `{input}`");
            return Err(Failure::argument(message, "write to another file"));
        }
        Self::open(path)
    }

    /// Opens a target in `folder`, which is created if it is missing.
    pub fn in_folder(folder: &Path, name: &str) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::file(&folder.display().to_string(), "make folder", &error))?;
        Self::open(&folder.join(name).display().to_string())
    }

    /// Writes the file.
    pub fn write(self, content: &[u8]) -> Result<(), Failure> {
        self.write_with(|out| out.write_all(content))
    }

    /// Writes the file as `fill` makes its content.
    pub fn write_with(
        self,
        fill: impl FnOnce(&mut BufWriter<Box<dyn Write + '_>>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let through = |inner: Box<dyn Write + '_>| {
            let mut out = BufWriter::new(inner);
            fill(&mut out).and_then(|()| out.flush())
        };
        match self {
            Self::Stdout => unless_closed(through(Box::new(io::stdout().lock()))),
            Self::Special { path } => {
                let written = OpenOptions::new().write(true).open(&path).and_then(|file| through(Box::new(file)));
                written.map_err(|error| Failure::file(&path, "write", &error))
            }
            Self::File { path } => {
                let shown = path.display().to_string();
                let fail = |error: &io::Error| Failure::file(&shown, "write", error);
                let mut temporary = temporary(&path).map_err(|error| fail(&error))?;
                through(Box::new(temporary.as_file_mut())).map_err(|error| fail(&error))?;
                temporary.as_file().sync_all().map_err(|error| fail(&error))?;
                readable(&temporary);
                temporary.persist(&path).map_err(|error| fail(&error.error))?;
                Ok(())
            }
        }
    }
}

/// A temporary file in the folder of `path`, which is removed with its handle.
fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".spipe-").suffix(".tmp").tempfile_in(folder)
}

/// The file that a chain of symbolic links leads to: that is replaced, not the link.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(next) = std::fs::read_link(&target) else { return Ok(target) };
        target = target.parent().map_or_else(|| next.clone(), |folder| folder.join(&next));
    }
    Err(io::Error::other("too many links"))
}

/// Makes a file readable for all: temporary files are readable for their owner alone.
#[cfg(unix)]
fn readable(file: &NamedTempFile) {
    use std::os::unix::fs::PermissionsExt;
    // On failure the file is still readable for its owner.
    let _ = file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644));
}

#[cfg(not(unix))]
fn readable(_: &NamedTempFile) {}
