//! A catalogue: the parts of one or several files, found by name.

use crate::{
    BoardPart, BridgePart, CablePart, CatalogueFile, DramPart, DrivePart, GpuPart, NetworkCardPart, NetworkSwitchPart,
    PlatformPart, RentPart, SupplyPart,
    file::{FORMAT_VERSION, Priced},
    price::PriceFile,
};
use serde::{Serialize, Serializer};
use spipe_base::{Diagnostic, Faults, position_of, similar_word};
use std::{collections::BTreeSet, fmt};

/// The parts of all files, each kind in the order of the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// Graphics processors and accelerators.
    pub gpus: Vec<GpuPart>,
    /// CPUs.
    pub platforms: Vec<PlatformPart>,
    /// Memory modules.
    pub drams: Vec<DramPart>,
    /// Solid-state drives.
    pub drives: Vec<DrivePart>,
    /// Boards.
    pub boards: Vec<BoardPart>,
    /// Bridges between cards.
    pub bridges: Vec<BridgePart>,
    /// Power supplies.
    pub supplies: Vec<SupplyPart>,
    /// Network cards.
    pub network_cards: Vec<NetworkCardPart>,
    /// Switches between computers.
    pub network_switches: Vec<NetworkSwitchPart>,
    /// Cables between network ports.
    pub cables: Vec<CablePart>,
    /// Rented machines.
    pub rents: Vec<RentPart>,
}

/// A kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `[[gpu]]`.
    Gpu,
    /// `[[platform]]`.
    Platform,
    /// `[[dram]]`.
    Dram,
    /// `[[drive]]`.
    Drive,
    /// `[[board]]`.
    Board,
    /// `[[bridge]]`.
    Bridge,
    /// `[[supply]]`.
    Supply,
    /// `[[network-card]]`.
    NetworkCard,
    /// `[[network-switch]]`.
    NetworkSwitch,
    /// `[[cable]]`.
    Cable,
    /// `[[rent]]`.
    Rent,
}

