//! `spipe catalogue list` and `show`.

use crate::{
    Failure, args,
    args::Format,
    market, output,
    tables::{dense_table, table},
};
use serde::Serialize;
use serde_json::Value;
use spipe_base::BytesPerSecond;
use spipe_market::{Date, Dated, HourFile, Kind, Part, PriceFile, Range, current, in_condition};

/// A price as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Shown {
    condition: String,
    low: f64,
    typical: f64,
    high: f64,
    currency: String,
    date: Date,
    age_days: i64,
    source: String,
    /// Whether this is the price that counts on the day, and its range on it.
    current: bool,
    range: Range,
}

impl Shown {
    fn of(price: &impl Dated, (condition, source): (&str, &str), current: bool, day: Date) -> Self {
        let Range { low, typical, high } = price.range();
        Self {
            condition: condition.into(),
            low,
            typical,
            high,
            currency: price.currency().to_string(),
            date: price.date(),
            age_days: price.age(day),
            source: source.into(),
            current,
            range: price.range_on(day),
        }
    }
}

/// The prices of a part, those of hours for a rented machine.
fn prices(part: Part<'_>, day: Date) -> Vec<Shown> {
    let is_current = |price: &PriceFile| in_condition(part.prices(), price.condition, day) == Some(price);
    let sold = part.prices().iter();
    let mut shown: Vec<Shown> =
        sold.map(|price| Shown::of(price, (price.condition.name(), &price.source), is_current(price), day)).collect();
    if let Part::Rent(rent) = part {
        let now: Option<&HourFile> = current(&rent.hour, day);
        shown.extend(rent.hour.iter().map(|hour| Shown::of(hour, ("an hour", &hour.source), now == Some(hour), day)));
    }
    shown
}

/// The figure by which parts of a kind are told apart.
fn figure(part: Part<'_>) -> String {
    match part {
        Part::Gpu(gpu) => {
            let rate = gpu.sixteen_bit().map(|rate| format!("{:.0} TFLOP/s, ", rate.get() / 1e12)).unwrap_or_default();
            format!("{} GiB, {rate}{:.0} GB/s", gpu.memory.0.to_gib(), gpu.memory_bandwidth.0.get() / 1e9)
        }
        Part::Platform(cpu) => format!("{} cores, {} × {}", cpu.cores, cpu.memory.channels, cpu.memory.kind),
        Part::Dram(module) => format!("{}, {}", module.capacity.0, module.rate.0),
        Part::Drive(drive) => {
            format!("{:.0} TB, reads {:.1} GB/s", drive.capacity.0.as_f64() / 1e12, drive.read.0.get() / 1e9)
        }
        Part::Board(board) => format!("{} × {}, {} GPUs", board.socket_count, board.sockets.join("/"), board.gpu_slots),
        Part::Bridge(bridge) => format!("{} of {}", bridge.gpus, bridge.joins.join(", ")),
        Part::Supply(supply) => supply.power.0.to_string(),
        Part::NetworkCard(card) => format!("{}, {}", card.network, line_rate(card.rate.0)),
        Part::NetworkSwitch(switch) => {
            format!("{} ports of {}, {}", switch.ports, switch.network, line_rate(switch.rate.0))
        }
        Part::Cable(cable) => format!("{}, {}", cable.network, line_rate(cable.rate.0)),
        Part::Rent(rent) => format!("{} × {}, {}", rent.gpus, rent.gpu, rent.kind),
    }
}

/// A line rate in the unit of data sheets.
fn line_rate(rate: BytesPerSecond) -> String {
    format!("{:.0} Gb/s", rate.get() * 8.0 / 1e9)
}

