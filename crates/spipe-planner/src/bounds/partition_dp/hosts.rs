//! What host memories hold, and what sockets step where it is left open which of them and for which layers.
//!
//! What they step for the layers up to some layer comes after its last gradient and before its first activation of the next iteration.
//! Where steps wait for all gradients, it comes after the last one of the first layer of all.

use crate::bounds::partition_dp::{At, Behind, Choice, Divide, SOCKETS, memory_pressure::OnHosts};

/// What begin and end of what all sockets step of some layers come to at least, in ms ([`crate::bounds::partition_dp::memory_pressure::AtSeat::ends`]), but for what is computed again.
#[derive(Clone, Copy)]
pub(crate) struct SocketEnds {
    apart: f64,
    /// Where steps wait for all gradients, for which what is computed again for the last microbatch may wait.
    together: Option<f64>,
}

impl Divide<'_, '_> {
    /// Those of layers `from..to`.
    pub(super) fn socket_ends(&self, at: &At<'_>, layers: (usize, usize)) -> SocketEnds {
        let of_all = |for_all: bool| {
            let [one, other] = at.dues.map_or([0.0; 2], |dues| dues.ends(layers, for_all));
            // Without another one there is nothing to know of it.
            if self.all_sockets > 1.0 { one + (self.all_sockets - 1.0) * other } else { one }
        };
        SocketEnds { apart: of_all(false), together: self.together.then(|| of_all(true)) }
    }

    /// The bytes in host memories; none where they are too many. Whoever shares a memory may recompute more than the stage would by
    /// itself.
    pub(super) fn held(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        (choice, helper): (&Choice, Option<usize>),
        next: Option<&Behind>,
    ) -> Option<[u64; SOCKETS]> {
        let mut held = next.map_or([0; SOCKETS], |next| next.held);
        let (_, most) = at.device.recomputes(self.costs.training, from, to)?;
        if let Some(home) = at.home {
            let need = |recomputed: usize| at.device.need(at.seat, (from, to), recomputed);
            held[home] += need(choice.recomputed).min(need(most));
        }
        if let Some(helper) = helper {
            held[helper] += at.device.need_of_host(at.seat, choice.host_offload, (from, to), most);
        }
        held.iter().zip(&self.usable).all(|(held, usable)| held <= usable).then_some(held)
    }

    /// Adds what the dues of layers `from..to` are to what is known of them and all behind, of which `before` is the sum over all sockets.
    pub(super) fn step_by_hosts(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        (choice, before): (&Choice, f64),
        behind: &mut Behind,
    ) {
        let sockets = self.all_sockets;
        let standing = sockets * (behind.first + behind.back);
        if choice.by_hosts.layers > 0 {
            let OnHosts { layers, all, least } = choice.by_hosts;
            let SocketEnds { apart, together } = choice.ends;
            let apart = apart - sockets * choice.times.recompute;
            let first = sockets * (behind.passes - inside(at, (from, to - layers), choice)) + least;
            // The last one that they step is no further behind than the last of all, and the first of n no further than the n-th from the
            // end.
            let last = (sockets * behind.passes + together.unwrap_or(apart)).max(before) + all;
            behind.sum = behind.sum.max(last).max(first);
            behind.around = behind.around.max(standing + apart) + all;
            // Whatever way around a stage behind, these steps are on it as well.
            behind.cycle += all;
        }
        behind.around = behind.around.max(standing);
    }
}

/// How much later than to the first layer of a stage the first activation comes to another one, and earlier the last gradient.
fn inside(at: &At<'_>, (from, layer): (usize, usize), choice: &Choice) -> f64 {
    let pass = if layer > from { at.device.pass((from, layer), true) } else { 0.0 };
    pass + choice.times.recompute
}
