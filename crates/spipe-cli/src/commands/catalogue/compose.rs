//! `spipe catalogue compose`.

use crate::{Failure, args, args::Format, market, output, output::Target, tables::table};
use serde::Serialize;
use spipe_hardware::Hardware;
use spipe_market::{Choice, Cluster, Composed, Currency, Date, Kind, MachinePrice, Range, Rates, compose, price};

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct CompositionOutput {
    format_version: u32,
    as_of: Date,
    machine: String,
    nodes: u32,
    parts: Vec<Row>,
    price: Option<Range>,
    currency: String,
    lanes: u32,
    idle_watts: f64,
    busy_watts: f64,
    notes: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    kind: Kind,
    part: String,
    count: u32,
    price: Option<Range>,
}

/// Composes a machine, prints its parts and writes its profile.
pub fn run(what: &args::CatalogueCompose, format: Format) -> Result<(), Failure> {
    let (catalogue, day) = (market::catalogue(&what.source)?, market::day(what.source.as_of));
    let target = what.output.as_deref().map(Target::open).transpose()?;
    let choice = Choice {
        gpu: what.gpu.clone(),
        gpus: if what.gpu.is_some() { what.gpus } else { 0 },
        platform: what.platform.clone(),
        dram: what.dram.as_deref().map(|text| market::counted("dram", text)).transpose()?,
        drives: what.nvme.iter().map(|text| market::counted("nvme", text)).collect::<Result<_, _>>()?,
        bridge: what.bridge.clone(),
        board: what.board.clone(),
        supply: what.supply.as_deref().map(|text| market::counted("supply", text)).transpose()?,
        cluster: cluster(what)?,
    };
    let machine = compose(&catalogue, &choice).map_err(|error| Failure::Arguments(error.diagnostic().into()))?;
    // A composed machine that its own reader refuses is a fault of the catalogue's figures.
    Hardware::from_file(&machine.name, machine.hardware.clone())?;
    let priced = price(&catalogue, &machine, (what.condition, day), &Rates::new(Currency::usd(), &[]));
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        target.write(machine.hardware.to_toml().as_bytes())?;
    }
    if to_stdout {
        return Ok(());
    }
    let unpriced = priced.as_ref().err().map(ToString::to_string);
    let data = data(&machine, priced.ok().as_ref(), day);
    output::report(format, &human(&data, unpriced, what.output.as_deref()), &data)
}

/// The computers that a network joins, if there is one.
fn cluster(what: &args::CatalogueCompose) -> Result<Option<Cluster>, Failure> {
    let Some(text) = what.network.as_deref() else { return Ok(None) };
    let (count, card) = market::counted("network", text)?;
    // A name alone leaves the number open.
    let cards = (card != text.trim()).then_some(count);
    Ok(Some(Cluster { cards, ..Cluster::new(what.nodes, card) }))
}

fn data(machine: &Composed, price: Option<&MachinePrice>, day: Date) -> CompositionOutput {
    let of = |index: usize| price.and_then(|price| price.items.get(index)).map(|(_, range)| *range);
    let row = |(index, item): (usize, &spipe_market::Item)| Row {
        kind: item.kind,
        part: item.name.clone(),
        count: item.count,
        price: of(index),
    };
    CompositionOutput {
        format_version: 1,
        as_of: day,
        machine: machine.name.clone(),
        nodes: machine.nodes,
        parts: machine.items.iter().enumerate().map(row).collect(),
        price: price.map(|price| price.range),
        currency: Currency::usd().to_string(),
        lanes: machine.lanes,
        idle_watts: machine.power.at(0.0, 0.0).get(),
        busy_watts: machine.power.at(1.0, 1.0).get(),
        notes: machine.notes.clone(),
    }
}

fn human(data: &CompositionOutput, unpriced: Option<String>, path: Option<&str>) -> String {
    let mut rows = table(&["count", "part", "kind", "low", "typical", "high"], &[0, 3, 4, 5]);
    let amounts = |range: Option<Range>| match range {
        Some(range) => [range.low, range.typical, range.high].map(|amount| format!("{amount:.0}")),
        None => [const { String::new() }; 3],
    };
    for row in &data.parts {
        let [low, typical, high] = amounts(row.price);
        rows.add_row(vec![row.count.to_string(), row.part.clone(), row.kind.name().into(), low, typical, high]);
    }
    let [low, typical, high] = amounts(data.price);
    let total = match unpriced {
        None => {
            format!("{typical} {} ({low} to {high}), without tax, at prices known on {}", data.currency, data.as_of)
        }
        Some(reason) => format!("no price: {reason}"),
    };
    let notes: String = data.notes.iter().map(|note| format!("\n{note}")).collect();
    let written = path.map(|path| format!("\n{path}: spipe plan --hardware {path} …")).unwrap_or_default();
    format!(
        "{}\n\n{rows}\n\n{total}\n{:.0} W when idle, {:.0} W when all is busy{notes}{written}\n",
        data.machine, data.idle_watts, data.busy_watts
    )
}
