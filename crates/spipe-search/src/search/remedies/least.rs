//! The least remedies: single changes of machine, workload or system that make a plan possible, each the
//! smallest of its kind.
//!
//! ```text
//! memory      the least growth of one memory, or of all of a kind    bisection
//! microbatch  the largest size that fits                             divisors of the batch
//! seq-len     the longest sequence that fits                         bisection
//! batch       the most sequences that fit, in inference              bisection: each has a cache
//! system      one that was not allowed                               the first that fits
//! ```

use crate::request::machine::Machine;
use spipe_base::{Bytes, MemoryId};
use spipe_cost::{Mode, Workload};
use spipe_hardware::{Hardware, Memory};
use spipe_plan::System;
use std::collections::{BTreeMap, BTreeSet};

/// Returns whether anything fits a machine under a workload with one of some systems; `None` if
/// there was no time to find out.
pub type Fits<'a> = dyn Fn(&Machine, &Workload, &[System]) -> Option<bool> + 'a;

/// A problem that nothing fits.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The workloads that were tried, one for each size of microbatches.
    pub workloads: &'a [Workload],
    /// The systems that were tried.
    pub systems: &'a [System],
}

/// A change with which some plan fits, while none does with less of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Each of these memories is larger by these bytes, a number that prints without rounding.
    Memory(Vec<MemoryId>, Bytes),
    /// Microbatches have at most this number of sequences.
    Microbatch(u64),
    /// Sequences have at most this number of tokens.
    SeqLen(u64),
    /// A batch has at most this number of sequences.
    GlobalBatch(u64),
    /// This system is allowed.
    System(System),
}

/// Memories grow by at most 2 to this power in bytes: 1 PiB.
const LARGEST: u64 = 50;

/// The systems to try first: those that are fast where they fit, then those that need the least
/// memory.
const FIRST: [System; 5] =
    [System::OneForwardOneBackward, System::Hybrid, System::ZeroOffload, System::Superpipeline, System::ZeroInfinity];

/// Returns all remedies that there is time to find, and nothing if something fits:
///
/// - another system;
/// - smaller microbatches, if only one size was tried;
/// - shorter sequences, and in inference fewer of them;
/// - more memory: for one memory of each kind, then for all of a kind.
pub fn remedies(refused: &Refused<'_>, fits: &Fits<'_>) -> Vec<Remedy> {
    if refused.fits_with(|workload| workload, fits) != Some(false) {
        return Vec::new();
    }
    let larger = |memories: Vec<MemoryId>| {
        let more = least_more(refused, &memories, fits)?;
        Some(Remedy::Memory(memories, more))
    };
    let kinds = kinds(refused.machine.hardware());
    let single = kinds.iter().map(|kind| vec![kind[0]]);
    let alike = kinds.iter().filter(|kind| kind.len() > 1).cloned();
    let memories = single.chain(alike).filter_map(larger);
    let microbatch = || smaller_microbatch(refused, fits).map(Remedy::Microbatch);
    let sequence = || shorter(refused, fits).map(Remedy::SeqLen);
    let system = || other_system(refused, fits).map(Remedy::System);
    let batch = || fewer(refused, fits).map(Remedy::GlobalBatch);
    // The amounts of memory take the most time.
    let options = system().into_iter().chain(microbatch()).chain(sequence()).chain(batch());
    options.chain(memories).collect()
}

