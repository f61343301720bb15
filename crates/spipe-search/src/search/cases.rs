//! The cases of a search: each size of microbatches under each runtime, with their results so far.

use super::{found::gap, on_mesh, promise, refusal::missing};
use crate::{
    request::{Request, meshes},
    setting::Setting,
};
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_plan::{Mesh, OutcomeStatus, Placement, System};
use spipe_planner::{Considered, PlanError, Solution};
use std::{collections::BTreeMap, sync::Arc};

/// Slack of the gap for rounding: the bound of a case that another one's plan beats is that plan's
/// time less the gap, in whole nanoseconds.
pub(super) const ROUNDING: f64 = 1e-5;

/// A problem of a planner.
#[derive(Clone)]
pub(super) struct Case {
    pub workload: Workload,
    /// The machine as the runtime of the systems finds it.
    pub hardware: Arc<Hardware>,
    /// Its leads of teams, the same machine without teams.
    pub leads: Arc<Hardware>,
    /// The systems that the pins suit; never empty.
    pub systems: Vec<System>,
    /// The teams on which stages are placed.
    pub mesh: Arc<Mesh>,
    /// The number of the mesh.
    number: usize,
    /// A time that no plan undercuts; zero while it is unknown.
    pub bound: SimTime,
    /// The [guess](super::promise) at the iteration of its pipelines, where several meshes are tried; zero if there is none.
    pub guess: SimTime,
}

/// The size of microbatches, the first system and the number of the mesh: cases of a size on one mesh have no system in
/// common.
type Key = (u64, Option<System>, usize);

impl Case {
    /// The cases of a request, by size of microbatches.
    pub fn all(request: &Request) -> Vec<Self> {
        let (mut all, several) = (Vec::new(), request.meshes.len() > 1);
        for (number, mesh) in request.meshes.iter().cloned().map(Arc::new).enumerate() {
            let suits = |system: &System| request.pins.suit(*system) && meshes::suits(*system, &mesh);
            let suited: Vec<System> = request.systems.iter().copied().filter(suits).collect();
            // Pipelines on the devices as they are compete with those on teams. Systems that divide layers and those
            // that do not have bounds that are far apart where there are many devices.
            let (pipelines, others): (Vec<_>, Vec<_>) =
                suited.into_iter().partition(|system| runs_on_teams(request, *system));
            let (sharded, whole): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|system| several && system.shards_parameters());
            let groups = [pipelines, sharded, whole];
            for (hardware, systems) in groups.iter().flat_map(|suited| request.machine.among(suited)) {
                let alone = mesh.is_single().then(|| Arc::clone(&hardware));
                let Some(leads) = alone.or_else(|| on_mesh::leading(&hardware, &mesh).map(Arc::new)) else { continue };
                let case = |workload: &Workload| {
                    let (hardware, leads, mesh) = (Arc::clone(&hardware), Arc::clone(&leads), Arc::clone(&mesh));
                    let (workload, systems, [bound, guess]) = (*workload, systems.clone(), [SimTime::ZERO; 2]);
                    Self { workload, hardware, leads, systems, mesh, number, bound, guess }
                };
                let workloads = request.workloads.iter();
                all.extend(workloads.filter(|of| of.microbatches.is_multiple_of(mesh.data())).map(case));
            }
        }
        all
    }

    /// Whether its systems run on the teams of some mesh of the request.
    pub fn is_of_pipelines(&self, request: &Request) -> bool {
        self.systems.iter().any(|system| runs_on_teams(request, *system))
    }

    fn key(&self) -> Key {
        (self.workload.microbatch, self.systems.first().copied(), self.number)
    }

    /// Whether a solution with this workload is one of the case.
    fn has(&self, (workload, solution): &(Workload, Solution)) -> bool {
        let placement = &solution.placement;
        let here = workload.microbatch == self.workload.microbatch && placement.mesh_of_teams() == *self.mesh;
        here && self.systems.contains(&placement.system)
    }
}

/// Whether `system` runs on the teams of some mesh of a request.
fn runs_on_teams(request: &Request, system: System) -> bool {
    request.meshes.iter().any(|mesh| !mesh.is_single() && meshes::suits(system, mesh))
}

