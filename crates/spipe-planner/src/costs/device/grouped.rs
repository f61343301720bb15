//! The sums of one device over groups of layers.

use crate::costs::device::{DeviceSums, Helper, HostOffload, Sums, largest};
use spipe_cost::LayerMemory;
use std::ops::Range;

impl<T: Copy> Sums<T> {
    fn at(&self, borders: &[usize]) -> Self {
        Self(borders.iter().map(|border| self.0[*border]).collect())
    }
}

impl DeviceSums {
    /// The sums over groups of layers, each from one border to the next. All layers of a group have
    /// the same pins.
    pub(in crate::costs) fn coarse(&self, borders: &[usize]) -> Self {
        let groups = || borders.windows(2).map(|ends| ends[0]..ends[1]);
        let first = |list: &[Option<bool>]| groups().map(|group| list[group.start]).collect();
        let bytes: Vec<LayerMemory> = groups().filter_map(|group| joined(&self.bytes[group])).collect();
        let times = |group: Range<usize>| {
            let able = self.able(group.start, group.end);
            able.then(|| self.stage_times((group.start, group.end), 0, HostOffload::NONE))
        };
        let helper = |helper: &Helper| Helper {
            host: helper.host,
            out: helper.out.at(borders),
            step: helper.step.at(borders),
            back: helper.back.at(borders),
        };
        Self {
            name: self.name.clone(),
            times: groups().map(times).collect(),
            forward: self.forward.at(borders),
            backward: self.backward.at(borders),
            optimizer: self.optimizer.at(borders),
            wanted: first(&self.wanted),
            pinned: self.pinned.clone(),
            forbidden: self.forbidden.iter().map(|forbidden| forbidden.at(borders)).collect(),
            streamed: first(&self.streamed),
            without_backward: borders.partition_point(|border| *border < self.without_backward),
            helpers: self.helpers.iter().map(helper).collect(),
            unable: self.unable.at(borders),
            state: self.state.at(borders),
            optimizer_state: self.optimizer_state.at(borders),
            gradients: self.gradients.at(borders),
            trained: self.trained.at(borders),
            parameters: self.parameters.at(borders),
            saved: self.saved.at(borders),
            workspace: largest(&bytes),
            bytes,
            ..*self
        }
    }
}

/// The memory of consecutive layers: the input of the first, the boundary of the last, the largest
/// workspace, and sums of everything else.
fn joined(layers: &[LayerMemory]) -> Option<LayerMemory> {
    layers.iter().copied().reduce(|one, other| LayerMemory {
        parameters: one.parameters + other.parameters,
        gradients: one.gradients + other.gradients,
        optimizer: one.optimizer + other.optimizer,
        tied_parameters: one.tied_parameters + other.tied_parameters,
        tied_gradients: one.tied_gradients + other.tied_gradients,
        cache: one.cache + other.cache,
        saved: one.saved + other.saved,
        saved_selective: one.saved_selective + other.saved_selective,
        input: one.input,
        boundary: other.boundary,
        workspace: one.workspace.max(other.workspace),
    })
}
