//! Why nothing fits, and what would help.

use crate::{
    PlanError,
    case::Case,
    figures::{Figures, Help, Seat},
};
use rayon::prelude::*;
use spipe_base::{Bytes, LayerId, MemoryId};
use spipe_plan::System;
use std::collections::BTreeMap;

/// What can be said before any search: a layer that fits nowhere, or a model that all memories together cannot hold.
pub(crate) fn obvious(figures: &Figures<'_>) -> Result<(), PlanError> {
    lonely_layers(figures)?;
    let state = |layer: usize| {
        let able = figures.devices.iter().filter(|device| device.able(layer, layer + 1));
        able.map(|device| device.state(layer, layer + 1, Some(Help::NONE))).min().unwrap_or(0)
    };
    let needed: u64 = (0..figures.layers).map(state).sum();
    let memories = memories(figures);
    let usable: u64 = memories.values().sum();
    if needed <= usable {
        return Ok(());
    }
    let caches = figures.devices.iter().any(|device| device.bytes.iter().any(|layer| layer.cache > Bytes::ZERO));
    let (what, hint) = match (figures.training, caches) {
        (true, _) => ("parameters, gradients and optimizer state", "train in a narrower precision"),
        (false, true) => ("parameters and caches", "use a smaller `--global-batch`: each sequence has a cache"),
        (false, false) => ("parameters", "infer in a narrower precision"),
    };
    Err(PlanError::Infeasible {
        reason: format!(
            "the model needs at least {} of {what}, and {} {} {}: {} more are needed",
            Bytes::new(needed),
            names(figures, &memories),
            if memories.len() == 1 { "has" } else { "together have" },
            Bytes::new(usable),
            Bytes::new(needed - usable)
        ),
        hint: format!("add memory or devices, use a smaller model, or {hint}"),
        missing: Some(Bytes::new(needed - usable)),
        certain: true,
    })
}

/// That every layer fits on some device by itself.
pub(crate) fn lonely_layers(figures: &Figures<'_>) -> Result<(), PlanError> {
    (0..figures.layers).try_for_each(|layer| lonely(figures, layer))
}

/// That layer `layer` fits on some device, whatever its stage has beside it, which may have another input: with its state, and what one
/// microbatch saves and works with.
fn lonely(figures: &Figures<'_>, layer: usize) -> Result<(), PlanError> {
    let need = |index: usize| {
        let device = &figures.devices[index];
        let help = Some(Help::NONE).filter(|_| figures.helps(index).len() == 1);
        let held = (device.bytes[layer].saved + device.bytes[layer].workspace).get();
        device.able(layer, layer + 1).then(|| device.state(layer, layer + 1, help) + held)
    };
    let needs: Vec<(u64, usize)> =
        (0..figures.devices.len()).filter_map(|device| Some((need(device)?, device))).collect();
    if needs.iter().any(|(need, device)| *need <= figures.devices[*device].usable) {
        return Ok(());
    }
    let name = &figures.context.model.layers()[LayerId::from(layer)].name;
    let Some((need, device)) = needs.into_iter().max_by_key(|(_, device)| figures.devices[*device].usable) else {
        return Err(PlanError::Infeasible {
            reason: format!(
                "layer `{name}` has no time on any device of `{}` on which it may be",
                figures.context.hardware.name()
            ),
            hint: "add its times for one of the devices to the model file, or drop a pin".into(),
            missing: None,
            certain: true,
        });
    };
    let device = &figures.devices[device];
    Err(PlanError::Infeasible {
        reason: format!(
            "layer `{name}` needs at least {}, and the largest memory, `{}`, has {}",
            Bytes::new(need),
            figures.context.hardware.memories()[device.memory].name,
            Bytes::new(device.usable)
        ),
        hint: if device.state(layer, layer + 1, None) > device.usable {
            "use a device with more memory, or a smaller model".into()
        } else {
            "use a smaller microbatch or a shorter sequence, or a device with more memory".into()
        },
        missing: Some(Bytes::new(need.saturating_sub(device.usable))),
        certain: true,
    })
}