/// The result of one case.
struct Known {
    /// No plan of the case is faster.
    bound: SimTime,
    proven: bool,
    stopped: bool,
    /// The fastest plan.
    simulated: SimTime,
    /// The results by system.
    considered: Vec<Considered>,
}

/// The results of all cases.
#[derive(Default)]
pub(super) struct Results {
    /// The fastest plan of all cases.
    pub best: Option<(Workload, Solution)>,
    known: BTreeMap<Key, Known>,
    /// The refusal of each case without a plan.
    refusals: BTreeMap<Key, PlanError>,
    /// The fastest plan of the heuristics.
    pub baseline: Option<SimTime>,
}

impl Results {
    /// Keeps the plan to start from, if no faster one was found.
    pub fn keep_start(&mut self, request: &Request, cases: &[Case]) {
        let Some(placement) = &request.start else { return };
        for case in cases.iter().filter(|case| case.systems.contains(&placement.system)) {
            if placement.mesh_of_teams() != *case.mesh {
                continue;
            }
            let Ok(setting) = Setting::on(&request.model, &case.hardware, &case.workload, &case.mesh) else { continue };
            if !request.pins.allow(&setting.context(), placement) {
                continue;
            }
            let found = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
            let simulated = setting.evaluator().checked_iteration(placement);
            let Some(simulated) = simulated.filter(|time| *time < found) else { continue };
            let considered = Vec::new();
            let unknown = Known { bound: SimTime::ZERO, proven: false, stopped: true, simulated, considered };
            self.known.entry(case.key()).or_insert(unknown);
            let none = Solution {
                placement: placement.clone(),
                status: OutcomeStatus::Stopped,
                bound: SimTime::ZERO,
                simulated,
                gap: 1.0,
                examined: 1,
                cases: 1,
                baseline: None,
                considered: Vec::new(),
            };
            let found = self.best.take().map_or(none, |(_, found)| found);
            self.best = Some((case.workload, Solution { placement: placement.clone(), simulated, ..found }));
        }
    }

    /// The refusal to report: an undecided one before an infeasible one, and of these the one with
    /// the smallest shortage.
    pub fn refusal(&self) -> Option<PlanError> {
        let open = |error: &&PlanError| matches!(error, PlanError::StoppedWithoutPlan { .. });
        // A reason that holds for every placement of one case, such as a layer that is larger than
        // any memory, may not hold for others.
        let certain = |error: &PlanError| matches!(error, PlanError::Infeasible { certain: true, .. });
        let closest = || self.refusals.values().min_by_key(|error| (certain(error), missing(error)));
        self.refusals.values().find(open).or_else(closest).cloned()
    }

    /// The lower bound of every plan of any case.
    pub fn bound(&self) -> SimTime {
        self.known.values().map(|known| known.bound).min().unwrap_or(SimTime::MAX)
    }

    /// The results by system of the cases with the fastest plan's size of microbatches. The bound of a case,
    /// perhaps from another search, is one of each of its systems.
    pub fn considered(&self, cases: &[Case]) -> Vec<Considered> {
        let Some(best) = &self.best else { return Vec::new() };
        let mut all = Vec::new();
        let mesh = best.1.placement.mesh_of_teams();
        for case in cases.iter().filter(|case| case.workload.microbatch == best.0.microbatch && *case.mesh == mesh) {
            let Some(known) = self.known.get(&case.key()) else { continue };
            let by_system = if case.has(best) { &best.1.considered } else { &known.considered };
            all.extend(by_system.iter().map(|one| {
                let most = one.simulated.unwrap_or(SimTime::MAX);
                Considered { bound: one.bound.map(|bound| bound.max(known.bound).min(most)), ..one.clone() }
            }));
        }
        all
    }

    /// Whether a case has a result.
    pub fn has(&self, case: &Case) -> bool {
        self.known.contains_key(&case.key()) || self.refusals.contains_key(&case.key())
    }

    /// Whether all of `cases` have a result.
    pub fn have(&self, cases: &[Case]) -> bool {
        cases.iter().all(|case| self.has(case))
    }

    /// Whether all searches have proven their plans.
    pub fn proven(&self) -> bool {
        self.known.values().all(|known| known.proven)
    }

