//! The machines of a job: every combination of what varies, composed and priced.

use crate::{Job, Rule};
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, Faults};
use spipe_hardware::HardwareFile;
use spipe_market::{
    Catalogue, Choice, Cluster, ComposeError, Composed, Condition, Date, Form, Kind, MachinePrice, PlatformPart,
    compose, price,
};
use std::collections::{BTreeMap, BTreeSet};

/// The machines that vary where the job names none.
const GPUS: [u32; 4] = [1, 2, 4, 8];
const PLATFORMS: [&str; 6] =
    ["ryzen-9950x", "threadripper-pro-9955wx", "epyc-7713p", "epyc-9354p", "epyc-7763", "xeon-8480"];
const DRAM: [u64; 4] = [64, 128, 256, 512];
const DRIVE: &str = "nvme4-2tb";

/// The network cards of computers with cards in slots, and of those with modules.
const NETWORK: [&str; 2] = ["connectx6dx-100g", "connectx7-400g"];

/// A machine of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its place in the sweep, from 0.
    pub index: usize,
    /// The parts and the profile.
    pub machine: Composed,
    /// The condition in which parts are bought.
    pub condition: Condition,
    /// Its price without tax.
    pub price: MachinePrice,
    /// The profile without names, sources and drives: machines with equal keys have equal plans.
    pub key: String,
}

impl Candidate {
    /// The name in tables, such as `2xrtx3090_epyc-7713p_8xddr4-rdimm-32g (used)`.
    pub fn name(&self) -> String {
        format!("{} ({})", self.machine.name, self.condition)
    }
}

/// A combination that is no machine of the sweep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Skipped {
    /// The name of the broken rule, `skip`, `price`, `budget` or `wall-power`.
    pub rule: String,
    /// An example of its message.
    pub example: String,
    /// The number of combinations.
    pub count: usize,
}

/// The machines of a job, and what was skipped.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The machines, in the order of what varies.
    pub candidates: Vec<Candidate>,
    /// The skipped combinations by rule.
    pub skipped: Vec<Skipped>,
}

/// A combination of what varies.
#[derive(Clone, Debug, PartialEq)]
struct Point<'a> {
    gpu: &'a str,
    gpus: u32,
    platform: &'a str,
    dram: Bytes,
    nvme: u32,
    bridge: bool,
    nodes: u32,
    /// The network card of several computers.
    network: &'a str,
    condition: Condition,
}

/// Composes and prices every combination, at prices known on `as_of`.
///
/// # Errors
/// Unknown parts, currencies without a rate, and a sweep without any machine.
pub fn sweep(catalogue: &Catalogue, job: &Job, as_of: Date) -> Result<Sweep, Faults> {
    let vary = &job.file.vary;
    known(catalogue, job)?;
    let gpus = vary.gpu.clone().unwrap_or_else(|| sold_gpus(catalogue));
    let platforms = vary.platform.clone().unwrap_or_else(|| PLATFORMS.map(str::to_owned).into());
    let counts = vary.gpus.clone().unwrap_or_else(|| GPUS.into());
    let drams: Vec<Bytes> = vary
        .dram
        .as_ref()
        .map_or_else(|| DRAM.map(Bytes::gib).into(), |drams| drams.iter().map(|dram| dram.0).collect());
    let drives = vary.nvme.clone().unwrap_or_else(|| vec![0]);
    let bridges = vary.bridge.clone().unwrap_or_else(|| vec![false]);
    let nodes = vary.nodes.clone().unwrap_or_else(|| vec![1]);
    let conditions = vary.condition.clone().unwrap_or_else(|| Condition::ALL.into());
    let mut builder =
        Builder { catalogue, job, as_of, sweep: Sweep::default(), skipped: BTreeMap::new(), seen: BTreeSet::new() };
    for gpu in &gpus {
        let networks = vary.network.clone().unwrap_or_else(|| vec![network_card(catalogue, gpu).to_owned()]);
        // One computer has no network, whatever the card.
        let cards = |nodes: u32| networks.iter().take(if nodes > 1 { networks.len() } else { 1 });
        let joined: Vec<(u32, &String)> =
            nodes.iter().flat_map(|nodes| cards(*nodes).map(|network| (*nodes, network))).collect();
        for (count, platform) in
            counts.iter().flat_map(|count| platforms.iter().map(move |platform| (*count, platform)))
        {
            for (dram, nvme) in drams.iter().flat_map(|dram| drives.iter().map(move |nvme| (*dram, *nvme))) {
                for (bridge, condition) in
                    bridges.iter().flat_map(|bridge| conditions.iter().map(move |one| (*bridge, *one)))
                {
                    for (nodes, network) in joined.iter().copied() {
                        builder.add(&Point {
                            gpu,
                            gpus: count,
                            platform,
                            dram,
                            nvme,
                            bridge,
                            nodes,
                            network,
                            condition,
                        })?;
                    }
                }
            }
        }
    }
    builder.sweep.skipped =
        builder.skipped.into_iter().map(|(rule, (count, example))| Skipped { rule, example, count }).collect();
    Ok(builder.sweep)
}

