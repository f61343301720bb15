//! The parts that were chosen for a machine.

use super::{ComposeError, Item};
use crate::{BoardPart, BridgePart, Catalogue, DramPart, DrivePart, GpuPart, Kind, PlatformPart, SupplyPart};
use spipe_base::Diagnostic;

/// The parts of a machine by name. The board and the supply may be left open.
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
    /// A part that is unreadable, unknown or there twice; a machine without a CPU.
    pub fn from_parts(catalogue: &Catalogue, parts: &[String]) -> Result<Self, Diagnostic> {
        let mut choice = Self::default();
        for text in parts {
            let (count, name) = count_of(text).ok_or_else(|| {
                Diagnostic::error(format!("`{text}` is not a number of parts")).hint("write it like \"2 x rtx3090\"")
            })?;
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
                Kind::Rent => {
                    let fault = Diagnostic::error(format!("`{name}` is a rented machine, not a part"));
                    return Err(fault.hint("name the parts of a machine"));
                }
            }
        }
        if choice.platform.is_empty() {
            return Err(Diagnostic::error("the parts have no CPU").hint("add one, such as \"1 x epyc-7713p\""));
        }
        Ok(choice)
    }

    /// Returns the parts to buy, on a board with this number of CPUs.
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
        let parts = gpus.chain([self.platform.clone()]).chain(dram).chain(drives).chain(self.bridge.clone());
        parts.collect::<Vec<_>>().join("_").replace('.', "-")
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
        })
    }

    /// The number of drives.
    pub fn drive_count(&self) -> u32 {
        self.drives.iter().map(|(count, _)| count).sum()
    }
}
