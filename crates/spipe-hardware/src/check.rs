//! Checks of a machine: unique names, possible numbers, links with known ends.

use crate::{
    AttentionFile, CollectiveFile, CopyFile, EfficiencyFile, ElementwisePoints, GpuFile, HardwareFile, LayerTimeFile,
    LinkFile, MatmulPoints, MeasuredFile, NetworkFile, NvmeFile, Peak, SocketFile,
    expand::{Parts, Placed},
    file::FORMAT_VERSION,
    report::{Report, Source},
};
use spipe_base::{Bytes, Diagnostic, Seconds, Text, similar_word};
use std::collections::{BTreeMap, BTreeSet};

/// The largest share of a data sheet's peak: GeForce boards run above the clock that it is stated at,
/// and reach up to 1.10 of it (mag-/gpu_benchmark 93322b7).
const ABOVE_DATA_SHEET: f64 = 1.2;

/// Returns the name of a DRAM's pageable view.
pub(crate) fn pageable(dram: &str) -> String {
    format!("{dram}-pageable")
}

/// Checks everything except connectivity. If the file has other faults, an unknown link end is
/// reported only if a similar name is known: the missing name may be among the unreadable values.
pub(crate) fn check(file: &HardwareFile, parts: &Parts, report: &mut Report<'_>) {
    let all_read = report.faults.is_harmless();
    if file.format_version != FORMAT_VERSION {
        let message = format!("unknown format version {}", file.format_version);
        let hint = format!("this program reads `format-version = {FORMAT_VERSION}`");
        report.push("format-version", Diagnostic::error(message).hint(hint));
    }
    if parts.sockets.iter().all(|part| part.item.memory_only) && parts.gpus.is_empty() {
        let hint = "add a `[[socket]]`, and a `[[gpu]]` with a `[[link]]` for each card";
        report.push("name", Diagnostic::error("the machine has no device").hint(hint));
    }
    names(parts, report);
    numa_nodes(parts, report);
    parts.sockets.iter().for_each(|part| socket(part, report));
    parts.gpus.iter().for_each(|part| gpu(part, report));
    parts.nvmes.iter().for_each(|part| nvme(part, report));
    parts.links.iter().for_each(|part| link(part, report));
    network(file, report);
    collectives(file, report);
    parts.copies.iter().for_each(|part| copies(part, parts, report));
    link_ends(parts, all_read, report);
}

/// Returns the name of every node with its path.
pub(crate) fn node_names(parts: &Parts) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for Placed { path, item } in &parts.gpus {
        all.push((item.name.clone(), format!("{path}.name")));
    }
    for Placed { path, item } in &parts.sockets {
        all.push((item.name.clone(), format!("{path}.name")));
        if !item.dram.name.is_empty() {
            all.push((item.dram.name.clone(), format!("{path}.dram.name")));
            all.push((pageable(&item.dram.name), format!("{path}.dram.name")));
        }
    }
    all.extend(parts.nvmes.iter().map(|part| (part.item.name.clone(), format!("{}.name", part.path))));
    let nodes = parts.nodes.iter().chain(&parts.network_cards);
    all.extend(nodes.map(|part| (part.item.name.clone(), format!("{}.name", part.path))));
    all
}

