//! The search over its cases, the sizes of microbatches under each runtime, without remedies.

use super::{
    by_layer,
    cases::{Case, ROUNDING, Results},
    drives::{self, Moved, OnDrives, RefusedOnDrives},
    found::{End, Ended, Found, gap},
    on_mesh::OnMesh,
    promise, readable, refusal,
    watched::Watched,
};
use crate::{error::SearchError, request::Request, setting::Setting};
use spipe_base::{Diagnostic, SimTime};
use spipe_cost::CostError;
use spipe_plan::{Context, Mesh, OutcomeStatus, Placement, System};
use spipe_planner::{Claim, Effort, Options, PlanError, Planner, Problem, Solution};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// The part of the time limit that the short searches over all cases take together: each takes the
/// same part of the time that the searches before it have left.
const SHORT: u32 = 3;

/// The share of the time limit, in percent, that the search itself takes where its plan is to be
/// read: the rest is for a plan that is easier to read, and for the least memory.
const SEARCHING: u32 = 90;

/// A search that ends with less than this part of its time limit left has ended at the limit:
/// planners poll the clock between steps.
const NEARLY: u32 = 50;

/// The quarters of the remaining time that go to the case with the fastest plan, while other cases
/// may have a faster one.
const FASTEST: u32 = 3;

/// The plan with the fastest simulated iteration over all cases: each size of microbatches under each runtime.
///
/// At an effort, each case is searched once ([`Search::with_effort`]). Otherwise:
///
/// 1. Each case is searched at low effort without local search, and the best of them with it, which
///    gives a plan at once.
/// 2. Each case is searched for a short time.
/// 3. The cases whose search was cut short, and whose bound leaves room for a faster plan, are
///    searched again, the one with the fastest plan first. Each takes three quarters of the
///    remaining time, the last one all of it.
/// 4. Time that is left goes to the case with the fastest plan, starting from that plan.
///
/// A plan of one case bounds the searches of all others.
///
/// Where no plan fits the memories, and the machine has drives, optimizer state may be on them.
/// Activations are on drives that are named only.
pub fn attempt(request: &Request) -> Result<Found, Unsuccessful> {
    let (named, spelling) = (request.drive_for, request.spelling);
    let refused = if named.is_none() {
        match in_memory(request, None) {
            Err(Unsuccessful::Refused(refused)) => refused,
            done => return done,
        }
    } else {
        Refused { error: refusal::no_drive(named, spelling), left: request.time_limit, settled: false }
    };
    let systems: Vec<System> = request.systems.iter().copied().filter(|system| named.suits(*system)).collect();
    let Some(roomy) = drives::roomy(request).filter(|_| !systems.is_empty()) else {
        return Err(Unsuccessful::Refused(refused));
    };
    let closest = RefusedOnDrives::default();
    let on_drives = OnDrives { machine: &request.machine, named, refused: &closest };
    let meshes: Vec<Mesh> = request.meshes.iter().filter(|mesh| mesh.is_single()).cloned().collect();
    if meshes.is_empty() {
        return Err(Unsuccessful::Refused(refused));
    }
    let roomy = Request { machine: roomy, systems, meshes, start: None, ..request.clone() };
    match in_memory(&roomy, Some(on_drives)) {
        Err(Unsuccessful::Refused(Refused { error, left, settled })) if !named.is_none() => {
            let error = closest.closest().unwrap_or_else(|| match error {
                error if settled => refusal::with_room(error, request.machine.hardware(), named),
                error @ PlanError::Infeasible { .. } => error,
                _ => refusal::no_drive(named, spelling),
            });
            // Remedies are sought without drives, and know nothing of what is missing with them.
            let of_no_memory = matches!(error, PlanError::Infeasible { missing: None, certain: true, .. });
            Err(if of_no_memory {
                Unsuccessful::Refused(Refused { error, left, settled: false })
            } else {
                refusal::failure(&error, spelling).into()
            })
        }
        Err(Unsuccessful::Refused(_)) => Err(Unsuccessful::Refused(refused)),
        done => done,
    }
}

