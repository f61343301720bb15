//! Whether each part fits another one.

use crate::{
    Catalogue, Form, NetworkKind,
    catalogue::{Kind, Source},
};
use spipe_base::{BytesPerSecond, Diagnostic, Faults, Text};

/// Reports the parts of a file that fit no other part of the catalogue.
pub(super) fn check(source: &Source, whole: &Catalogue, faults: &mut Faults) {
    let mut report = |name: &str, message: String, hint: &str| {
        faults.push(source.at(name, Diagnostic::error(message).hint(hint)));
    };
    for gpu in &source.parsed.gpu {
        let fits = |form: Form, takes: &[String]| form == gpu.form && (takes.is_empty() || takes.contains(&gpu.name));
        if !whole.boards.iter().any(|board| fits(board.gpu_form, &board.takes)) {
            report(
                &gpu.name,
                format!("`{}` fits no board: it is mounted as {}", gpu.name, gpu.form),
                "add a `[[board]]` that takes it",
            );
        }
    }
    for platform in &source.parsed.platform {
        if !whole.boards.iter().any(|board| board.sockets.contains(&platform.socket)) {
            let message = format!("`{}` fits no board: its socket is {}", platform.name, platform.socket);
            report(&platform.name, message, "add a `[[board]]` with this socket");
        }
    }
    for dram in &source.parsed.dram {
        if !whole.platforms.iter().any(|platform| platform.memory.kind == dram.kind) {
            report(&dram.name, format!("`{}` fits no platform: it is {}", dram.name, dram.kind), "correct its kind");
        }
    }
    for card in &source.parsed.network_card {
        let like = |kind: NetworkKind, rate: Text<BytesPerSecond>| kind == card.network && rate == card.rate;
        let joined = whole.network_switches.iter().any(|switch| like(switch.network, switch.rate))
            && whole.cables.iter().any(|cable| like(cable.network, cable.rate));
        if !joined {
            let message =
                format!("`{}` fits no switch or no cable: it is {} of {}", card.name, card.network, card.rate.0);
            report(&card.name, message, "add a `[[network-switch]]` and a `[[cable]]` of its kind and rate");
        }
    }
    let known = |kind: Kind, name: &str| whole.parts().any(|part| part.kind() == kind && part.name() == name);
    let named = source.parsed.bridge.iter().map(|bridge| (&bridge.name, bridge.joins.as_slice()));
    for (name, gpus) in named.chain(source.parsed.board.iter().map(|board| (&board.name, board.takes.as_slice()))) {
        for gpu in gpus.iter().filter(|gpu| !known(Kind::Gpu, gpu)) {
            report(name, format!("`{name}` takes the unknown gpu `{gpu}`"), "add it, or correct its name");
        }
    }
    for rent in &source.parsed.rent {
        for (kind, name) in [(Kind::Gpu, &rent.gpu), (Kind::Platform, &rent.platform)] {
            if !known(kind, name) {
                report(
                    &rent.name,
                    format!("`{}` has the unknown {kind} `{name}`", rent.name),
                    "add it, or correct its name",
                );
            }
        }
    }
}
