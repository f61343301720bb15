//! Several computers of one kind with a network between them.
//!
//! Devices and memories are numbered across computers: `gpu8` is the first GPU of the second one, if each has eight.
//! Other names get the number of their computer: `n1-nvlink0`.
//!
//! ```text
//! gpu8 ── n1-nic0 ── network        as many cards as GPUs: each GPU has its own
//! gpu8 ┐
//! gpu9 ┴─ pcie-switch ── n1-nic0    fewer: those of neighbours are at the switch or root complex that they share
//! ```

use crate::{
    CopyFile, HardwareFile, LinkFile, NetworkFile, NodeFile,
    expand::{MOST, Parts, Placed},
    report::Report,
};
use spipe_base::{BytesPerSecond, Seconds, Text};
use std::collections::{BTreeMap, BTreeSet};

/// The latency of a message between two computers (estimate: cards, one switch, RDMA).
const LATENCY: f64 = 5e-6;

/// The latency of the host's way to a card at a GPU (a choice): longer than any way within a computer, so that no copy
/// within one passes a card.
const BESIDE: f64 = 50e-6;

/// The switch between computers.
const SWITCH: &str = "network";

impl Parts {
    /// The items of all computers of a file.
    pub fn new(file: &HardwareFile, report: &mut Report<'_>) -> Self {
        let one = Self::of_one(file, report);
        match (file.nodes, &file.network) {
            (Some(count), Some(network)) if count > 1 => repeat(&one, count.min(MOST as u32), network),
            _ => one,
        }
    }
}

/// The items of `count` computers such as the one of `parts`, with their network.
fn repeat(parts: &Parts, count: u32, network: &NetworkFile) -> Parts {
    let names = Names::of(parts);
    let numa_nodes = parts.sockets.iter().filter_map(|socket| socket.item.numa_node).max().map_or(0, |most| most + 1);
    let attached = attach(parts, network);
    let mut all = Parts { nodes: vec![switch(network)], ..Parts::default() };
    for node in 0..count as usize {
        let name = |text: &mut String| *text = names.on(text, node);
        all.sockets.extend(copied(&parts.sockets, |socket| {
            name(&mut socket.name);
            name(&mut socket.dram.name);
            socket.numa_node = socket.numa_node.map(|number| number + numa_nodes * node as u32);
        }));
        all.gpus.extend(copied(&parts.gpus, |gpu| name(&mut gpu.name)));
        all.nvmes.extend(copied(&parts.nvmes, |nvme| name(&mut nvme.name)));
        all.nodes.extend(copied(&parts.nodes, |node| name(&mut node.name)));
        all.network_cards.extend(copied(&parts.network_cards, |card| name(&mut card.name)));
        all.links.extend(copied(&parts.links, |link| {
            name(&mut link.name);
            link.between.iter_mut().for_each(name);
        }));
        all.copies.extend(copied(&parts.copies, |copies: &mut CopyFile| copies.among.iter_mut().for_each(name)));
        cards(&mut all, (&names, node), (&attached, network));
    }
    all
}

fn copied<T: Clone>(items: &[Placed<T>], mut change: impl FnMut(&mut T)) -> Vec<Placed<T>> {
    let copy = |placed: &Placed<T>| {
        let mut item = placed.item.clone();
        change(&mut item);
        Placed { path: placed.path.clone(), item }
    };
    items.iter().map(copy).collect()
}

/// The names of devices and memories by what is before their number, with how many there are.
struct Names {
    numbered: BTreeMap<String, usize>,
    whole: BTreeSet<String>,
}

impl Names {
    fn of(parts: &Parts) -> Self {
        let sockets = parts.sockets.iter().flat_map(|socket| [&socket.item.name, &socket.item.dram.name]);
        let gpus = parts.gpus.iter().map(|gpu| &gpu.item.name);
        let whole: BTreeSet<String> =
            sockets.chain(gpus).chain(parts.nvmes.iter().map(|nvme| &nvme.item.name)).cloned().collect();
        let mut numbered = BTreeMap::new();
        for (before, number) in whole.iter().filter_map(|name| split(name)) {
            let most = numbered.entry(before.to_owned()).or_insert(0);
            *most = (*most).max(number + 1);
        }
        Self { numbered, whole }
    }

    /// The name on computer `node`.
    fn on(&self, name: &str, node: usize) -> String {
        match split(name).filter(|_| self.whole.contains(name)) {
            Some((before, number)) => format!("{before}{}", number + node * self.numbered[before]),
            None => format!("n{node}-{name}"),
        }
    }
}

