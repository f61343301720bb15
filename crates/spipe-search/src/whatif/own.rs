//! The machines that one more part makes of a machine.

use crate::error::SearchError;
use spipe_base::Faults;
use spipe_market::{Catalogue, Choice, Cluster, Composed, Condition, compose};
use spipe_whatif::{Job, Setup, Sweep, sweep_of};

/// The most changes of each kind that are tried.
const COUNTS: [u32; 4] = [1, 2, 4, 8];

/// The machine of the parts first, then every legal machine with one kind of part changed.
pub fn sweep(catalogue: &Catalogue, job: &Job, setup: &Setup) -> Result<Sweep, SearchError> {
    let choice = Choice::from_parts(catalogue, &setup.own).map_err(|fault| SearchError::Input(fault.into()))?;
    let own = compose(catalogue, &choice).map_err(|error| SearchError::Input(error.diagnostic().into()))?;
    let mut machines: Vec<Composed> = vec![own.clone()];
    // A larger machine may need larger supplies, which are picked again.
    let start =
        Choice { supply: None, cluster: own.choice.cluster.as_ref().map(Cluster::reopened), ..own.choice.clone() };
    for changed in changes(catalogue, &start) {
        let same_board = compose(catalogue, &changed);
        machines.extend(same_board.into_iter().filter(|machine| !machines_have(&[&own], machine)));
    }
    let mut distinct: Vec<Composed> = Vec::new();
    for machine in machines {
        if !machines_have(&distinct.iter().collect::<Vec<_>>(), &machine) {
            distinct.push(machine);
        }
    }
    let condition =
        if job.file.vary.condition.as_deref() == Some(&[Condition::Used]) { Condition::Used } else { Condition::New };
    let priced = distinct.into_iter().map(|machine| (machine, condition)).collect();
    // The machine that is there already may cost more than the budget for additions.
    let free = Job { budget: None, ..job.clone() };
    let sweep: Result<Sweep, Faults> = sweep_of(catalogue, (&free, setup.as_of), priced);
    Ok(sweep?)
}

fn machines_have(all: &[&Composed], machine: &Composed) -> bool {
    all.iter().any(|one| one.name == machine.name)
}

/// Choices with another number of GPUs, other GPUs, more memory, another drive, a bridge, or more of the computers that
/// a network joins.
pub fn changes(catalogue: &Catalogue, start: &Choice) -> Vec<Choice> {
    let mut all = Vec::new();
    if start.gpu.is_some() {
        all.extend(COUNTS.into_iter().filter(|count| *count > start.gpus).map(|gpus| Choice { gpus, ..start.clone() }));
        all.push(Choice { gpus: start.gpus + 1, ..start.clone() });
        let form = catalogue.gpus.iter().find(|gpu| start.gpu.as_ref() == Some(&gpu.name)).map(|gpu| gpu.form);
        let cards = catalogue.gpus.iter().filter(|gpu| Some(gpu.form) == form && !gpu.price.is_empty());
        all.extend(cards.map(|gpu| Choice { gpu: Some(gpu.name.clone()), bridge: None, ..start.clone() }));
    }
    if let Some((count, module)) = &start.dram {
        let own = catalogue.drams.iter().find(|dram| dram.name == *module);
        let larger = catalogue
            .drams
            .iter()
            .filter(|dram| own.is_some_and(|own| dram.kind == own.kind && dram.capacity.0 > own.capacity.0));
        all.extend(larger.map(|dram| Choice { dram: Some((*count, dram.name.clone())), ..start.clone() }));
        all.push(Choice { dram: Some((2 * count, module.clone())), ..start.clone() });
    }
    for drive in &catalogue.drives {
        let mut drives = start.drives.clone();
        match drives.iter_mut().find(|(_, name)| *name == drive.name) {
            Some((count, _)) => *count += 1,
            None => drives.push((1, drive.name.clone())),
        }
        all.push(Choice { drives, ..start.clone() });
    }
    if start.bridge.is_none() {
        let joins =
            catalogue.bridges.iter().filter(|bridge| start.gpu.as_ref().is_some_and(|gpu| bridge.joins.contains(gpu)));
        all.extend(joins.map(|bridge| Choice { bridge: Some(bridge.name.clone()), ..start.clone() }));
    }
    if let Some(cluster) = &start.cluster {
        let cluster = Cluster { nodes: 2 * cluster.nodes, ..cluster.clone() };
        all.push(Choice { cluster: Some(cluster), ..start.clone() });
    }
    all
}