/// Why a search has no plan.
pub enum Unsuccessful {
    /// No plan satisfies the request.
    Refused(Refused),
    /// The search failed, or was stopped.
    Failed(SearchError),
}

/// A request that no plan satisfies.
pub struct Refused {
    pub error: PlanError,
    /// The time that is left for remedies.
    pub left: Duration,
    /// Whether a sum settles it.
    pub settled: bool,
}

impl From<SearchError> for Unsuccessful {
    fn from(error: SearchError) -> Self {
        Self::Failed(error)
    }
}

/// The plan with the fastest simulated iteration among those that the machine's memories hold.
fn in_memory(request: &Request, on_drives: Option<OnDrives<'_>>) -> Result<Found, Unsuccessful> {
    let planner = planner(&request.planner)?;
    let (cases, results) = (Case::all(request), Results::default());
    let mut search = Search { request, on_drives, planner, start: Instant::now(), cases, results };
    if let Err(error) = enough_in_total(request) {
        return Err(Unsuccessful::Refused(Refused { error, left: search.left(), settled: true }));
    }
    if search.cases.is_empty() && !request.workloads.is_empty() {
        return Err(Unsuccessful::Refused(Refused { error: no_pinned(request), left: search.left(), settled: false }));
    }
    if let Some(fault) = refusal::nowhere_to_offload(request) {
        return Err(SearchError::Infeasible(fault).into());
    }
    search.all_cases().map_err(|error| refusal::failure(&error, request.spelling))?;
    search.results.keep_start(request, &search.cases);
    search.conclude()
}

/// Refuses at once a model that all memories of the machine together cannot hold under any runtime.
fn enough_in_total(request: &Request) -> Result<(), PlanError> {
    let Some(workload) = request.workloads.first() else { return Ok(()) };
    let mut refusals = Vec::new();
    for (hardware, _) in request.machine.among(&request.systems) {
        // A model without times is refused later.
        let Ok(setting) = Setting::new(&request.model, &hardware, workload) else { return Ok(()) };
        match spipe_planner::enough_in_total(&setting.context()) {
            Ok(()) => return Ok(()),
            Err(refused) => refusals.push(refused),
        }
    }
    refusals.into_iter().min_by_key(refusal::missing).map_or(Ok(()), Err)
}

/// A running search.
struct Search<'a> {
    request: &'a Request,
    on_drives: Option<OnDrives<'a>>,
    planner: &'static Planner,
    start: Instant,
    cases: Vec<Case>,
    results: Results,
}

