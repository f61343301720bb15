//! Trials: a changed plan, simulated.

use crate::planning::{self, DriveFor, Evaluator, Found, Request};
use spipe_base::SimTime;
use spipe_cost::{CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Placement, Plan, System};
use spipe_planner::Pins;
use std::{sync::atomic::AtomicBool, time::Duration};

/// The time that one search may take: most find the plan that they return in less.
const QUICK: Duration = Duration::from_secs(2);

/// The gap at which a search ends early: that of `spipe plan`.
const GAP: f64 = 0.005;

/// The plan that is explained, with its iteration.
#[derive(Clone, Copy)]
pub struct Explained<'a> {
    pub plan: &'a Plan,
    pub iteration: SimTime,
    /// Ends searches early when it is raised.
    pub stop: &'a AtomicBool,
}

/// A question that is planned again.
pub struct Again<'a> {
    pub hardware: &'a Hardware,
    pub workload: Workload,
    pub systems: Vec<System>,
    pub pins: Pins,
    pub start: Option<Placement>,
}

impl<'a> Explained<'a> {
    pub fn model(self) -> &'a Model {
        self.plan.context().model
    }

    pub fn hardware(self) -> &'a Hardware {
        self.plan.context().hardware
    }

    pub fn workload(self) -> Workload {
        *self.plan.context().workload()
    }

    pub fn placement(self) -> &'a Placement {
        self.plan.placement()
    }

    /// The question of the plan itself.
    pub fn same(self) -> Again<'a> {
        Again {
            hardware: self.hardware(),
            workload: self.workload(),
            systems: vec![self.placement().system],
            pins: Pins::default(),
            start: Some(self.placement().clone()),
        }
    }

    /// Plans again, quickly; `None` where no plan is found.
    pub fn again(self, what: &Again<'_>) -> Option<Found> {
        planning::search(&Request {
            model: self.model(),
            hardware: what.hardware,
            workloads: vec![what.workload],
            systems: what.systems.clone(),
            planner: "ilp",
            time_limit: QUICK,
            gap: GAP,
            threads: planning::cores(),
            stop: self.stop,
            pins: what.pins.clone(),
            start: what.start.clone(),
            host_help: true,
            drive_for: DriveFor::default(),
            drives: true,
            on_drives: None,
            effort: Some(spipe_planner::Effort::Low),
            watch: None,
            hint: false,
        })
        .ok()
    }

    /// The iteration of a placement on a machine; `None` where it does not fit or run.
    pub fn time(self, hardware: &Hardware, placement: &Placement) -> Option<SimTime> {
        let cost = CostTable::new(self.model(), hardware, self.plan.context().workload()).ok()?;
        Evaluator::new(Context { model: self.model(), hardware, cost: &cost }).checked_iteration(placement)
    }

    /// The iteration of the plan as it is on another machine.
    pub fn time_on(self, hardware: &Hardware) -> Option<SimTime> {
        self.time(hardware, self.placement())
    }
}