/// That no division of any case fits: the least by which all of them miss.
pub(crate) fn closest(figures: &Figures<'_>, cases: &[Case]) -> PlanError {
    let shortages: Vec<_> = cases.par_iter().map(|case| least_shortage(figures, case)).collect();
    let closest = shortages
        .into_iter()
        .zip(cases)
        .filter_map(|(shortage, case)| shortage.map(|(missing, device)| (missing, device, case)))
        .min_by_key(|(missing, _, _)| *missing);
    let Some((missing, device, case)) = closest else {
        return PlanError::Infeasible {
            reason: format!(
                "no chain of connected devices of `{}` can run the layers of `{}` in order",
                figures.context.hardware.name(),
                figures.context.model.name()
            ),
            hint: "add the missing times to the model file, or the missing links to the hardware file".into(),
            missing: None,
            certain: true,
        };
    };
    let name = &figures.context.hardware.memories()[figures.devices[device].memory].name;
    let devices = listed(&case.names(figures).split(", ").collect::<Vec<_>>());
    let closest = format!("the closest one, over {devices} under `{}`,", case.discipline.system);
    let lacks = match missing {
        // Shortages are those of single stages, which share memory with others, and what the host keeps for them.
        0 => "has room for each stage, but not for all of them and what hosts keep for them".into(),
        missing => format!("lacks {} in `{name}`", Bytes::new(missing)),
    };
    PlanError::Infeasible {
        reason: format!("no division of the {} layers fits: {closest} {lacks}", figures.layers),
        hint: "use more memory or devices, a smaller microbatch, or a shorter sequence".into(),
        missing: Some(Bytes::new(missing)).filter(|missing| *missing > Bytes::ZERO),
        certain: false,
    }
}

/// That the greedy filling found nothing, though another planner may.
pub(crate) fn greedy(figures: &Figures<'_>, systems: &[System], examined: usize) -> PlanError {
    if systems.is_empty() {
        return PlanError::NoSystem;
    }
    if examined > 0 {
        return PlanError::NothingRuns { examined };
    }
    PlanError::Infeasible {
        reason: format!("filling {} in order leaves layers that fit nowhere", names(figures, &memories(figures))),
        hint: "other divisions may fit: use `--planner ilp`".into(),
        missing: None,
        certain: false,
    }
}

/// The least of the largest shortage of a stage over all divisions of `case`, and the device that has it.
fn least_shortage(figures: &Figures<'_>, case: &Case) -> Option<(u64, usize)> {
    let (layers, stages) = (figures.layers, case.stages());
    let mut best: Vec<Option<(u64, usize)>> = vec![None; layers + 1];
    best[0] = Some((0, case.devices[0]));
    for stage in 0..stages {
        let device = case.device(figures, stage);
        let mut next: Vec<Option<(u64, usize)>> = vec![None; layers + 1];
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        for (from, before) in best.iter().enumerate() {
            let Some(before) = before else { continue };
            for to in (from + 1..=farthest).take_while(|to| device.able(from, *to)) {
                // Shortages only grow from stage to stage.
                if next[to].is_some_and(|(least, _)| least <= before.0) {
                    continue;
                }
                let Some((least, most)) = device.recomputes(figures.training, from, to) else { continue };
                let choices = [least, most];
                let seat = Seat { last: to == layers, ..case.seats[stage] };
                let need = |recomputed: usize| device.need(seat, (from, to), recomputed);
                let missing = choices.map(need).into_iter().min()?.saturating_sub(device.usable);
                let worst = if missing > before.0 { (missing, case.devices[stage]) } else { *before };
                if next[to].is_none_or(|(least, _)| worst.0 < least) {
                    next[to] = Some(worst);
                }
            }
        }
        best = next;
    }
    best[layers]
}