/// Lists parts.
pub fn list(what: &args::CatalogueList, format: Format) -> Result<(), Failure> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct PartOutput {
        format_version: u32,
        as_of: Date,
        parts: Vec<Row>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Row {
        kind: Kind,
        name: String,
        figures: String,
        source: String,
        prices: Vec<Shown>,
    }
    let (catalogue, day) = (market::catalogue(&what.source)?, market::day(what.source.as_of));
    let wanted = |part: &Part<'_>| what.kind.as_ref().is_none_or(|kind| part.kind().name() == kind);
    let row = |part: Part<'_>| Row {
        kind: part.kind(),
        name: part.name().into(),
        figures: figure(part),
        source: part.source().into(),
        prices: prices(part, day).into_iter().filter(|price| price.current).collect(),
    };
    let data = PartOutput { format_version: 1, as_of: day, parts: catalogue.parts().filter(wanted).map(row).collect() };
    if data.parts.is_empty() {
        let kind = what.kind.as_deref().unwrap_or_default();
        let hint =
            "kinds are gpu, platform, dram, drive, board, bridge, supply, network-card, network-switch, cable and rent";
        return Err(Failure::argument(format!("the catalogue has no part of the kind `{kind}`"), hint));
    }
    let mut rows =
        dense_table(&["kind", "part", "figures", "condition", "low", "typical", "high", "", "days old"], &[4, 5, 6, 8]);
    for row in &data.parts {
        let first = |text: &str, index: usize| if index == 0 { text.to_owned() } else { String::new() };
        if row.prices.is_empty() {
            rows.add_row(vec![row.kind.name().to_owned(), row.name.clone(), row.figures.clone(), "no price".into()]);
        }
        for (index, price) in row.prices.iter().enumerate() {
            let Range { low, typical, high } = price.range;
            rows.add_row(vec![
                first(row.kind.name(), index),
                first(&row.name, index),
                first(&row.figures, index),
                price.condition.clone(),
                amount(low),
                amount(typical),
                amount(high),
                price.currency.clone(),
                price.age_days.to_string(),
            ]);
        }
    }
    output::report(format, &format!("Prices known on {day}, without tax\n\n{rows}\n"), &data)
}

/// An amount of money with as many digits as it needs.
fn amount(amount: f64) -> String {
    if amount < 20.0 { format!("{amount:.2}") } else { format!("{amount:.0}") }
}

/// Shows a part.
pub fn show(what: &args::CatalogueShow, format: Format) -> Result<(), Failure> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct PartOutput<'a> {
        format_version: u32,
        as_of: Date,
        kind: Kind,
        part: Part<'a>,
        prices: Vec<Shown>,
    }
    let (catalogue, day) = (market::catalogue(&what.source)?, market::day(what.source.as_of));
    let Some(part) = catalogue.find(&what.part) else {
        let names: Vec<&str> = catalogue.parts().map(Part::name).collect();
        let near = spipe_base::similar_word(&what.part, names);
        let hint = near
            .map_or_else(|| "`spipe catalogue list` prints all parts".into(), |near| format!("did you mean `{near}`"));
        return Err(Failure::argument(format!("the catalogue has no part `{}`", what.part), hint));
    };
    let data = PartOutput { format_version: 1, as_of: day, kind: part.kind(), part, prices: prices(part, day) };
    let value = serde_json::to_value(part).map_err(|error| Failure::Bug(error.to_string()))?;
    let mut figures = table(&["figure", "value"], &[]);
    let keys = value.as_object().into_iter().flatten();
    for (key, value) in keys.filter(|(key, value)| !matches!(key.as_str(), "price" | "hour") && !is_empty(value)) {
        figures.add_row(vec![key.clone(), words(value)]);
    }
    let mut rows = table(&["condition", "low", "typical", "high", "", "date", "days old", "source"], &[1, 2, 3, 6]);
    for price in &data.prices {
        let now = if price.current { " (counts)" } else { "" };
        rows.add_row(vec![
            format!("{}{now}", price.condition),
            amount(price.low),
            amount(price.typical),
            amount(price.high),
            price.currency.clone(),
            price.date.to_string(),
            price.age_days.to_string(),
            price.source.clone(),
        ]);
    }
    let stale = data.prices.iter().any(|price| price.current && price.age_days > spipe_market::STALE);
    let remark =
        if stale { "A price older than a year counts with its range widened by 1.5 at each end.\n" } else { "" };
    let sold = if data.prices.is_empty() { "No price is known.\n".to_owned() } else { format!("{rows}\n{remark}") };
    output::report(
        format,
        &format!("{} of the kind {}, on {day}\n\n{figures}\n\n{sold}", part.name(), part.kind()),
        &data,
    )
}

fn is_empty(value: &Value) -> bool {
    value.is_null()
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// A value of a part in words.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(table) => {
            let set = table.iter().filter(|(_, value)| !is_empty(value));
            set.map(|(key, value)| format!("{key} {}", words(value))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
