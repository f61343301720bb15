//! The page and the plot.

use super::{
    Target,
    table::{HEADINGS, cells, mark, name, ordered},
};
use crate::Failure;
use spipe_base::readable::per_second;
use spipe_search::compare::{Compared, Status};
use spipe_timeline::{Bar, Bars, SystemCell, SystemRow, Systems, bars_png, bars_svg, systems_page};

/// The kind of a plot.
#[derive(Clone, Copy)]
pub enum Kind {
    Svg,
    Png,
}

/// Opens the page.
pub fn page_target(path: &str, inputs: &[&str]) -> Result<Target, Failure> {
    if path != "-" && !path.ends_with(".html") {
        return Err(Failure::argument(format!("`{path}` does not name a page"), "let it end in .html"));
    }
    Target::beside(path, inputs)
}

/// Opens the plot.
pub fn plot_target(path: &str, inputs: &[&str]) -> Result<(Target, Kind), Failure> {
    let kind = match path {
        path if path.ends_with(".svg") => Kind::Svg,
        path if path.ends_with(".png") => Kind::Png,
        _ => {
            let message = format!("`{path}` does not name a kind of plot");
            return Err(Failure::argument(message, "let it end in .svg or .png"));
        }
    };
    Ok((Target::beside(path, inputs)?, kind))
}

fn reason(row: &Compared) -> Option<String> {
    let word = match row.status {
        Status::Feasible => return row.reason.clone(),
        Status::Infeasible => "infeasible",
        Status::Stopped => "none found in time",
    };
    Some(format!("{word}: {}", row.reason.as_deref().unwrap_or("no reason known")))
}

fn system_row(row: &Compared) -> SystemRow<'_> {
    let cell = |(text, order): (String, Option<f64>)| SystemCell { text, order };
    SystemRow {
        name: name(row),
        cells: cells(row).into_iter().map(cell).collect(),
        reason: reason(row),
        trace: row.trace.as_ref(),
    }
}

/// The page.
pub fn page(title: &str, all: &[Compared]) -> String {
    systems_page(&Systems {
        title: title.into(),
        notes: [
            "Each system with the best plan found in its time, simulated. A bubble is named by what the device waits for.",
            "Memories: the largest peak of a GPU and of a socket's DRAM. GPU links: bytes between GPUs and hosts per iteration, both ways.",
            "The baseline is simulated like a plan, without a search: every GPU has the whole model and its share of the batch.",
        ]
        .into_iter()
        .chain(mark(all))
        .map(String::from)
        .collect(),
        headings: HEADINGS.map(String::from).to_vec(),
        rows: ordered(all).into_iter().map(system_row).collect(),
    })
}

/// The plot: a bar of tokens per second for each system.
pub fn plot(kind: Kind, title: &str, all: &[Compared]) -> Result<Vec<u8>, Failure> {
    let bar = |row: &Compared| Bar {
        name: name(row),
        value: row.tokens_per_second,
        text: row.tokens_per_second.map_or_else(|| reason(row).unwrap_or_default(), per_second),
    };
    let bars = Bars {
        title: title.into(),
        notes: Vec::new(),
        label: "tokens per second".into(),
        bars: ordered(all).into_iter().map(bar).collect(),
    };
    let failed = |error: spipe_timeline::DrawError| Failure::Bug(format!("the plot cannot be drawn: {error}"));
    Ok(match kind {
        Kind::Svg => bars_svg(&bars).map_err(failed)?.into_bytes(),
        Kind::Png => bars_png(&bars).map_err(failed)?,
    })
}
