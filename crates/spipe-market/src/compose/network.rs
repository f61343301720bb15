//! The network between equal computers: cards, switches, cables.
//!
//! ```text
//! one switch has the ports     node ──┬── switch          a cable for each card
//!                              node ──┘
//! otherwise                    node ─ leaf ═ spine        half of a leaf's ports are up: it carries what its cards send
//! ```

use super::{
    Cluster, ComposeError, Composed, Item,
    choice::{ClusterParts, Parts},
    machine::Layout,
    rules::{self, Illegal, broken},
};
use crate::{
    BoardPart, CablePart, Catalogue, Condition, Form, Kind, NetworkCardPart, NetworkSwitchPart, PcieFile, Watts,
    file::sold, pcie,
};
use spipe_base::{BytesPerSecond, Text};
use spipe_hardware::{MOST_NODES, NetworkFile};

/// The network cards of each computer.
pub(super) struct Cards<'a> {
    chosen: &'a ClusterParts<'a>,
    /// Their number.
    count: u32,
    /// The lanes of each.
    lanes: u32,
}

impl Cards<'_> {
    /// Their power.
    pub fn power(&self) -> Watts {
        self.chosen.card.power.0 * f64::from(self.count)
    }
}

/// The cards that a computer takes beside GPUs with `gpu_lanes` each; `None` for a computer alone.
pub(super) fn cards<'a>(parts: &'a Parts<'_>, board: &BoardPart, gpu_lanes: u32) -> Result<Option<Cards<'a>>, Illegal> {
    let Some(chosen) = &parts.cluster else { return Ok(None) };
    if !(2..=MOST_NODES).contains(&chosen.nodes) {
        let message = format!("{} computers with a network", chosen.nodes);
        return broken("nodes", message, format!("use 2 to {MOST_NODES}, or a machine without network cards"));
    }
    let (card, name) = (chosen.card, &board.name);
    let widths = parts.gpu.map_or(0, |gpu| gpu.slots * parts.gpus);
    let free = board.gpu_slots.saturating_sub(parts.gpus).min(board.slot_widths.saturating_sub(widths));
    let slots = board.network_slots + free;
    let wanted = chosen.cards.unwrap_or(parts.gpus.max(1).min(slots));
    if wanted == 0 || wanted > slots {
        let message = format!("there are {} network cards, and `{name}` has {slots} slots for them", wanted.max(1));
        return broken("network-slots", message, "choose another board, or fewer cards");
    }
    if parts.gpu.is_some_and(|gpu| gpu.form != Form::Pcie) {
        // Each shares the switch of a module.
        return Ok(Some(Cards { chosen, count: wanted, lanes: card.pcie.lanes }));
    }
    let all = parts.platform.pcie.lanes * board.socket_count;
    let left = all.saturating_sub(parts.gpus * gpu_lanes + rules::DRIVE_LANES * parts.drive_count());
    let narrow = card.pcie.lanes.min(rules::FEWEST_LANES);
    let most = left / narrow.max(1);
    let count = if chosen.cards.is_some() { wanted } else { wanted.min(most) };
    if count == 0 || count > most {
        let message = format!("{wanted} network cards take {} lanes, and {left} of {all} are left", wanted * narrow);
        return broken("network-lanes", message, "choose fewer cards, GPUs or drives, or a CPU with more lanes");
    }
    let lanes = if count * card.pcie.lanes <= left { card.pcie.lanes } else { narrow };
    Ok(Some(Cards { chosen, count, lanes }))
}

/// Cards, switches and cables of several computers.
pub(super) struct Network<'a> {
    cards: &'a Cards<'a>,
    switch: &'a NetworkSwitchPart,
    switches: u32,
    cable: &'a CablePart,
    cables: u32,
}

impl<'a> Network<'a> {
    /// The chosen switch and cable if they suffice, or else the fewest and smallest switches, priced before unpriced,
    /// and the first cable of the card's kind and rate.
    pub fn of(catalogue: &'a Catalogue, cards: &'a Cards<'a>) -> Result<Self, ComposeError> {
        let ClusterParts { nodes, card, switch, cable, .. } = *cards.chosen;
        let ports = nodes * cards.count;
        let is_like = |switch: &&NetworkSwitchPart| switch.network == card.network && switch.rate == card.rate;
        let joins = |switch: &'a NetworkSwitchPart| fabric(ports, switch.ports).map(|fabric| (switch, fabric));
        let all: Vec<&NetworkSwitchPart> =
            switch.map_or_else(|| catalogue.network_switches.iter().collect(), |one| vec![one]);
        let priced = |switch: &NetworkSwitchPart| Condition::ALL.iter().any(|one| sold(switch, *one));
        let key =
            |(switch, (switches, _)): &(&NetworkSwitchPart, (u32, u32))| (!priced(switch), *switches, switch.ports);
        let found = all.into_iter().filter(is_like).filter_map(joins).min_by_key(key);
        let Some((switch, (switches, cables))) = found else {
            let message = format!("no switches join {ports} ports of {} at {}", card.network, card.rate.0);
            return Ok(broken("network-ports", message, "choose another card or switch, or fewer nodes")?);
        };
        let all: Vec<&CablePart> = cable.map_or_else(|| catalogue.cables.iter().collect(), |one| vec![one]);
        let found = all.into_iter().find(|cable| cable.network == card.network && cable.rate == card.rate);
        let Some(cable) = found else {
            let message = format!("no cable is of {} at {}", card.network, card.rate.0);
            return Ok(broken("network-ports", message, "add a `[[cable]]` to the catalogue, or choose another card")?);
        };
        Ok(Self { cards, switch, switches, cable, cables })
    }

