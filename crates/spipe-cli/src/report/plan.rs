//! A plan: its stages, the systems that were considered, and how good it is.

use super::{sensitivity, stages};
use crate::{engines, tables::table};
use spipe_base::{
    SimTime,
    readable::{per_second, percent, ranges},
};
use spipe_cost::Workload;
use spipe_plan::{ExpectedError, Idle, Layout, OutcomeStatus, Plan, System};
use spipe_planner::{Considered, Effort, LARGEST_HEAD_START, Solution};
use spipe_search::{Ended, Found, questions::Least};

/// The file of a plan that is not written, in commands.
pub const UNWRITTEN: &str = "plan.json";

/// The plan, its rivals and its proof. `front` is the text of the Pareto front, `least` the least
/// memory for some plan, `output` the file that the plan was written to.
pub fn human(found: &Found, (front, least): (&str, &[Least]), output: Option<&str>) -> String {
    let gains = found.plan.outcome().map_or(&[][..], |outcome| &outcome.sensitivity);
    let gains = if gains.is_empty() { String::new() } else { format!("\n{}\n", sensitivity::human(gains)) };
    let written = output.map(|path| format!("Plan written to {path}; see it with `spipe simulate {path}`.\n"));
    let layout = Layout::of(&found.plan.context(), found.plan.placement());
    let layout = layout.map(|layout| format!("Megatron's `--pipeline-model-parallel-layout`: {layout}\n"));
    format!(
        "{}\n{}{}{}{front}{}\n{}{}{gains}{}{}\n",
        stages::human(&found.plan, least),
        idle(&found.plan),
        layout.unwrap_or_default(),
        considered(&found.solution),
        proof(found),
        engines::sentence(&found.plan, output.unwrap_or(UNWRITTEN)),
        found.plan.outcome().and_then(|outcome| outcome.expected_error.as_ref()).map(error).unwrap_or_default(),
        written.unwrap_or_default(),
        ended(found.ended),
    )
}

/// The devices that the plan leaves without work, and why, in one line.
fn idle(plan: &Plan) -> String {
    let devices = plan.context().hardware.devices();
    let with_reason = |idle: Idle| {
        let names = ranges(idle.devices.into_iter().map(|id| devices[id].name.as_str()));
        format!("{} ({})", names.join(", "), idle.why)
    };
    let idle: Vec<String> = plan.idle().into_iter().map(with_reason).collect();
    if idle.is_empty() { String::new() } else { format!("idle: {}\n", idle.join("; ")) }
}

/// The error that measured runs of the plan's class had.
fn error(known: &ExpectedError) -> String {
    let ExpectedError { class, runs, mean, largest } = known;
    if *runs == 0 {
        return format!("The machine's constants are fitted, on runs of other classes than {class}.\n");
    }
    let which = if *runs == 1 { "run" } else { "runs" };
    let (mean, largest) = (percent(*mean), percent(*largest));
    format!(
        "The machine's constants are fitted: {runs} measured {which} of class {class} differed from predictions by {mean} on average, \
         {largest} at most.\n"
    )
}

/// The iteration, and the bound that holds for all plans.
fn proof(found: &Found) -> String {
    let (solution, placement) = (&found.solution, found.plan.placement());
    let rate = found.plan.context().cost.whole_workload().tokens() as f64 * 1e3
        / solution.simulated.to_ms().max(f64::MIN_POSITIVE);
    let fastest = found.fastest.map_or_else(String::new, |fastest| {
        format!(" (the fastest plan takes {fastest:.3}; this one has fewer runs of layers with different choices)")
    });
    let counted = counted(found.plan.context().workload());
    let iteration =
        format!("Iteration {:.3} simulated{fastest}, {} tokens/s{counted}", solution.simulated, per_second(rate));
    let plural = if solution.examined == 1 { "" } else { "s" };
    let candidates = format!("{} candidate{plural}", solution.examined);
    let least = solution.considered.iter().filter_map(|known| known.bound).min();
    if solution.bound == SimTime::ZERO {
        let bound = match least.filter(|least| (SimTime::ns(1)..=solution.simulated).contains(least)) {
            Some(least) => format!(
                "Lower bound of any plan with microbatches of this size: {least:.3}; the search stopped before it knew one for \
                 the others."
            ),
            None => "There is no lower bound for plans such as the given one.".into(),
        };
        return format!("{iteration}; {candidates} simulated. {bound}");
    }
    let elsewhere =
        if least.is_some_and(|least| solution.bound < least) { " (at another size of microbatch)" } else { "" };
    // Only the integer program bounds placements with any number of stages on a device.
    let which = match found.plan.outcome().map(|outcome| outcome.planner.as_str()) {
        Some("ilp" | "generated") | None => "any plan",
        Some("mobius-mip") => "any plan of system `mobius`",
        Some("layout") => "any plan with these stages",
        Some(_) => "any plan with one stage on each device",
    };
    let may_be_hybrid = solution.considered.iter().any(|known| known.system == System::Hybrid && known.bound.is_some());
    let hybrids = if may_be_hybrid || placement.system == System::Hybrid {
        format!(" Head starts of hybrids are at most {LARGEST_HEAD_START}.")
    } else {
        String::new()
    };
    format!(
        "{iteration}; {candidates} simulated. Lower bound of {which}: {:.3}{elsewhere}, so at most {} could be gained.{hybrids}",
        solution.bound,
        percent(solution.gap.max(0.0)),
    )
}

