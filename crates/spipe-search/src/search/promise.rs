//! A guess at the iteration on the teams of a mesh, which orders the meshes of a search and leaves out those that are far
//! behind.
//!
//! ```text
//! iteration ≈ (m + (p − 1) ÷ 3) · slowest stage + gradients over replicas + step
//! ```
//!
//! m microbatches of a replica pass p stages, each of as equal a number of layers of each kind as can be. The bubble is a
//! third of that of 1F1B, as in ZB-H1 (Qi et al. 2023, arXiv 2401.10241, section 2.3), and stages recompute as little as
//! the memories allow: few plans are faster.

use crate::setting::Setting;
use spipe_base::{Bytes, DeviceId, LayerId, Seconds, SimTime};
use spipe_cost::{CostTable, LayerMemory, Rings};
use spipe_hardware::CollectiveKind;
use spipe_model::Recompute;
use std::collections::BTreeMap;

/// A mesh whose guess is above the fastest plan by this factor is left out.
const BEHIND: f64 = 1.05;

/// Whether a plan that is faster than `best` is likely where this is the guess.
pub fn is_near(guess: SimTime, best: SimTime) -> bool {
    guess.to_ms() <= best.to_ms() * BEHIND
}

/// The guess for the setting of `leads`, the leads of the first replica's teams as if they were alone, and the `real` one;
/// [`SimTime::MAX`] where the memories seem too small for every recompute.
pub fn guess(leads: &Setting, real: &Setting) -> SimTime {
    let Some(stages) = Stages::of(leads) else { return SimTime::MAX };
    let bubble = (stages.count - 1.0) / 3.0;
    let busy = stages.slowest_ms() * (stages.microbatches + bubble);
    SimTime::ns(((busy + stages.over_replicas_ms(real) + stages.step_ms()) * 1e6) as u64)
}

/// Equal stages, one for each lead.
struct Stages<'a> {
    table: &'a CostTable,
    lead: DeviceId,
    count: f64,
    microbatches: f64,
    recompute: Recompute,
}

impl<'a> Stages<'a> {
    /// The stages with the least recompute that fits; `None` if none does.
    fn of(leads: &'a Setting) -> Option<Self> {
        let (table, hardware) = (leads.table(), leads.hardware());
        let lead = hardware.gpus().next()?;
        let room = hardware.memories()[hardware.devices()[lead].memory].usable().as_f64();
        let (count, microbatches) = (hardware.gpus().count() as f64, table.workload().microbatches as f64);
        // Where the state is too much, hosts may hold it.
        let held = of_layers(table, lead, |memory| memory.parameters + memory.gradients) / count;
        let kept = [
            (Recompute::None, of_layers(table, lead, |memory| memory.saved) / count),
            (Recompute::Selective, of_layers(table, lead, |memory| memory.saved_selective) / count),
            (Recompute::Full, of_layers(table, lead, |memory| memory.input) / count),
        ];
        let fits = |kept: &&(Recompute, f64)| held + kept.1 * count.min(microbatches) <= room;
        let (recompute, _) = kept.iter().find(fits)?;
        Some(Self { table, lead, count, microbatches, recompute: *recompute })
    }

    /// The passes of a microbatch through the slowest stage.
    fn slowest_ms(&self) -> f64 {
        let again = |layer: LayerId| self.table.recompute_time(layer, self.lead, self.recompute);
        let passes = |layer: LayerId| {
            spipe_cost::layer_time(self.table, layer, self.lead) + again(layer).map_or(0.0, Seconds::to_ms)
        };
        let mut kinds: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for layer in self.table.layers() {
            let (count, _) = *kinds.get(&self.table.kind(layer)).unwrap_or(&(0.0, 0.0));
            kinds.insert(self.table.kind(layer), (count + 1.0, passes(layer)));
        }
        let even: f64 = kinds.values().map(|(count, time)| count * time / self.count).sum();
        let longest = kinds.values().map(|(count, time)| (count / self.count).ceil() * time).fold(0.0, f64::max);
        even.max(longest)
    }

    /// The reduction of a stage's gradients over replicas, and the gather of its parameters.
    fn over_replicas_ms(&self, real: &Setting) -> f64 {
        let mesh = real.table().mesh();
        let group = mesh.leads().next().and_then(|lead| mesh.holders_of(lead).into_iter().next()).unwrap_or_default();
        let Ok(rings) = Rings::of(real.hardware(), [group.as_slice()]) else { return 0.0 };
        let time = |kind, part: fn(&LayerMemory) -> Bytes| {
            let bytes = of_layers(self.table, self.lead, part) / self.count;
            rings.time(kind, Bytes::new(bytes as u64)).to_ms()
        };
        time(CollectiveKind::ReduceScatter, |memory| memory.gradients)
            + time(CollectiveKind::AllGather, |memory| memory.updated)
    }

    /// The optimizer's step of a stage.
    fn step_ms(&self) -> f64 {
        let parameters: u64 = self.table.layers().map(|layer| self.table.trained_parameters(layer)).sum();
        self.table.optimizer_time((parameters as f64 / self.count) as u64, self.lead).to_ms()
    }
}

/// The bytes of `part` of all layers.
fn of_layers(table: &CostTable, lead: DeviceId, part: impl Fn(&LayerMemory) -> Bytes) -> f64 {
    table.layers().map(|layer| part(table.memory(layer, lead)).as_f64()).sum()
}