fn names(parts: &Parts, report: &mut Report<'_>) {
    let links = parts.links.iter().map(|part| (part.item.name.clone(), format!("{}.name", part.path))).collect();
    for (what, all) in [("name", node_names(parts)), ("link name", links)] {
        let mut seen = BTreeSet::new();
        for (name, path) in all.into_iter().filter(|(name, _)| !name.is_empty()) {
            if name.chars().any(|letter| !(letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')) {
                let hint = "use letters, digits, `-` and `_`";
                report.push(&path, Diagnostic::error(format!("`{name}` cannot be a {what}")).hint(hint));
            }
            if !seen.insert(name.clone()) {
                report.error(&path, format!("the {what} `{name}` is used twice"));
            }
        }
    }
}

fn numa_nodes(parts: &Parts, report: &mut Report<'_>) {
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    for (index, Placed { path, item }) in (0..).zip(&parts.sockets) {
        let node = item.numa_node.unwrap_or(index);
        if let Some(other) = seen.insert(node, &item.name) {
            let message = format!("sockets `{other}` and `{}` are both NUMA node {node}", item.name);
            report.push(
                &format!("{path}.numa-node"),
                Diagnostic::error(message).hint("number the nodes across the whole machine"),
            );
        }
    }
}

/// A reporter for the faults of one table.
struct Table<'r, 's> {
    /// The subject of messages, such as ``gpu `gpu0` ``.
    title: String,
    path: &'r str,
    report: &'r mut Report<'s>,
}

impl Table<'_, '_> {
    fn error(&mut self, key: &str, message: &str) {
        let message = format!("{} {message}", self.title);
        self.report.error(&format!("{}.{key}", self.path), message);
    }

    fn capacity(
        &mut self,
        (capacity_key, capacity): (&str, Bytes),
        (reserved_key, reserved): (&str, Option<Text<Bytes>>),
    ) {
        if capacity == Bytes::ZERO {
            self.error(capacity_key, "has no memory");
        } else if let Some(reserved) = reserved.filter(|reserved| reserved.0 >= capacity) {
            self.error(reserved_key, &format!("reserves {} of {capacity}, which leaves nothing", reserved.0));
        }
    }

    fn positive(&mut self, key: &str, number: Option<u32>) {
        if number == Some(0) {
            self.error(key, &format!("has no {}: `{key}` must be at least 1", key.replace('-', " ")));
        }
    }

    fn rates(&mut self, peak: &Peak, matmul: &MatmulPoints, bandwidths: [&ElementwisePoints; 2]) {
        if peak.is_empty() && matmul.is_empty() {
            self.error("peak", "has no arithmetic rate (write one like `peak = { f32 = \"1.5 TFLOP/s\" }`)");
        }
        for (data_type, points) in matmul {
            let sizes: Vec<f64> = points.iter().map(|(flops, _)| flops.get()).collect();
            self.ascending(&format!("matmul.{data_type}"), &sizes);
            let Some(limit) = peak.get(data_type) else { continue };
            for (_, rate) in points.iter().filter(|(_, rate)| rate.0 > limit.0) {
                let message = format!(
                    "{}: a measured {data_type} rate of {} exceeds its peak of {}",
                    self.title, rate.0, limit.0
                );
                self.report.push(&format!("{}.matmul.{data_type}", self.path), Diagnostic::warning(message));
            }
        }
        for (key, points) in ["elementwise", "matvec"].into_iter().zip(bandwidths) {
            let sizes: Vec<f64> = points.iter().map(|(bytes, _)| bytes.as_f64()).collect();
            self.ascending(key, &sizes);
        }
    }

    fn ascending(&mut self, key: &str, sizes: &[f64]) {
        if sizes.windows(2).any(|pair| pair[0] >= pair[1]) || sizes.first().is_some_and(|size| *size <= 0.0) {
            self.error(
                key,
                &format!("has points of `{}` whose sizes are not positive and ascending", key.replace('.', " ")),
            );
        }
    }

    fn efficiency(&mut self, efficiency: Option<&EfficiencyFile>) {
        let Some(efficiency) = efficiency else { return };
        let shares = [
            ("matmul-fraction", efficiency.matmul_fraction, ABOVE_DATA_SHEET),
            ("elementwise-fraction", efficiency.elementwise_fraction, 1.0),
            ("sustained", efficiency.sustained, 1.0),
        ];
        for (key, share, most) in shares {
            if let Some(share) = share.filter(|share| !(*share > 0.0 && *share <= most)) {
                self.error(
                    &format!("efficiency.{key}"),
                    &format!("has a `{key}` of {share}, which is not above 0 and at most {most}"),
                );
            }
        }
        self.curve("efficiency", (&efficiency.rows, "rows"), (&efficiency.fraction, "fraction"));
    }

    fn attention(&mut self, attention: Option<&AttentionFile>) {
        let Some(attention) = attention else { return };
        let lengths = (attention.length.as_slice(), "length");
        self.curve("attention", lengths, (&attention.head_128, "head-128"));
        if !attention.head_64.is_empty() {
            self.curve("attention", lengths, (&attention.head_64, "head-64"));
        }
        if let Some(factor) = attention.flash_2.filter(|factor| !(*factor > 0.0 && *factor <= 1.0)) {
            self.error(
                "attention.flash-2",
                &format!("has a `flash-2` of {factor}, which is not above 0 and at most 1"),
            );
        }
    }

    /// Checks a share of the peak at each of some ascending sizes.
    fn curve(&mut self, table: &str, (sizes, size): (&[u32], &str), (shares, share): (&[f64], &str)) {
        if sizes.len() != shares.len() {
            let message = format!("has {} {size} but {} values of `{share}`", sizes.len(), shares.len());
            self.error(&format!("{table}.{share}"), &message);
        }
        if sizes.first() == Some(&0) || sizes.windows(2).any(|pair| pair[0] >= pair[1]) {
            self.error(&format!("{table}.{size}"), &format!("has `{size}` that are not positive and ascending"));
        }
        if let Some(wrong) = shares.iter().find(|share| !(**share > 0.0 && **share <= 1.0)) {
            let message = format!("has a `{share}` of {wrong}, which is not above 0 and at most 1");
            self.error(&format!("{table}.{share}"), &message);
        }
    }

    fn layer_times(&mut self, times: &[LayerTimeFile]) {
        let mut seen = BTreeSet::new();
        for (index, time) in times.iter().enumerate() {
            if !seen.insert((&time.layer, time.data_type)) {
                self.error(
                    &format!("layer-time.{index}"),
                    &format!("lists `{}` in {} twice", time.layer, time.data_type),
                );
            }
            if time.forward.0 == Seconds::ZERO {
                self.error(
                    &format!("layer-time.{index}.forward"),
                    &format!("has a forward time of zero for `{}`", time.layer),
                );
            }
        }
    }

    fn source(&mut self, source: Option<&String>, measured: Option<&MeasuredFile>) {
        if measured.is_none() && source.is_none_or(|source| source.trim().is_empty()) {
            let message = format!("{} does not state the source of its numbers", self.title);
            let hint = "write `source = \"…\"` with the data sheet, or \"estimate: …\" with the reason";
            self.report.push(self.path, Diagnostic::warning(message).hint(hint));
        }
    }
}

fn socket(Placed { path, item }: &Placed<SocketFile>, report: &mut Report<'_>) {
    let mut table = Table { title: format!("socket `{}`", item.name), path, report };
    table.positive("cores", Some(item.cores));
    table.positive("memory-channels", item.memory_channels);
    table.rates(&item.peak, &item.matmul, [&item.elementwise, &item.matvec]);
    table.efficiency(item.efficiency.as_ref());
    table.layer_times(&item.layer_time);
    table.source(item.source.as_ref(), item.measured.as_ref());
    table.title = format!("dram `{}`", item.dram.name);
    table.capacity(("dram.capacity", *item.dram.capacity), ("dram.reserved", item.dram.reserved));
}

/// The most computers of a machine.
pub const MOST_NODES: u32 = 4096;

/// Checks the number of computers and their network.
fn network(file: &HardwareFile, report: &mut Report<'_>) {
    let nodes = file.nodes.unwrap_or(1);
    if nodes == 0 || nodes > MOST_NODES {
        report.error("nodes", format!("a machine of {nodes} computers; give from 1 to {MOST_NODES}"));
    }
    match &file.network {
        None if nodes > 1 => {
            let hint = "add a table `[network]` with `cards` and `rate`";
            report.push("nodes", Diagnostic::error(format!("{nodes} computers without a network")).hint(hint));
        }
        Some(network) if network.cards == 0 => report.error("network.cards", "a network without cards".into()),
        Some(network) if network.oversubscription.is_some_and(|factor| !(1.0..1e6).contains(&factor)) => {
            report.error("network.oversubscription", "an oversubscription below 1".into());
        }
        Some(network) if !network.at.is_empty() => cards_at(file, network, report),
        _ => {}
    }
}

/// Checks what the cards of a computer are at.
fn cards_at(file: &HardwareFile, network: &NetworkFile, report: &mut Report<'_>) {
    if network.at.len() != network.cards as usize {
        let message = format!("{} cards are at {} places", network.cards, network.at.len());
        report.push("network.at", Diagnostic::error(message).hint("name the place of each card, or leave `at` out"));
    }
    let parts = Parts::of_one(file, &mut Report::new(Source { file: &file.name, text: "", root: None }));
    let mut known: BTreeSet<String> = parts.links.iter().flat_map(|link| link.item.between.clone()).collect();
    known.extend(node_names(&parts).into_iter().map(|(name, _)| name));
    for (index, place) in network.at.iter().enumerate().filter(|(_, place)| !known.contains(*place)) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = format!("no `{place}` for a card to be at");
        let hint = format!("known are {}", known.join(", "));
        report.push(&format!("network.at.{index}"), Diagnostic::error(message).hint(hint));
    }
}

