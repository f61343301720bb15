//! Megatron's layouts: the layers of each stage of a pipeline as one string, that of its option
//! `--pipeline-model-parallel-layout`.
//!
//! ```text
//! Et*3|(tt|)*29,m|L        32 stages: E ttt, 29 × tt, m, L
//!
//! E  the embedding          t  a block             |    the next stage
//! L  final norm and head    m  a module that predicts further tokens
//! x*N, (…)*N  N times       ,  nothing
//! ```
//!
//! Stage i runs on device i mod P of P, so that N stages have ⌈N ÷ P⌉ chunks per device. Source:
//! `megatron/core/transformer/pipeline_parallel_layer_layout.py` of Megatron-LM.

mod of_model;
mod print;
mod read;

use spipe_base::{Diagnostic, Position};
use std::fmt;

/// A letter of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutPart {
    /// `E`: all layers before the first block.
    Embedding,
    /// `t`: a block.
    Block,
    /// `m`: a module that predicts further tokens. Plans leave it out.
    Prediction,
    /// `L`: all layers behind the last block.
    Head,
}

impl LayoutPart {
    /// Every letter, in model order.
    const ALL: [Self; 4] = [Self::Embedding, Self::Block, Self::Prediction, Self::Head];

    /// Its letter.
    pub const fn letter(self) -> char {
        match self {
            Self::Embedding => 'E',
            Self::Block => 't',
            Self::Prediction => 'm',
            Self::Head => 'L',
        }
    }
}

/// A letter and its place in the string.
#[derive(Clone, Copy, Debug)]
struct Placed {
    part: LayoutPart,
    /// Its column, in characters, counted from one.
    column: usize,
}

/// The layers of each stage, in order. Its text form is the shortest with one kind of group:
/// `x*N` for three or more equal letters, `(…|)*N` for three or more equal stages.
///
/// ```
/// # use spipe_plan::Layout;
/// let layout = Layout::read("layout", "E,t,t,t|(tt|)*28tt|m|L")?;
/// assert_eq!((layout.len(), layout.to_string().as_str()), (32, "Et*3|(tt|)*29,m|L"));
/// # Ok::<(), spipe_base::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct Layout {
    /// The source of the string, for messages.
    file: String,
    stages: Vec<Vec<Placed>>,
    /// The column behind the string.
    end: usize,
}

impl Layout {
    /// Reads a string; `file` names its source in messages.
    ///
    /// # Errors
    /// The first fault of its syntax, with its position.
    pub fn read(file: &str, text: &str) -> Result<Self, Diagnostic> {
        let stages = read::stages(text).map_err(|(column, fault)| fault.at(position(file, column)))?;
        Ok(Self { file: file.into(), stages, end: text.chars().count() + 1 })
    }

    /// A layout of these stages, which no string has named.
    fn of_parts(stages: Vec<Vec<LayoutPart>>) -> Self {
        let placed = |part| Placed { part, column: 1 };
        let stages = stages.into_iter().map(|stage| stage.into_iter().map(placed).collect()).collect();
        Self { file: "layout".into(), stages, end: 1 }
    }

    /// The number of stages, at least one.
    #[expect(clippy::len_without_is_empty, reason = "the empty string is one empty stage")]
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// The letters of each stage.
    pub fn stages(&self) -> impl Iterator<Item = Vec<LayoutPart>> {
        self.stages.iter().map(|stage| stage.iter().map(|placed| placed.part).collect())
    }

    /// The number of a letter in all stages.
    pub fn count(&self, part: LayoutPart) -> usize {
        self.letters().filter(|placed| placed.part == part).count()
    }

    /// All letters in order.
    fn letters(&self) -> impl DoubleEndedIterator<Item = Placed> {
        self.stages.iter().flatten().copied()
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.stages().eq(other.stages())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&print::text(&self.stages().collect::<Vec<_>>()))
    }
}

fn position(file: &str, column: usize) -> Position {
    Position { file: file.into(), line: 1, column }
}