impl Refused<'_> {
    /// Whether anything fits with changed workloads.
    fn fits_with(&self, change: impl Fn(Workload) -> Workload, fits: &Fits<'_>) -> Option<bool> {
        self.any(|workload| fits(self.machine, &change(*workload), self.systems))
    }

    fn any(&self, fits: impl Fn(&Workload) -> Option<bool>) -> Option<bool> {
        for workload in self.workloads {
            if fits(workload)? {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// Returns the memories from which devices compute, grouped by kind and size.
fn kinds(hardware: &Hardware) -> Vec<Vec<MemoryId>> {
    let mut kinds: BTreeMap<(bool, Bytes, Bytes), BTreeSet<MemoryId>> = BTreeMap::new();
    for device in hardware.devices() {
        let Memory { capacity, reserved, .. } = &hardware.memories()[device.memory];
        kinds.entry((!device.is_gpu(), *capacity, *reserved)).or_default().insert(device.memory);
    }
    kinds.into_values().map(|kind| kind.into_iter().collect()).collect()
}

/// Returns the least growth of each of `memories` with which something fits; `None` if nothing fits
/// however large they are.
fn least_more(refused: &Refused<'_>, memories: &[MemoryId], fits: &Fits<'_>) -> Option<Bytes> {
    let enough = |more: Bytes| {
        let larger = refused.machine.changed(|hardware| hardware.with_larger(memories, more)).ok()?;
        refused.any(|workload| fits(&larger, workload, refused.systems))
    };
    if !enough(Bytes::new(1 << LARGEST))? {
        return None;
    }
    // First the least power of two that is enough, then bisection down to the one before.
    let too_little = last_below(LARGEST, &|power| Some(!enough(Bytes::new(1 << power))?))?;
    let (mut low, mut high) = (Bytes::ZERO, Bytes::new(2 << too_little));
    if too_little > 0 {
        low = Bytes::new(1 << too_little);
    }
    loop {
        let next = Bytes::new(low.get() + 1).up_to_printed();
        if next >= high {
            return Some(high);
        }
        let middle = Bytes::new(low.get().midpoint(high.get())).up_to_printed();
        let middle = if middle < high { middle } else { next };
        if enough(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
}

/// Returns the largest smaller microbatch that fits and divides the batch.
fn smaller_microbatch(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<u64> {
    let [workload] = refused.workloads else { return None };
    let batch = workload.global_batch();
    for microbatch in (1..workload.microbatch).rev().filter(|size| batch.is_multiple_of(*size)) {
        let smaller = |workload| Workload { microbatch, microbatches: batch / microbatch, ..workload };
        if refused.fits_with(smaller, fits)? {
            return Some(microbatch);
        }
    }
    None
}

/// Returns the longest shorter sequence that fits.
fn shorter(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<u64> {
    let with = |seq_len| refused.fits_with(|workload| Workload { seq_len, ..workload }, fits);
    last_below(refused.workloads.first()?.seq_len, &with).filter(|longest| *longest > 0)
}

/// Returns the most sequences that fit in inference, in microbatches of the smallest size.
fn fewer(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<u64> {
    let smallest = refused.workloads.iter().min_by_key(|workload| workload.microbatch)?;
    if smallest.mode == Mode::Train {
        return None;
    }
    let with = |microbatches| fits(refused.machine, &Workload { microbatches, ..*smallest }, refused.systems);
    let most = last_below(smallest.microbatches, &with).filter(|most| *most > 0)?;
    Some(most * smallest.microbatch)
}

/// Returns the last number below `limit` for which `holds`, by bisection, or 0 if there is none.
/// `holds` must stay false once it is false. `None` where there was no time to find out.
fn last_below(limit: u64, holds: &dyn Fn(u64) -> Option<bool>) -> Option<u64> {
    let (mut low, mut high) = (0, limit);
    while high - low > 1 {
        let middle = low.midpoint(high);
        *(if holds(middle)? { &mut low } else { &mut high }) = middle;
    }
    Some(low)
}

/// Returns the first system that was not allowed and fits.
fn other_system(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<System> {
    let training = refused.workloads.iter().all(|workload| workload.mode == Mode::Train);
    let mut systems = FIRST.into_iter().chain(System::ALL.into_iter().filter(|system| !FIRST.contains(system)));
    systems.find(|system| {
        let suits = !refused.systems.contains(system) && (training || system.infers());
        suits && refused.any(|workload| fits(refused.machine, workload, &[*system])) == Some(true)
    })
}
