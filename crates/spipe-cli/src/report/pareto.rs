//! The trade of memory for time of Superpipeline on one GPU.

use crate::tables::table;
use spipe_search::questions::Front;

/// A row for each choice on the front, for a model of `layers` layers; a sentence if there was no
/// time for it.
pub fn human(front: Option<&Front>, layers: usize) -> String {
    let Some(front) = front else {
        return "The cost of less memory: not shown, since there was no time to simulate all choices of k and k'.\n\n"
            .into();
    };
    let count = |of: usize| match of {
        0 => "none".to_owned(),
        all if all == layers => "all".into(),
        some => some.to_string(),
    };
    let columns = ["k", "k'", "layers kept", "recomputed", "GPU memory", "iteration"];
    let mut rows = table(&columns, &[0, 1, 2, 3, 4, 5]);
    for choice in &front.choices {
        rows.add_row(vec![
            choice.resident.to_string(),
            choice.swap.to_string(),
            count(choice.kept),
            count(choice.recomputed),
            choice.peak.to_string(),
            format!("{:.1} ms", choice.iteration.to_ms()),
        ]);
    }
    let compared = front.compared;
    format!(
        "The cost of less memory: among {compared} choices of k and k' that fit, without regard to pins, these are not beaten in both \
         memory and time:\n\n{rows}\n\n"
    )
}
