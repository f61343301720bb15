//! The results of all cases, as tables.

use super::{ErrorRow, Report, measuring::WARM_UP};
use crate::{args, tables::dense_table};
use spipe_base::readable::{percent, signed_percent};

const HEADINGS: [&str; 10] = [
    "system",
    "predicted",
    "measured",
    "spread",
    "error",
    "of all rounds",
    "error of compute lanes",
    "busiest lane",
    "order alone",
    "tokens/s",
];

pub(super) fn human(report: &Report) -> String {
    let headings = HEADINGS.map(|heading| heading.replace(' ', "\n"));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut rows = dense_table(&headings, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for row in &report.rows {
        rows.add_row(cells(row));
    }
    let failed: String = report.failed.iter().map(|failure| format!("\nfailed: {failure}")).collect();
    format!("{rows}{failed}\n")
}

fn cells(row: &ErrorRow) -> Vec<String> {
    vec![
        row.title.clone(),
        format!("{:.1} ms", row.predicted_ms),
        format!("{:.1} ms", row.measured_ms),
        percent(row.spread),
        signed_percent(row.iteration_error),
        format!("{} … {}", signed_percent(row.least_error), signed_percent(row.largest_error)),
        signed_percent(row.compute_error),
        percent(row.busiest_lane),
        percent(row.order_alone),
        format!("{:.0}", row.tokens_per_second),
    ]
}

pub(super) fn markdown(what: &args::PredictionError, report: &Report) -> String {
    let mut text = format!(
        "# Predicted and measured iterations\n\n`spipe prediction-error --model {} --backend {} --rounds {} --steps {}`, {}, {} \
         cores. Accelerators are emulated: CPU cores with a memory cap and a paced link of {}.\n\n\
         In each of {} rounds, the devices of each system were measured for {}, those that share no core at the same time. Then the \
         system ran: the median of {} steps after {WARM_UP} warm-up steps. Other tenants of the machine slow its memory for minutes \
         at a time. Where that begins or ends between measurement and run, a round says nothing about the prediction. So each row is \
         the round with the median error, beside the least and the largest error of all rounds.\n\n\
         The spread is half the distance between the 10th and the 90th percentile of the steps, over their median. Compute lanes are \
         summed; paced links match by construction. The share of the busiest lane shows how close a run is to the longer of compute \
         and copies. The rest to 100 % is mostly idle time of the order: order alone is the predicted iteration without copies, over \
         the measured one. Prompts are forwards of whole sequences, with new memory each time, as in a run that reads them once. Token \
         by token, an iteration generates one token for each sequence from its cache.\n\n",
        what.model,
        report.backend,
        what.rounds,
        what.steps,
        time::OffsetDateTime::now_utc().date(),
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        what.emulated_link,
        what.rounds,
        what.time_limit,
        what.steps,
    );
    let mut headings = HEADINGS.to_vec();
    headings.insert(1, "devices");
    text += &format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
    for row in &report.rows {
        let mut cells = cells(row);
        cells.insert(1, row.devices.clone());
        text += &format!("| {} |\n", cells.join(" | "));
    }
    for failure in &report.failed {
        text += &format!("\nFailed: {failure}\n");
    }
    text
}