/// The usable bytes of each memory that a device computes from.
fn memories(figures: &Figures<'_>) -> BTreeMap<MemoryId, u64> {
    figures.devices.iter().map(|device| (device.memory, device.usable)).collect()
}

/// The names of `memories`, those that differ in consecutive numbers from the first to the last.
fn names(figures: &Figures<'_>, memories: &BTreeMap<MemoryId, u64>) -> String {
    let names = memories.keys().map(|memory| figures.context.hardware.memories()[*memory].name.as_str());
    listed(&names.collect::<Vec<_>>())
}

/// Names in backticks, those that differ in consecutive numbers from the first to the last.
///
/// ```
/// assert_eq!(spipe_planner::listed(&["gpu0", "gpu1", "gpu2", "dram0"]), "`gpu0` to `gpu2` and `dram0`");
/// ```
pub fn listed(names: &[&str]) -> String {
    let parts = |name: &str| {
        let word = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        Some((word.to_owned(), name[word.len()..].parse::<u64>().ok()?))
    };
    let next = |name: &str| parts(name).map(|(word, number)| (word, number + 1));
    let mut runs: Vec<(&str, &str, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((_, last, count)) if next(last).is_some() && next(last) == parts(name) => {
                (*last, *count) = (name, *count + 1)
            }
            _ => runs.push((name, name, 1)),
        }
    }
    let run = |(first, last, count): (&str, &str, usize)| match count {
        1 => vec![format!("`{first}`")],
        2 => vec![format!("`{first}`"), format!("`{last}`")],
        _ => vec![format!("`{first}` to `{last}`")],
    };
    let words: Vec<String> = runs.into_iter().flat_map(run).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "the machine".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Options,
        case::Discipline,
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    };
    use spipe_cost::Mode;

    /// What is said of stages of four layers, each with 128 MiB of state and 33 MiB that it saves, on the first so many of two GPUs with
    /// those MiB.
    fn of_gpus(memories: [u64; 2], chains: &[usize]) -> String {
        let layer = LayerText {
            count: 4,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 8 << 20,
            boundary: 1,
            saved: 32,
            workspace: 0,
        };
        let machine = MachineText { gpus: memories.map(|memory| (memory, 20)).to_vec(), root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train));
        let figures = Figures::new(instance.context(), &Options { host_help: false, ..Options::default() });
        let discipline = Discipline { system: System::OneForwardOneBackward, head_start: 0 };
        let gpus: Vec<usize> = (0..figures.devices.len()).filter(|device| !figures.devices[*device].is_cpu).collect();
        let cases: Vec<Case> = chains.iter().map(|count| Case::new(&figures, &gpus[..*count], discipline)).collect();
        closest(&figures, &cases).to_string()
    }

    /// Two layers recomputed have their state, what both save, an input of either of two microbatches and slots of 1 MiB.
    #[test]
    fn the_closest_division_says_what_it_lacks() {
        let said = |lacks: &str, devices: &str| {
            format!("no division of the 4 layers fits: the closest one, over {devices} under `1f1b`, lacks {lacks}")
        };
        assert_eq!(of_gpus([300, 300], &[2, 1]), said("28.0 MiB in `gpu0`", "`gpu0` and `gpu1`"));
        // Three layers there; with two of them 226 MiB would be missing on the other.
        assert_eq!(of_gpus([300, 100], &[2, 1]), said("189.0 MiB in `gpu0`", "`gpu0` and `gpu1`"));
        assert_eq!(of_gpus([300, 300], &[1]), said("344.0 MiB in `gpu0`", "`gpu0`"));
    }

    #[test]
    fn where_no_devices_are_connected_that_is_the_reason() {
        let none = "no chain of connected devices of `random` can run the layers of `random` in order";
        assert_eq!(of_gpus([300, 300], &[]), none);
    }
}