    /// The choice with nothing open.
    pub fn chosen(&self) -> Cluster {
        Cluster {
            nodes: self.cards.chosen.nodes,
            card: self.cards.chosen.card.name.clone(),
            cards: Some(self.cards.count),
            switch: Some(self.switch.name.clone()),
            cable: Some(self.cable.name.clone()),
        }
    }

    /// The machine of computers such as `one`. Prices and power are those of all of them and of the network.
    pub fn joined(&self, one: Composed, layout: &Layout<'_>) -> Composed {
        let NetworkCardPart { name, power, .. } = self.cards.chosen.card;
        let (nodes, count) = (self.cards.chosen.nodes, self.cards.count);
        let item = |kind, name: &String, count| Item { kind, name: name.clone(), count };
        let own = item(Kind::NetworkCard, name, count);
        let between = [
            item(Kind::NetworkSwitch, &self.switch.name, self.switches),
            item(Kind::Cable, &self.cable.name, self.cables),
        ];
        let mut hardware = one.hardware;
        hardware.parts.insert(0, format!("{nodes} x node"));
        hardware.parts.extend([&own].into_iter().chain(&between).map(|item| format!("{} x {}", item.count, item.name)));
        hardware.nodes = Some(nodes);
        hardware.network = Some(self.file(layout));
        let all = one.items.into_iter().chain([own]).map(|item| Item { count: item.count * nodes, ..item });
        let mut draws = one.power.times(nodes);
        draws.base = draws.base + power.0 * f64::from(count * nodes) + self.switch.power.0 * f64::from(self.switches);
        let notes = one.notes.into_iter().chain([self.note()]).collect();
        Composed { nodes, items: all.chain(between).collect(), hardware, power: draws, notes, ..one }
    }

    /// The network of the profile. A card in a slot is at the root complex of its CPU, one beside a module at this.
    fn file(&self, layout: &Layout<'_>) -> NetworkFile {
        let Cards { chosen, count, lanes } = self.cards;
        let card = chosen.card;
        let generation = layout.generation_of(card.pcie.generation);
        let slot = pcie::reached(PcieFile { generation, lanes: *lanes });
        let source = format!("{}; estimate: messages reach 92 % of the line rate, or 80 % of the lanes", card.source);
        NetworkFile {
            cards: *count,
            at: layout.roots_of(*count),
            rate: Text(slot.min(NetworkFile::reached(card.rate.0))),
            latency: None,
            oversubscription: None,
            source: Some(source),
        }
    }

    fn note(&self) -> String {
        let Cards { chosen, count, lanes } = self.cards;
        let narrow = if *lanes < chosen.card.pcie.lanes { format!(" with {lanes} lanes each") } else { String::new() };
        let over = if self.switches > 1 { " as leaves and spines" } else { "" };
        format!(
            "each node has {count} × {}{narrow}, joined by {} × {}{over}",
            chosen.card.name, self.switches, self.switch.name
        )
    }
}

/// The switches and the cables that join `ports` cards without a narrow way, by switches of `of` ports each: one, or
/// leaves with half of their ports up and as many spines as those take. `None` where a spine has no port for each leaf.
fn fabric(ports: u32, of: u32) -> Option<(u32, u32)> {
    if ports <= of {
        return Some((1, ports));
    }
    let down = (of / 2).max(1);
    let leaves = ports.div_ceil(down);
    let up = leaves.checked_mul(down)?;
    (leaves <= of).then(|| (leaves + up.div_ceil(of), ports + up))
}

/// The network between several machines of an offer.
pub(super) fn rented(cards: u32, line: BytesPerSecond, source: &str) -> NetworkFile {
    NetworkFile {
        cards,
        at: Vec::new(),
        rate: Text(NetworkFile::reached(line)),
        latency: None,
        oversubscription: None,
        source: Some(source.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::fabric;

    /// 96 cards on switches of 64 ports: three leaves with 32 cards and 32 ways up each, which take 96 of the 128 ports
    /// of two spines.
    #[test]
    fn switches_and_cables_are_counted() {
        for (ports, of, wanted) in [
            (2, 64, Some((1, 2))),
            (64, 64, Some((1, 64))),
            (65, 64, Some((3 + 2, 65 + 96))),
            (96, 64, Some((3 + 2, 96 + 96))),
            (2048, 64, Some((64 + 32, 2048 + 2048))),
            (2049, 64, None),
        ] {
            assert_eq!(fabric(ports, of), wanted, "{ports} cards, {of} ports");
        }
    }
}
