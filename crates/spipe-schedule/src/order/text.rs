//! Orders as text in PyTorch's notation, and as a grid.
//!
//! ```text
//! 2F0  2B0  2I0  2W0                 work: forward, fused backward, backward-input, backward-weight
//! (2F3;5B0)OVERLAP_F_B               work: a forward and a backward as one action
//! 2SEND_F0  3RECV_F0  2UNSHARD  …    no compute time: skipped, with a count by name
//! ```

use super::{Order, Pass, Token};
use spipe_base::{Diagnostic, Faults, MicrobatchId, Position, StageId};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// The actions that take no compute time, and whether they name a microbatch.
const WITHOUT_WORK: [(&str, bool); 10] = [
    ("SEND_F", true),
    ("RECV_F", true),
    ("SEND_B", true),
    ("RECV_B", true),
    ("WAIT_SEND_F", true),
    ("WAIT_SEND_B", true),
    ("UNSHARD", false),
    ("RESHARD", false),
    ("REDUCE_GRAD", false),
    ("WAIT_REDUCE_GRAD", false),
];

/// The most stages and the most microbatches that an order may have.
const MOST: u32 = 1 << 20;

/// The numbers of skipped actions, by name (`SEND_F`).
pub type Skipped = BTreeMap<&'static str, usize>;

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for words in self.words() {
            for (index, word) in words.enumerate() {
                f.write_str(if index > 0 { "," } else { "" })?;
                word.fmt(f)?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// An action of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `2F0`.
    Pass(Token),
    /// `(2F3;5B0)OVERLAP_F_B`: a forward and a backward as one action.
    Overlap(Token, Token),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(token) => token.fmt(f),
            Self::Overlap(forward, backward) => write!(f, "({forward};{backward})OVERLAP_F_B"),
        }
    }
}

impl FromStr for Order {
    type Err = Faults;

    fn from_str(text: &str) -> Result<Self, Faults> {
        Self::parse("order", text)
    }
}

/// Faults of cells, one for each kind of fault, with its first position and its count.
#[derive(Default)]
struct Cells(Vec<(String, String, Position, usize)>);

impl Cells {
    /// Counts a fault of the kind `kind`; the first of a kind gives message and position.
    fn add(&mut self, kind: String, message: String, position: Position) {
        match self.0.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., count)) => *count += 1,
            None => self.0.push((kind, message, position, 1)),
        }
    }

    fn into_faults(self, what: &str, hint: Option<&str>) -> Faults {
        let mut faults = Faults::new();
        for (_, message, position, count) in self.0 {
            let more = if count > 1 { format!(" (the first of {count} {what} like this)") } else { String::new() };
            let fault = Diagnostic::error(message + &more).at(position);
            faults.push(match hint {
                Some(hint) => fault.hint(hint),
                None => fault,
            });
        }
        faults
    }
}

impl Order {
    /// Reads an order; `file` is its name in messages. Empty cells are bubbles and are ignored, as
    /// are actions without compute time.
    ///
    /// # Errors
    /// Cells that are no actions, and lines without work.
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        Self::read(file, text).map(|(order, _)| order)
    }

    /// Reads an order, and counts the actions that it skips because they take no compute time. Both
    /// dialects of PyTorch are read: `compute_only` and `compute_comms`.
    ///
    /// # Errors
    /// Cells that are no actions, and lines without work. The same fault in many cells is one error
    /// with the first position and the count.
    pub fn read(file: &str, text: &str) -> Result<(Self, Skipped), Faults> {
        let (mut cells, mut empty) = (Cells::default(), Cells::default());
        let (mut devices, mut overlapped, mut skipped) = (Vec::new(), BTreeMap::new(), Skipped::new());
        for (row, line) in text.lines().enumerate() {
            let mut tokens = Vec::new();
            let mut column = 1;
            for cell in line.split(',') {
                let word = cell.trim();
                match parse_cell(word) {
                    Some(Cell::Bubble) => {}
                    Some(Cell::Pass(token)) => tokens.push(token),
                    Some(Cell::Overlap(forward, backward)) => {
                        overlapped.insert(forward, backward);
                        tokens.extend([forward, backward]);
                    }
                    Some(Cell::WithoutWork(name)) => *skipped.entry(name).or_default() += 1,
                    None => {
                        let position = Position { file: file.into(), line: row + 1, column };
                        cells.add(kind(word), format!("`{word}` is no action"), position);
                    }
                }
                column += cell.chars().count() + 1;
            }
            if tokens.is_empty() {
                let position = Position { file: file.into(), line: row + 1, column: 1 };
                empty.add(String::new(), format!("device {row} has no actions"), position);
            }
            devices.push(tokens);
        }
        let mut faults = cells.into_faults("cells", Some("write stage, pass (F, B, I or W) and microbatch, like 2F0"));
        if faults.is_harmless() {
            faults.extend(empty.into_faults("lines", None));
        }
        faults.or((Self { devices, overlapped }, skipped))
    }

    /// The words of each device: those of its tokens, with overlapped pairs in one word.
    pub fn words(&self) -> impl Iterator<Item = impl Iterator<Item = Word>> {
        self.devices.iter().map(move |tokens| {
            let mut tokens = tokens.iter();
            std::iter::from_fn(move || {
                let token = *tokens.next()?;
                Some(match tokens.as_slice().first().filter(|next| self.overlaps(&token, Some(next))) {
                    Some(backward) => {
                        tokens.next();
                        Word::Overlap(token, *backward)
                    }
                    None => Word::Pass(token),
                })
            })
        })
    }

    /// The order as a grid with one row per device and one column per position; `marked` tokens are
    /// in brackets.
    pub fn grid(&self, marked: &[Token]) -> String {
        let cell = |token: &Token| if marked.contains(token) { format!("[{token}]") } else { format!(" {token} ") };
        let width = self.tokens().map(|token| cell(token).len()).max().unwrap_or(0);
        let mut grid = String::new();
        for (device, tokens) in self.devices.iter().enumerate() {
            let cells: Vec<String> = tokens.iter().map(|token| format!("{:<width$}", cell(token))).collect();
            grid += format!("device {device:>2} {}", cells.concat()).trim_end();
            grid.push('\n');
        }
        grid
    }
}