/// Checks the measured collectives.
fn collectives(file: &HardwareFile, report: &mut Report<'_>) {
    for (index, collective) in file.collective.iter().enumerate() {
        let path = format!("collective.{index}");
        let name = format!("the {} of {} GPUs", collective.kind, collective.gpus);
        if collective.gpus < 2 {
            report.error(&path, format!("{name} has fewer than two participants"));
        }
        let sizes: Vec<Bytes> = collective.bandwidth.iter().map(|(bytes, _)| bytes.0).collect();
        let ascends = sizes.windows(2).all(|pair| pair[0] < pair[1]);
        if sizes.first().is_none_or(|first| *first == Bytes::ZERO) || !ascends {
            report.error(&path, format!("{name} has no points, or sizes that are not positive and ascending"));
        }
        let same = |other: &&CollectiveFile| other.kind == collective.kind && other.gpus == collective.gpus;
        if file.collective[..index].iter().any(|other| same(&other)) {
            report.error(&path, format!("{name} is listed twice"));
        }
    }
}

/// Checks a table of copies: two or more memories, each known and named once.
fn copies(Placed { path, item }: &Placed<CopyFile>, parts: &Parts, report: &mut Report<'_>) {
    let gpus = parts.gpus.iter().map(|part| part.item.name.clone());
    let hosts = parts.sockets.iter().flat_map(|part| {
        let dram = &part.item.dram.name;
        [dram.clone(), pageable(dram)]
    });
    let memories: BTreeSet<String> =
        gpus.chain(hosts).chain(parts.nvmes.iter().map(|part| part.item.name.clone())).collect();
    let at = format!("{path}.among");
    let mut seen = BTreeSet::new();
    for name in &item.among {
        if !memories.contains(name) {
            let near = similar_word(name, memories.iter().map(String::as_str));
            let hint =
                near.map_or_else(|| "name GPUs, DRAMs or drives".into(), |near| format!("did you mean `{near}`"));
            report.push(&at, Diagnostic::error(format!("`{name}` is no memory of the machine")).hint(hint));
        }
        if !seen.insert(name) {
            report.error(&at, format!("the memory `{name}` is named twice"));
        }
    }
    if item.among.len() < 2 {
        let hint = "name two or more, such as `among = [\"gpu{0..3}\"]`";
        report.push(&at, Diagnostic::error("a rate of copies among fewer than two memories").hint(hint));
    }
}

