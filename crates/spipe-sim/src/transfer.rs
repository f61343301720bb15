//! Concurrent copies without a program.

use crate::{Iterations, Options, simulate::simulate};
use spipe_base::{ActionKind, Bytes, Diagnostic, IdleCause, LaneRole, MemoryId, Payload, SimTime, Subject};
use spipe_hardware::Hardware;
use spipe_schedule::{Anchor, Edge, Flow, NewAction, ProgramBuilder, Shape, Share};
use std::collections::BTreeMap;

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The source.
    pub from: MemoryId,
    /// The destination.
    pub to: MemoryId,
    /// The bytes to copy.
    pub bytes: Bytes,
    /// The earliest start.
    pub start: SimTime,
    /// Its priority and weight.
    pub share: Share,
}

/// The reason why a copy is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No route joins the memories.
    #[error("no link joins `{from}` and `{to}`")]
    NoRoute {
        /// The source.
        from: String,
        /// The destination.
        to: String,
    },
}

/// The end of each of `copies` when all share the machine's links max–min fairly: the result of
/// simulating a program with each copy on its own lane.
///
/// # Errors
/// A copy has no route.
pub fn transfers(hardware: &Hardware, copies: &[Transfer]) -> Result<Vec<SimTime>, TransferError> {
    let mut builder = ProgramBuilder::new(Shape {
        name: format!("copies on {}", hardware.name()),
        layers: 0,
        microbatches: 0,
        training: false,
        without_backward: 0,
        feeds_back: false,
        tokens: None,
        notes: Vec::new(),
    });
    let memory = builder.memory("copies", None);
    let owner = builder.device("copies", memory, false);
    for link in hardware.links() {
        builder.channel(&link.name, link.bandwidth);
    }
    let lane = |builder: &mut ProgramBuilder, word: &str| builder.lane(owner, word, LaneRole::Channel);
    let action = |lane, kind, flows| NewAction {
        lane,
        kind,
        subject: Subject::default(),
        reads: Vec::new(),
        writes: Vec::new(),
        work: SimTime::ZERO,
        flows,
        guard: None,
    };
    let start = lane(&mut builder, "start");
    let start = builder.action(action(start, ActionKind::Barrier, Vec::new()));
    let mut lanes = BTreeMap::new();
    for (index, copy) in copies.iter().enumerate() {
        let name = |memory: MemoryId| hardware.memories()[memory].name.clone();
        let route = hardware
            .route(copy.from, copy.to)
            .ok_or_else(|| TransferError::NoRoute { from: name(copy.from), to: name(copy.to) })?;
        let flow = Flow {
            route: route.links.as_slice().into(),
            latency: SimTime::from_seconds(route.latency),
            bytes: copy.bytes,
            rate_cap: route.rate_cap,
            share: copy.share,
        };
        let lane = lane(&mut builder, &format!("{index}"));
        let id = builder.action(action(lane, ActionKind::Copy(Payload::Activation), vec![flow]));
        let (anchor, cause) = (Anchor::EndToStart, IdleCause::Order);
        builder.edge(Edge { from: start, to: id, anchor, distance: 0, lag: copy.start, cause });
        lanes.insert(lane, index);
    }
    let program = builder.build().unwrap_or_else(|faults| unreachable!("independent copies are well-formed: {faults}"));
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let trace = simulate(&program, &options).trace;
    let mut finished = vec![SimTime::ZERO; copies.len()];
    for span in &trace.spans {
        if let Some(index) = lanes.get(&span.lane) {
            finished[*index] = span.end;
        }
    }
    Ok(finished)
}

impl From<TransferError> for Diagnostic {
    fn from(error: TransferError) -> Self {
        Self::error(error.to_string()).hint("`command hardware show` lists memories and links")
    }
}
