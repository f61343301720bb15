//! Configurations that an article claims: whether they fit in each memory, and their predicted
//! speed; for a claim that does not fit, the fastest of the listed systems that does.

use crate::{
    bench::{Bench, Judged, Setting, gib},
    reproduction::{Cell, Reproduction},
    rows::{Rows, above_zero},
    source::{Library, Source},
};
use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, SimTime};
use spipe_plan::{Placement, Stage, System};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Claim {
    name: String,
    setting: Setting,
    /// A system's name.
    system: String,
    /// Stages in model order; without them, the best candidate of the system is taken.
    #[serde(default)]
    stages: Vec<Placed>,
    /// Systems to try if the claim does not fit.
    #[serde(default)]
    instead: Vec<String>,
    published: PublishedRate,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Placed {
    device: String,
    /// Such as `1..20` or `block.0..block.19`.
    layers: String,
    /// Whether all these layers are recomputed in the backward.
    #[serde(default)]
    recompute: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PublishedRate {
    tokens_per_second: f64,
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Claim>::read(source)?;
    let claims = rows.each(|row| {
        above_zero("speed", row.published.tokens_per_second)?;
        cells(row, source.library)
    })?;
    let fit = claims.iter().filter(|claim| claim.fits).count();
    let mut made = Reproduction::new(
        &rows.source,
        "GiB and tokens per second; errors are relative. Nothing is fitted.",
        claims.iter().flat_map(|claim| claim.cells.clone()).collect(),
    );
    made.findings.push(format!("{fit} of {} configurations fit as they are claimed.", claims.len()));
    made.findings.extend(claims.into_iter().map(|claim| claim.verdict));
    Ok(made)
}

struct Judgement {
    fits: bool,
    cells: Vec<Cell>,
    verdict: String,
}

fn cells(claim: &Claim, library: Library<'_>) -> Result<Judgement, Faults> {
    let bench = Bench::new(&claim.setting, library)?;
    let system = system(&claim.system)?;
    let judged = if claim.stages.is_empty() {
        bench.best(system).ok_or_else(|| {
            let message = format!("nothing can be tried for `{system}` on `{}`", claim.setting.hardware);
            Diagnostic::error(message).hint("give `stages`, or another machine")
        })?
    } else {
        bench.judge(placement(claim, &bench, system)?)
    };
    let mut cells = Vec::new();
    let mut lacks = Vec::new();
    for need in &judged.needs {
        let (needed, usable) = (gib(need.needed), gib(need.usable));
        let verdict = if needed <= usable { "fits" } else { "does not fit" };
        let column = format!("{}, GiB needed of {usable:.1}", need.memory);
        let cell = Cell::alone(&claim.name, column, needed).note(Some(verdict.into()));
        cells.push(cell.at("", &claim.name, Some(usable)));
        if needed > usable {
            lacks.push(format!("`{}` would need {needed:.1} GiB of {usable:.1}", need.memory));
        }
    }
    let published = claim.published.tokens_per_second;
    let speed = |iteration: SimTime| bench.tokens() as f64 * 1e3 / iteration.to_ms();
    let name = &claim.name;
    let verdict = if let Some(iteration) = judged.iteration {
        let ours = speed(iteration);
        cells.push(Cell::relative(name, "tokens/s", published, ours));
        format!("{name}: fits, and reaches {ours:.0} tokens/s where {published:.0} are claimed.")
    } else {
        cells.push(Cell::refused(name, "tokens/s", published, "does not fit"));
        let others: Vec<Judged> = claim
            .instead
            .iter()
            .map(|other| self::system(other).map(|other| bench.best(other)))
            .collect::<Result<Vec<_>, Faults>>()?
            .into_iter()
            .flatten()
            .filter(|other| other.iteration.is_some())
            .collect();
        let fastest = others.into_iter().min_by_key(|other| other.iteration);
        let instead = fastest.and_then(|other| Some((other.placement.system, speed(other.iteration?))));
        if let Some((system, ours)) = instead {
            cells.push(Cell::alone(name, format!("tokens/s of {system}, which fits"), ours));
        }
        let lacks = if lacks.is_empty() { "no order of its work fits".into() } else { lacks.join(", ") };
        let instead = instead.map_or_else(
            || "nothing that was tried fits".into(),
            |(system, ours)| format!("the fastest tried that fits is `{system}`, at {ours:.0} tokens/s"),
        );
        format!("{name}: does not fit ({lacks}) where {published:.0} tokens/s are claimed; {instead}.")
    };
    Ok(Judgement { fits: judged.iteration.is_some(), cells, verdict })
}

fn system(name: &str) -> Result<System, Faults> {
    name.parse().map_err(|message: String| Diagnostic::error(message).hint("see `spipe plan --help`").into())
}

/// The stages that a claim gives.
fn placement(claim: &Claim, bench: &Bench, system: System) -> Result<Placement, Faults> {
    let context = bench.context();
    let mut faults = Faults::new();
    let mut stages = Vec::new();
    for stage in &claim.stages {
        let device = context.hardware.device(&stage.device);
        let layers = context.model.layer_range(&stage.layers);
        if device.is_none() {
            let names: Vec<&str> = context.hardware.devices().iter().map(|device| device.name.as_str()).collect();
            let message = format!("there is no device `{}` in `{}`", stage.device, context.hardware.name());
            faults.push(Diagnostic::error(message).hint(format!("use one of {}", names.join(", "))));
        }
        if layers.is_none() {
            let message = format!("`{}` names no layers of `{}`", stage.layers, context.model.name());
            let last = context.model.layers().len().saturating_sub(1);
            faults.push(Diagnostic::error(message).hint(format!("write numbers from 0 to {last}, or names")));
        }
        let (Some(device), Some(layers)) = (device, layers) else { continue };
        let stage_of = Stage::new(device, layers);
        stages.push(if stage.recompute { stage_of.with_everything_recomputed() } else { stage_of });
    }
    faults.or(Placement::new(system, stages))
}
