//! The stages and memories of a plan. Equal stages share a row.
//!
//! | | |
//! |---|---|
//! | `s1..s23` | consecutive stages |
//! | `s1, s5 … s29` | every fourth stage |
//! | `23 × 1` | 23 stages of one layer each |
//! | `gpu0..gpu63` | equal stages of consecutive devices, or equal memories |
//!
//! Parameters and bytes are those of all stages of a row on one device, and of each stage of a row of several devices.

use crate::tables::{Named, table};
use spipe_base::{
    DeviceId, LayerId, StageId,
    readable::{count, follows, percent, range, ranges},
};
use spipe_plan::{Context, Footprint, GradientsLeave, Knob, Plan, Stage, StageFootprint, Team, Weights, footprint};
use spipe_search::questions::Least;

/// The least number of stages that share a row although they are not consecutive: two are clearer
/// as two rows.
const FEWEST: usize = 3;

/// The headline, a row for each kind of stage, and a row for each memory, with the least size for
/// some plan, or what was found of it.
pub fn human(plan: &Plan, least: &[Least]) -> String {
    let context = plan.context();
    let placement = plan.placement();
    let workload = context.cost.whole_workload();
    let needs = footprint(&context, placement);
    let sharing = placement.replicas();
    let sharing = if placement.shards_parameters() { sharing.as_slice() } else { &[] };
    let stages = stages((&context, sharing), ("s", placement.stages.as_slice()), (&needs, 0));
    let apart = if placement.backward.is_empty() {
        String::new()
    } else {
        let count = placement.stages.len();
        format!(
            "\nThe backward has stages of its own:\n\n{}\n",
            self::stages((&context, sharing), ("b", placement.backward.as_slice()), (&needs, count))
        )
    };
    let mut headings = vec!["memory", "filled", "usable", "share"];
    headings.extend((!least.is_empty()).then_some(["least size", "iteration then"]).into_iter().flatten());
    let right: Vec<usize> = (1..headings.len()).collect();
    let mut memories = table(&headings, &right);
    memories.add_folded(plan.peaks().into_iter().map(|(id, needed)| {
        let memory = &context.hardware.memories()[id];
        let usable = memory.usable();
        let filled = percent(needed.as_f64() / usable.as_f64().max(1.0));
        let mut cells = vec![needed.to_string(), usable.to_string(), filled];
        if let Some(least) = least.iter().find(|least| least.memory == id) {
            // Like the other columns without the reserved part, and never above what the plan fills.
            let size = least.found.saturating_sub(least.reserved).min(needed);
            cells.push(if least.capacity.is_some() { size.to_string() } else { format!("at most {size}") });
            cells.push(format!("{:.3}", least.iteration));
        }
        Named { name: memory.name.clone(), cells }
    }));
    let head_start = match Knob::HeadStart.of(placement) {
        None | Some(0) => String::new(),
        Some(more) => format!(" with a head start of {more}"),
    };
    let urgent = if placement.update.is_urgent() { ", urgent steps first" } else { "" };
    let (by, part) = match sharing {
        [first, _, ..] => {
            let (count, first) = (sharing.len(), &context.hardware.devices()[*first].name);
            let groups = placement.shard_groups();
            let size = groups.size();
            let groups = if groups.count() > 1 { format!(" in groups of {size}") } else { String::new() };
            (
                format!(" shared by {count} GPUs{groups}"),
                format!("\nEach GPU has a part of every stage; state and host are those of `{first}`.\n"),
            )
        }
        _ => on_mesh(&context),
    };
    let resident = Knob::Resident.of(placement).filter(|_| !sharing.is_empty());
    let resident = resident.map_or_else(String::new, |resident| format!(", {resident} stages resident"));
    let leave = if placement.gradients_leave == GradientsLeave::EachMicrobatch {
        ", gradients leave with each microbatch"
    } else {
        ""
    };
    let microbatches = if workload.microbatches == 1 { "microbatch" } else { "microbatches" };
    format!(
        "{} on {}: system {}{by}{head_start}{resident}{urgent}{leave}, {} {microbatches} of {} × {} tokens, {}, runtime {}\n\n{stages}\n{part}{apart}\n{memories}\n",
        context.model.name(),
        context.hardware.name(),
        placement.system,
        workload.microbatches,
        workload.microbatch,
        workload.seq_len,
        workload.precision,
        context.hardware.runtime().name(),
    )
}

