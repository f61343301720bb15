//! The order as PyTorch's runtime executes it.

use super::mesh::{self, Places};
use crate::ranks::by_node;
use spipe_base::{DeviceId, Diagnostic, Faults, StageId};
use spipe_plan::Plan;
use spipe_schedule::{Order, Pass, Token};
use std::collections::BTreeSet;

/// An order with a device for each of its rows, which are PyTorch's ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The order.
    pub order: Order,
    /// The device of each row: on a mesh the lead of the first replica's team.
    pub rows: Vec<DeviceId>,
    /// The device of each process, those of one computer one after the other.
    pub processes: Vec<DeviceId>,
    /// The processes of each row, where a row has several.
    pub places: Option<Places>,
}

impl Exported {
    /// Checks `order` against the plan. Stages that PyTorch would recompute several times get fused
    /// backwards, with a warning.
    ///
    /// # Errors
    /// Faults of an order that is not one of the plan's stages and microbatches.
    pub fn new(plan: &Plan, order: &Order, warnings: &mut Faults) -> Result<Self, Faults> {
        order.validate()?;
        let (stages, microbatches) = (plan.placement().stages.len(), plan.context().workload().microbatches);
        if order.stages() != stages {
            let message = format!("the order has {} stages, the plan has {stages}", order.stages());
            return Err(Diagnostic::error(message).hint("number the plan's stages from 0").into());
        }
        if order.microbatches() as u64 != microbatches {
            let message = format!("the order has {} microbatches, the plan has {microbatches}", order.microbatches());
            return Err(Diagnostic::error(message).hint("number the plan's microbatches from 0").into());
        }
        let (order, rows) = by_computer(plan, order, ranks(plan, order)?);
        let (processes, places) = mesh::processes(plan, &rows)?;
        let split = split_and_repeated(plan, &order);
        if split.is_empty() {
            return Ok(Self { order, rows, processes, places });
        }
        let fused = fused(&order, &split);
        let names: Vec<String> = split.iter().map(|stage| format!("`{stage}`")).collect();
        let names = names.join(", ");
        if fused.validate().is_err() {
            let message = format!(
                "stages {names} recompute and split their backwards: PyTorch would recompute them three times, and \
                 this order leaves no room for fused backwards"
            );
            return Err(Diagnostic::error(message).hint("plan without recompute, or with `option system 1f1b`").into());
        }
        let message = format!("stages {names} get fused backwards: PyTorch would recompute split ones three times");
        warnings.push(Diagnostic::warning(message).hint("expect longer steps than predicted"));
        Ok(Self { order: fused, rows, processes, places })
    }
}

/// The rows of each computer one after the other, as launchers number their processes.
fn by_computer(plan: &Plan, order: &Order, devices: Vec<DeviceId>) -> (Order, Vec<DeviceId>) {
    let sorted = by_node(plan.context().hardware, devices.clone());
    let row = |device: &DeviceId| devices.iter().position(|other| other == device).map(|row| &order.devices()[row]);
    let rows = sorted.iter().filter_map(row).cloned().collect();
    (Order::new(rows), sorted)
}

/// The device of each row.
fn ranks(plan: &Plan, order: &Order) -> Result<Vec<DeviceId>, Faults> {
    let device = |stage: StageId| plan.placement().stages[stage].lead();
    let name = |id: DeviceId| &plan.context().hardware.devices()[id].name;
    let mut faults = Faults::new();
    let mut ranks: Vec<DeviceId> = Vec::new();
    for (row, tokens) in order.devices().iter().enumerate() {
        let devices: BTreeSet<DeviceId> = tokens.iter().map(|token| device(token.stage)).collect();
        let mut several = devices.iter();
        match (several.next(), several.next()) {
            (Some(first), Some(second)) => faults.push(Diagnostic::error(format!(
                "row {row} has stages of `{}` and of `{}`, a row is one device of the plan",
                name(*first),
                name(*second)
            ))),
            (Some(only), None) if ranks.contains(only) => {
                faults.push(Diagnostic::error(format!("the stages of `{}` are in two rows", name(*only))));
            }
            (Some(only), None) => ranks.push(*only),
            (None, _) => faults.push(Diagnostic::error(format!("row {row} is empty"))),
        }
    }
    faults.or(ranks)
}

/// Stages whose backwards are split and whose saved activations PyTorch unpacks once in each part.
/// The first stage runs its whole backward at `W`, so that it is unpacked once.
fn split_and_repeated(plan: &Plan, order: &Order) -> BTreeSet<StageId> {
    let stages = &plan.placement().stages;
    let split = order.devices().iter().flatten().filter(|token| token.pass == Pass::BackwardInput);
    let unpacks =
        |stage: &StageId| stage.index() > 0 && (stages[*stage].recomputed > 0 || stages[*stage].offload.is_some());
    split.map(|token| token.stage).filter(unpacks).collect()
}

/// The order with a fused backward at the place of each backward-input of `stages`.
fn fused(order: &Order, stages: &BTreeSet<StageId>) -> Order {
    let token = |token: &Token| match token.pass {
        Pass::BackwardInput if stages.contains(&token.stage) => Some(Token { pass: Pass::Backward, ..*token }),
        Pass::BackwardWeight if stages.contains(&token.stage) => None,
        _ => Some(*token),
    };
    Order::new(order.devices().iter().map(|tokens| tokens.iter().filter_map(token).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_backwards_take_the_place_of_the_gradients_of_inputs() {
        let order: Order = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n".parse().unwrap();
        let only = [StageId::from(1)].into_iter().collect();
        let expected = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1B0,1F1,1B1\n";
        assert_eq!(fused(&order, &only).to_string(), expected);
        assert_eq!(fused(&order, &only).validate(), Ok(()));
    }
}
