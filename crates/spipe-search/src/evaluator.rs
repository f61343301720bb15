//! The evaluator of placements: it lowers them to programs and simulates these.

use crate::error::SearchError;
use spipe_base::{Bytes, MemoryId, SimTime};
use spipe_plan::{Context, MemoryParts, Placement, Plan, check};
use spipe_planner::Evaluator as _;
use spipe_schedule::{Program, lower, lower_all_replicas, shown_by};
use spipe_sim::{Options, Simulation, is_ok, iteration_time, iteration_time_within, simulate};
use spipe_trace::MemoryTrack;
use std::collections::BTreeMap;

/// Evaluates placements of one model on one machine under one workload.
#[derive(Clone, Copy)]
pub struct Evaluator<'a> {
    context: Context<'a>,
}

impl<'a> Evaluator<'a> {
    /// An evaluator of placements in `context`.
    pub const fn new(context: Context<'a>) -> Self {
        Self { context }
    }

    /// The context of the placements.
    pub const fn context(&self) -> Context<'a> {
        self.context
    }

    fn program(&self, placement: &Placement) -> Option<Program> {
        lower(&self.context, placement).ok()
    }

    /// The simulated iteration of a placement that the checker accepts.
    pub fn checked_iteration(&self, placement: &Placement) -> Option<SimTime> {
        check(&self.context, placement).ok()?;
        self.iteration(placement)
    }

    /// The simulation of a placement that the checker accepts and that runs.
    pub fn checked_simulation(&self, placement: &Placement) -> Option<Simulation> {
        check(&self.context, placement).ok()?;
        Some(simulate(&self.program(placement)?, &Options::default())).filter(is_ok)
    }

    /// The simulated peak of each memory that is used, and its parts by name.
    ///
    /// # Errors
    /// The placement has no program.
    pub fn peaks(&self, placement: &Placement) -> Result<BTreeMap<MemoryId, (Bytes, MemoryParts)>, SearchError> {
        let simulation = simulate(&lower(&self.context, placement)?, &Options::default());
        let tracks = simulation.trace.memories.iter().filter(|track| track.peak > Bytes::ZERO);
        let named = |track: &MemoryTrack| {
            let parts = simulation.parts.get(&track.name).into_iter().flatten();
            let parts: MemoryParts = parts.map(|(part, bytes)| ((*part).to_owned(), *bytes)).collect();
            let memory = self.context.hardware.memory(&track.name);
            let alike = memory.into_iter().flat_map(|memory| self.alike(memory, placement));
            alike.map(|memory| (memory, (track.peak, parts.clone()))).collect::<Vec<_>>()
        };
        Ok(tracks.flat_map(named).collect())
    }

    /// The memories of devices for which the one of `memory` stands in a program, with itself.
    fn alike(&self, memory: MemoryId, placement: &Placement) -> Vec<MemoryId> {
        let hardware = self.context.hardware;
        let lead = hardware.memories()[memory].device.filter(|device| hardware.devices()[*device].is_gpu());
        let shown = lead.map_or_else(Vec::new, |lead| shown_by(&self.context, placement, lead));
        std::iter::once(memory).chain(shown.into_iter().map(|device| hardware.devices()[device].memory)).collect()
    }
}

impl spipe_planner::Evaluator for Evaluator<'_> {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        iteration_time(&self.program(placement)?)
    }

    fn iteration_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        iteration_time_within(&self.program(placement)?, limit)
    }
}

/// The program that runs a plan: with all replicas, where [`program`] has one that stands for all.
///
/// # Errors
/// The plan cannot be lowered.
pub fn whole_program(plan: &Plan) -> Result<Program, SearchError> {
    Ok(lower_all_replicas(&plan.context(), plan.placement())?)
}

/// The program of a plan.
///
/// # Errors
/// The plan cannot be lowered.
pub fn program(plan: &Plan) -> Result<Program, SearchError> {
    Ok(lower(&plan.context(), plan.placement())?)
}
