//! `spipe timeline`.

use crate::{
    Failure, args,
    args::Given,
    idle::Idle,
    input,
    output::Target,
    report::picture::{Kind, draw},
};
use spipe_timeline::Picture;

/// Draws one trace, or two above each other.
pub fn run(what: &args::Timeline, given: &Given) -> Result<(), Failure> {
    Idle::among(given).options(&["format"], "to a picture", "the end of `--output` says what is drawn").refuse()?;
    let inputs: Vec<&str> = std::iter::once(what.trace.as_str()).chain(what.second.as_deref()).collect();
    let target = Target::beside(&what.output, &inputs)?;
    let kind = Kind::of(&what.output)?;
    let trace = input::trace(&what.trace)?;
    let second = what.second.as_deref().map(input::trace).transpose()?;
    target.write(&draw(kind, &Picture { trace: &trace, second: second.as_ref(), title: None })?)
}
