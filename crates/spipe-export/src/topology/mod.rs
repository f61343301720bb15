//! Hardware profiles from what tools print about a machine.
//!
//! ```text
//! nvidia-smi topo -m ─┐  which GPU is behind which switch, node and NVLink
//! lscpu, numactl ─────┼─► profile (TOML), with the network of several such computers
//! another profile ────┘  rates, which the tools do not print: each states where it is from
//! ```

mod cards;
mod host;
mod matrix;

use host::HostNode;
use matrix::{Relation, Row, read};
use spipe_base::{Diagnostic, Faults};
use spipe_hardware::NetworkFile;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The texts from which a profile is made.
#[derive(Clone, Debug)]
pub struct Printed<'a> {
    /// The name of the file with the matrix, and its text.
    pub matrix: (&'a str, &'a str),
    /// The output of `lscpu`.
    pub lscpu: Option<&'a str>,
    /// The output of `numactl --hardware`.
    pub numactl: Option<&'a str>,
    /// The name and the text of a profile with the same GPU, from which rates are taken.
    pub like: (&'a str, &'a str),
    /// The network cards that training uses, of those of the matrix the nearest to GPUs.
    pub network: Option<NetworkFile>,
}

/// Bandwidth of one NVLink in each direction: 25 GB/s since the second generation.
const NVLINK_GBS: u32 = 25;

/// A profile as TOML, with the wiring that is printed and the rates of another profile.
///
/// # Errors
/// A matrix that cannot be read, with line and column, or has fewer network cards than are used; a profile without a GPU or
/// a socket.
pub fn hardware_from_topology(printed: &Printed<'_>, name: &str) -> Result<String, Faults> {
    let rows = read(printed.matrix.0, printed.matrix.1)?;
    let gpus: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, row)| row.name.starts_with("GPU")).collect();
    let (like, text) = printed.like;
    let figures: Table = text.parse().map_err(|error| Diagnostic::error(format!("`{like}` is no profile: {error}")))?;
    let first = |key: &str| -> Result<Table, Faults> {
        let found = figures.get(key).and_then(|tables| tables.as_array()?.first()?.as_table().cloned());
        found.ok_or_else(|| {
            let fault = Diagnostic::error(format!("`{like}` has no `[[{key}]]` whose rates could be taken"));
            fault.hint("name a profile with the same GPU; `command hardware list` has them").into()
        })
    };
    let (gpu, socket) = (first("gpu")?, first("socket")?);
    let link = lanes(&figures, &gpu).map_or_else(|| first("link"), Ok)?;
    let hosts = host::nodes(printed.lscpu, printed.numactl);
    let near: BTreeSet<u32> = gpus.iter().map(|(_, row)| row.node.unwrap_or(0)).chain(hosts.keys().copied()).collect();
    let mut profile = Profile { like, tables: BTreeMap::new(), network: None };
    for node in &near {
        profile.socket(&socket, *node, hosts.get(node).unwrap_or(&HostNode::default()));
        profile.root(&link, *node);
    }
    let cards = cards::used(&rows, printed)?;
    let switches = switches(&gpus, &cards);
    for (index, (_, row)) in gpus.iter().enumerate() {
        profile.gpu(&gpu, index);
        profile.lane(&link, index, switches[index], row.node.unwrap_or(0));
    }
    let count = switches.iter().flatten().max().map_or(0, |last| last + 1);
    for switch in 0..count {
        let mut table = Table::new();
        table.insert("name".into(), Value::String(format!("switch{switch}")));
        table.insert("source".into(), Value::String("`nvidia-smi topo -m`: PIX or PXB".into()));
        profile.tables.entry("switch").or_default().push(table);
    }
    for (place, node) in switches.iter().flatten().zip(switch_nodes(&gpus, &switches)).collect::<BTreeMap<_, _>>() {
        profile.uplink(&link, *place, node);
    }
    profile.nvlinks(&gpus);
    for pair in near.iter().collect::<Vec<_>>().windows(2) {
        profile.interconnect(*pair[0], *pair[1]);
    }
    if let Some(network) = &printed.network {
        let network = NetworkFile { at: cards::places(&cards, &gpus, &switches), ..network.clone() };
        profile.network = Table::try_from(network).ok();
    }
    let (count, left) = (gpus.len(), rows.len() - gpus.len() - cards.len());
    let used: String = cards.iter().map(|(_, row)| format!(", {}", row.name)).collect();
    let description =
        format!("From `nvidia-smi topo -m`: {count} GPUs{used}; {left} other network cards, which are left out.");
    Ok(profile.text(name, &description))
}

/// The first link of a profile between a GPU and something else. Names may stand for several, such as
/// `gpu{0..3}`.
fn lanes(figures: &Table, gpu: &Table) -> Option<Table> {
    let stem = gpu.get("name")?.as_str()?.split(|letter: char| !letter.is_alphabetic()).next()?;
    let is_gpu = |end: &&Value| end.as_str().is_some_and(|end| end.starts_with(stem));
    let ends = |link: &Table| link.get("between").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut links = figures.get("link")?.as_array()?.iter().filter_map(Value::as_table);
    links.find(|link| ends(link).iter().filter(is_gpu).count() == 1).cloned()
}

