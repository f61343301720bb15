//! One iteration as execution traces of MLCommons Chakra, one file per device, for ASTRA-sim and its
//! kin.

mod messages;
mod nodes;
mod wire;
mod work;

use crate::folder::filled;
use nodes::{Node, NodeKind};
use spipe_plan::Plan;
use spipe_schedule::{Anchor, Program};
use std::collections::BTreeMap;
use wire::{Message, Value};
use work::Work;

/// The version of Chakra's schema.
const SCHEMA: &str = "0.0.4";

/// The files of `program`, the iteration of `plan`: `trace.N.et` for the N-th device that does
/// anything, and a README.
pub fn chakra(plan: &Plan, program: &Program) -> BTreeMap<String, Vec<u8>> {
    let work = Work { context: plan.context(), program };
    let mut files = BTreeMap::new();
    let mut table = String::from(
        "| file | device | compute | loads and stores | messages and collectives |\n|---|---|---|---|---|\n",
    );
    for (number, (device, nodes)) in nodes::nodes(program, &work).into_iter().enumerate() {
        let (file, name) = (format!("trace.{number}.et"), &program.devices()[device].name);
        let count = |kinds: &[NodeKind]| nodes.iter().filter(|node| kinds.contains(&node.kind)).count();
        table += &format!(
            "| {file} | {name} | {} | {} | {} |\n",
            count(&[NodeKind::Compute]),
            count(&[NodeKind::Load, NodeKind::Store]),
            count(&[NodeKind::Send, NodeKind::Receive, NodeKind::Collective])
        );
        files.insert(file, stream(name, &program.shape().name, &nodes));
    }
    let left_out = program.precedences().iter().filter(|precedence| precedence.anchor == Anchor::StartToStart).count();
    let values = [
        ("name", program.shape().name.clone()),
        ("table", table),
        ("schema", SCHEMA.into()),
        ("left-out", left_out.to_string()),
    ];
    files.insert("README.md".into(), filled(include_str!("../../templates/chakra/README.md"), &values).into_bytes());
    files
}

/// The messages of one file: metadata, then nodes.
fn stream(device: &str, name: &str, nodes: &[Node]) -> Vec<u8> {
    let mut stream = Vec::new();
    let metadata = Message::default().text(1, SCHEMA);
    let metadata = metadata.attribute(2, "program", &Value::Text(name.into()));
    metadata.attribute(2, "device", &Value::Text(device.into())).end(&mut stream);
    for node in nodes {
        let message = Message::default()
            .number(1, node.id)
            .text(2, &node.name)
            .number(3, node.kind as u64)
            .numbers(4, &node.control)
            .numbers(5, &node.data)
            .number(7, node.micros);
        let message = node.attributes.iter().fold(message, |message, (name, value)| message.attribute(10, name, value));
        message.end(&mut stream);
    }
    stream
}