/// A name before and behind the start of its number.
fn split(name: &str) -> Option<(&str, usize)> {
    let before = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    Some((before, name[before.len()..].parse().ok()?))
}

/// A place of cards.
struct Place {
    name: String,
    cards: usize,
    /// The way of the host to cards at a GPU.
    host: Option<String>,
}

/// The places of cards.
fn attach(parts: &Parts, network: &NetworkFile) -> Vec<Place> {
    let gpus: Vec<&String> = parts.gpus.iter().map(|gpu| &gpu.item.name).collect();
    let cards = if network.at.is_empty() { network.cards as usize } else { 0 };
    let mut places: Vec<Place> = Vec::new();
    let mut add = |name: String, host: Option<String>| match places.iter_mut().find(|place| place.name == name) {
        Some(place) => place.cards += 1,
        None => places.push(Place { name, cards: 1, host }),
    };
    for place in &network.at {
        let host = gpus.contains(&place).then(|| towards_host(parts, place)).flatten();
        add(place.clone(), host);
    }
    for card in 0..cards {
        match gpus.get(card * gpus.len() / cards) {
            Some(_) if cards >= gpus.len() => {
                let gpu = gpus[card % gpus.len()];
                add(gpu.clone(), towards_host(parts, gpu));
            }
            Some(gpu) => add(towards_host(parts, gpu).unwrap_or_else(|| (*gpu).clone()), None),
            None => parts.sockets.iter().take(1).for_each(|socket| add(socket.item.dram.name.clone(), None)),
        }
    }
    places
}

/// The neighbour of a GPU on its way to a DRAM.
fn towards_host(parts: &Parts, gpu: &str) -> Option<String> {
    let is_gpu = |name: &String| parts.gpus.iter().any(|gpu| gpu.item.name == *name);
    let is_host =
        |name: &String| parts.sockets.iter().any(|socket| [&socket.item.name, &socket.item.dram.name].contains(&name));
    let others = |name: &str| {
        let links = parts.links.iter().map(|link| &link.item.between);
        let other =
            |[one, two]: &[String; 2]| if one == name { Some(two.clone()) } else { (two == name).then(|| one.clone()) };
        links.filter_map(other).collect::<Vec<_>>()
    };
    others(gpu).into_iter().filter(|start| !is_gpu(start)).find(|start| {
        let (mut open, mut seen) = (vec![start.clone()], BTreeSet::new());
        while let Some(name) = open.pop() {
            if is_host(&name) {
                return true;
            }
            if seen.insert(name.clone()) {
                open.extend(others(&name).into_iter().filter(|next| !is_gpu(next)));
            }
        }
        false
    })
}

fn switch(network: &NetworkFile) -> Placed<NodeFile> {
    Placed { path: "network".into(), item: NodeFile { name: SWITCH.into(), source: network.source.clone() } }
}

/// Adds the cards of computer `node`, and its way to the network.
fn cards(all: &mut Parts, (names, node): (&Names, usize), (attached, network): (&[Place], &NetworkFile)) {
    let latency = network.latency.map_or(Seconds::s(LATENCY), |text| text.0) * 0.5;
    let link = |name: String, between: [String; 2], times: f64, latency: Seconds| {
        let rate = BytesPerSecond::new(network.rate.get() * times).unwrap_or(network.rate.0);
        let (latency, source) = (Some(Text(latency)), network.source.clone());
        let item = LinkFile { latency, source, ..LinkFile::new(name, [&between[0], &between[1]], rate) };
        Placed { path: "network".into(), item }
    };
    let narrow = network.oversubscription.filter(|factor| *factor > 1.0);
    let uplink = match narrow {
        Some(_) => format!("n{node}-leaf"),
        None => SWITCH.to_owned(),
    };
    for (at, Place { name: place, cards: count, host }) in attached.iter().enumerate() {
        let (card, rate) = (format!("n{node}-nic{at}"), *count as f64);
        let item = NodeFile { name: card.clone(), source: network.source.clone() };
        all.network_cards.push(Placed { path: "network".into(), item });
        let mut places = vec![("bus", place, 0.0)];
        places.extend(host.as_ref().map(|host| ("host", host, BESIDE)));
        for (word, place, latency) in places {
            let ends = [names.on(place, node), card.clone()];
            all.links.push(link(format!("{card}-{word}"), ends, rate, Seconds::s(latency)));
        }
        all.links.push(link(format!("{card}-port"), [card, uplink.clone()], rate, latency));
    }
    if let Some(factor) = narrow {
        let rate = f64::from(network.cards) / factor;
        all.links.push(link(format!("n{node}-uplink"), [uplink, SWITCH.into()], rate, Seconds::ZERO));
    }
}
