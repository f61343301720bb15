//! Orders as text in PyTorch's notation, and as a grid.

use super::{Order, Pass, Token};
use spipe_base::{Diagnostic, Faults, Position};
use std::{fmt, str::FromStr};

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tokens in &self.devices {
            let line: Vec<String> = tokens.iter().map(Token::to_string).collect();
            writeln!(f, "{}", line.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Order {
    type Err = Faults;

    fn from_str(text: &str) -> Result<Self, Faults> {
        Self::parse("order", text)
    }
}

impl Order {
    /// Reads an order; `file` is its name in messages. Empty cells are bubbles and are ignored.
    ///
    /// # Errors
    /// Cells that are no tokens, and empty lines, which would be devices without work.
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        let mut faults = Faults::new();
        let mut devices = Vec::new();
        for (row, line) in text.lines().enumerate() {
            let mut tokens = Vec::new();
            let mut column = 1;
            for cell in line.split(',') {
                let position = || Position { file: file.into(), line: row + 1, column };
                match cell.trim() {
                    "" => {}
                    word => match parse_token(word) {
                        Some(token) => tokens.push(token),
                        None => faults.push(
                            Diagnostic::error(format!("`{word}` is no action"))
                                .at(position())
                                .hint("write stage, pass (F, B, I or W) and microbatch, like 2F0"),
                        ),
                    },
                }
                column += cell.chars().count() + 1;
            }
            if tokens.is_empty() && faults.is_harmless() {
                faults.push(Diagnostic::error(format!("device {row} has no actions")).at(Position {
                    file: file.into(),
                    line: row + 1,
                    column: 1,
                }));
            }
            devices.push(tokens);
        }
        faults.or(Self::new(devices))
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

fn parse_token(word: &str) -> Option<Token> {
    let at = word.find(|c: char| !c.is_ascii_digit())?;
    let (stage, rest) = word.split_at(at);
    let (letter, microbatch) = rest.split_at(1);
    let pass = match letter {
        "F" => Pass::Forward,
        "B" => Pass::Backward,
        "I" => Pass::BackwardInput,
        "W" => Pass::BackwardWeight,
        _ => return None,
    };
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten()
    };
    Some(Token {
        stage: spipe_base::StageId::new(number(stage)?),
        pass,
        microbatch: spipe_base::MicrobatchId::new(number(microbatch)?),
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
    }

    #[test]
    fn faults_have_a_place() {
        let faults = Order::parse("s.csv", "0F0,0f1\n\n1F0xyz\n").unwrap_err().to_string();
        assert!(faults.contains("`0f1` is no action\n  --> s.csv:1:5"), "{faults}");
        assert!(faults.contains("`1F0xyz` is no action\n  --> s.csv:3:1"), "{faults}");
    }
}
