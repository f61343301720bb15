//! The rules of composition.

use super::{Power, SUPPLY_SHARE, choice::Parts};
use crate::{BoardPart, Form, PlatformForm, Watts};

/// The rules, each with its meaning.
pub const COMPOSITION_RULES: [(&str, &str); 16] = [
    ("socket", "the board has the CPU's socket, and no more of them than the CPU allows"),
    ("mounting", "PCIe cards need a board with slots; SXM and OAM modules need a board of four or eight"),
    ("gpu-count", "the board takes this number of GPUs"),
    ("slots", "the widths of all cards fit the chassis"),
    ("desktop-gpus", "a desktop CPU takes at most two GPUs, with eight lanes each"),
    ("lanes", "the lanes of all cards and four for each drive are at most those of the CPUs"),
    ("drive-slots", "the board has a slot for each drive"),
    ("module-kind", "modules are of the kind that the CPU takes: registered or not, DDR4 or DDR5"),
    ("module-size", "modules are no larger than the CPU allows"),
    ("module-slots", "there is a slot for each module, and each CPU has the same modules"),
    ("bridge", "a bridge joins pairs, or up to four, of the cards that it names"),
    ("nodes", "there are two to 4,096 computers in a network"),
    ("network-slots", "the board has a slot for each network card: its own for them, or what GPUs leave free"),
    ("network-lanes", "GPUs and drives leave eight lanes for each network card"),
    (
        "network-ports",
        "the switches have a port of the card's kind and rate for each card, and there are cables for it",
    ),
    ("supply", "the supply gives 1.25 × the rated power of the GPUs, that of CPUs and network cards, and 100 W"),
];

/// The lanes of a drive.
pub(super) const DRIVE_LANES: u32 = 4;

/// The narrowest slot in which a card is used.
pub(super) const FEWEST_LANES: u32 = 8;

/// The power beside GPUs and CPUs that a supply must give.
const REST: f64 = 100.0;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parts break the rule `{rule}`: {message}")]
pub struct Illegal {
    /// The name of the rule.
    pub rule: &'static str,
    /// The fault, with figures.
    pub message: String,
    /// The remedy.
    pub hint: String,
}

/// A broken rule as an error.
pub(super) fn broken<T>(rule: &'static str, message: String, hint: impl Into<String>) -> Result<T, Illegal> {
    Err(Illegal { rule, message, hint: hint.into() })
}

/// Checks the memory modules against the CPU.
pub(super) fn modules(parts: &Parts<'_>) -> Result<(), Illegal> {
    let memory = &parts.platform.memory;
    let platform = &parts.platform.name;
    match (parts.dram, memory.soldered) {
        (Some((_, module)), Some(_)) => broken(
            "module-kind",
            format!("the memory of `{platform}` is soldered, not `{}`", module.name),
            "leave out `option dram`",
        ),
        (None, None) => broken(
            "module-slots",
            format!("`{platform}` has no memory"),
            format!("add modules of the kind {}, such as `option dram {}x…`", memory.kind, memory.channels),
        ),
        (Some((_, module)), None) if module.kind != memory.kind => broken(
            "module-kind",
            format!("`{}` is {}, and `{platform}` takes {}", module.name, module.kind, memory.kind),
            format!("choose modules of the kind {}", memory.kind),
        ),
        (Some((_, module)), None) if memory.largest_module.is_some_and(|most| module.capacity.0 > most.0) => {
            let most = memory.largest_module.unwrap_or_default().0;
            broken(
                "module-size",
                format!("`{}` has {}, and `{platform}` takes at most {most}", module.name, module.capacity.0),
                "choose smaller modules",
            )
        }
        _ => Ok(()),
    }
}

/// Checks a bridge against the cards.
pub(super) fn bridge(parts: &Parts<'_>) -> Result<(), Illegal> {
    let Some(bridge) = parts.bridge else { return Ok(()) };
    let joined = parts.gpu.is_some_and(|gpu| bridge.joins.contains(&gpu.name));
    if !joined {
        let name = parts.gpu.map_or("no GPU", |gpu| &gpu.name);
        let hint = format!("it joins {}", bridge.joins.join(", "));
        return broken("bridge", format!("`{}` does not join {name}", bridge.name), hint);
    }
    if parts.gpus < 2 || !parts.gpus.is_multiple_of(2) {
        let message = format!("`{}` joins pairs, and there are {} cards", bridge.name, parts.gpus);
        return broken("bridge", message, "choose an even number of cards, or leave out the bridge");
    }
    Ok(())
}

