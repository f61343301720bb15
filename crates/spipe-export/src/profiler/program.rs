//! The times of a program's actions, as the interpreter of programs writes them.

use super::{
    document::{Added, Document, Event, MeasuredLane},
    process::{Process, ProcessLane, Raw},
};
use serde::Deserialize;
use spipe_base::{ActionKind, Bytes, IdleCause, LaneRole, SimTime, Subject};

/// The category of the actions.
const ACTION: &str = "spipe";

/// The arguments of an action.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Measured {
    kind: ActionKind,
    #[serde(default)]
    subject: Subject,
    bytes: Option<Bytes>,
    waited_for: Option<IdleCause>,
}

/// The process of a file with a program's actions; none if it has no lanes, or none of their actions.
pub fn process(document: &Document, added: &Added) -> Option<Process> {
    let lane = |lane: &MeasuredLane| ProcessLane {
        name: lane.name.clone(),
        device: lane.device.clone(),
        role: lane.role,
        spans: document
            .slices()
            .filter(|event| event.cat == ACTION && event.tid == *lane.name)
            .filter_map(|event| span(document, event))
            .collect(),
    };
    let mut lanes: Vec<ProcessLane> = added.lanes.iter().map(lane).collect();
    lanes.iter_mut().for_each(|lane| lane.spans.sort_by_key(|span| (span.start, span.end)));
    lanes.retain(|lane| !lane.spans.is_empty());
    let spans = || lanes.iter().flat_map(|lane| &lane.spans);
    let (start, end) = (spans().map(|span| span.start).min()?, spans().map(|span| span.end).max()?);
    let iterations: Vec<SimTime> =
        added.iterations_ms.iter().map(|ms| SimTime::ns((ms * 1e6).round() as u64)).collect();
    let reach = |lane: &ProcessLane| Some(lane.spans.last()?.end - lane.spans.first()?.start);
    let longest = lanes.iter().filter(|lane| lane.role == LaneRole::Compute).filter_map(reach).max().map(SimTime::ns);
    Some(Process {
        rank: added.rank,
        device: added.device.clone(),
        plan: added.plan.clone(),
        // An iteration may begin before the one before has ended: the period is measured, not the sum of actions.
        period: added.traced.and_then(|traced| iterations.get(traced).copied()).into_iter().chain(longest).max(),
        iterations,
        start,
        end,
        states_memory: true,
        memories: Vec::new(),
        lanes,
    })
}

fn span(document: &Document, event: &Event) -> Option<Raw> {
    let Measured { kind, subject, bytes, waited_for } = Measured::deserialize(&event.args).ok()?;
    let (start, end) = document.times(event);
    Some(Raw { kind, subject, start, end, bytes, waited_for })
}