/// The mesh in the headline, and what rows then show.
fn on_mesh(context: &Context<'_>) -> (String, String) {
    let mesh = context.mesh();
    if mesh.is_single() {
        return Default::default();
    }
    let teams = match (mesh.members(), mesh.context, mesh.sequence) {
        (1, ..) => String::new(),
        (members, 1, false) => format!(" on teams of {members} GPUs"),
        (members, 1, true) => format!(" on teams of {members} GPUs, which divide sequences too"),
        (members, parts, false) => format!(" on teams of {members} GPUs with {parts} parts of each sequence"),
        (members, parts, true) => {
            format!(" on teams of {members} GPUs with {parts} parts of each sequence, which divide those too")
        }
    };
    let experts = match mesh.expert {
        1 => String::new(),
        parts => format!(", experts divided among {parts} GPUs"),
    };
    let replicas = match (mesh.data(), mesh.state_parts()) {
        (1, 1) => String::new(),
        (1, parts) => format!(", the optimizer in {parts} parts"),
        (data, 1) => format!(", {data} replicas"),
        (data, _) => format!(", {data} replicas with a part of the optimizer each"),
    };
    let name = |device: &DeviceId| context.hardware.devices()[*device].name.as_str();
    let row = |team: &Team| ranges(team.iter().map(name)).join("+");
    let teams_of = |teams: &Vec<Team>| teams.iter().map(row).collect::<Vec<_>>().join(", ");
    let shown = mesh.replicas.first().map(teams_of).unwrap_or_default();
    (
        format!("{teams}{replicas}{experts}"),
        format!(
            "\nStages are on the teams of the first replica ({shown}); rows name their first GPUs, and all members of all replicas hold as much.\n"
        ),
    )
}

/// The properties that stages of one row share.
#[derive(Clone, PartialEq, Eq)]
struct Kind {
    stage: Stage,
    count: usize,
    parameters: u64,
    trained: bool,
    need: StageFootprint,
}

/// The number of devices that share all stages from which on they are counted, not named.
const MOST_NAMED: usize = 16;

