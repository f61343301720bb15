//! The shape of the data, from the options of a command line.

use crate::{Failure, args, args::Given, idle::Idle, input, text_files};
use spipe_cost::{DataShape, Lengths, Mode, PaddingShare, Workload};
use spipe_model::Model;
use std::path::Path;

/// The options that describe sequences.
const SHAPES: [&str; 4] = ["packing", "bucketing", "padding", "lengths"];

impl args::DataOptions {
    /// `template` with the data and the recomputed operations that were asked for.
    pub fn shape(&self, template: Workload) -> Result<Workload, Failure> {
        let data = self.over(DataShape::PLAIN)?;
        data.check(template.seq_len).map_err(|(fault, hint)| Failure::argument(fault, hint))?;
        let (recompute_ops, loss) = (self.recompute_ops.unwrap_or_default(), self.loss.map(Into::into));
        Ok(Workload { data, recompute_ops, loss, ..template })
    }

    /// `data` with what was asked for in place of what it has.
    pub fn over(&self, data: DataShape) -> Result<DataShape, Failure> {
        let padding = self.padding.as_deref().map(padding).transpose()?.unwrap_or(data.padding);
        let lengths = self.lengths.as_deref().map(lengths).transpose()?.or(data.lengths);
        let (packing, bucketing) = (self.packing || data.packing, self.bucketing || data.bucketing);
        Ok(DataShape { packing, bucketing, padding, lengths })
    }

    /// Refuses options that do nothing in this mode or for this model.
    pub fn idle(given: &Given, (model, mode): (&Model, Mode)) -> Result<(), Failure> {
        let blocks = model.layers().iter().any(|layer| layer.as_block().is_some());
        let images = model.layers().iter().all(|layer| layer.tokens.is_some() || layer.as_block().is_none());
        let leave = "leave it out";
        Idle::among(given)
            .options_if(mode == Mode::Generate, &SHAPES, "where one token of each sequence is computed", leave)
            .options_if(blocks && images, &SHAPES, "to images, which are all as large", leave)
            .options_if(mode != Mode::Train, &["recompute-ops", "loss"], "in inference", leave)
            .options_if(!blocks, &["recompute-ops"], "to a model without known blocks", leave)
            .refuse()
    }
}

fn padding(given: &str) -> Result<PaddingShare, Failure> {
    let hint = "write it like 30% or 0.3, the share of all tokens";
    input::fraction(given)?.try_into().map_err(|fault: String| Failure::argument(fault, hint))
}

/// The lengths in the text of an option, or in the file that it names.
fn lengths(given: &str) -> Result<Lengths, Failure> {
    let hint = "write it like 512:3,2048:1, or name a file with a length and its weight in each line";
    let inline = |fault: String| Failure::argument(format!("`{given}`: {fault}"), hint);
    let is_list = given.chars().all(|letter| letter.is_ascii_digit() || ":,. -".contains(letter));
    if is_list && !Path::new(given).is_file() {
        return given.parse().map_err(inline);
    }
    // A file of one line is a list of lines too.
    let text = text_files::text(given)? + "\n";
    let fault = |fault: String| Failure::input(spipe_base::Diagnostic::error(format!("{given}: {fault}")).hint(hint));
    text.parse().map_err(fault)
}