fn gpu(Placed { path, item }: &Placed<GpuFile>, report: &mut Report<'_>) {
    let mut table = Table { title: format!("gpu `{}`", item.name), path, report };
    table.capacity(("memory", *item.memory), ("reserved", item.reserved));
    table.rates(&item.peak, &item.matmul, [&item.elementwise, &item.matvec]);
    table.efficiency(item.efficiency.as_ref());
    table.attention(item.attention.as_ref());
    table.layer_times(&item.layer_time);
    table.positive("cores", item.cores);
    if item.cores.is_some() && !item.emulated {
        table.error("cores", "has `cores`, which only emulated GPUs have (`emulated = true`)");
    }
    table.source(item.source.as_ref(), item.measured.as_ref());
}

fn nvme(Placed { path, item }: &Placed<NvmeFile>, report: &mut Report<'_>) {
    let mut table = Table { title: format!("nvme `{}`", item.name), path, report };
    table.capacity(("capacity", *item.capacity), ("reserved", item.reserved));
    table.source(item.source.as_ref(), None);
}

fn link(Placed { path, item }: &Placed<LinkFile>, report: &mut Report<'_>) {
    let mut table = Table { title: format!("link `{}`", item.name), path, report };
    match (item.up, item.down, item.bandwidth) {
        (Some(_), Some(_), None) | (None, None, Some(_)) => {}
        (None, None, None) => table.error("name", "has neither `up` and `down` nor `bandwidth`"),
        (_, _, Some(_)) => table.error("bandwidth", "has both `bandwidth` and `up` or `down`"),
        (Some(_), None, None) => table.error("up", "has an `up` but no `down`"),
        (None, Some(_), None) => table.error("down", "has a `down` but no `up`"),
    }
    if item.between[0] == item.between[1] && !item.between[0].is_empty() {
        let message = format!("joins `{}` with itself", item.between[0]);
        table.error("between", &message);
    }
}

