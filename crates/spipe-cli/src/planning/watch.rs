//! The record of a running search: its incumbents, the easiest plans to read among the fast ones,
//! and a bar on a terminal.

use super::{Evaluator, gap};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::{SimTime, readable::percent};
use spipe_cost::Workload;
use spipe_plan::{Incumbent, Placement};
use spipe_planner::runs_of_layers;
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The interval at which the bar shows the time, in ms.
const TICK: u64 = 100;

/// A plan that was simulated: its iteration, workload and placement.
pub type Seen = (SimTime, Workload, Placement);

/// Records what a search finds.
pub struct Watch {
    start: Instant,
    record: Mutex<Record>,
    bar: ProgressBar,
    limit: Option<Duration>,
}

#[derive(Default)]
struct Record {
    incumbents: Vec<Incumbent>,
    best: Option<SimTime>,
    bound: SimTime,
    /// By number of runs of layers, the fastest plan.
    plans: BTreeMap<usize, Seen>,
}

impl Watch {
    /// Starts a record, with a bar if stderr is a terminal. `limit` is the time limit of the
    /// search, if it has one.
    pub fn start(limit: Option<Duration>) -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{spinner} planning for {elapsed}{msg}");
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        if shown {
            bar.enable_steady_tick(Duration::from_millis(TICK));
        }
        let watch = Self { start: Instant::now(), record: Mutex::new(Record::default()), bar, limit };
        watch.show(&Record::default());
        watch
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes a simulated plan in.
    pub fn plan(&self, workload: &Workload, placement: &Placement, simulated: SimTime) {
        let mut record = self.record();
        if record.best.is_none_or(|best| simulated < best) {
            record.best = Some(simulated);
            let (ms, bound_ms) = (self.elapsed().as_secs_f64() * 1e3, record.bound.min(simulated).to_ms());
            record.incumbents.push(Incumbent { ms, iteration_ms: simulated.to_ms(), bound_ms });
            self.show(&record);
        }
        let runs = runs_of_layers(placement);
        let known = record.plans.get(&runs);
        // Threads report in any order: of equally fast plans, one is kept by its text.
        let replaces = known.is_none_or(|(time, of, known)| {
            let key = |workload: &Workload, placement: &Placement| (workload.microbatch, format!("{placement:?}"));
            simulated < *time || (simulated == *time && key(workload, placement) < key(of, known))
        });
        if replaces {
            record.plans.insert(runs, (simulated, *workload, placement.clone()));
        }
    }

    /// Takes in that no plan is faster than `bound`.
    pub fn bound(&self, bound: SimTime) {
        let mut record = self.record();
        record.bound = record.bound.max(bound);
        self.show(&record);
    }

    /// The incumbents so far.
    pub fn incumbents(&self) -> Vec<Incumbent> {
        self.record().incumbents.clone()
    }

    /// The plans that take at most `most`, with the fewest runs of layers first.
    pub fn plans(&self, most: SimTime) -> Vec<Seen> {
        self.record().plans.values().filter(|(time, _, _)| *time <= most).cloned().collect()
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bar's words: the limit, the best plan, the bound and the gap.
    fn show(&self, record: &Record) {
        let limit = self.limit.map_or_else(String::new, |limit| format!(" of {} s", limit.as_secs_f64()));
        let best = match record.best {
            None => ", no plan yet".to_owned(),
            Some(best) if record.bound == SimTime::ZERO => format!(", best {best:.3}"),
            Some(best) => {
                let bound = record.bound.min(best);
                format!(", best {best:.3}, bound {bound:.3}, gap {}", percent(gap(best, bound)))
            }
        };
        self.bar.set_message(limit + &best);
    }
}

/// An evaluator whose results are recorded.
pub struct Watched<'a> {
    pub evaluator: Evaluator<'a>,
    pub watch: Option<&'a Watch>,
    pub workload: Workload,
}

impl Watched<'_> {
    fn seen(&self, placement: &Placement, simulated: Option<SimTime>) -> Option<SimTime> {
        if let Some((watch, simulated)) = self.watch.zip(simulated) {
            watch.plan(&self.workload, placement, simulated);
        }
        simulated
    }
}

impl spipe_planner::Evaluator for Watched<'_> {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        self.seen(placement, self.evaluator.iteration(placement))
    }

    fn iteration_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        self.seen(placement, self.evaluator.iteration_within(placement, limit))
    }
}