impl Kind {
    /// Returns the word in files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Platform => "platform",
            Self::Dram => "dram",
            Self::Drive => "drive",
            Self::Board => "board",
            Self::Bridge => "bridge",
            Self::Supply => "supply",
            Self::NetworkCard => "network-card",
            Self::NetworkSwitch => "network-switch",
            Self::Cable => "cable",
            Self::Rent => "rent",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One part of any kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part<'a> {
    /// A graphics processor.
    Gpu(&'a GpuPart),
    /// A CPU.
    Platform(&'a PlatformPart),
    /// A memory module.
    Dram(&'a DramPart),
    /// A drive.
    Drive(&'a DrivePart),
    /// A board.
    Board(&'a BoardPart),
    /// A bridge.
    Bridge(&'a BridgePart),
    /// A supply.
    Supply(&'a SupplyPart),
    /// A network card.
    NetworkCard(&'a NetworkCardPart),
    /// A switch between computers.
    NetworkSwitch(&'a NetworkSwitchPart),
    /// A cable.
    Cable(&'a CablePart),
    /// A rented machine.
    Rent(&'a RentPart),
}

impl<'a> Part<'a> {
    /// Returns its kind.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Gpu(_) => Kind::Gpu,
            Self::Platform(_) => Kind::Platform,
            Self::Dram(_) => Kind::Dram,
            Self::Drive(_) => Kind::Drive,
            Self::Board(_) => Kind::Board,
            Self::Bridge(_) => Kind::Bridge,
            Self::Supply(_) => Kind::Supply,
            Self::NetworkCard(_) => Kind::NetworkCard,
            Self::NetworkSwitch(_) => Kind::NetworkSwitch,
            Self::Cable(_) => Kind::Cable,
            Self::Rent(_) => Kind::Rent,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'a str {
        match self {
            Self::Rent(part) => &part.name,
            Self::Gpu(part) => part.name(),
            Self::Platform(part) => part.name(),
            Self::Dram(part) => part.name(),
            Self::Drive(part) => part.name(),
            Self::Board(part) => part.name(),
            Self::Bridge(part) => part.name(),
            Self::Supply(part) => part.name(),
            Self::NetworkCard(part) => part.name(),
            Self::NetworkSwitch(part) => part.name(),
            Self::Cable(part) => part.name(),
        }
    }

    /// Returns its prices; a rented machine has prices of hours instead.
    pub fn prices(self) -> &'a [PriceFile] {
        match self {
            Self::Rent(_) => &[],
            Self::Gpu(part) => part.prices(),
            Self::Platform(part) => part.prices(),
            Self::Dram(part) => part.prices(),
            Self::Drive(part) => part.prices(),
            Self::Board(part) => part.prices(),
            Self::Bridge(part) => part.prices(),
            Self::Supply(part) => part.prices(),
            Self::NetworkCard(part) => part.prices(),
            Self::NetworkSwitch(part) => part.prices(),
            Self::Cable(part) => part.prices(),
        }
    }

    /// Returns the source of its figures.
    pub fn source(self) -> &'a str {
        match self {
            Self::Rent(part) => &part.source,
            Self::Gpu(part) => part.provenance().1,
            Self::Platform(part) => part.provenance().1,
            Self::Dram(part) => part.provenance().1,
            Self::Drive(part) => part.provenance().1,
            Self::Board(part) => part.provenance().1,
            Self::Bridge(part) => part.provenance().1,
            Self::Supply(part) => part.provenance().1,
            Self::NetworkCard(part) => part.provenance().1,
            Self::NetworkSwitch(part) => part.provenance().1,
            Self::Cable(part) => part.provenance().1,
        }
    }
}

/// The tables of the part, without its kind.
impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Gpu(part) => part.serialize(serializer),
            Self::Platform(part) => part.serialize(serializer),
            Self::Dram(part) => part.serialize(serializer),
            Self::Drive(part) => part.serialize(serializer),
            Self::Board(part) => part.serialize(serializer),
            Self::Bridge(part) => part.serialize(serializer),
            Self::Supply(part) => part.serialize(serializer),
            Self::NetworkCard(part) => part.serialize(serializer),
            Self::NetworkSwitch(part) => part.serialize(serializer),
            Self::Cable(part) => part.serialize(serializer),
            Self::Rent(part) => part.serialize(serializer),
        }
    }
}

/// A read file with its text, which places faults.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name in messages.
    pub file: String,
    /// The text.
    pub text: String,
    /// Its tables.
    pub parsed: CatalogueFile,
}

impl Source {
    /// Reads the tables of a file.
    ///
    /// # Errors
    /// The first fault of the text, with its position.
    pub fn read(file: &str, text: &str) -> Result<Self, Faults> {
        let parsed: CatalogueFile = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let fault = Diagnostic::error(error.message().trim_end()).at(position_of(file, text, offset));
            Faults::from(fault.hint("`command schema catalogue` prints what a catalogue may hold"))
        })?;
        if parsed.format_version != FORMAT_VERSION {
            let message = format!("unknown format version {}", parsed.format_version);
            let fault =
                Diagnostic::error(message).hint(format!("this program reads `format-version = {FORMAT_VERSION}`"));
            return Err(fault.at(position_of(file, text, text.find("format-version").unwrap_or(0))).into());
        }
        Ok(Self { file: file.into(), text: text.into(), parsed })
    }

    /// Returns a diagnostic at the table of a part.
    pub(crate) fn at(&self, part: &str, diagnostic: Diagnostic) -> Diagnostic {
        let found = self.text.find(&format!("name = \"{part}\""));
        diagnostic.at(position_of(&self.file, &self.text, found.unwrap_or(0)))
    }
}

impl Catalogue {
    /// Returns the shipped parts.
    ///
    /// # Errors
    /// A shipped file that does not read, which a test excludes.
    pub fn shipped() -> Result<Self, Faults> {
        let mut catalogue = Self::default();
        for (name, text) in crate::shipped() {
            catalogue.add(Source::read(&format!("catalogue/{name}.toml"), text)?.parsed);
        }
        Ok(catalogue)
    }

    /// Adds the parts of a file. A part replaces the part of the same kind and name.
    pub fn add(&mut self, file: CatalogueFile) {
        replace(&mut self.gpus, file.gpu, |part| &part.name);
        replace(&mut self.platforms, file.platform, |part| &part.name);
        replace(&mut self.drams, file.dram, |part| &part.name);
        replace(&mut self.drives, file.drive, |part| &part.name);
        replace(&mut self.boards, file.board, |part| &part.name);
        replace(&mut self.bridges, file.bridge, |part| &part.name);
        replace(&mut self.supplies, file.supply, |part| &part.name);
        replace(&mut self.network_cards, file.network_card, |part| &part.name);
        replace(&mut self.network_switches, file.network_switch, |part| &part.name);
        replace(&mut self.cables, file.cable, |part| &part.name);
        replace(&mut self.rents, file.rent, |part| &part.name);
    }

    /// Returns all parts, by kind.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let cards = self.gpus.iter().map(Part::Gpu);
        let hosts = self.platforms.iter().map(Part::Platform).chain(self.drams.iter().map(Part::Dram));
        let boards = self.drives.iter().map(Part::Drive).chain(self.boards.iter().map(Part::Board));
        let rest = self.bridges.iter().map(Part::Bridge).chain(self.supplies.iter().map(Part::Supply));
        let network = self.network_cards.iter().map(Part::NetworkCard);
        let network = network.chain(self.network_switches.iter().map(Part::NetworkSwitch));
        let network = network.chain(self.cables.iter().map(Part::Cable));
        cards.chain(hosts).chain(boards).chain(rest).chain(network).chain(self.rents.iter().map(Part::Rent))
    }

    /// Returns whether it has no part.
    pub fn is_empty(&self) -> bool {
        self.parts().next().is_none()
    }

    /// Returns the part of this name.
    pub fn find(&self, name: &str) -> Option<Part<'_>> {
        self.parts().find(|part| part.name() == name)
    }

    /// Returns the fault of a name that no part of the kind has.
    pub fn unknown(&self, kind: Kind, name: &str) -> Diagnostic {
        let names: BTreeSet<&str> = self.parts().filter(|part| part.kind() == kind).map(Part::name).collect();
        let fault = Diagnostic::error(format!("the catalogue has no {kind} `{name}`"));
        match similar_word(name, names) {
            Some(near) => fault.hint(format!("did you mean `{near}`")),
            None => fault.hint("`command catalogue list` prints all parts"),
        }
    }
}

/// Replaces items of the same name, and appends the others.
fn replace<T>(all: &mut Vec<T>, new: Vec<T>, name: impl Fn(&T) -> &String) {
    for part in new {
        match all.iter().position(|old| name(old) == name(&part)) {
            Some(index) => all[index] = part,
            None => all.push(part),
        }
    }
}
