//! What would make something fit: changes each of which is enough by itself, and no smaller one of its kind.
//!
//! ```text
//! memory      how much more one memory needs, or every memory of a kind   bisected between what is too little and what is enough
//! microbatch  the largest one that fits                                   looked for among those that divide the batch
//! seq-len     the longest sequence that fits                              bisected
//! batch       as many sequences as fit, without training                  bisected: each has a cache
//! system      one that was not allowed                                    the first that fits
//! ```

use spipe_base::{Bytes, MemoryId};
use spipe_cost::{Mode, Workload};
use spipe_hardware::{Hardware, Memory};
use spipe_plan::System;
use std::collections::{BTreeMap, BTreeSet};

/// Whether anything fits a machine under a workload with one of some systems; none where there is no time to find out.
pub type Fits<'a> = dyn Fn(&Hardware, &Workload, &[System]) -> Option<bool> + 'a;

/// What nothing fits.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The machine.
    pub hardware: &'a Hardware,
    /// The workloads that were tried: one for each size of microbatches.
    pub workloads: &'a [Workload],
    /// The systems that were tried.
    pub systems: &'a [System],
}

/// One change with which some plan fits, while none does with less of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Each of these memories is larger by that much, which is printed without rounding.
    Memory(Vec<MemoryId>, Bytes),
    /// Microbatches have no more sequences than that.
    Microbatch(u64),
    /// Sequences have no more tokens than that.
    SeqLen(u64),
    /// There are no more sequences in all than that.
    GlobalBatch(u64),
    /// That system may be used.
    System(System),
}

/// No memory is made larger by more than this power of two.
const LARGEST: u32 = 50;

/// The systems that are looked at first: those that are fast where they fit, and then those that need the least memory.
const FIRST: [System; 5] =
    [System::OneForwardOneBackward, System::Hybrid, System::ZeroOffload, System::Superpipeline, System::ZeroInfinity];

/// Everything that helps, as far as there is time to find out: memories one by one, of those that are alike the first; all that are
/// alike; the microbatch where only one was tried; the length of sequences, and their number in inference; and another system. Nothing where
/// something fits.
pub fn remedies(refused: &Refused<'_>, fits: &Fits<'_>) -> Vec<Remedy> {
    if refused.fits_with(|workload| workload, fits) != Some(false) {
        return Vec::new();
    }
    let larger = |memories: Vec<MemoryId>| {
        let more = least_more(refused, &memories, fits)?;
        Some(Remedy::Memory(memories, more))
    };
    let kinds = kinds(refused.hardware);
    let single = kinds.iter().map(|kind| vec![kind[0]]);
    let alike = kinds.iter().filter(|kind| kind.len() > 1).cloned();
    let memories = single.chain(alike).filter_map(larger);
    let microbatch = || smaller_microbatch(refused, fits).map(Remedy::Microbatch);
    let sequence = || shorter(refused, fits).map(Remedy::SeqLen);
    let system = || other_system(refused, fits).map(Remedy::System);
    let batch = || fewer(refused, fits).map(Remedy::GlobalBatch);
    memories.chain(microbatch()).chain(sequence()).chain(batch()).chain(system()).collect()
}

impl Refused<'_> {
    /// Whether anything fits with changed workloads.
    fn fits_with(&self, change: impl Fn(Workload) -> Workload, fits: &Fits<'_>) -> Option<bool> {
        self.any(|workload| fits(self.hardware, &change(*workload), self.systems))
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

/// The memories that devices compute from, those of the same size and kind together.
fn kinds(hardware: &Hardware) -> Vec<Vec<MemoryId>> {
    let mut kinds: BTreeMap<(bool, Bytes, Bytes), BTreeSet<MemoryId>> = BTreeMap::new();
    for device in hardware.devices() {
        let Memory { capacity, reserved, .. } = &hardware.memories()[device.memory];
        kinds.entry((!device.is_gpu(), *capacity, *reserved)).or_default().insert(device.memory);
    }
    kinds.into_values().map(|kind| kind.into_iter().collect()).collect()
}

/// How much more each of `memories` needs for something to fit; none if nothing fits however large they are.
fn least_more(refused: &Refused<'_>, memories: &[MemoryId], fits: &Fits<'_>) -> Option<Bytes> {
    let enough = |more: Bytes| {
        let larger = refused.hardware.with_larger(memories, more).ok()?;
        refused.any(|workload| fits(&larger, workload, refused.systems))
    };
    // The least power of two that is enough, and then what lies between it and the one before.
    let (mut too_little, mut powers) = (0, LARGEST);
    if !enough(Bytes::new(1 << powers))? {
        return None;
    }
    while powers - too_little > 1 {
        let middle = too_little.midpoint(powers);
        if enough(Bytes::new(1 << middle))? {
            powers = middle;
        } else {
            too_little = middle;
        }
    }
    let (mut low, mut high) = (Bytes::ZERO, Bytes::new(1 << powers));
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

/// The largest smaller microbatch that fits, of those that divide the batch.
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

/// The longest shorter sequence that fits.
fn shorter(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<u64> {
    let (mut low, mut high) = (0, refused.workloads.first()?.seq_len);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if refused.fits_with(|workload| Workload { seq_len: middle, ..workload }, fits)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low > 0).then_some(low)
}

/// As many sequences as fit in inference, in microbatches of the smallest size.
fn fewer(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<u64> {
    let smallest = refused.workloads.iter().min_by_key(|workload| workload.microbatch)?;
    if smallest.mode == Mode::Train {
        return None;
    }
    let (mut low, mut high) = (0, smallest.microbatches);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(refused.hardware, &Workload { microbatches: middle, ..*smallest }, refused.systems)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low > 0).then_some(low * smallest.microbatch)
}

/// A system that was not allowed and fits.
fn other_system(refused: &Refused<'_>, fits: &Fits<'_>) -> Option<System> {
    let training = refused.workloads.iter().all(|workload| workload.mode == Mode::Train);
    let mut systems = FIRST.into_iter().chain(System::ALL.into_iter().filter(|system| !FIRST.contains(system)));
    systems.find(|system| {
        let suits = !refused.systems.contains(system) && (training || system.infers());
        suits && refused.any(|workload| fits(refused.hardware, workload, &[*system])) == Some(true)
    })
}