/// The GPUs that have a price.
fn sold_gpus(catalogue: &Catalogue) -> Vec<String> {
    catalogue.gpus.iter().filter(|gpu| !gpu.price.is_empty()).map(|gpu| gpu.name.clone()).collect()
}

/// The network card of computers with this GPU where none is named.
fn network_card(catalogue: &Catalogue, gpu: &str) -> &'static str {
    let in_slots = catalogue.gpus.iter().any(|part| part.name == gpu && part.form == Form::Pcie);
    if in_slots { NETWORK[0] } else { NETWORK[1] }
}

/// Refuses names that the catalogue does not have.
fn known(catalogue: &Catalogue, job: &Job) -> Result<(), Faults> {
    let mut faults = Faults::new();
    if catalogue.is_empty() {
        faults.push(Diagnostic::error("the catalogue has no part").hint("add a `[[gpu]]` and a `[[platform]]`"));
    }
    let vary = &job.file.vary;
    let named = vary.gpu.iter().flatten().map(|name| (Kind::Gpu, name));
    let named = named.chain(vary.platform.iter().flatten().map(|name| (Kind::Platform, name)));
    let named = named.chain(vary.network.iter().flatten().map(|name| (Kind::NetworkCard, name)));
    if vary.nodes.iter().flatten().any(|nodes| *nodes > 1) && catalogue.network_cards.is_empty() {
        let fault = Diagnostic::error("several nodes need a network, and the catalogue has no network card");
        faults.push(
            fault.hint("add a `[[network-card]]`, a `[[network-switch]]` and a `[[cable]]`, or leave `nodes` out"),
        );
    }
    for (kind, name) in named.chain(vary.drive.iter().map(|name| (Kind::Drive, name))) {
        if !catalogue.parts().any(|part| part.kind() == kind && part.name() == name) {
            faults.push(catalogue.unknown(kind, name));
        }
    }
    faults.or(())
}

/// A sweep under construction.
struct Builder<'a> {
    catalogue: &'a Catalogue,
    job: &'a Job,
    as_of: Date,
    sweep: Sweep,
    skipped: BTreeMap<String, (usize, String)>,
    /// The names and typical prices of the machines so far.
    seen: BTreeSet<(String, u64)>,
}

impl Builder<'_> {
    fn skip(&mut self, rule: &str, example: String) {
        self.skipped.entry(rule.into()).or_insert((0, example)).0 += 1;
    }

    /// Adds the machine of a combination, or counts why it is none.
    fn add(&mut self, point: &Point<'_>) -> Result<(), Faults> {
        if let Some(rule) = self.job.skip.iter().find(|rule| holds(rule, point)) {
            let text = rule.text.clone();
            self.skip("skip", text);
            return Ok(());
        }
        let machine = match self.composed(point) {
            Ok(machine) => machine,
            Err(error) => {
                self.skip(error.rule(), error.diagnostic().message);
                return Ok(());
            }
        };
        self.admit(machine, point.condition)
    }

    /// Prices a machine and adds it if it is within budget and power.
    fn admit(&mut self, machine: Composed, condition: Condition) -> Result<(), Faults> {
        let priced = price(self.catalogue, &machine, (condition, self.as_of), &self.job.rates);
        let price = match priced {
            Ok(price) => price,
            Err(error @ spipe_market::Unpriced::NoPrice(_)) => {
                self.skip("price", error.to_string());
                return Ok(());
            }
            Err(error) => {
                let fault = Diagnostic::error(error.to_string());
                let hint = "state a rate: `rates = [{ from = \"USD\", rate = 0.90, date = …, source = \"…\" }]`, or `option rate USD=0.90`";
                return Err(fault.hint(hint).into());
            }
        };
        let cash = price.range.typical * (1.0 + self.job.tax);
        if let Some(budget) = self.job.budget.filter(|budget| cash > *budget) {
            let currency = &self.job.own.currency;
            self.skip(
                "budget",
                format!("{} costs {cash:.0} {currency}, the budget is {budget:.0} {currency}", machine.name),
            );
            return Ok(());
        }
        let most = machine.power.at(1.0, 0.0);
        if let Some(limit) = self.job.file.limits.wall_power.filter(|limit| most > limit.0) {
            self.skip("wall-power", format!("{} draws {most}, the limit is {}", machine.name, limit.0));
            return Ok(());
        }
        // Parts that are sold in one condition alone make one machine, not two.
        if self.seen.insert((machine.name.clone(), price.range.typical.to_bits())) {
            let key = key(&machine.hardware);
            let index = self.sweep.candidates.len();
            self.sweep.candidates.push(Candidate { index, machine, condition, price, key });
        }
        Ok(())
    }

    /// Composes a combination on one CPU, or two where one does not do.
    fn composed(&self, point: &Point<'_>) -> Result<Composed, ComposeError> {
        let gpu = self.catalogue.gpus.iter().find(|gpu| gpu.name == point.gpu);
        let drive = self.job.file.vary.drive.clone().unwrap_or_else(|| DRIVE.into());
        let bridges = self.catalogue.bridges.iter();
        let bridge =
            point.bridge.then(|| bridges.clone().find(|bridge| bridge.joins.iter().any(|name| name == point.gpu)));
        let platform = self.catalogue.platforms.iter().find(|platform| platform.name == point.platform);
        // Modules on boards have two CPUs, most cards one.
        let order = if gpu.is_some_and(|gpu| gpu.form == Form::Pcie) { [1, 2] } else { [2, 1] };
        let mut first = None;
        for sockets in order {
            let choice = Choice {
                gpu: (point.gpus > 0).then(|| point.gpu.to_owned()),
                gpus: point.gpus,
                platform: point.platform.to_owned(),
                dram: platform.and_then(|platform| modules(self.catalogue, platform, sockets, point.dram)),
                drives: (point.nvme > 0).then(|| (point.nvme, drive.clone())).into_iter().collect(),
                bridge: bridge.map(|found| found.map_or_else(|| "none".to_owned(), |bridge| bridge.name.clone())),
                cluster: (point.nodes > 1).then(|| Cluster::new(point.nodes, point.network.to_owned())),
                ..Choice::default()
            };
            match compose(self.catalogue, &choice) {
                Ok(machine) => return Ok(machine),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| ComposeError::Unknown(self.catalogue.unknown(Kind::Platform, point.platform))))
    }
}