impl Search<'_> {
    /// The time left for searching; where the search is watched, some remains for what follows it.
    fn left(&self) -> Duration {
        let all = self.request.time_limit;
        let searching = if self.request.watch.is_some() { all / 100 * SEARCHING } else { all };
        searching.saturating_sub(self.start.elapsed())
    }

    fn is_interrupted(&self) -> bool {
        self.request.stop.load(Ordering::Relaxed)
    }

    fn all_cases(&mut self) -> Result<(), PlanError> {
        self.look_ahead();
        let (cases, given) = (self.cases.clone(), self.request.start.as_ref());
        if let Some(effort) = self.request.effort {
            return self.with_effort(effort);
        }
        if self.planner.claim == Claim::OptimalWithinGap {
            self.with_effort(Effort::Low)?;
        }
        for (index, case) in cases.iter().enumerate() {
            if !self.results.has(case) || self.is_open(case) {
                let others = (cases.len() - index) as u32;
                let part = if cases.len() == 1 { 1 } else { SHORT * others };
                self.case(case, (self.left() / part, None), given)?;
            }
        }
        if cases.len() == 1 {
            return Ok(());
        }
        let mut again = self.results.stopped_at(&cases);
        again.reverse();
        while let Some(case) = again.pop() {
            if self.is_open(&case) {
                let left = self.left();
                let limit = if again.is_empty() { left } else { left / 4 * FASTEST };
                self.case(&case, (limit, None), given)?;
            }
        }
        if let Some((case, placement)) = self.results.fastest(&cases).filter(|(case, _)| self.is_open(case)) {
            self.case(&case, (self.left(), None), Some(&placement))?;
        }
        Ok(())
    }

    /// Searches the cases at an effort, the one with the least compute time first, and skips those that are not
    /// faster than the best plan by more than the gap even if they only compute. At low effort, local search
    /// starts from the fastest plan alone.
    fn with_effort(&mut self, effort: Effort) -> Result<(), PlanError> {
        let request = self.request;
        let mut order = self.cases.clone();
        // Where there are guesses, systems that divide layers come first: they are planned soon, and few meshes are near
        // their plan. Other systems without a guess are bounded best once a plan is known.
        let several_meshes = self.request.meshes.len() > 1;
        let whole = |case: &Case| !case.systems.iter().any(|system| system.shards_parameters());
        let last = |case: &Case| several_meshes && case.guess == SimTime::ZERO && whole(case);
        order.sort_by_key(|case| (last(case), case.guess, case.bound));
        let several = effort == Effort::Low && order.len() > 1;
        for case in order {
            let (bound, best) = (case.bound, self.results.best.as_ref().map(|(_, best)| best.simulated));
            let beaten = best.is_some_and(|best| gap(best, bound) <= request.gap);
            tracing::info!("{}: {} guessed, {bound} at least", case.mesh, case.guess);
            if beaten || !self.results.is_promising(&case) {
                let (examined, considered) = (0, Vec::new());
                let nothing = PlanError::NothingBetter { bound, examined, stopped: !beaten, considered };
                self.results.take((&case, false), Err(nothing))?;
            } else {
                let options = self.options((self.end_of_steps(), Some(effort)), request.start.as_ref());
                let refinements = if several { 0 } else { options.refinements };
                self.case_with(&case, Options { refinements, ..options })?;
            }
        }
        match self.results.fastest(&self.cases).filter(|_| several) {
            Some((case, placement)) => self.case(&case, (self.end_of_steps(), Some(effort)), Some(&placement)),
            None => Ok(()),
        }
    }

    /// Bounds the cases and, where several meshes are tried, guesses at their pipelines.
    fn look_ahead(&mut self) {
        let ahead: Vec<_> = self.cases.iter().map(|case| self.prospect(case)).collect();
        self.cases.iter_mut().zip(ahead).for_each(|(case, found)| (case.bound, case.guess) = found);
    }

    /// A time that no plan of a case undercuts, and the [guess](promise) at that of its pipelines; zeros where there are
    /// none.
    fn prospect(&self, case: &Case) -> (SimTime, SimTime) {
        let guesses = self.request.meshes.len() > 1 && case.is_of_pipelines(self.request);
        let of = |leads: &Setting, real: &Setting| {
            let whole = !case.systems.iter().any(|system| system.shards_parameters());
            let bound = spipe_cost::least_iteration(leads.table(), leads.hardware(), whole);
            (bound, if guesses { promise::guess(leads, real) } else { SimTime::ZERO })
        };
        let found = if case.mesh.is_single() {
            let setting = Setting::new(&self.request.model, &case.hardware, &case.workload);
            setting.ok().map(|setting| of(&setting, &setting))
        } else {
            self.on_mesh(case).ok().map(|teams| of(&teams.leads, &teams.real))
        };
        found.unwrap_or((SimTime::ZERO, if guesses { SimTime::MAX } else { SimTime::ZERO }))
    }

    /// The time limit of searches that count steps: none where only steps are counted.
    fn end_of_steps(&self) -> Duration {
        if self.request.effort.is_some() { Duration::MAX } else { self.left() }
    }

    /// Whether there is time for another search of a case that may still have a faster plan.
    fn is_open(&self, case: &Case) -> bool {
        !self.is_interrupted() && self.left() > Duration::ZERO && self.results.is_open(case, self.request.gap)
    }

    /// Searches one case.
    fn case(
        &mut self,
        case: &Case,
        limits: (Duration, Option<Effort>),
        start: Option<&Placement>,
    ) -> Result<(), PlanError> {
        let options = self.options(limits, start);
        self.case_with(case, options)
    }

    fn options(&self, (time_limit, effort): (Duration, Option<Effort>), start: Option<&Placement>) -> Options {
        Options {
            time_limit,
            effort,
            gap: self.request.gap,
            threads: self.request.threads,
            incumbent: self.results.best.as_ref().map(|(_, best)| best.simulated),
            pins: self.request.pins.clone(),
            start: start.cloned(),
            host_help: self.request.host_help,
            ..Options::default()
        }
    }

    fn case_with(&mut self, case: &Case, options: Options) -> Result<(), PlanError> {
        let partial = options.effort.is_some() && self.request.effort.is_none();
        let found = self.one_case(case, options);
        self.results.take((case, partial), found)?;
        if let Some(watch) = self.request.watch.as_ref().filter(|_| self.results.have(&self.cases)) {
            watch.bound(self.results.bound());
        }
        Ok(())
    }

    /// The best plan with the bound over all cases, or why there is none.
    fn conclude(self) -> Result<Found, Unsuccessful> {
        let (request, left) = (self.request, self.left());
        let Some((workload, solution)) = &self.results.best else { return Err(self.refusal(left)) };
        let (workload, mut solution) = (*workload, solution.clone());
        solution.considered = self.results.considered(&self.cases);
        solution.bound = self.results.bound().min(solution.simulated);
        solution.gap = gap(solution.simulated, solution.bound);
        let ended = if self.results.proven() || solution.gap <= request.gap + ROUNDING {
            Ended::Gap(request.gap)
        } else if self.is_interrupted() {
            Ended::Interrupted
        } else if let Some(effort) = request.effort {
            Ended::Effort(effort)
        } else if self.results.stopped() && left <= request.time_limit / NEARLY {
            Ended::Limit(request.time_limit)
        } else {
            Ended::Exhausted
        };
        solution.status = match ended {
            Ended::Gap(_) => OutcomeStatus::Optimal,
            Ended::Interrupted | Ended::Limit(_) => OutcomeStatus::Stopped,
            Ended::Exhausted | Ended::Effort(_) => OutcomeStatus::Feasible,
        };
        if let Some(on_drives) = self.on_drives {
            let end = End { solution, ended, fastest: None };
            return Ok(Found::new(request, on_drives.machine, workload, end)?);
        }
        // A heuristic's plan is given as it is.
        let chooses = self.planner.claim == Claim::OptimalWithinGap;
        let (fastest, mut seen) = (solution.simulated, (solution.simulated, workload, solution.placement.clone()));
        let watch = request.watch.as_ref().filter(|_| chooses);
        if let Some(watch) = watch {
            let limits = (self.results.baseline, request.time_limit.saturating_sub(self.start.elapsed()));
            seen = readable::easiest(request, watch, seen, limits);
        }
        let (simulated, workload, placement) = by_layer::least_memory(request, seen);
        solution.gap = gap(simulated, solution.bound);
        (solution.simulated, solution.placement) = (simulated, placement);
        let fastest = Some(fastest).filter(|fastest| watch.is_some() && *fastest < simulated);
        Ok(Found::new(request, &request.machine, workload, End { solution, ended, fastest })?)
    }

    /// Why no case has a plan, with the time `left`.
    fn refusal(&self, left: Duration) -> Unsuccessful {
        let request = self.request;
        let refused = |error| Unsuccessful::Refused(Refused { error, left, settled: false });
        match self.results.refusal() {
            None => SearchError::Bug("a search without sizes of microbatches".into()).into(),
            Some(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) => refused(error),
            Some(error @ PlanError::StoppedWithoutPlan { .. })
                if request.effort.is_some() && request.drive_for.is_none() =>
            {
                let hint = format!("leave {} out to search longer", request.spelling.setting("effort"));
                SearchError::Stopped(Diagnostic::error(error.to_string()).hint(hint)).into()
            }
            Some(PlanError::NoSystem) if !request.pins.is_empty() => refused(no_pinned(request)),
            Some(PlanError::StoppedWithoutPlan { examined }) if !request.drive_for.is_none() => {
                let closest = self.on_drives.and_then(|on| on.refused.closest());
                let stopped = || refusal::stopped(request, examined);
                closest.map_or_else(stopped, |error| refusal::failure(&error, request.spelling)).into()
            }
            Some(error) => refusal::failure(&error, request.spelling).into(),
        }
    }

    /// The teams of a case.
    fn on_mesh(&self, case: &Case) -> Result<OnMesh, PlanError> {
        let mesh = (case.mesh.as_ref(), self.request.all_teams);
        OnMesh::new((&self.request.model, &case.hardware, &case.leads), &case.workload, mesh)
            .map_err(|error| without_table(&error))
    }

    /// The best plan on the teams of a mesh.
    fn one_mesh(&self, case: &Case, options: Options) -> Result<Solution, PlanError> {
        let (request, teams) = (self.request, self.on_mesh(case)?);
        let Some(pins) = teams.pins(&options.pins) else { return Err(no_pinned(request)) };
        let on_teams = |placement: &Placement| teams.accepted(placement);
        let (evaluator, watch) = (teams.real.evaluator(), request.watch.as_deref());
        let evaluator = Watched { evaluator, watch, workload: case.workload, instead: Some(&on_teams) };
        let options = Options { pins, start: None, ..options };
        let found = self.solved((teams.leads.context(), &case.systems), options, &evaluator)?;
        Ok(Solution { placement: teams.placement(&found.placement), ..found })
    }

    fn one_case(&self, case: &Case, options: Options) -> Result<Solution, PlanError> {
        let request = self.request;
        if !case.mesh.is_single() {
            return self.one_mesh(case, options);
        }
        let setting =
            |hardware| Setting::new(&request.model, hardware, &case.workload).map_err(|error| without_table(&error));
        let (searched, watch) = (setting(&case.hardware)?, request.watch.as_deref());
        let (workload, problem) = (case.workload, (searched.context(), case.systems.as_slice()));
        let Some(OnDrives { machine, named, refused }) = self.on_drives else {
            let evaluator = Watched { evaluator: searched.evaluator(), watch, workload, instead: None };
            return self.solved(problem, options, &evaluator);
        };
        let real = case.systems.first().map_or(machine.hardware(), |system| machine.of(*system));
        let real = setting(real)?;
        let moved = Moved { context: real.context(), named, refused };
        let on_drives = |placement: &Placement| moved.placement(placement);
        let evaluator = Watched { evaluator: real.evaluator(), watch, workload, instead: Some(&on_drives) };
        let found = self.solved(problem, options, &evaluator)?;
        match moved.placement(&found.placement) {
            Some(placement) => Ok(Solution { placement, ..found }),
            None => Err(refused.closest().unwrap_or_else(|| refusal::no_drive(named, request.spelling))),
        }
    }

    fn solved(
        &self,
        (context, systems): (Context<'_>, &[System]),
        options: Options,
        evaluator: &dyn spipe_planner::Evaluator,
    ) -> Result<Solution, PlanError> {
        let (request, planner) = (self.request, self.planner);
        let problem = Problem { context, systems: systems.to_vec(), options, evaluator, stop: &request.stop };
        if request.pins.given_stages().is_some() {
            spipe_planner::plan_stages(&problem)
        } else if planner.claim == Claim::OptimalWithinGap {
            spipe_planner::plan_all(&problem, planner)
        } else {
            planner.plan(&problem)
        }
    }
}

/// The refusal of a case whose costs cannot be computed.
fn without_table(error: &CostError) -> PlanError {
    let hint = match error {
        CostError::Nowhere { .. } => "add its times for one of the devices to the model file",
        _ => "use other degrees of parallelism",
    };
    PlanError::Infeasible { reason: error.to_string(), hint: hint.into(), missing: None, certain: true }
}

/// The refusal of pins that no allowed system can satisfy, with any amount of memory.
fn no_pinned(request: &Request) -> PlanError {
    PlanError::Infeasible {
        reason: "no placement of the allowed systems satisfies all pins".into(),
        hint: format!("drop a pin, or use {}", request.spelling.value("system", "auto")),
        missing: None,
        certain: true,
    }
}

fn planner(name: &str) -> Result<&'static Planner, SearchError> {
    spipe_planner::planner(name).ok_or_else(|| {
        let names = spipe_planner::PLANNERS.each_ref().map(|planner| planner.name).join(", ");
        SearchError::request(format!("there is no planner `{name}`"), format!("use one of {names}"))
    })
}
