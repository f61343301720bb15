//! Messages between devices: the precedences of a program whose ends are on two devices.
//!
//! Files of Chakra are one per device, and their dependencies stay within a file. A precedence from
//! an action on one device to an action on another is therefore a send and a receive with a tag. A
//! copy is the send itself, or the receive; other actions get nodes beside them.

use spipe_base::{ActionId, ActionKind, DeviceId, IdVec};
use spipe_schedule::{Action, Anchor, Precedence, Program};
use std::collections::{BTreeMap, BTreeSet};

/// The bytes of a message that carries a number, such as a norm.
const SIGNAL: u64 = 8;

/// A message from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The action after which it is sent.
    pub from: ActionId,
    /// The sending and the receiving device.
    pub devices: [DeviceId; 2],
    /// Its size.
    pub bytes: u64,
    /// Whether the earlier action is the send.
    pub is_copied_by_sender: bool,
    /// The copy that is the receive.
    pub receiver: Option<ActionId>,
}

/// All messages of an iteration, each with its tag.
pub struct Messages {
    pub all: Vec<Message>,
    /// The messages for which an action waits.
    pub awaited: BTreeMap<ActionId, BTreeSet<usize>>,
    /// The messages that an action sends.
    pub sent: BTreeMap<ActionId, Vec<usize>>,
}

/// The device of each action's lane.
pub fn homes(program: &Program) -> IdVec<ActionId, DeviceId> {
    program.actions().iter().map(|action| program.lanes()[action.lane].device).collect()
}

/// The bytes that a copy or a collective moves.
pub fn moved(program: &Program, action: &Action) -> u64 {
    program.flows(action).iter().map(|flow| flow.bytes.get()).sum()
}

/// Whether a precedence holds from an end to a start within one iteration. Others cannot be
/// expressed.
pub fn is_expressible(precedence: &Precedence) -> bool {
    precedence.distance == 0 && precedence.anchor == Anchor::EndToStart
}

/// Whether an action reads what an earlier one has written.
pub fn reads_written(program: &Program, from: &Action, to: &Action) -> bool {
    program.writes(from).iter().any(|written| program.reads(to).contains(written))
}

impl Messages {
    /// The messages of `program`.
    pub fn of(program: &Program) -> Self {
        let (actions, homes) = (program.actions(), homes(program));
        let collective = |id: ActionId| matches!(actions[id].kind, ActionKind::Collective(_));
        let is_copy = |id: ActionId| matches!(actions[id].kind, ActionKind::Copy(_));
        // Participants of a collective meet in it.
        let crossing = |precedence: &&Precedence| {
            is_expressible(precedence)
                && homes[precedence.from] != homes[precedence.to]
                && !collective(precedence.from)
                && !collective(precedence.to)
        };
        let crossing: Vec<&Precedence> = program.precedences().iter().filter(crossing).collect();
        // A copy whose place is merely free again, or whose source may be overwritten, moves nothing to
        // the later action: that is a signal.
        let carries =
            |precedence: &Precedence| reads_written(program, &actions[precedence.from], &actions[precedence.to]);
        let sending: BTreeSet<ActionId> = crossing
            .iter()
            .filter(|precedence| carries(precedence))
            .map(|precedence| precedence.from)
            .filter(|id| is_copy(*id))
            .collect();
        let mut numbers: BTreeMap<(ActionId, DeviceId, bool, Option<ActionId>), usize> = BTreeMap::new();
        let mut receivers: BTreeSet<ActionId> = BTreeSet::new();
        let mut messages = Self { all: Vec::new(), awaited: BTreeMap::new(), sent: BTreeMap::new() };
        for precedence in crossing {
            let Precedence { from, to, .. } = *precedence;
            let data = carries(precedence);
            let copied = data && is_copy(from);
            let fetched = (data && !is_copy(from) && is_copy(to)).then_some(to);
            let number = *numbers.entry((from, homes[to], copied, fetched)).or_insert_with(|| {
                let sent = messages.sent.get(&from);
                let first = !sent.into_iter().flatten().any(|number| messages.all[*number].is_copied_by_sender);
                messages.all.push(Message {
                    from,
                    devices: [homes[from], homes[to]],
                    bytes: match fetched {
                        Some(to) => moved(program, &actions[to]),
                        None if copied => moved(program, &actions[from]),
                        None => SIGNAL,
                    },
                    is_copied_by_sender: copied && first,
                    receiver: fetched.filter(|to| !sending.contains(to) && receivers.insert(*to)),
                });
                messages.sent.entry(from).or_default().push(messages.all.len() - 1);
                messages.all.len() - 1
            });
            messages.awaited.entry(to).or_default().insert(number);
        }
        messages
    }
}