    /// Whether the limit has cut any search short.
    pub fn stopped(&self) -> bool {
        self.known.values().any(|known| known.stopped)
    }

    /// Whether the search of a case was cut short, and its bound leaves room for a plan faster by
    /// more than `worth`.
    pub fn is_open(&self, case: &Case, worth: f64) -> bool {
        let best = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
        let known = self.known.get(&case.key());
        known.is_some_and(|known| known.stopped && gap(best, known.bound) > worth + ROUNDING) && self.is_promising(case)
    }

    /// Whether the guess of a case is near the fastest plan so far.
    pub fn is_promising(&self, case: &Case) -> bool {
        self.best.as_ref().is_none_or(|(_, best)| promise::is_near(case.guess, best.simulated))
    }

    /// The cases whose search was cut short, the one with the fastest plan first.
    pub fn stopped_at(&self, cases: &[Case]) -> Vec<Case> {
        let simulated = |case: &Case| self.known.get(&case.key()).map(|known| known.simulated);
        let stopped = |case: &&Case| self.known.get(&case.key()).is_some_and(|known| known.stopped);
        let mut list: Vec<Case> = cases.iter().filter(stopped).cloned().collect();
        list.sort_by_key(simulated);
        list
    }

    /// The case of the fastest plan, with its placement.
    pub fn fastest(&self, cases: &[Case]) -> Option<(Case, Placement)> {
        let best = self.best.as_ref()?;
        let case = cases.iter().find(|case| case.has(best))?;
        Some((case.clone(), best.1.placement.clone()))
    }

