//! Trace files.

use crate::{FORMAT_VERSION, Trace};

/// Why a text is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum ReadTraceError {
    /// The text is not the JSON of a trace.
    #[error("{message}")]
    Json {
        /// What is wrong.
        message: String,
        /// The line, counted from one.
        line: usize,
        /// The column, counted from one.
        column: usize,
        /// Whether the text ends too early.
        truncated: bool,
    },
    /// The file has another version.
    #[error("the trace has format version {found}, this program reads version {FORMAT_VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The trace contradicts itself.
    #[error("span {span} {fault}")]
    Span {
        /// Its index.
        span: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
}

/// Reads a trace and checks what its readers rely on.
pub fn from_json(text: &str) -> Result<Trace, ReadTraceError> {
    let trace: Trace = serde_json::from_str(text).map_err(|error| ReadTraceError::Json {
        message: error.to_string(),
        line: error.line(),
        column: error.column(),
        truncated: error.is_eof(),
    })?;
    if trace.format_version != FORMAT_VERSION {
        return Err(ReadTraceError::Version { found: trace.format_version });
    }
    check(&trace)?;
    Ok(trace)
}

/// The trace as JSON, one line per top-level list element, ending in a newline.
pub fn to_json(trace: &Trace) -> String {
    match serde_json::to_string(trace) {
        Ok(json) => json + "\n",
        Err(error) => unreachable!("a trace has string keys and finite numbers only: {error}"),
    }
}

fn check(trace: &Trace) -> Result<(), ReadTraceError> {
    for (index, span) in trace.spans.iter().enumerate() {
        let fault = if span.lane.index() >= trace.lanes.len() {
            Some("is on a lane that does not exist")
        } else if span.end < span.start {
            Some("ends before it starts")
        } else if index > 0 && (trace.spans[index - 1].lane, trace.spans[index - 1].start) > (span.lane, span.start) {
            Some("is out of order (spans are sorted by lane and start)")
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(ReadTraceError::Span { span: index, fault });
        }
    }
    let spans = trace.spans.len();
    let broken = trace.arrows.iter().find(|arrow| arrow.from as usize >= spans || arrow.to as usize >= spans);
    match broken {
        Some(arrow) => Err(ReadTraceError::Span {
            span: arrow.from.max(arrow.to) as usize,
            fault: "is named by an arrow and does not exist",
        }),
        None => Ok(()),
    }
}
