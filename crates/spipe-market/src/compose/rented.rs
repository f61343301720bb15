//! Rented machines as profiles.

use super::{Choice, ComposeError, Composed, compose, network, rules::broken};
use crate::{BoardPart, Catalogue, DramPart, Fabric, Form, RentPart, Transfers, Watts};
use spipe_base::{Bytes, Text};

/// The least GPUs of a machine with two CPUs: estimate.
const TWO_SOCKETS: u32 = 4;

/// Composes `nodes` rented machines on boards that take their parts: providers do not name theirs.
///
/// # Errors
/// An unknown part, or the first broken rule: several machines need the offer's network.
pub fn compose_rented(catalogue: &Catalogue, rent: &RentPart, nodes: u32) -> Result<Composed, ComposeError> {
    let machine = one(catalogue, rent)?;
    if nodes == 1 {
        return Ok(machine);
    }
    let Some(offered) = rent.network.as_ref().filter(|_| nodes > 1) else {
        let message = format!("`{}` has no network that joins {nodes} of them", rent.name);
        return Ok(broken("nodes", message, "rent one, or add `network` to its table")?);
    };
    let name = format!("{nodes}-nodes-of-{}", rent.name);
    let mut hardware = machine.hardware;
    hardware.name.clone_from(&name);
    hardware.nodes = Some(nodes);
    hardware.network = Some(network::rented(offered.cards, offered.rate.0, &offered.source));
    Ok(Composed { name, nodes, hardware, power: machine.power.times(nodes), ..machine })
}

fn one(catalogue: &Catalogue, rent: &RentPart) -> Result<Composed, ComposeError> {
    let mut whole = catalogue.clone();
    let platform = catalogue.platforms.iter().find(|platform| platform.name == rent.platform);
    let gpu = catalogue.gpus.iter().find(|gpu| gpu.name == rent.gpu);
    let mut choice =
        Choice { gpu: Some(rent.gpu.clone()), gpus: rent.gpus, platform: rent.platform.clone(), ..Choice::default() };
    if let (Some(platform), Some(gpu)) = (platform, gpu) {
        let sockets = if rent.gpus >= TWO_SOCKETS { platform.most_sockets.min(2) } else { 1 };
        let fabric = (gpu.form != Form::Pcie && gpu.link.is_some()).then_some(Fabric::Switch);
        whole.boards = vec![BoardPart {
            name: rent.name.clone(),
            title: None,
            sockets: vec![platform.socket.clone()],
            socket_count: sockets,
            modules_per_channel: 2,
            gpu_form: gpu.form,
            takes: Vec::new(),
            gpu_slots: rent.gpus,
            gpu_counts: Vec::new(),
            slot_widths: rent.gpus * gpu.slots,
            network_slots: 0,
            fabric,
            pcie_generation: gpu.pcie.generation,
            m2: 0,
            power: Text(Watts::new(0.0)),
            supply: Some(Text(Watts::new(f64::from(u32::MAX)))),
            date: rent.date,
            source: rent.source.clone(),
            price: Vec::new(),
            share_of_gpus: None,
        }];
        let modules = platform.memory.channels * sockets;
        let capacity = Bytes::new(rent.dram.0.get() / u64::from(modules));
        whole.drams.push(DramPart {
            name: "rented".into(),
            kind: platform.memory.kind,
            capacity: Text(capacity),
            rate: platform.memory.rate.unwrap_or(Text(Transfers::new(3200.0))),
            date: rent.date,
            source: rent.source.clone(),
            price: Vec::new(),
        });
        choice.dram = Some((modules, "rented".into()));
    }
    let mut machine = compose(&whole, &choice)?;
    machine.name.clone_from(&rent.name);
    machine.hardware.name.clone_from(&rent.name);
    // Its parts are not for sale.
    machine.items.clear();
    machine.hardware.parts.clear();
    Ok(machine)
}
