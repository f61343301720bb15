//! Who must wait for whom: derived from what actions read and write, and from edges.

use super::{Action, Anchor, Buffer, Edge, Lifetime};
use spipe_base::{ActionId, ActionKind, BufferId, IdVec, IdleCause, Payload, SimTime};

/// `to` starts only after `from` of the same iteration (distance 0) or of the one before (distance 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// The earlier action.
    pub from: ActionId,
    /// The later action.
    pub to: ActionId,
    /// 0 or 1.
    pub distance: u8,
    /// Which end of the earlier action counts.
    pub anchor: Anchor,
    /// Time that must pass in between.
    pub lag: SimTime,
    /// What an idle lane was waiting for when this came last.
    pub cause: IdleCause,
}

/// What a lane that waits for an action of `kind` is waiting for.
pub(super) fn cause(kind: ActionKind) -> IdleCause {
    match kind {
        ActionKind::Forward | ActionKind::Recompute | ActionKind::Copy(Payload::Activation | Payload::Checkpoint) => {
            IdleCause::Activation
        }
        ActionKind::Backward
        | ActionKind::BackwardInput
        | ActionKind::BackwardWeight
        | ActionKind::Accumulate
        | ActionKind::Copy(Payload::Gradient | Payload::GradientsOut) => IdleCause::Gradient,
        ActionKind::Copy(Payload::WeightsIn) | ActionKind::Collective(_) => IdleCause::Weights,
        ActionKind::Copy(Payload::Offload | Payload::Reload) => IdleCause::Reload,
        ActionKind::OptimizerStep | ActionKind::Copy(Payload::WriteBack) => IdleCause::Optimizer,
        ActionKind::Check | ActionKind::Rollback => IdleCause::Check,
        ActionKind::Barrier => IdleCause::Order,
    }
}

/// The users of one buffer by version.
#[derive(Clone, Default)]
struct Uses {
    /// `writers[v]` makes version v; version 0 has none.
    writers: Vec<Option<ActionId>>,
    readers: Vec<Vec<ActionId>>,
}

impl Uses {
    fn reach(&mut self, version: u32) {
        let needed = version as usize + 1;
        if self.writers.len() < needed {
            self.writers.resize(needed, None);
            self.readers.resize(needed, Vec::new());
        }
    }

    fn last(&self) -> Option<usize> {
        self.writers.len().checked_sub(1)
    }
}

/// All precedences, sorted and without repetition.
pub(super) fn derive(
    actions: &IdVec<ActionId, Action>,
    buffers: &IdVec<BufferId, Buffer>,
    edges: &[Edge],
) -> Vec<Precedence> {
    let mut uses: Vec<Uses> = vec![Uses::default(); buffers.len()];
    for (id, action) in actions.enumerate() {
        for read in &action.reads {
            let uses = &mut uses[read.buffer.index()];
            uses.reach(read.version);
            uses.readers[read.version as usize].push(id);
        }
        for write in &action.writes {
            let uses = &mut uses[write.buffer.index()];
            uses.reach(write.version);
            uses.writers[write.version as usize] = Some(id);
        }
    }
    let mut all: Vec<Precedence> = edges.iter().map(explicit).collect();
    for action in actions.iter().enumerate().filter_map(|(id, action)| action.guard.map(|guard| (id, guard))) {
        all.push(data(actions, action.1.check, ActionId::from(action.0), 0));
    }
    for (buffer, mine) in uses.iter().enumerate() {
        within(actions, mine, &mut all);
        match buffers[BufferId::from(buffer)].lifetime {
            Lifetime::Resident => across(actions, mine, mine, &mut all),
            Lifetime::Leaves { into } => across(actions, mine, &uses[into.index()], &mut all),
            Lifetime::Transient | Lifetime::Arrives => {}
        }
    }
    all.retain(|precedence| precedence.from != precedence.to || precedence.distance > 0);
    all.sort_unstable();
    all.dedup_by_key(|precedence| {
        (precedence.from, precedence.to, precedence.distance, precedence.anchor, precedence.lag)
    });
    all
}

const fn explicit(edge: &Edge) -> Precedence {
    Precedence {
        from: edge.from,
        to: edge.to,
        distance: edge.distance,
        anchor: edge.anchor,
        lag: edge.lag,
        cause: edge.cause,
    }
}

fn data(actions: &IdVec<ActionId, Action>, from: ActionId, to: ActionId, distance: u8) -> Precedence {
    let cause = cause(actions[from].kind);
    Precedence { from, to, distance, anchor: Anchor::EndToStart, lag: SimTime::ZERO, cause }
}

/// Readers wait for the writer of their version; the writer of a version waits for the users of the one before.
fn within(actions: &IdVec<ActionId, Action>, uses: &Uses, all: &mut Vec<Precedence>) {
    for (version, writer) in uses.writers.iter().enumerate() {
        let Some(writer) = *writer else { continue };
        all.extend(uses.readers[version].iter().map(|reader| data(actions, writer, *reader, 0)));
        if version > 0 {
            let before = uses.readers[version - 1].iter().copied().chain(uses.writers[version - 1]);
            all.extend(before.map(|user| data(actions, user, writer, 0)));
        }
    }
}

/// The last version of `mine` is version 0 of `next` in the following iteration.
fn across(actions: &IdVec<ActionId, Action>, mine: &Uses, next: &Uses, all: &mut Vec<Precedence>) {
    let (Some(last), false) = (mine.last(), next.writers.is_empty()) else { return };
    let writer = mine.writers[last];
    for reader in &next.readers[0] {
        all.extend(writer.map(|writer| data(actions, writer, *reader, 1)));
    }
    if let Some(Some(first_writer)) = next.writers.get(1) {
        let users = mine.readers[last].iter().copied().chain(writer);
        all.extend(users.map(|user| data(actions, user, *first_writer, 1)));
    }
}
