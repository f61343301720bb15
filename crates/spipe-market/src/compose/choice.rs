//! The parts that were chosen for a machine.

use super::{ComposeError, Item};
use crate::{
    BoardPart, BridgePart, CablePart, Catalogue, DramPart, DrivePart, GpuPart, Kind, NetworkCardPart,
    NetworkSwitchPart, PlatformPart, SupplyPart,
};
use spipe_base::Diagnostic;

/// The word for equal computers in a list of parts.
const NODE: &str = "node";

/// The parts of a machine by name. The board and the supply may be left open. Of several computers, those of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// The GPUs.
    pub gpu: Option<String>,
    /// Their number.
    pub gpus: u32,
    /// The CPU.
    pub platform: String,
    /// The memory modules of the whole machine, with their number.
    pub dram: Option<(u32, String)>,
    /// The drives, with their numbers.
    pub drives: Vec<(u32, String)>,
    /// The bridge between cards.
    pub bridge: Option<String>,
    /// The board.
    pub board: Option<String>,
    /// The supplies, with their number.
    pub supply: Option<(u32, String)>,
    /// The network to other computers; none for one computer.
    pub cluster: Option<Cluster>,
}

/// Several equal computers, and the network between them. Numbers and parts that are left open are picked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    /// The computers, at least two.
    pub nodes: u32,
    /// The network card.
    pub card: String,
    /// The cards of a computer: one for each GPU by default, or as many as slots and lanes permit.
    pub cards: Option<u32>,
    /// The switch.
    pub switch: Option<String>,
    /// The cable.
    pub cable: Option<String>,
}

impl Cluster {
    /// Computers with one card for each GPU.
    pub const fn new(nodes: u32, card: String) -> Self {
        Self { nodes, card, cards: None, switch: None, cable: None }
    }

    /// Returns the computers with all but their number and their card open: those with other parts.
    pub fn reopened(&self) -> Self {
        Self::new(self.nodes, self.card.clone())
    }
}

/// Reads a number of equal parts, such as `8xddr4-rdimm-32g`, `8 x ddr4-rdimm-32g` or a name alone.
pub fn count_of(text: &str) -> Option<(u32, String)> {
    let text = text.trim();
    let digits = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let number = &text[..text.len() - digits.len()];
    match digits.trim_start().strip_prefix('x') {
        Some(name) if !number.is_empty() && !name.trim().is_empty() => {
            number.parse().ok().filter(|count| *count > 0).map(|count| (count, name.trim().to_owned()))
        }
        _ => Some((1, text.to_owned())).filter(|_| !text.is_empty()),
    }
}

impl Choice {
    /// Reads the parts of a machine file, such as "2 x rtx3090".
    ///
    /// # Errors
    /// A part that is unreadable, unknown or there twice; a machine without a CPU, or of several computers without a
    /// network.
    pub fn from_parts(catalogue: &Catalogue, parts: &[String]) -> Result<Self, Diagnostic> {
        let mut choice = Self::default();
        let (mut nodes, mut cluster) = (1, Cluster::new(1, String::new()));
        for text in parts {
            let (count, name) = count_of(text).ok_or_else(|| {
                Diagnostic::error(format!("`{text}` is not a number of parts")).hint("write it like \"2 x rtx3090\"")
            })?;
            if name == NODE {
                nodes = count;
                continue;
            }
            let Some(part) = catalogue.find(&name) else {
                let fault = Diagnostic::error(format!("the catalogue has no part `{name}`"));
                return Err(fault.hint("`command catalogue list` prints all parts"));
            };
            match part.kind() {
                Kind::Gpu => (choice.gpu, choice.gpus) = (Some(name), count),
                // The board says how many CPUs there are.
                Kind::Platform => choice.platform = name,
                Kind::Dram => choice.dram = Some((count, name)),
                Kind::Drive => choice.drives.push((count, name)),
                Kind::Board => choice.board = Some(name),
                Kind::Bridge => choice.bridge = Some(name),
                Kind::Supply => choice.supply = Some((count, name)),
                Kind::NetworkCard => (cluster.card, cluster.cards) = (name, Some(count)),
                // Their numbers follow from those of computers and cards.
                Kind::NetworkSwitch => cluster.switch = Some(name),
                Kind::Cable => cluster.cable = Some(name),
                Kind::Rent => {
                    let fault = Diagnostic::error(format!("`{name}` is a rented machine, not a part"));
                    return Err(fault.hint("name the parts of a machine"));
                }
            }
        }
        if choice.platform.is_empty() {
            return Err(Diagnostic::error("the parts have no CPU").hint("add one, such as \"1 x epyc-7713p\""));
        }
        if nodes != 1 && cluster.card.is_empty() {
            let fault = Diagnostic::error(format!("the parts are those of {nodes} computers without a network card"));
            return Err(fault.hint("add the cards of one computer, such as \"8 x connectx7-400g\""));
        }
        choice.cluster = (nodes != 1).then_some(Cluster { nodes, ..cluster });
        Ok(choice)
    }

    /// Returns the parts of one computer, on a board with this number of CPUs.
    pub(super) fn items(&self, sockets: u32) -> Vec<Item> {
        let item = |kind, count, name: &String| Item { kind, name: name.clone(), count };
        let mut items: Vec<Item> = self.gpu.iter().map(|name| item(Kind::Gpu, self.gpus, name)).collect();
        items.push(item(Kind::Platform, sockets, &self.platform));
        items.extend(self.dram.iter().map(|(count, name)| item(Kind::Dram, *count, name)));
        items.extend(self.drives.iter().map(|(count, name)| item(Kind::Drive, *count, name)));
        items.extend(self.bridge.iter().map(|name| item(Kind::Bridge, self.gpus / 2, name)));
        items.extend(self.board.iter().map(|name| item(Kind::Board, 1, name)));
        items.extend(self.supply.iter().map(|(count, name)| item(Kind::Supply, *count, name)));
        items
    }