/// The switch of each GPU and then of each card that shares one with a GPU, numbered in their order.
fn switches(gpus: &[(usize, &Row)], cards: &[(usize, &Row)]) -> Vec<Option<usize>> {
    let all: Vec<&(usize, &Row)> = gpus.iter().chain(cards).collect();
    let mut found: Vec<Option<usize>> = vec![None; all.len()];
    let mut count = 0;
    for index in 0..all.len() {
        let shares = |other: usize| {
            let near = matches!(all[index].1.relations.get(all[other].0), Some(Relation::Pix | Relation::Pxb));
            near && index.min(other) < gpus.len()
        };
        let others: Vec<usize> = (0..all.len()).filter(|other| *other != index && shares(*other)).collect();
        if others.is_empty() {
            continue;
        }
        found[index] = others.iter().find_map(|other| found[*other]).or_else(|| {
            count += 1;
            Some(count - 1)
        });
    }
    found
}

/// The node of each GPU that is behind a switch.
fn switch_nodes(gpus: &[(usize, &Row)], switches: &[Option<usize>]) -> Vec<u32> {
    let behind = gpus.iter().zip(switches).filter(|(_, switch)| switch.is_some());
    behind.map(|((_, row), _)| row.node.unwrap_or(0)).collect()
}

/// A profile under construction.
struct Profile<'a> {
    like: &'a str,
    tables: BTreeMap<&'static str, Vec<Table>>,
    network: Option<Table>,
}

impl Profile<'_> {
    /// Adds a table with a name, whose figures are those of the other profile.
    fn add(&mut self, kind: &'static str, mut table: Table, name: String) {
        let before = table.get("source").and_then(Value::as_str).unwrap_or("no source").to_owned();
        table.insert("name".into(), Value::String(name));
        table.insert("source".into(), Value::String(format!("figures of `{}`: {before}", self.like)));
        self.tables.entry(kind).or_default().push(table);
    }

    fn socket(&mut self, like: &Table, node: u32, host: &HostNode) {
        let mut table = like.clone();
        if let Some(cores) = host.cores {
            table.insert("cores".into(), Value::Integer(cores.into()));
        }
        if let Some(Value::Table(dram)) = table.get_mut("dram") {
            dram.insert("name".into(), Value::String(format!("dram{node}")));
            if let Some(megabytes) = host.megabytes {
                dram.insert("capacity".into(), Value::String(format!("{megabytes} MiB")));
            }
        }
        self.add("socket", table, format!("cpu{node}"));
    }

    fn gpu(&mut self, like: &Table, index: usize) {
        self.add("gpu", like.clone(), format!("gpu{index}"));
    }

    /// The lanes of a GPU to its switch, or to the root of its node.
    fn lane(&mut self, like: &Table, index: usize, switch: Option<usize>, node: u32) {
        let end = switch.map_or_else(|| format!("root{node}"), |switch| format!("switch{switch}"));
        self.link(like, format!("pcie{index}"), (format!("gpu{index}"), end));
    }

    /// The lanes of a switch, which its GPUs share.
    fn uplink(&mut self, like: &Table, switch: usize, node: u32) {
        self.link(like, format!("uplink{switch}"), (format!("switch{switch}"), format!("root{node}")));
    }

    fn root(&mut self, like: &Table, node: u32) {
        let mut table = like.clone();
        table.remove("latency");
        let mut root = Table::new();
        root.insert("name".into(), Value::String(format!("root{node}")));
        self.tables.entry("root-complex").or_default().push(root);
        self.link(&table, format!("root{node}-dram{node}"), (format!("root{node}"), format!("dram{node}")));
    }

    fn link(&mut self, like: &Table, name: String, (from, to): (String, String)) {
        let mut table = like.clone();
        table.insert("between".into(), Value::Array(vec![Value::String(from), Value::String(to)]));
        self.add("link", table, name);
    }

    /// A link for each pair of GPUs with NVLinks.
    fn nvlinks(&mut self, gpus: &[(usize, &Row)]) {
        for (one, (_, row)) in gpus.iter().enumerate() {
            for (other, (column, _)) in gpus.iter().enumerate().skip(one + 1) {
                let Some(Relation::NvLink(count)) = row.relations.get(*column) else { continue };
                let mut table = Table::new();
                table.insert("bandwidth".into(), Value::String(format!("{} GB/s", count * NVLINK_GBS)));
                table.insert("name".into(), Value::String(format!("nvlink{one}-{other}")));
                let ends = [format!("gpu{one}"), format!("gpu{other}")].map(Value::String);
                table.insert("between".into(), Value::Array(ends.to_vec()));
                let source = format!("estimate: {count} NVLinks of {NVLINK_GBS} GB/s each way");
                table.insert("source".into(), Value::String(source));
                self.tables.entry("link").or_default().push(table);
            }
        }
    }

    /// The interconnect of two nodes, of which the tools print no rate.
    fn interconnect(&mut self, one: u32, other: u32) {
        let mut table = Table::new();
        table.insert("name".into(), Value::String(format!("interconnect{one}-{other}")));
        let ends = [format!("dram{one}"), format!("dram{other}")].map(Value::String);
        table.insert("between".into(), Value::Array(ends.to_vec()));
        table.insert("bandwidth".into(), Value::String("50 GB/s".into()));
        let source = "estimate: about half of what the links of two sockets add up to; a calibration measures it";
        table.insert("source".into(), Value::String(source.into()));
        self.tables.entry("link").or_default().push(table);
    }

    fn text(self, name: &str, description: &str) -> String {
        let mut all = Table::new();
        all.insert("format-version".into(), Value::Integer(1));
        all.insert("name".into(), Value::String(name.into()));
        all.insert("description".into(), Value::String(description.into()));
        if let Some(network) = self.network {
            all.insert("network".into(), Value::Table(network));
        }
        for (kind, tables) in self.tables {
            all.insert(kind.into(), Value::Array(tables.into_iter().map(Value::Table).collect()));
        }
        all.to_string()
    }
}