    /// Takes the result of a search of one case in; a partial search has not tried everything. An error that is no
    /// answer is returned.
    pub fn take(
        &mut self,
        (case, partial): (&Case, bool),
        found: Result<Solution, PlanError>,
    ) -> Result<(), PlanError> {
        let (key, workload) = (case.key(), case.workload);
        let best = self.best.as_ref().map(|(_, best)| best.simulated);
        let known = self.known.remove(&key);
        let (before, fastest) = known.as_ref().map_or((SimTime::ZERO, SimTime::MAX), |it| (it.bound, it.simulated));
        let considered = known.map(|known| known.considered).unwrap_or_default();
        let simulated = found.as_ref().map_or(SimTime::MAX, |solution| solution.simulated).min(fastest);
        let know = |bound: SimTime, (proven, stopped): (bool, bool), considered| {
            let stopped = stopped || (partial && !proven);
            Known { bound: bound.max(before), proven, stopped, simulated, considered }
        };
        match &found {
            Ok(solution) => tracing::info!(
                "microbatch {}: {} simulated, {} at least, {:?}",
                workload.microbatch,
                solution.simulated,
                solution.bound,
                solution.status
            ),
            Err(error) => tracing::info!("microbatch {}: {error}", workload.microbatch),
        }
        self.refusals.remove(&key);
        match found {
            Ok(solution) => {
                self.baseline = self.baseline.into_iter().chain(solution.baseline).min();
                let (optimal, stopped) =
                    (solution.status == OutcomeStatus::Optimal, solution.status == OutcomeStatus::Stopped);
                self.known.insert(key, know(solution.bound, (optimal, stopped), solution.considered.clone()));
                if best.is_none_or(|best| solution.simulated < best) {
                    self.best = Some((workload, solution));
                }
            }
            Err(PlanError::NothingBetter { bound, stopped, considered: by_system, .. }) => {
                let beaten = bound >= best.unwrap_or(SimTime::ZERO);
                let considered = if by_system.is_empty() { considered } else { by_system };
                self.known.insert(key, know(bound, (beaten, stopped && !beaten), considered));
            }
            // An earlier, shorter search may have left the case open.
            Err(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NoSystem)) => {
                self.refusals.insert(key, error);
            }
            Err(error @ PlanError::StoppedWithoutPlan { .. }) => {
                self.known.insert(key, know(SimTime::ZERO, (false, true), considered));
                self.refusals.insert(key, error);
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An undecided refusal.
    fn cut_short() -> PlanError {
        PlanError::StoppedWithoutPlan { examined: 3 }
    }

    #[test]
    fn a_failed_case_leaves_the_others() {
        let (_, text) = spipe_hardware::shipped().iter().find(|(name, _)| *name == "one-gpu").unwrap();
        let hardware: Arc<Hardware> = Hardware::from_toml("one-gpu", text).unwrap().into();
        let workload = Workload {
            mode: spipe_cost::Mode::Train,
            seq_len: 1,
            microbatch: 1,
            microbatches: 1,
            precision: spipe_model::Precision::Bf16,
            ..Workload::PLAIN
        };
        let systems = vec![System::GpuOnly];
        let leads = Arc::clone(&hardware);
        let mesh = Arc::default();
        let [bound, guess] = [SimTime::ZERO; 2];
        let case = Case { workload, hardware, leads, systems, mesh, number: 0, bound, guess };
        let mut results = Results::default();
        assert!(results.take((&case, false), Err(cut_short())).is_ok());
        let larger = Case { workload: Workload { microbatch: 2, ..workload }, ..case.clone() };
        let others = [larger, Case { systems: vec![System::Fsdp], ..case.clone() }];
        for other in &others {
            assert!(results.take((other, false), Err(PlanError::NothingRuns { examined: 1 })).is_ok());
        }
        assert_eq!(results.refusal(), Some(cut_short()), "an undecided refusal comes before an infeasible one");
        assert_eq!((results.proven(), results.stopped(), results.bound()), (false, true, SimTime::ZERO));
        // A search that has come to its end was not stopped, even if it found nothing better.
        let solution = Solution {
            placement: Placement::new(System::GpuOnly, []),
            status: OutcomeStatus::Feasible,
            bound: SimTime::ZERO,
            simulated: SimTime::ns(1),
            gap: 1.0,
            examined: 1,
            cases: 0,
            baseline: None,
            considered: Vec::new(),
        };
        let mut results = Results { best: Some((workload, solution)), ..Results::default() };
        for stopped in [true, false] {
            let bound = SimTime::ZERO;
            let nothing = PlanError::NothingBetter { bound, examined: 1, stopped, considered: Vec::new() };
            assert!(results.take((&case, false), Err(nothing)).is_ok());
            assert_eq!(results.stopped(), stopped);
        }
    }

    /// The systems of all cases of the best plan's size are told, each with its own case's bound.
    #[test]
    fn systems_under_another_runtime_are_told_beside_the_best_plan() {
        let (_, text) = spipe_hardware::shipped().iter().find(|(name, _)| *name == "one-gpu").unwrap();
        let hardware: Arc<Hardware> = Hardware::from_toml("one-gpu", text).unwrap().into();
        let of = |system| Case {
            workload: Workload::PLAIN,
            hardware: Arc::clone(&hardware),
            leads: Arc::clone(&hardware),
            systems: vec![system],
            mesh: Arc::default(),
            number: 0,
            bound: SimTime::ZERO,
            guess: SimTime::ZERO,
        };
        let cases = [of(System::GpuOnly), of(System::ZeroOffload)];
        let one = |system, simulated| {
            vec![Considered { system, bound: Some(SimTime::ns(1)), simulated, skipped: false, examined: 1 }]
        };
        let solution = Solution {
            placement: Placement::new(System::GpuOnly, []),
            status: OutcomeStatus::Feasible,
            bound: SimTime::ns(5),
            simulated: SimTime::ns(9),
            gap: 1.0,
            examined: 1,
            cases: 0,
            baseline: None,
            considered: one(System::GpuOnly, Some(SimTime::ns(9))),
        };
        let mut results = Results::default();
        assert!(results.take((&cases[0], false), Ok(solution)).is_ok());
        let considered = one(System::ZeroOffload, None);
        let nothing = PlanError::NothingBetter { bound: SimTime::ns(7), examined: 1, stopped: false, considered };
        assert!(results.take((&cases[1], false), Err(nothing)).is_ok());
        let told: Vec<_> = results.considered(&cases).into_iter().map(|one| (one.system, one.bound)).collect();
        assert_eq!(told, [(System::GpuOnly, Some(SimTime::ns(5))), (System::ZeroOffload, Some(SimTime::ns(7)))]);
        assert_eq!(results.bound(), SimTime::ns(5));
    }
}
