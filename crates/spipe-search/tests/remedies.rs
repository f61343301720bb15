//! Remedies of infeasible problems: each suffices, and a smaller one does not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must say so")]

#[path = "../../spipe-planner/tests/common/instances.rs"]
mod instances;
#[path = "../../spipe-planner/tests/common/memory.rs"]
mod memory;
#[path = "../../spipe-planner/tests/common/runner.rs"]
mod runner;
#[path = "../../spipe-planner/tests/common/several.rs"]
mod several;

use instances::{Instance, LayerText, MachineText, layer, machine, machine_text, model_text, workload};
use memory::systems;
use proptest::prelude::*;
use runner::for_all;
use several::any_fitting;
use spipe_base::{Bytes, LayerRange, MemoryId};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, System, check};
use spipe_planner::{Fit, Problem, SYSTEMS, fits};
use spipe_search::{Machine, Refused, Remedy, remedies};
use std::cell::Cell;

fn with_problem<T>(
    (model, hardware): (&Model, &Hardware),
    (workload, systems): (&Workload, &[System]),
    ask: impl FnOnce(&Problem<'_>) -> T,
) -> T {
    let cost = CostTable::new(model, hardware, workload).unwrap();
    memory::with_problem(Context { model, hardware, cost: &cost }, systems, ask)
}

/// Whether there is a plan among all placements of stages, one or several on each device.
fn exists(case: (&Model, &Hardware), asked: (&Workload, &[System])) -> bool {
    with_problem(case, asked, |problem| any_fitting(&problem.context, &problem.systems).is_some())
}

/// Layers, a machine, a workload, the allowed systems, and the frozen layers.
type Tight = (Vec<LayerText>, MachineText, Workload, (Vec<System>, Vec<LayerRange>));

/// Models on machines that are too small for most of them. A third of the models has frozen layers:
/// the first one, and perhaps the third.
fn tight() -> impl Strategy<Value = Tight> {
    let batch = (0u32..3, 1u64..4, prop::bool::weighted(0.1));
    let layer_range = |first: usize, last: usize| LayerRange::new(first.into(), last.into());
    let frozen = prop_oneof![
        4 => Just(Vec::new()),
        1 => Just(vec![layer_range(0, 0)]),
        1 => Just(vec![layer_range(0, 0), layer_range(2, 2)]),
    ];
    (prop::collection::vec(layer(2), 1..=2), machine(), 1u64..12, batch, (systems(), frozen)).prop_map(
        |(layers, mut machine, smaller, (power, microbatches, infer), (systems, frozen))| {
            machine.gpus.iter_mut().for_each(|(memory, _)| *memory = (*memory / smaller).max(1));
            machine.sockets.iter_mut().for_each(|dram| *dram = (*dram / smaller / 2).max(1));
            let mode = if infer { Mode::Infer } else { Mode::Train };
            let workload = Workload { microbatch: 1 << power, ..workload(microbatches, mode) };
            (layers, machine, workload, (systems, frozen.into_iter().flatten().collect()))
        },
    )
}

/// Checks `test` on `count` random cases.
fn cases(count: u32, test: impl Fn(&Instance, &Workload, &[System]) -> Result<(), TestCaseError>) {
    for_all(count, &tight(), |(layers, machine, workload, (systems, mut frozen))| {
        let instance = Instance::new(&model_text(&layers), &machine_text(&machine), &workload);
        frozen.retain(|range| range.last().index() + 1 < instance.model.layers().len());
        let model = instance.model.with_frozen(&frozen).unwrap();
        let cost = CostTable::new(&model, &instance.hardware, &workload).unwrap();
        let instance = Instance { model, cost, ..instance };
        test(&instance, &workload, &systems)
    });
}

/// `hardware` with `more` added to some memories.
fn larger(hardware: &Hardware, memories: &[MemoryId], more: Bytes) -> Hardware {
    let mut file = hardware.file().clone();
    for name in memories.iter().map(|memory| &hardware.memories()[*memory].name) {
        file.gpu.iter_mut().filter(|gpu| gpu.name == *name).for_each(|gpu| gpu.memory.0 += more);
        let drams = file.socket.iter_mut().map(|socket| &mut socket.dram);
        drams.filter(|dram| dram.name == *name).for_each(|dram| dram.capacity.0 += more);
    }
    Hardware::from_file("larger.toml", file).unwrap()
}

/// `bytes` less one step of its printed form.
fn less(bytes: Bytes) -> Bytes {
    let unit = [30, 20, 10].into_iter().map(|power| 1u64 << power).find(|unit| bytes.get() >= *unit);
    bytes.saturating_sub(Bytes::new(unit.map_or(1, |unit| unit.div_ceil(10))))
}

/// The false claims of the remedies found for a case.
fn wrong(instance: &Instance, workload: &Workload, systems: &[System], found: &[Remedy]) -> Vec<String> {
    let (model, hardware) = (&instance.model, &instance.hardware);
    let fit = |hardware: &Hardware, workload: &Workload| exists((model, hardware), (workload, systems));
    let mut wrong = Vec::new();
    let mut hold = |holds: bool, what: &str| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    for remedy in found {
        match remedy {
            Remedy::Memory(memories, more) => {
                hold(fit(&larger(hardware, memories, *more), workload), "more memory is not enough");
                hold(!fit(&larger(hardware, memories, less(*more)), workload), "less memory would do");
            }
            Remedy::Microbatch(most) => {
                let batch = workload.global_batch();
                let with = |microbatch| Workload { microbatch, microbatches: batch / microbatch, ..*workload };
                hold(fit(hardware, &with(*most)), "the microbatch is too large");
                let mut larger = (most + 1..workload.microbatch).filter(|size| batch.is_multiple_of(*size));
                hold(!larger.any(|size| fit(hardware, &with(size))), "a larger microbatch would do");
            }
            Remedy::SeqLen(most) => {
                let with = |seq_len| Workload { seq_len, ..*workload };
                hold(fit(hardware, &with(*most)), "the sequence is too long");
                hold(!fit(hardware, &with(most + 1)), "a longer sequence would do");
            }
            Remedy::GlobalBatch(most) => {
                let with = |batch: u64| Workload { microbatches: batch / workload.microbatch, ..*workload };
                hold(fit(hardware, &with(*most)), "there are too many sequences");
                hold(!fit(hardware, &with(most + workload.microbatch)), "more sequences would do");
            }
            Remedy::System(system) if SYSTEMS.contains(system) => {
                hold(exists((model, hardware), (workload, &[*system])), "the system does not fit");
            }
            Remedy::System(system) => {
                let any = with_problem((model, hardware), (workload, &[*system]), |problem| match fits(problem) {
                    Fit::Found(placement) => check(&problem.context, &placement).is_ok(),
                    _ => false,
                });
                hold(any, "the other system does not fit");
            }
        }
    }
    let alone = |memory: MemoryId| {
        let size = |memory: MemoryId| hardware.memories()[memory].capacity;
        let like = |of: &[MemoryId]| matches!(of, [one] if size(*one) == size(memory));
        found.iter().any(|remedy| matches!(remedy, Remedy::Memory(of, _) if like(of)))
    };
    for memory in hardware.devices().iter().map(|device| device.memory).filter(|memory| !alone(*memory)) {
        hold(!fit(&larger(hardware, &[memory], Bytes::gib(1 << 20)), workload), "more memory would help");
    }
    let shortened = found.iter().any(|remedy| matches!(remedy, Remedy::SeqLen(_)));
    hold(shortened || !fit(hardware, &Workload { seq_len: 1, ..*workload }), "a short sequence would help");
    wrong
}

#[test]
fn a_remedy_suffices_and_a_smaller_one_does_not() {
    let seen = Cell::new([0u32; 5]);
    let count = |index: usize| {
        let mut now = seen.get();
        now[index] += 1;
        seen.set(now);
    };
    cases(700, |instance, workload, systems| {
        let model = &instance.model;
        let machine = Machine::from(instance.hardware.clone());
        let there = exists((model, &instance.hardware), (workload, systems));
        let fit = |machine: &Machine, workload: &Workload, systems: &[System]| {
            Some(with_problem((model, machine.hardware()), (workload, systems), |problem| {
                matches!(fits(problem), Fit::Found(_))
            }))
        };
        prop_assert_eq!(fit(&machine, workload, systems), Some(there), "one search finds a plan, one does not");
        let found = with_problem((model, &instance.hardware), (workload, systems), fits);
        if let Fit::Found(placement) = &found {
            prop_assert!(check(&instance.context(), placement).is_ok());
        }
        let refused = Refused { machine: &machine, workloads: &[*workload], systems };
        let found = remedies(&refused, &fit);
        if there {
            prop_assert_eq!(found, []);
            return Ok(());
        }
        for remedy in &found {
            count(match remedy {
                Remedy::Memory(memories, _) => usize::from(memories.len() > 1),
                Remedy::Microbatch(_) => 2,
                Remedy::SeqLen(_) => 3,
                Remedy::System(_) => 4,
                // Profiled layers have no caches, so that the batch changes no memory.
                Remedy::GlobalBatch(_) => continue,
            });
        }
        let wrong = wrong(instance, workload, systems, &found);
        prop_assert!(wrong.is_empty(), "{:?}: {:?}", found, wrong);
        Ok(())
    });
    assert!(seen.get().iter().all(|count| *count >= 5), "too few remedies of a kind: {:?}", seen.get());
}
