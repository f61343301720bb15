//! Remedies for a request that no plan satisfies, in words.
//!
//! ```text
//! error: no plan fits: `gpu0` needs at least 3.1 GiB more
//! hint: give `gpu0` 3.1 GiB more, or `dram0` 12.0 GiB more, or use a microbatch of at most 4
//! ```

pub mod least;

use super::{attempt::attempt, fits::fits, refusal};
use crate::{
    error::SearchError,
    request::{Request, machine::Machine, spelling::Spelling, systems::runs},
};
use least::{Refused, Remedy, remedies};
use spipe_base::{Bytes, Diagnostic, MemoryId, readable::listed};
use spipe_cost::{Mode, Workload};
use spipe_hardware::{Hardware, MemoryKind};
use spipe_plan::System;
use spipe_planner::{Effort, Fit, Options, Pins, PlanError};
use std::time::{Duration, Instant};

/// The most time for remedies, beside that for the plan of the one to recommend.
const MOST: Duration = Duration::from_secs(1);

/// The refusal of `request`, with the remedies that can be found within `limit`, if it asks for
/// such. The first is the option with the fastest plan, with that plan's time.
pub fn refusal(request: &Request, error: &PlanError, limit: Duration) -> SearchError {
    if !request.hint {
        return SearchError::Infeasible(Diagnostic::error(error.to_string()));
    }
    if request.pins.given_stages().is_some() {
        return refusal::failure(error, request.spelling);
    }
    let (machine, until) = (&request.machine, Instant::now() + limit.min(MOST));
    let decided = |pins: &Pins, machine: &Machine, workload: &Workload, systems: &[System]| {
        if !systems.iter().any(|system| runs(*system, workload)) {
            return Some(false);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let options = Options { pins: pins.clone(), time_limit: left, ..Options::default() };
        match fits((&request.model, machine), (workload, systems), &options) {
            Fit::Found(_) => Some(true),
            Fit::Never | Fit::NotFound => Some(false),
            // A remedy is only reported where a smaller one is certain not to help.
            Fit::Late => None,
        }
    };
    let with_pins =
        |machine: &Machine, workload: &Workload, systems: &[System]| decided(&request.pins, machine, workload, systems);
    let refused = Refused { machine, workloads: &request.workloads, systems: &request.systems };
    let found = remedies(&refused, &with_pins);
    let memories = memories(&found, machine.hardware());
    let mut ways: Vec<String> = fastest(request, &found).into_iter().collect();
    for (index, (names, more)) in memories.iter().enumerate() {
        ways.push(format!("{}{names} {more} more", if index == 0 { "give " } else { "" }));
    }
    let free = |pins: &Pins| {
        let mut sizes = request.workloads.iter();
        sizes.any(|workload| decided(pins, machine, workload, &request.systems) == Some(true))
    };
    if let Some((words, _)) = request.pins.without_one().find(|(_, others)| free(others)) {
        ways.push(format!("drop {}", request.spelling.value("pin", words)));
    }
    let message = match (memories.first(), error) {
        (None, _) | (_, PlanError::Infeasible { certain: true, .. }) => error.to_string(),
        (Some((names, more)), _) => format!("no plan fits: {names} needs at least {more} more"),
    };
    let diagnostic = Diagnostic::error(message);
    let hint = if ways.is_empty() { refusal::hint(error, request.spelling) } else { Some(ways.join(", or ")) };
    let short = !memories.is_empty() || matches!(error, PlanError::Infeasible { missing: Some(_), .. });
    let hint = hint.into_iter().chain(drives(request).filter(|_| short)).collect::<Vec<_>>().join("; ");
    SearchError::Infeasible(if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) })
}

/// The refusal that a sum settles, with the memory that is missing.
pub fn settled(request: &Request, error: &PlanError) -> SearchError {
    let diagnostic = Diagnostic::error(error.to_string());
    let hint = refusal::hint(error, request.spelling).filter(|_| request.hint);
    let hint = hint.into_iter().chain(drives(request)).collect::<Vec<_>>().join("; ");
    SearchError::Infeasible(if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) })
}

/// The drives of a machine that lacks memory: plans with optimizer state on them do not fit either.
fn drives(request: &Request) -> Option<String> {
    let drives = request.machine.hardware().memories().iter().filter(|memory| memory.kind == MemoryKind::Nvme);
    let words: Vec<String> = drives.map(|drive| format!("`{}` ({})", drive.name, drive.capacity)).collect();
    let (verb, they) = if words.len() == 1 { ("does", "it") } else { ("do", "them") };
    let named = words.join(", ");
    let [parameters, activations] = ["parameters-on", "activations-on"].map(|name| request.spelling.setting(name));
    (!words.is_empty()).then(|| format!("{named} {verb} not help: plans keep optimizer state on {they}, and parameters and activations with {parameters} and {activations} only"))
}

/// The option with the fastest plan per token, in words, with the time of that plan: each is planned
/// at low effort, with all other options of the request; one without such a plan is not named.
fn fastest(request: &Request, found: &[Remedy]) -> Option<String> {
    let planned = |remedy: &Remedy| {
        let (workloads, systems) = with(request, remedy)?;
        let effort = Some(Effort::Low);
        let found =
            attempt(&Request { workloads, systems, effort, watch: None, hint: false, ..request.clone() }).ok()?;
        let tokens = found.plan.context().cost.whole_workload().tokens() as f64;
        let words = match remedy {
            Remedy::System(_) => format!("use {}", request.spelling.value("system", found.plan.placement().system)),
            _ => other(remedy, request.spelling)?,
        };
        let simulated = found.solution.simulated;
        Some((simulated.to_ms() / tokens, format!("{words} ({simulated:.3} per iteration)")))
    };
    let planned = found.iter().filter_map(planned).min_by(|(one, _), (other, _)| one.total_cmp(other));
    planned.map(|(_, words)| words)
}

