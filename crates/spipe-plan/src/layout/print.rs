//! The text form of layouts.

use super::LayoutPart;

/// The least number of equal neighbours that are written as a repetition.
const FEWEST: usize = 3;

/// `stages` as text: the form that reads back to them, and that is the same for all strings that do.
pub(super) fn text(stages: &[Vec<LayoutPart>]) -> String {
    let Some((last, others)) = stages.split_last() else { return String::new() };
    let mut text = String::new();
    for run in others.chunk_by(|one, other| one == other) {
        let one = of_stage(&run[0]) + "|";
        if run.len() < FEWEST {
            run.iter().for_each(|_| join(&mut text, &one));
        } else {
            let item = if one.len() == 1 { one } else { format!("({one})") };
            join(&mut text, &format!("{item}*{}", run.len()));
        }
    }
    join(&mut text, &of_stage(last));
    text
}

fn of_stage(parts: &[LayoutPart]) -> String {
    let mut text = String::new();
    for run in parts.chunk_by(|one, other| one == other) {
        let letter = run[0].letter();
        if run.len() < FEWEST {
            join(&mut text, &letter.to_string().repeat(run.len()));
        } else {
            join(&mut text, &format!("{letter}*{}", run.len()));
        }
    }
    text
}

/// Appends `more`, behind a comma where a number would touch what is no bar.
fn join(text: &mut String, more: &str) {
    let counted = text.ends_with(|letter: char| letter.is_ascii_digit());
    if counted && !more.is_empty() && !more.starts_with('|') {
        text.push(',');
    }
    text.push_str(more);
}