/// The share of the computed tokens that count, where some are padding.
pub fn counted(workload: &Workload) -> String {
    let share = workload.counted_share();
    if share < 1.0 { format!(" that count ({} of those computed)", percent(share)) } else { String::new() }
}

/// Why the search has ended.
fn ended(ended: Ended) -> String {
    match ended {
        Ended::Limit(limit) => format!("The search stopped at the limit of {} s.", limit.as_secs_f64()),
        Ended::Effort(Effort::Low) => "The search ended: the steps of `--effort low` are done.".into(),
        Ended::Effort(Effort::High) => "The search ended: the steps of `--effort high` are done.".into(),
        Ended::Gap(gap) => format!("The search ended: no plan can be faster by more than {}.", percent(gap)),
        Ended::Exhausted => "The search ended: all that it tries was tried.".into(),
        Ended::Interrupted => "The search was interrupted.".into(),
    }
}

/// A row for each system with a lower bound, where several were considered, and the names of the
/// others.
fn considered(solution: &Solution) -> String {
    if solution.considered.len() < 2 {
        return String::new();
    }
    let mut rows = table(&["system", "bound", "best simulated", "candidates"], &[1, 2, 3]);
    let mut all: Vec<_> = solution.considered.iter().collect();
    all.sort_by_key(|known| (known.simulated.unwrap_or(SimTime::MAX), known.bound.unwrap_or(SimTime::MAX)));
    let (some, none): (Vec<_>, Vec<_>) = all.into_iter().partition(|known| known.bound.is_some());
    let (shown, others) = if some.len() > MOST_ROWS { some.split_at(FASTEST_ROWS) } else { some.split_at(some.len()) };
    for known in shown {
        let bound = format!("{:.3}", known.bound.unwrap_or_default());
        rows.add_row(vec![known.system.to_string(), bound, simulated(known, solution), known.examined.to_string()]);
    }
    let none: Vec<String> = none.iter().map(|known| known.system.to_string()).collect();
    let none = if none.is_empty() { String::new() } else { format!("Nothing fits: {}.\n", none.join(", ")) };
    format!("{rows}\n{}\n{none}\n", also(others, solution))
}

/// The most systems of which each has a row.
const MOST_ROWS: usize = 8;

/// The rows where there are more systems, so that an answer stays on a page.
const FASTEST_ROWS: usize = 6;

/// The best simulated iteration of a system, or why there is none.
fn simulated(known: &Considered, solution: &Solution) -> String {
    match known.simulated {
        Some(time) => format!("{time:.3}"),
        None if known.skipped && known.bound.unwrap_or_default() >= solution.simulated => {
            "not tried: bound too high".into()
        }
        None if known.skipped => "not tried: gain below the gap".into(),
        None if known.examined == 0 && solution.status == OutcomeStatus::Stopped => "not tried: no time left".into(),
        None if known.examined == 0 => "not tried: slower by its estimate".into(),
        None if solution.status == OutcomeStatus::Stopped => "none found in time".into(),
        None => "none found that fits".into(),
    }
}

/// The systems without a row in one line, those of equal results together.
fn also(others: &[&Considered], solution: &Solution) -> String {
    let of = |group: &[&Considered]| {
        let names: Vec<String> = group.iter().map(|known| known.system.to_string()).collect();
        format!("{} ({})", names.join(", "), simulated(group[0], solution))
    };
    let alike = |one: &&Considered, other: &&Considered| simulated(one, solution) == simulated(other, solution);
    let groups: Vec<String> = others.chunk_by(alike).map(of).collect();
    if groups.is_empty() { String::new() } else { format!("Also: {}.\n", groups.join(", ")) }
}
