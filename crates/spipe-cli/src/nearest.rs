//! The nearest plans of a refused export: the engines that take this plan, and the fastest plan that the
//! engine takes for the same model, machine and batch.

use crate::{Failure, options::OPTIONS};
use spipe_base::{Diagnostic, Faults, SimTime};
use spipe_cost::Mode;
use spipe_export::{Beside, Folder, Modules};
use spipe_plan::{Plan, System};
use spipe_planner::Effort;
use spipe_search::{Machine, Request, cores, search, workloads};
use std::time::{Duration, Instant};

/// The time of the search for the nearest plan: a refusal should not let its reader wait.
const LIMIT: Duration = Duration::from_secs(15);

/// The folder of a plan, or the faults for which the engine refuses it.
type Make<'a> = dyn Fn(&Plan, Beside) -> Result<Folder, Faults> + 'a;

/// An engine with the folder that it makes of a plan.
pub struct Engine<'a> {
    /// The name of its export.
    pub name: &'static str,
    /// The classes of the layers.
    pub modules: Modules,
    /// The systems that it takes for some model.
    pub systems: &'static [System],
    /// The folder of a plan.
    pub make: Box<Make<'a>>,
}

/// The systems of PyTorch's pipelines and of the interpreter of programs.
pub const PIPELINES: [System; 12] = [
    System::OneForwardOneBackward,
    System::ZeroOffload,
    System::GpuOnly,
    System::Hybrid,
    System::Interleaved,
    System::ZbH1,
    System::VHalf,
    System::GisH,
    System::Superpipeline,
    System::Spipe,
    System::Mobius,
    System::PoH,
];
/// The systems of FSDP2.
pub const SHARDED: [System; 2] = [System::Fsdp, System::ZeroInfinity];
/// The systems of DeepSpeed.
pub const ZERO: [System; 3] = [System::ZeroOffload, System::Fsdp, System::ZeroInfinity];

impl Engine<'_> {
    fn takes(&self, plan: &Plan) -> bool {
        (self.make)(plan, Beside { modules: self.modules, ..Beside::default() }).is_ok()
    }
}

/// The faults of an engine that refuses a plan, with the nearest plans as their hint. Hints at other
/// systems and engines, which might refuse too, are left out where better ones are known.
pub fn refusal(faults: Faults, engine: &Engine<'_>, others: &[Engine<'_>], plan: &Plan) -> Failure {
    let about_systems = |fault: &Diagnostic| {
        let says = |words: &str| fault.hint.as_deref().is_some_and(|hint| hint.contains(words));
        ["option system", "nearest", "command export"].into_iter().any(says)
    };
    if !faults.iter().any(about_systems) {
        return faults.into();
    }
    let takers: Vec<String> = others
        .iter()
        .filter(|other| other.name != engine.name && other.takes(plan))
        .map(|other| format!("`spipe export {}`", other.name))
        .collect();
    let mut hints = Vec::new();
    if !takers.is_empty() {
        hints.push(format!("{} takes this plan", takers.join(" or ")));
    }
    match fastest(engine, plan) {
        Some((system, time)) => hints.push(format!(
            "the fastest plan found for `spipe export {}` is one with `--system {system}`: {time} per step",
            engine.name
        )),
        None if takers.is_empty() => return faults.into(),
        None => {}
    }
    let hint = hints.join("; ");
    let last = faults.iter().filter(|fault| about_systems(fault)).count();
    let (mut told, mut seen) = (Faults::new(), 0);
    for fault in faults.iter() {
        let mut fault = fault.clone();
        if about_systems(&fault) {
            seen += 1;
            fault.hint = (seen == last).then(|| hint.clone());
        }
        told.push(fault);
    }
    told.into()
}

/// The system of the fastest plan that the engine takes, among quick searches, and the time of its step.
fn fastest(engine: &Engine<'_>, plan: &Plan) -> Option<(System, SimTime)> {
    let context = plan.context();
    let workload = *context.workload();
    if workload.mode != Mode::Train {
        return None;
    }
    let start = Instant::now();
    let mut best: Option<(SimTime, System)> = None;
    for system in engine.systems {
        let left = LIMIT.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        let Some(found) = planned(plan, *system, left) else { continue };
        if engine.takes(&found.plan) {
            let key = (found.solution.simulated, *system);
            best = Some(best.map_or(key, |other| if key.0 < other.0 { key } else { other }));
        }
    }
    best.map(|(time, system)| (system, time))
}

/// A plan of the same model, machine and batch with this system, if there is one.
fn planned(plan: &Plan, system: System, left: Duration) -> Option<spipe_search::Found> {
    let context = plan.context();
    let workload = context.cost.whole_workload();
    let machine = Machine::new(context.hardware, None, workload.mode).ok()?;
    let sizes = workloads(workload, workload.global_batch(), "auto").ok()?;
    let request = Request {
        systems: vec![system],
        time_limit: left,
        effort: Some(Effort::Low),
        threads: cores(),
        spelling: OPTIONS,
        ..Request::new(context.model.clone(), machine, sizes)
    };
    search(&request).ok()
}