/// Checks a board against CPU, GPUs, modules and drives.
pub(super) fn fits(parts: &Parts<'_>, board: &BoardPart) -> Result<(), Illegal> {
    let (platform, name) = (parts.platform, &board.name);
    if !board.sockets.contains(&platform.socket) || board.socket_count > platform.most_sockets {
        let message = format!(
            "`{name}` takes {} × {}, `{}` is for {} and at most {} on a board",
            board.socket_count,
            board.sockets.join(" or "),
            platform.name,
            platform.socket,
            platform.most_sockets
        );
        return broken("socket", message, "choose another board or CPU");
    }
    if let Some(gpu) = parts.gpu {
        if gpu.form != board.gpu_form || !(board.takes.is_empty() || board.takes.contains(&gpu.name)) {
            let message = format!("`{}` is mounted as {}, and `{name}` takes {}", gpu.name, gpu.form, takes(board));
            return broken("mounting", message, "choose another board or GPU");
        }
        if parts.gpus == 0 || parts.gpus > board.gpu_slots || !takes_count(board, parts.gpus) {
            let counts = if board.gpu_counts.is_empty() {
                format!("1 to {}", board.gpu_slots)
            } else {
                board.gpu_counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
            };
            let message = format!("`{name}` takes {counts} GPUs, not {}", parts.gpus);
            return broken("gpu-count", message, "choose another board or number");
        }
        if gpu.form == Form::Pcie && parts.gpus * gpu.slots > board.slot_widths {
            let message = format!(
                "{} × `{}` take {} slot widths, and `{name}` has {}",
                parts.gpus,
                gpu.name,
                parts.gpus * gpu.slots,
                board.slot_widths
            );
            return broken("slots", message, "choose fewer or narrower cards, or a larger chassis");
        }
        if platform.form == PlatformForm::Desktop && parts.gpus > 2 {
            let message = format!("`{}` is a desktop CPU, and there are {} GPUs", platform.name, parts.gpus);
            return broken("desktop-gpus", message, "choose a CPU with more lanes");
        }
    }
    if parts.drive_count() > board.m2 {
        let message = format!("there are {} drives, and `{name}` has {} slots for them", parts.drive_count(), board.m2);
        return broken("drive-slots", message, "choose fewer drives");
    }
    if let Some((count, _)) = parts.dram {
        let slots = platform.memory.channels * board.modules_per_channel * board.socket_count;
        if count > slots || !count.is_multiple_of(board.socket_count) {
            let message =
                format!("there are {count} modules, and `{name}` has {slots} slots at {} CPU", board.socket_count);
            return broken(
                "module-slots",
                message,
                "choose a number of modules that every CPU can have, or larger ones",
            );
        }
    }
    Ok(())
}

fn takes(board: &BoardPart) -> String {
    if board.takes.is_empty() { board.gpu_form.to_string() } else { board.takes.join(", ") }
}

fn takes_count(board: &BoardPart, gpus: u32) -> bool {
    board.gpu_counts.is_empty() || board.gpu_counts.contains(&gpus)
}

/// The lanes of each card: all of its own where the CPUs have them, otherwise eight.
pub(super) fn lanes(parts: &Parts<'_>, board: &BoardPart) -> Result<u32, Illegal> {
    let Some(gpu) = parts.gpu else { return Ok(0) };
    if gpu.form != Form::Pcie {
        return Ok(gpu.pcie.lanes);
    }
    let all = parts.platform.pcie.lanes * board.socket_count;
    let drives = DRIVE_LANES * parts.drive_count();
    let enough = |lanes: u32| parts.gpus * lanes + drives <= all;
    // Two cards of a desktop share the sixteen lanes of one slot.
    let shared = parts.platform.form == PlatformForm::Desktop && parts.gpus == 2;
    if !shared && enough(gpu.pcie.lanes) {
        return Ok(gpu.pcie.lanes);
    }
    let narrow = gpu.pcie.lanes.min(FEWEST_LANES);
    if enough(narrow) {
        return Ok(narrow);
    }
    let message = format!(
        "{} cards with {narrow} lanes and {} drives take {} lanes, and there are {all}",
        parts.gpus,
        parts.drive_count(),
        parts.gpus * narrow + drives
    );
    broken("lanes", message, "choose fewer cards or drives, or a CPU with more lanes")
}

/// The power that supplies of one computer must give, of which its network cards draw `cards`.
pub(super) fn demand(parts: &Parts<'_>, board: &BoardPart, cards: Watts) -> Watts {
    let gpus = parts.gpu.map_or(0.0, |gpu| gpu.power.board.get()) * f64::from(parts.gpus);
    let cpus = parts.platform.power.board.get() * f64::from(board.socket_count);
    Watts::new(SUPPLY_SHARE * gpus + cpus + cards.get() + REST)
}

/// The power that a computer draws without its network.
pub(super) fn power(parts: &Parts<'_>, board: &BoardPart) -> Power {
    let of = |watts: fn(&crate::GpuPowerFile) -> f64| Watts::new(parts.gpu.map_or(0.0, |gpu| watts(&gpu.power)));
    let cpu = &parts.platform.power;
    let sockets = f64::from(board.socket_count);
    let gpus = of(|power| power.board.get()) * f64::from(parts.gpus);
    Power {
        base: board.power.0,
        gpu_idle: of(|power| power.idle.get()),
        gpu_busy: of(|power| power.board.get() * power.training),
        gpus: parts.gpus,
        cores_busy: Watts::new((cpu.board.get() - cpu.idle.get()).max(0.0) * sockets),
        rated: gpus + cpu.board.0 * sockets,
    }
}
