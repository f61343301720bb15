//! Trials: a changed plan, simulated.

use crate::{
    request::{Request, cores},
    search::{found::Found, search},
    setting::Setting,
};
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Placement, Plan, System};
use spipe_planner::{Effort, Pins};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// The time that one search may take: most find the plan that they return in less.
const QUICK: Duration = Duration::from_secs(2);

/// The plan that is explained, with its iteration.
pub struct Explained<'a> {
    pub(super) plan: &'a Plan,
    pub(super) iteration: SimTime,
    model: Arc<Model>,
    hardware: Arc<Hardware>,
    stop: Arc<AtomicBool>,
}

/// A question that is planned again.
pub struct Again {
    pub hardware: Arc<Hardware>,
    pub workload: Workload,
    pub systems: Vec<System>,
    pub pins: Pins,
    pub start: Option<Placement>,
}

impl<'a> Explained<'a> {
    /// A plan with its simulated iteration; `stop` ends searches early when it is raised.
    pub fn new(plan: &'a Plan, iteration: SimTime, stop: Arc<AtomicBool>) -> Self {
        let context = plan.context();
        let (model, hardware) = (Arc::new(context.model.clone()), Arc::new(context.hardware.clone()));
        Self { plan, iteration, model, hardware, stop }
    }

    pub(super) const fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(super) const fn hardware(&self) -> &Arc<Hardware> {
        &self.hardware
    }

    pub(super) fn workload(&self) -> Workload {
        self.plan.context().cost.whole_workload()
    }

    pub(super) fn placement(&self) -> &'a Placement {
        self.plan.placement()
    }

    /// The question of the plan itself.
    pub(super) fn same(&self) -> Again {
        Again {
            hardware: Arc::clone(&self.hardware),
            workload: self.workload(),
            systems: vec![self.placement().system],
            pins: Pins::default(),
            start: Some(self.placement().clone()),
        }
    }

    /// Plans again, quickly; `None` where no plan is found.
    pub(super) fn again(&self, what: Again) -> Option<Found> {
        let Again { hardware, workload, systems, pins, start } = what;
        search(&Request {
            systems,
            time_limit: QUICK,
            threads: cores(),
            stop: Arc::clone(&self.stop),
            pins,
            start,
            drives: true,
            meshes: vec![self.placement().mesh_of_teams()],
            effort: Some(Effort::Low),
            ..Request::new(Arc::clone(&self.model), hardware, vec![workload])
        })
        .ok()
    }

    /// The iteration of a placement on this machine; `None` where it does not fit or run.
    pub(super) fn time(&self, placement: &Placement) -> Option<SimTime> {
        self.timed(&self.hardware, placement)
    }

    /// The iteration of the plan as it is on another machine.
    pub(super) fn time_on(&self, hardware: Hardware) -> Option<SimTime> {
        self.timed(&Arc::new(hardware), self.placement())
    }

    fn timed(&self, hardware: &Arc<Hardware>, placement: &Placement) -> Option<SimTime> {
        let setting = Setting::of(&self.model, hardware, &self.workload(), placement).ok()?;
        setting.evaluator().checked_iteration(placement)
    }
}
