//! The table as CSV: one line per machine, amounts in the currency of the job.

use crate::Table;

/// Returns the ranked machines as lines with a header.
pub fn csv(table: &Table) -> String {
    let mut text = String::from(
        "rank,tie,machine,nodes,price-low,price-typical,price-high,tokens-per-second,error,hours,meets-deadline,cost-low,cost-typical,\
         cost-high,cost-per-million-tokens,kwh,watts,system,bottleneck,bottleneck-share,gap,front,front-share,first-share,oldest-price\n",
    );
    for row in &table.machines {
        let bottleneck = row.bottleneck.as_ref();
        let cells = [
            row.rank.to_string(),
            row.tie.clone(),
            quoted(&row.machine),
            row.nodes.to_string(),
            number(row.price.low),
            number(row.price.typical),
            number(row.price.high),
            number(row.figures.tokens_per_second),
            number(row.error),
            number(row.figures.hours),
            row.figures.meets_deadline.map(|meets| meets.to_string()).unwrap_or_default(),
            number(row.figures.cost_of_job.low),
            number(row.figures.cost_of_job.typical),
            number(row.figures.cost_of_job.high),
            number(row.figures.cost_per_million_tokens),
            number(row.figures.kwh),
            number(row.figures.watts),
            row.system.clone(),
            bottleneck.map(|bottleneck| quoted(&bottleneck.lane)).unwrap_or_default(),
            bottleneck.map(|bottleneck| number(bottleneck.share)).unwrap_or_default(),
            row.gap.map(number).unwrap_or_default(),
            row.front.to_string(),
            number(row.front_share),
            number(row.first_share),
            row.oldest_price.to_string(),
        ];
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

fn number(value: f64) -> String {
    format!("{value:.6}")
}

/// A cell in quotes where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}