/// Reports names that occur in one link end only and in no other table: typing errors.
fn link_ends(parts: &Parts, all_read: bool, report: &mut Report<'_>) {
    let views: BTreeSet<String> = parts.sockets.iter().map(|part| pageable(&part.item.dram.name)).collect();
    let declared: BTreeSet<String> = node_names(parts).into_iter().map(|(name, _)| name).collect();
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for end in parts.links.iter().flat_map(|part| &part.item.between) {
        *uses.entry(end).or_default() += 1;
    }
    let is_stray = |end: &str| !end.is_empty() && !declared.contains(end) && uses.get(end) == Some(&1);
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for Placed { path, item } in &parts.links {
        for (index, end) in item.between.iter().enumerate() {
            let at = format!("{path}.between.{index}");
            seen.insert(end);
            if views.contains(end) {
                report.error(&at, format!("link `{}` ends at `{end}`, which is only a view of a DRAM", item.name));
            } else if is_stray(end) {
                let known = declared.iter().map(String::as_str).chain(uses.keys().copied());
                let near = similar_word(end, known.filter(|name| name != end && !views.contains(*name)));
                // Two similar stray names are one error, reported at the second.
                let reported_later = near.is_some_and(|near| is_stray(near) && !seen.contains(near));
                if !reported_later && (all_read || near.is_some()) {
                    report.push(&at, stray(&item.name, end, near));
                }
            }
        }
    }
}

fn stray(link: &str, end: &str, near: Option<&str>) -> Diagnostic {
    let fault = Diagnostic::error(format!("link `{link}` ends at `{end}`, which appears nowhere else"));
    fault.hint(match near {
        Some(near) => format!("did you mean `{near}`"),
        None => "name a device, a memory or a node of another link, or declare it (`[[root-complex]]`, `[[switch]]`, `[[nic]]`)"
            .into(),
    })
}