/// The content of a cell.
enum Cell {
    Bubble,
    Pass(Token),
    Overlap(Token, Token),
    WithoutWork(&'static str),
}

fn parse_cell(word: &str) -> Option<Cell> {
    if word.is_empty() {
        return Some(Cell::Bubble);
    }
    if let Some(pair) = word.strip_prefix('(') {
        let (forward, backward) = pair.strip_suffix(")OVERLAP_F_B")?.split_once(';')?;
        let (forward, backward) = (parse_token(forward.trim())?, parse_token(backward.trim())?);
        let fits = forward.pass == Pass::Forward && matches!(backward.pass, Pass::Backward | Pass::BackwardInput);
        return fits.then_some(Cell::Overlap(forward, backward));
    }
    parse_token(word).map(Cell::Pass).or_else(|| without_work(word).map(Cell::WithoutWork))
}

/// The name of an action without compute time, such as `2SEND_F0` or `2UNSHARD`.
fn without_work(word: &str) -> Option<&'static str> {
    let (stage, rest) = split_number(word);
    let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let microbatch = &rest[name.len()..];
    let (known, with_microbatch) = WITHOUT_WORK.into_iter().find(|(known, _)| *known == name)?;
    (number(stage).is_some() && if with_microbatch { number(microbatch).is_some() } else { microbatch.is_empty() })
        .then_some(known)
}

/// The word without its numbers: the same fault in other cells has the same.
fn kind(word: &str) -> String {
    word.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn split_number(word: &str) -> (&str, &str) {
    word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()))
}

fn number(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|number| *number < MOST)
}

fn parse_token(word: &str) -> Option<Token> {
    let (stage, rest) = split_number(word);
    let mut letters = rest.chars();
    let pass = match letters.next()? {
        'F' => Pass::Forward,
        'B' => Pass::Backward,
        'I' => Pass::BackwardInput,
        'W' => Pass::BackwardWeight,
        _ => return None,
    };
    let microbatch = letters.as_str();
    let plain = microbatch.bytes().all(|digit| digit.is_ascii_digit());
    Some(Token {
        stage: StageId::new(number(stage)?),
        pass,
        microbatch: MicrobatchId::new(Some(microbatch).filter(|_| plain).and_then(number)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let text = "0F0,0I0,0W0,1B3\n2F10\n";
        assert_eq!(text.parse::<Order>().map(|order| order.to_string()), Ok(text.into()));
        assert_eq!(" 0F0 ,,0B0 \n".parse::<Order>().map(|order| order.to_string()), Ok("0F0,0B0\n".into()));
        let text = "0F0,(0F1;1B0)OVERLAP_F_B,(0F2;1I1)OVERLAP_F_B,1W1\n";
        assert_eq!(text.parse::<Order>().map(|order| order.to_string()), Ok(text.into()));
    }

    #[test]
    fn faults_have_a_place() {
        let faults = Order::parse("s.csv", "0F0,0f1\n\n1F0xyz\n").unwrap_err().to_string();
        assert!(faults.contains("`0f1` is no action\n  --> s.csv:1:5"), "{faults}");
        assert!(faults.contains("`1F0xyz` is no action\n  --> s.csv:3:1"), "{faults}");
    }

    #[test]
    fn the_same_fault_in_many_cells_is_one_error() {
        let faults = Order::parse("s.csv", "0F0,0SYNC0,0SYNC1\n1F0,1SYNC0,1éF\n").unwrap_err();
        assert_eq!(faults.iter().count(), 2, "{faults}");
        let text = faults.to_string();
        assert!(text.contains("`0SYNC0` is no action (the first of 3 cells like this)\n  --> s.csv:1:5"), "{text}");
        let rows = Order::parse("s.csv", "0F0,0B0\n\n\n").unwrap_err().to_string();
        assert!(rows.contains("device 1 has no actions (the first of 2 lines like this)\n  --> s.csv:2:1"), "{rows}");
    }

    #[test]
    fn actions_without_work_are_counted_and_skipped() {
        let text = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n\
                    1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0\n";
        let (order, skipped) = Order::read("s.csv", text).unwrap();
        assert_eq!(order.to_string(), "0F0,0B0\n1F0,1B0\n");
        let counts: Vec<String> = skipped.iter().map(|(name, count)| format!("{count} {name}")).collect();
        assert_eq!(
            counts.join(", "),
            "1 RECV_B, 1 RECV_F, 2 REDUCE_GRAD, 2 RESHARD, 1 SEND_B, 1 SEND_F, 2 UNSHARD, 2 WAIT_REDUCE_GRAD, \
             1 WAIT_SEND_B, 1 WAIT_SEND_F"
        );
        for wrong in ["0UNSHARD3", "0SEND_F", "SEND_F0", "0WAIT_F0", "(0B0;1F0)OVERLAP_F_B", "(0F0;1W0)OVERLAP_F_B"] {
            assert!(Order::parse("s.csv", wrong).is_err(), "{wrong}");
        }
    }
}