    /// Returns a name with the parts that tell machines apart.
    pub fn name(&self) -> String {
        let gpus = self.gpu.iter().map(|gpu| format!("{}x{gpu}", self.gpus));
        let dram = self.dram.iter().map(|(count, name)| format!("{count}x{name}"));
        let drives = self.drives.iter().map(|(count, name)| format!("{count}x{name}"));
        let card = |cluster: &Cluster| match cluster.cards {
            Some(cards) => format!("{cards}x{}", cluster.card),
            None => cluster.card.clone(),
        };
        let parts = gpus.chain([self.platform.clone()]).chain(dram).chain(drives).chain(self.bridge.clone());
        let parts = parts.chain(self.cluster.as_ref().map(card));
        let nodes = self.cluster.as_ref().map(|cluster| format!("{}-nodes-of-", cluster.nodes)).unwrap_or_default();
        nodes + &parts.collect::<Vec<_>>().join("_").replace('.', "-")
    }
}

/// The chosen parts themselves.
pub(super) struct Parts<'a> {
    pub gpu: Option<&'a GpuPart>,
    pub gpus: u32,
    pub platform: &'a PlatformPart,
    pub dram: Option<(u32, &'a DramPart)>,
    pub drives: Vec<(u32, &'a DrivePart)>,
    pub bridge: Option<&'a BridgePart>,
    pub board: Option<&'a BoardPart>,
    pub supply: Option<(u32, &'a SupplyPart)>,
    pub cluster: Option<ClusterParts<'a>>,
}

/// The chosen parts of a network.
pub(super) struct ClusterParts<'a> {
    pub nodes: u32,
    pub card: &'a NetworkCardPart,
    pub cards: Option<u32>,
    pub switch: Option<&'a NetworkSwitchPart>,
    pub cable: Option<&'a CablePart>,
}

impl<'a> ClusterParts<'a> {
    fn find(catalogue: &'a Catalogue, cluster: &Cluster) -> Result<Self, ComposeError> {
        let unknown = |kind: Kind, name: &str| ComposeError::Unknown(catalogue.unknown(kind, name));
        let card = catalogue.network_cards.iter().find(|part| part.name == cluster.card);
        let switch = cluster.switch.as_ref().map(|name| {
            let part = catalogue.network_switches.iter().find(|part| part.name == *name);
            part.ok_or_else(|| unknown(Kind::NetworkSwitch, name))
        });
        let cable = cluster.cable.as_ref().map(|name| {
            catalogue.cables.iter().find(|part| part.name == *name).ok_or_else(|| unknown(Kind::Cable, name))
        });
        Ok(Self {
            nodes: cluster.nodes,
            card: card.ok_or_else(|| unknown(Kind::NetworkCard, &cluster.card))?,
            cards: cluster.cards,
            switch: switch.transpose()?,
            cable: cable.transpose()?,
        })
    }
}

impl<'a> Parts<'a> {
    /// Finds the parts of a choice.
    pub fn find(catalogue: &'a Catalogue, choice: &Choice) -> Result<Self, ComposeError> {
        let unknown = |kind: Kind, name: &str| ComposeError::Unknown(catalogue.unknown(kind, name));
        let gpu = choice
            .gpu
            .as_ref()
            .map(|name| catalogue.gpus.iter().find(|part| part.name == *name).ok_or_else(|| unknown(Kind::Gpu, name)));
        let platform = catalogue.platforms.iter().find(|part| part.name == choice.platform);
        let dram = choice.dram.as_ref().map(|(count, name)| {
            let part = catalogue.drams.iter().find(|part| part.name == *name);
            part.map(|part| (*count, part)).ok_or_else(|| unknown(Kind::Dram, name))
        });
        let drives = choice.drives.iter().map(|(count, name)| {
            let part = catalogue.drives.iter().find(|part| part.name == *name);
            part.map(|part| (*count, part)).ok_or_else(|| unknown(Kind::Drive, name))
        });
        let bridge = choice.bridge.as_ref().map(|name| {
            catalogue.bridges.iter().find(|part| part.name == *name).ok_or_else(|| unknown(Kind::Bridge, name))
        });
        let board = choice.board.as_ref().map(|name| {
            catalogue.boards.iter().find(|part| part.name == *name).ok_or_else(|| unknown(Kind::Board, name))
        });
        let supply = choice.supply.as_ref().map(|(count, name)| {
            let part = catalogue.supplies.iter().find(|part| part.name == *name);
            part.map(|part| (*count, part)).ok_or_else(|| unknown(Kind::Supply, name))
        });
        Ok(Self {
            gpus: if choice.gpu.is_some() { choice.gpus } else { 0 },
            gpu: gpu.transpose()?,
            platform: platform.ok_or_else(|| unknown(Kind::Platform, &choice.platform))?,
            dram: dram.transpose()?,
            drives: drives.collect::<Result<_, _>>()?,
            bridge: bridge.transpose()?,
            board: board.transpose()?,
            supply: supply.transpose()?,
            cluster: choice.cluster.as_ref().map(|cluster| ClusterParts::find(catalogue, cluster)).transpose()?,
        })
    }

    /// The number of drives.
    pub fn drive_count(&self) -> u32 {
        self.drives.iter().map(|(count, _)| count).sum()
    }
}
