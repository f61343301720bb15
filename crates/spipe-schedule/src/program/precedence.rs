//! Precedences, derived from the reads and writes of actions and from edges.

use super::{Access, Action, Anchor, Edge, Lifetime, Program};
use spipe_base::{ActionId, ActionKind, BufferId, IdVec, IdleCause, Payload, SimTime};

/// A precedence: `to` starts only after `from` of the same iteration (distance 0) or of the one
/// before (distance 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// The earlier action.
    pub from: ActionId,
    /// The later action.
    pub to: ActionId,
    /// 0 or 1.
    pub distance: u8,
    /// The event of the earlier action.
    pub anchor: Anchor,
    /// The latency in between.
    pub lag: SimTime,
    /// The cause of idle time, where a lane waited for this precedence last.
    pub cause: IdleCause,
}

/// The cause of idle time of a lane that waits for an action of `kind`.
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
        ActionKind::Copy(Payload::WeightsIn) => IdleCause::Weights,
        ActionKind::Collective(_) => IdleCause::Collective,
        ActionKind::Copy(Payload::Offload | Payload::Reload) => IdleCause::Reload,
        ActionKind::OptimizerStep | ActionKind::Copy(Payload::WriteBack | Payload::StateIn | Payload::StateOut) => {
            IdleCause::Optimizer
        }
        ActionKind::Norm | ActionKind::Check | ActionKind::Rollback => IdleCause::Check,
        ActionKind::Barrier => IdleCause::Order,
    }
}

/// A use of a version of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    version: u32,
    /// False sorts first: the write precedes the reads of its version.
    reads: bool,
    action: ActionId,
}

/// The uses of all buffers, grouped by buffer and sorted by version.
struct Uses {
    all: Vec<Use>,
    from: Vec<u32>,
}

impl Uses {
    fn of(program: &Program) -> Self {
        let buffers = program.buffers.len();
        let accesses = || {
            program.actions.enumerate().flat_map(move |(id, action)| {
                let access =
                    move |access: &Access, reads| (access.buffer, Use { version: access.version, reads, action: id });
                let reads = program.reads(action).iter().map(move |it| access(it, true));
                reads.chain(program.writes(action).iter().map(move |it| access(it, false)))
            })
        };
        // A counting sort, because there are many buffers with few uses each.
        let mut from = vec![0u32; buffers + 1];
        for (buffer, _) in accesses() {
            from[buffer.index() + 1] += 1;
        }
        for index in 0..buffers {
            from[index + 1] += from[index];
        }
        let nothing = Use { version: 0, reads: false, action: ActionId::new(0) };
        let mut all = vec![nothing; from[buffers] as usize];
        let mut next = from.clone();
        for (buffer, this) in accesses() {
            let place = &mut next[buffer.index()];
            all[*place as usize] = this;
            *place += 1;
        }
        for pair in from.windows(2) {
            all[pair[0] as usize..pair[1] as usize].sort_unstable();
        }
        Self { all, from }
    }

    fn buffer(&self, buffer: BufferId) -> &[Use] {
        &self.all[self.from[buffer.index()] as usize..self.from[buffer.index() + 1] as usize]
    }
}

/// The uses of one version among the `uses` of a buffer.
fn of_version(uses: &[Use], version: u32) -> &[Use] {
    let start = uses.partition_point(|this| this.version < version);
    let end = start + uses[start..].partition_point(|this| this.version == version);
    &uses[start..end]
}

/// All precedences, sorted and without duplicates.
pub(super) fn derive(program: &Program, edges: &[Edge]) -> Vec<Precedence> {
    let actions = &program.actions;
    let uses = Uses::of(program);
    // A counting sort by the earlier action, because each action has few. All are derived twice, once
    // to be counted and once to be placed, so that they are in memory once.
    let mut from = vec![0u32; actions.len() + 1];
    let mut some = None;
    each(program, (edges, &uses), &mut |precedence| {
        from[precedence.from.index() + 1] += 1;
        some = Some(precedence);
    });
    for index in 0..actions.len() {
        from[index + 1] += from[index];
    }
    let Some(some) = some else { return Vec::new() };
    let mut all = vec![some; from[actions.len()] as usize];
    let mut next = from.clone();
    each(program, (edges, &uses), &mut |precedence| {
        let place = &mut next[precedence.from.index()];
        all[*place as usize] = precedence;
        *place += 1;
    });
    for pair in from.windows(2) {
        all[pair[0] as usize..pair[1] as usize].sort_unstable();
    }
    all.dedup_by_key(|precedence| {
        (precedence.from, precedence.to, precedence.distance, precedence.anchor, precedence.lag)
    });
    all
}

/// Calls `add` with every precedence, some of them more than once.
fn each(program: &Program, (edges, uses): (&[Edge], &Uses), add: &mut impl FnMut(Precedence)) {
    let actions = &program.actions;
    let mut add = |precedence: Precedence| {
        if precedence.from != precedence.to || precedence.distance > 0 {
            add(precedence);
        }
    };
    edges.iter().map(explicit).for_each(&mut add);
    for (id, action) in actions.enumerate() {
        if let Some(guard) = action.guard {
            add(data(actions, guard.check, id, 0));
        }
    }
    for (id, buffer) in program.buffers.enumerate() {
        let mine = uses.buffer(id);
        within(actions, mine, &mut add);
        match buffer.lifetime {
            Lifetime::Resident => across(actions, mine, mine, &mut add),
            Lifetime::Leaves { into } => across(actions, mine, uses.buffer(into), &mut add),
            Lifetime::Transient | Lifetime::Arrives => {}
        }
    }
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

/// The precedence of data that `from` writes or uses and `to` reads or overwrites.
fn data(actions: &IdVec<ActionId, Action>, from: ActionId, to: ActionId, distance: u8) -> Precedence {
    let cause = cause(actions[from].kind);
    Precedence { from, to, distance, anchor: Anchor::EndToStart, lag: SimTime::ZERO, cause }
}

/// Adds the precedences within an iteration: readers wait for the writer of their version, and the
/// writer of a version waits for the users of the version before.
fn within(actions: &IdVec<ActionId, Action>, uses: &[Use], add: &mut impl FnMut(Precedence)) {
    let mut before: &[Use] = &[];
    for now in uses.chunk_by(|one, next| one.version == next.version) {
        if let [writer, readers @ ..] = now
            && !writer.reads
        {
            readers.iter().for_each(|reader| add(data(actions, writer.action, reader.action, 0)));
            let follows = before.first().is_some_and(|before| before.version + 1 == writer.version);
            let users = before.iter().filter(|_| follows);
            users.for_each(|user| add(data(actions, user.action, writer.action, 0)));
        }
        before = now;
    }
}

/// Adds the precedences across iterations: the last version of `mine` is version 0 of `next` in the
/// next iteration.
fn across(actions: &IdVec<ActionId, Action>, mine: &[Use], next: &[Use], add: &mut impl FnMut(Precedence)) {
    let (Some(last), false) = (mine.last(), next.is_empty()) else { return };
    let last = of_version(mine, last.version);
    let writer = last.first().filter(|this| !this.reads);
    for reader in of_version(next, 0).iter().filter(|this| this.reads) {
        if let Some(writer) = writer {
            add(data(actions, writer.action, reader.action, 1));
        }
    }
    if let Some(first_writer) = of_version(next, 1).first().filter(|this| !this.reads) {
        last.iter().for_each(|user| add(data(actions, user.action, first_writer.action, 1)));
    }
}
