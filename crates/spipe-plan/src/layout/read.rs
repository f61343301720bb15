//! The reader of layouts.

use super::{LayoutPart, Placed};
use spipe_base::Diagnostic;

/// The most letters and bars of a layout once its repetitions are written out: more blocks and
/// stages than any model and machine have, and few enough to hold.
const MOST: usize = 1 << 16;

/// The letters of each stage, or the first fault with its column.
pub(super) fn stages(text: &str) -> Result<Vec<Vec<Placed>>, (usize, Diagnostic)> {
    let mut reader = Reader::default();
    let mut symbols = text.chars().zip(1..).filter(|(letter, _)| *letter != ',').peekable();
    while let Some((letter, column)) = symbols.next() {
        if letter != '*' {
            reader.symbol(letter, column)?;
            continue;
        }
        let mut digits = String::new();
        while let Some((digit, _)) = symbols.next_if(|(letter, _)| letter.is_ascii_digit()) {
            digits.push(digit);
        }
        reader.repeat(&digits, column)?;
    }
    reader.end(text.chars().count() + 1)
}

/// A letter or a bar, with its column.
type Symbol = (Option<LayoutPart>, usize);

/// The symbols so far, with repetitions written out.
#[derive(Default)]
struct Reader {
    symbols: Vec<Symbol>,
    /// The start of each open group, and the column of its parenthesis.
    open: Vec<(usize, usize)>,
    /// The start of the letter, bar or group to which a `*` would apply.
    last: Option<usize>,
    /// The column of a closed group that no `*` has followed yet.
    uncounted: Option<usize>,
    /// Whether the symbol before was a parenthesis that opens.
    opened: bool,
}

impl Reader {
    fn symbol(&mut self, letter: char, column: usize) -> Result<(), (usize, Diagnostic)> {
        self.counted()?;
        let just_opened = std::mem::take(&mut self.opened);
        match letter {
            '|' => self.push((None, column)),
            '(' => {
                self.open.push((self.symbols.len(), column));
                (self.last, self.opened) = (None, true);
                Ok(())
            }
            ')' => {
                let Some((start, opened)) = self.open.pop() else {
                    return Err((column, Diagnostic::error("`)` closes no group")));
                };
                if just_opened {
                    return Err((opened, Diagnostic::error("the group is empty").hint("leave it out")));
                }
                (self.last, self.uncounted) = (Some(start), Some(opened));
                Ok(())
            }
            _ => match LayoutPart::ALL.into_iter().find(|part| part.letter() == letter) {
                Some(part) => self.push((Some(part), column)),
                None => Err((column, unknown(letter))),
            },
        }
    }

    fn push(&mut self, symbol: Symbol) -> Result<(), (usize, Diagnostic)> {
        if self.symbols.len() >= MOST {
            return Err((symbol.1, too_long()));
        }
        self.last = Some(self.symbols.len());
        self.symbols.push(symbol);
        Ok(())
    }

    /// Repeats the last letter, bar or group; `column` is that of the `*`.
    fn repeat(&mut self, digits: &str, column: usize) -> Result<(), (usize, Diagnostic)> {
        self.uncounted = None;
        let Some(start) = self.last.take() else {
            let fault = Diagnostic::error("`*` follows no letter, bar or group");
            return Err((column, fault.hint("write `t*3`, or `(tt|)*3` to repeat a group")));
        };
        if digits.is_empty() {
            return Err((column, Diagnostic::error("`*` has no number").hint("write `t*3`")));
        }
        let item = self.symbols.split_off(start);
        let times = digits.parse::<usize>().unwrap_or(usize::MAX);
        if start.saturating_add(item.len().saturating_mul(times)) > MOST {
            return Err((column, too_long()));
        }
        // An item of nothing, such as `(t*0)`, may be repeated without end.
        let times = if item.is_empty() { 0 } else { times };
        self.symbols.extend(std::iter::repeat_n(item, times).flatten());
        Ok(())
    }

    /// Refuses a group without a number behind it, as Megatron does.
    fn counted(&mut self) -> Result<(), (usize, Diagnostic)> {
        match self.uncounted.take() {
            Some(column) => {
                Err((column, Diagnostic::error("the group has no number behind it").hint("write `(tt|)*3`")))
            }
            None => Ok(()),
        }
    }

    fn end(mut self, end: usize) -> Result<Vec<Vec<Placed>>, (usize, Diagnostic)> {
        self.counted()?;
        if let Some((_, column)) = self.open.pop() {
            return Err((column, Diagnostic::error("the group is not closed").hint("write `(tt|)*3`")));
        }
        if self.symbols.is_empty() {
            return Err((end, Diagnostic::error("the layout is empty").hint("write it like `Ett|ttL`")));
        }
        let stage = |symbols: &[Symbol]| {
            let placed = symbols.iter().filter_map(|(part, column)| Some(Placed { part: (*part)?, column: *column }));
            placed.collect()
        };
        Ok(self.symbols.split(|(part, _)| part.is_none()).map(stage).collect())
    }
}

fn unknown(letter: char) -> Diagnostic {
    let other_case = |part: &LayoutPart| part.letter().eq_ignore_ascii_case(&letter);
    let fault = Diagnostic::error(format!("`{letter}` is no part of a layout"));
    match LayoutPart::ALL.into_iter().find(other_case) {
        Some(part) => fault.hint(format!("did you mean `{}`?", part.letter())),
        None => fault.hint(
            "E is the embedding, t a block, m a module that predicts further tokens, L final norm and head, | the next stage",
        ),
    }
}

fn too_long() -> Diagnostic {
    Diagnostic::error(format!("the layout has more than {MOST} letters and bars"))
        .hint("no model has as many blocks; check the numbers behind `*`")
}
