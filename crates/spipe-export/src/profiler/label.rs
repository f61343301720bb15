//! The labels that PyTorch's pipeline runtime gives its actions.

use spipe_base::{ActionKind, MicrobatchId, StageId, Subject};

/// The prefix of all labels.
const PREFIX: &str = "PP:";

/// The computation of a label such as `PP:2F0`; none of other actions, such as sends.
pub fn computation(name: &str) -> Option<(ActionKind, Subject)> {
    let label = name.strip_prefix(PREFIX)?;
    let at = label.find(|c: char| !c.is_ascii_digit())?;
    let (stage, rest) = label.split_at(at);
    let (letter, microbatch) = rest.split_at_checked(1)?;
    let kind = match letter {
        "F" => ActionKind::Forward,
        "B" => ActionKind::Backward,
        "I" => ActionKind::BackwardInput,
        "W" => ActionKind::BackwardWeight,
        _ => return None,
    };
    let digits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = |word: &str| word.parse::<u32>().ok().filter(|_| digits(word));
    Some((kind, Subject::work(StageId::new(number(stage)?), MicrobatchId::new(number(microbatch)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_computations_are_read() {
        let subject = Subject::work(StageId::new(12), MicrobatchId::new(3));
        assert_eq!(computation("PP:12F3"), Some((ActionKind::Forward, subject)));
        assert_eq!(computation("PP:12W3"), Some((ActionKind::BackwardWeight, subject)));
        for other in ["12F3", "PP:12SEND_F3", "PP:0UNSHARD", "PP:F3", "PP:1F", "PP:1F3x", "PP:"] {
            assert_eq!(computation(other), None, "{other}");
        }
    }
}