/// The modules with at least this capacity together: one per channel if they are large enough,
/// otherwise two.
fn modules(catalogue: &Catalogue, platform: &PlatformPart, sockets: u32, wanted: Bytes) -> Option<(u32, String)> {
    platform.memory.soldered.is_none().then_some(())?;
    let most = platform.memory.largest_module.map_or(Bytes::new(u64::MAX), |most| most.0);
    let mut kinds: Vec<_> =
        catalogue.drams.iter().filter(|dram| dram.kind == platform.memory.kind && dram.capacity.0 <= most).collect();
    kinds.sort_by_key(|dram| (dram.capacity.0, dram.rate.0));
    let channels = platform.memory.channels * sockets;
    let enough = |count: u32| {
        kinds.iter().find(|dram| dram.capacity.0 * u64::from(count) >= wanted).map(|dram| (count, dram.name.clone()))
    };
    enough(channels)
        .or_else(|| enough(2 * channels))
        .or_else(|| kinds.last().map(|dram| (4 * channels, dram.name.clone())))
}

/// Whether all conditions of a rule hold.
fn holds(rule: &Rule, point: &Point<'_>) -> bool {
    rule.wants.iter().all(|(key, value)| match key.as_str() {
        "gpu" => value == point.gpu,
        "gpus" => value.parse() == Ok(point.gpus),
        "platform" => value == point.platform,
        "dram" => value.parse() == Ok(point.dram),
        "nvme" => value.parse() == Ok(point.nvme),
        "nodes" => value.parse() == Ok(point.nodes),
        "network" => point.nodes > 1 && value == point.network,
        "bridge" => matches!(value.as_str(), "true" | "yes") == point.bridge,
        "condition" => value == point.condition.name(),
        _ => false,
    })
}

/// The profile without names, sources and drives: these searches leave drives out, so that plans do not depend
/// on them.
fn key(hardware: &HardwareFile) -> String {
    let mut file = hardware.clone();
    let drives: BTreeSet<String> = file.nvme.drain(..).map(|drive| drive.name).collect();
    file.link.retain(|link| !link.between.iter().any(|end| drives.contains(end)));
    file.name = "machine".into();
    file.description = None;
    file.parts.clear();
    file.socket.iter_mut().for_each(|socket| socket.source = None);
    file.gpu.iter_mut().for_each(|gpu| gpu.source = None);
    file.gpu.iter_mut().filter_map(|gpu| gpu.efficiency.as_mut()).for_each(|efficiency| efficiency.source = None);
    file.link.iter_mut().for_each(|link| link.source = None);
    file.network.iter_mut().for_each(|network| network.source = None);
    file.to_toml()
}

/// Makes a sweep of machines that are given.
///
/// # Errors
/// A machine without a price, or in a currency without a rate.
pub fn sweep_of(
    catalogue: &Catalogue,
    (job, as_of): (&Job, Date),
    machines: Vec<(Composed, Condition)>,
) -> Result<Sweep, Faults> {
    let mut builder =
        Builder { catalogue, job, as_of, sweep: Sweep::default(), skipped: BTreeMap::new(), seen: BTreeSet::new() };
    for (machine, condition) in machines {
        builder.admit(machine, condition)?;
    }
    builder.sweep.skipped =
        builder.skipped.into_iter().map(|(rule, (count, example))| Skipped { rule, example, count }).collect();
    Ok(builder.sweep)
}