/// A row for each run of equal stages. `first` is the number of the first stage in the footprint,
/// `sharing` the devices that share all stages.
fn stages(
    (context, sharing): (&Context<'_>, &[DeviceId]),
    (letter, stages): (&str, &[Stage]),
    (needs, first): (&Footprint, usize),
) -> String {
    let kinds: Vec<Kind> = stages
        .iter()
        .enumerate()
        .map(|(index, stage)| {
            let memory = context.hardware.devices()[stage.lead()].memory;
            let need = needs.get(&memory).and_then(|stages| stages.get(&StageId::from(first + index)));
            Kind {
                // Equal stages differ in their layers alone, not in their number.
                stage: Stage { layers: stages[0].layers, ..*stage },
                count: stage.layers.count(),
                parameters: stage.layers.iter().map(|layer| context.cost.parameters(layer)).sum(),
                trained: context.trains(stage.layers),
                need: need.copied().unwrap_or_default(),
            }
        })
        .collect();
    let stepped = kinds.iter().any(|kind| kind.trained && context.steps(&kind.stage) != kind.stage.lead());
    let mut headings = vec!["stage", "device", "layers", "recompute"];
    headings.extend(stepped.then_some("optimizer on"));
    headings.extend(["weights", "saved"]);
    let right: Vec<usize> = (headings.len()..headings.len() + 3).collect();
    headings.extend(["state", "other", "memory"]);
    let mut rows = table(&headings, &right);
    let runs = across_devices(runs(&kinds, stages), &kinds, context);
    for run in &runs {
        let kind = &kinds[run[0]];
        let device = &context.hardware.devices()[kind.stage.lead()];
        let memory = |id| context.hardware.memories()[id].name.clone();
        let times = if has_devices(run, &kinds) { 1 } else { run.len() as u64 };
        let last = sharing.last().copied().unwrap_or(kinds[run[run.len() - 1]].stage.lead());
        // Names of many devices would not fit beside the figures; the answer's first line has their number, too.
        let here = match sharing.len() {
            many @ MOST_NAMED.. => format!("{many} GPUs"),
            _ => range(&device.name, &context.hardware.devices()[last].name),
        };
        let mut row = vec![
            listed(run, |index| format!("{letter}{index}")),
            if device.emulated { format!("{here} (emulated)") } else { here.clone() },
            layers(run, stages),
            recomputed(run, stages),
        ];
        row.extend(stepped.then(|| match context.steps(&kind.stage) {
            _ if !kind.trained => "not trained".into(),
            own if own == kind.stage.lead() => here,
            socket => {
                let name = &context.hardware.devices()[socket].name;
                kind.stage.state.map_or_else(|| name.clone(), |drive| format!("{name}, state on {}", memory(drive)))
            }
        }));
        let parameters = count((kind.parameters * times) as f64);
        let of_each = if times == 1 { String::new() } else { format!("{times} × ") };
        let activations = format!("{of_each}{} × {}", kind.need.in_flight, kind.need.per_microbatch);
        row.extend([
            match kind.stage.weights {
                Weights::Resident => parameters,
                Weights::Streamed(home) => format!("{parameters} from {}", memory(home)),
            },
            match kind.stage.offload {
                None => activations,
                Some(host) => format!("{activations} to {}", memory(host)),
            },
            (kind.need.state * times).to_string(),
            ((kind.need.slots + kind.need.transient) * times).to_string(),
            (kind.need.total() * times).to_string(),
        ]);
        rows.add_row(row);
    }
    let of_each = if runs.iter().any(|run| has_devices(run, &kinds)) { OF_EACH } else { "" };
    format!("{rows}{of_each}")
}

/// The remark under tables with a row of several devices.
const OF_EACH: &str = "\n\nA row of several devices has the figures of each.";

/// Whether the stages of a run are on several devices.
fn has_devices(run: &[usize], kinds: &[Kind]) -> bool {
    run.iter().any(|index| kinds[*index].stage.team != kinds[run[0]].stage.team)
}

/// Joins the runs of one stage whose stages differ in their devices alone, which are consecutive.
fn across_devices(runs: Vec<Vec<usize>>, kinds: &[Kind], context: &Context<'_>) -> Vec<Vec<usize>> {
    let device = |index: usize| &context.hardware.devices()[kinds[index].stage.lead()];
    let steps = |index: usize| {
        let stage = &kinds[index].stage;
        Some(context.steps(stage)).filter(|steps| *steps != stage.lead())
    };
    let alike = |one: usize, other: usize| {
        let moved = Kind { stage: Stage { team: kinds[one].stage.team, ..kinds[other].stage }, ..kinds[other].clone() };
        moved == kinds[one]
            && follows(&device(one).name, &device(other).name)
            && device(one).emulated == device(other).emulated
            && steps(one) == steps(other)
    };
    let mut joined: Vec<Vec<usize>> = Vec::new();
    for run in runs {
        match (joined.last_mut(), run.as_slice()) {
            (Some(before), [next])
                if (before.len() == 1 || has_devices(before, kinds))
                    && before.last().is_some_and(|last| last + 1 == *next && alike(*last, *next)) =>
            {
                before.push(*next);
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// Runs of equal stages, by index: consecutive ones, or stages at equal distances whose layers are
/// at equal distances too. Runs are in the order of their first stages.
fn runs(kinds: &[Kind], stages: &[Stage]) -> Vec<Vec<usize>> {
    let mut free: Vec<bool> = vec![true; kinds.len()];
    let mut runs = Vec::new();
    let layer = |index: usize| stages[index].layers.first().index();
    for start in 0..kinds.len() {
        if !free[start] {
            continue;
        }
        let alike = |index: &usize| free[*index] && kinds[*index] == kinds[start];
        let next = (start + 1..kinds.len()).find(alike);
        let mut run: Vec<usize> = next.map_or_else(Vec::new, |next| {
            let (step, layers) = (next - start, layer(next) - layer(start));
            let even = |index: &usize| layer(*index) - layer(start) == (*index - start) / step * layers;
            (start..kinds.len()).step_by(step).take_while(|index| alike(index) && even(index)).collect()
        });
        if run.len() < FEWEST && run.get(1) != Some(&(start + 1)) {
            run = vec![start];
        }
        for index in &run {
            free[*index] = false;
        }
        runs.push(run);
    }
    runs
}

/// `s4`, `s1..s23`, `s1, s5 … s29`.
fn listed(run: &[usize], name: impl Fn(usize) -> String) -> String {
    match run {
        [] => String::new(),
        [one] => name(*one),
        [first, second, ..] if second - first == 1 => format!("{}..{}", name(*first), name(run[run.len() - 1])),
        [first, second, ..] => format!("{}, {} … {}", name(*first), name(*second), name(run[run.len() - 1])),
    }
}

/// The layers of a run and their number: `1..23 (23 × 1)`; `none` of stages without layers.
fn layers(run: &[usize], stages: &[Stage]) -> String {
    let of = |index: usize| stages[index].layers;
    let (first, last) = (of(run[0]), of(run[run.len() - 1]));
    if first.is_empty() {
        return "none".into();
    }
    let follow = run.windows(2).all(|pair| pair[1] - pair[0] == 1);
    let together = if follow {
        shown(first.first(), last.last())
    } else {
        listed(run, |index| shown(of(index).first(), of(index).last()))
    };
    match run {
        [_] => format!("{together} ({})", first.count()),
        _ => format!("{together} ({} × {})", run.len(), first.count()),
    }
}

/// `3`, or `3..5`.
fn shown(first: LayerId, last: LayerId) -> String {
    if first == last { first.index().to_string() } else { format!("{}..{}", first.index(), last.index()) }
}

/// The recomputed layers of a run.
fn recomputed(run: &[usize], stages: &[Stage]) -> String {
    let stage = &stages[run[0]];
    match stage.recomputed_layers() {
        None => "none".into(),
        Some(_) if stage.recomputed == stage.layers.count() => "all".into(),
        Some(layers) if run.len() == 1 => layers.to_string(),
        Some(layers) => format!("the first {} of each", layers.count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::LayerRange;

    fn stages(devices: &[usize], layers_of_each: usize) -> (Vec<Kind>, Vec<Stage>) {
        let stage = |(index, device): (usize, &usize)| {
            let first = index * layers_of_each;
            let layers = LayerRange::new(first.into(), (first + layers_of_each - 1).into()).unwrap();
            Stage::new((*device).into(), layers)
        };
        let stages: Vec<Stage> = devices.iter().enumerate().map(stage).collect();
        let kind = |stage: &Stage| Kind {
            stage: Stage { layers: stages[0].layers, ..*stage },
            count: stage.layers.count(),
            parameters: 1,
            trained: true,
            need: StageFootprint::default(),
        };
        (stages.iter().map(kind).collect(), stages)
    }

    fn rows(devices: &[usize], layers_of_each: usize) -> Vec<(String, String)> {
        let (kinds, stages) = stages(devices, layers_of_each);
        let runs = runs(&kinds, &stages);
        runs.iter().map(|run| (listed(run, |index| format!("s{index}")), layers(run, &stages))).collect()
    }

    #[test]
    fn alike_stages_share_a_row() {
        let row = |stages: &str, layers: &str| (stages.to_owned(), layers.to_owned());
        assert_eq!(rows(&[0], 1), [row("s0", "0 (1)")]);
        assert_eq!(rows(&[0, 0, 0, 1], 1), [row("s0..s2", "0..2 (3 × 1)"), row("s3", "3 (1)")]);
        assert_eq!(
            rows(&[0, 1, 0, 1, 0, 1], 2),
            [row("s0, s2 … s4", "0..1, 4..5 … 8..9 (3 × 2)"), row("s1, s3 … s5", "2..3, 6..7 … 10..11 (3 × 2)")]
        );
        assert_eq!(
            rows(&[0, 1, 0], 1),
            [row("s0", "0 (1)"), row("s1", "1 (1)"), row("s2", "2 (1)")],
            "two are not a row"
        );
    }

    #[test]
    fn every_stage_is_in_one_row() {
        for number in 0..3_usize.pow(7) {
            let devices: Vec<usize> = (0..7).map(|place| number / 3_usize.pow(place) % 3).collect();
            let (kinds, stages) = stages(&devices, 1);
            let mut all: Vec<usize> = runs(&kinds, &stages).concat();
            all.sort_unstable();
            assert_eq!(all, (0..7).collect::<Vec<_>>());
        }
    }
}
