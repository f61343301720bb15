//! Rented machines as profiles.

use super::{Choice, ComposeError, Composed, compose};
use crate::{BoardPart, Catalogue, DramPart, Fabric, Form, RentPart, Transfers, Watts};
use spipe_base::{Bytes, Text};

/// The least GPUs of a machine with two CPUs: estimate.
const TWO_SOCKETS: u32 = 4;

/// Composes a rented machine on a board that takes its parts: providers do not name theirs.
///
/// # Errors
/// An unknown part, or the first broken rule.
pub fn compose_rented(catalogue: &Catalogue, rent: &RentPart) -> Result<Composed, ComposeError> {
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
