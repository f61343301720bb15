//! What actions do to buffers.

use spipe_base::BufferId;
use spipe_schedule::{Access, Action, Lifetime, Program};

/// The buffers that an action takes room for when it starts.
pub(crate) fn opened<'a>(program: &'a Program, action: &'a Action) -> impl Iterator<Item = BufferId> + 'a {
    let opens = |write: &&Access| {
        write.version == 1
            && matches!(program.buffers()[write.buffer].lifetime, Lifetime::Transient | Lifetime::Leaves { .. })
    };
    action.writes.iter().filter(opens).map(|write| write.buffer)
}

/// Calls `each` with the buffers that an action reads or writes, each once.
pub(crate) fn used(action: &Action, mut each: impl FnMut(BufferId)) {
    // Plain loops: this is asked of every action that ends.
    let among = |list: &[Access], buffer: BufferId| list.iter().any(|access| access.buffer == buffer);
    for (index, read) in action.reads.iter().enumerate() {
        if !among(&action.reads[..index], read.buffer) {
            each(read.buffer);
        }
    }
    for (index, write) in action.writes.iter().enumerate() {
        if !among(&action.reads, write.buffer) && !among(&action.writes[..index], write.buffer) {
            each(write.buffer);
        }
    }
}

/// How many actions use each buffer that is given back in the iteration; none of the others.
pub(crate) fn users(program: &Program) -> Vec<u32> {
    let mut users = vec![0; program.buffers().len()];
    for action in program.actions() {
        used(action, |buffer| {
            if matches!(program.buffers()[buffer].lifetime, Lifetime::Transient | Lifetime::Arrives) {
                users[buffer.index()] += 1;
            }
        });
    }
    users
}
