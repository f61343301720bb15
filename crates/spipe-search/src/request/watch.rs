//! The record of a running search: its incumbents, and the easiest plans to read among the fast ones.

use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_plan::{Incumbent, Placement};
use spipe_planner::runs_of_layers;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A plan that was simulated: its iteration, workload and placement.
pub type Seen = (SimTime, Workload, Placement);

/// A front end that shows the course of a search.
pub trait Progress: Send + Sync {
    /// Is told of the fastest iteration so far, and of the bound that no plan is faster than; zero if it is not known.
    fn improved(&self, best: Option<SimTime>, bound: SimTime);
}

/// Records what a search finds.
pub struct Watch {
    start: Instant,
    record: Mutex<Record>,
    progress: Option<Box<dyn Progress>>,
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
    /// Starts a record, and shows its course with `progress`.
    pub fn start(progress: Option<Box<dyn Progress>>) -> Self {
        let watch = Self { start: Instant::now(), record: Mutex::new(Record::default()), progress };
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

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, record: &Record) {
        if let Some(progress) = &self.progress {
            progress.improved(record.best, record.bound);
        }
    }
}