/// The workloads and the systems of a request with an option changed; `None` for more memory.
fn with(request: &Request, remedy: &Remedy) -> Option<(Vec<Workload>, Vec<System>)> {
    let (all, systems) = (&request.workloads, request.systems.clone());
    let batch = all.first()?.global_batch();
    match remedy {
        Remedy::Memory(..) => None,
        Remedy::Microbatch(size) => {
            let smaller = |workload: &Workload| Workload { microbatch: *size, microbatches: batch / size, ..*workload };
            Some((all.first().map(smaller).into_iter().collect(), systems))
        }
        Remedy::SeqLen(length) => {
            Some((all.iter().map(|workload| Workload { seq_len: *length, ..*workload }).collect(), systems))
        }
        Remedy::GlobalBatch(most) => {
            let smallest = all.iter().min_by_key(|workload| workload.microbatch)?;
            Some((vec![Workload { microbatches: most / smallest.microbatch, ..*smallest }], systems))
        }
        Remedy::System(_) => {
            let training = all.iter().all(|workload| workload.mode == Mode::Train);
            let suits = |system: &System| {
                !system.is_stale()
                    && (training || system.infers())
                    && all.iter().all(|workload| runs(*system, workload))
            };
            let others = System::ALL.into_iter().filter(|system| !systems.contains(system));
            Some((all.clone(), others.filter(suits).collect()))
        }
    }
}

/// The memories to enlarge, with the bytes that each needs more: among GPUs and among hosts, the
/// memory with the smallest need, and a group of equal memories if each of them needs less than
/// that. The single memory is left out if the group needs less in total.
fn memories(found: &[Remedy], hardware: &Hardware) -> Vec<(String, Bytes)> {
    let on_gpu = |memory: MemoryId| hardware.devices().iter().any(|device| device.memory == memory && device.is_gpu());
    let mut list = Vec::new();
    for gpu in [true, false] {
        let of = |alone: bool| {
            let all = found.iter().filter_map(|remedy| match remedy {
                Remedy::Memory(memories, more) => Some((memories.as_slice(), *more)),
                _ => None,
            });
            let these = all.filter(|(memories, _)| (memories.len() == 1) == alone && on_gpu(memories[0]) == gpu);
            these.min_by_key(|(_, more)| *more)
        };
        let name = |memory: &MemoryId| hardware.memories()[*memory].name.as_str();
        let names = |memories: &[MemoryId]| listed(&memories.iter().map(name).collect::<Vec<_>>());
        let alone = of(true);
        let together = of(false).filter(|(_, more)| alone.is_none_or(|(_, alone)| *more < alone));
        let all = together.map(|(memories, more)| more * memories.len() as u64);
        let alone = alone.filter(|(_, more)| all.is_none_or(|all| all >= *more));
        list.extend(alone.map(|(memories, more)| (names(memories), more)));
        list.extend(together.map(|(memories, more)| (format!("each of {}", names(memories)), more)));
    }
    list
}

/// A remedy other than more memory, in words.
fn other(remedy: &Remedy, spelling: Spelling) -> Option<String> {
    match remedy {
        Remedy::Memory(..) => None,
        Remedy::Microbatch(most) => Some(format!("use a microbatch of at most {most}")),
        Remedy::SeqLen(most) => Some(format!("use sequences of at most {most} tokens")),
        Remedy::GlobalBatch(most) => Some(format!("use a {} of at most {most}", spelling.setting("global-batch"))),
        Remedy::System(system) => Some(format!("use {}", spelling.value("system", system))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_that_are_alike_are_named_together() {
        let name = "rtx3090-x4-two-sockets";
        let file = spipe_hardware::shipped().iter().find(|(shipped, _)| *shipped == name);
        let text = file.map_or_else(|| panic!("{name}"), |(_, text)| text);
        let hardware = Hardware::from_toml(name, text).unwrap_or_else(|faults| panic!("{faults}"));
        let gpus: Vec<MemoryId> =
            hardware.devices().iter().filter(|device| device.is_gpu()).map(|device| device.memory).collect();
        let words = |alone: u64, each: u64| {
            let found = [
                Remedy::Memory(vec![gpus[0]], Bytes::new(alone << 30)),
                Remedy::Memory(gpus.clone(), Bytes::new(each << 30)),
            ];
            memories(&found, &hardware).into_iter().map(|(names, more)| format!("{names}: {more}")).collect::<Vec<_>>()
        };
        // Either helps, the group needs less in total, and the group needs as much for each.
        assert_eq!(words(5, 2), ["`gpu0`: 5.0 GiB", "each of `gpu0` to `gpu3`: 2.0 GiB"]);
        assert_eq!(words(9, 2), ["each of `gpu0` to `gpu3`: 2.0 GiB"]);
        assert_eq!(words(3, 3), ["`gpu0`: 3.0 GiB"]);
    }
}
