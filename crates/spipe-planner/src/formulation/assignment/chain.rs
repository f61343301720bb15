//! The rows that bound an iteration in a chain of devices, each position with consecutive layers.

use crate::formulation::assignment::{
    DeviceClass,
    columns::{AssignmentProgram, LayerMode, ResourceLoad, rate},
    position::Position,
};
use crate::space::rules::Warmup;
use good_lp::{Expression, ProblemVariables, constraint, variable};

impl AssignmentProgram<'_, '_> {
    /// Returns the extra forwards of a position before its first backward, compared with a chain of
    /// GPUs. The hybrid grants its head start where a CPU is at or after the position.
    pub fn head_start(&self, choice: &LayerMode<'_>) -> f64 {
        match self.turn {
            Some(Warmup::OneFOneB(ahead)) if choice.device.is_cpu => ahead.min(self.costs.microbatches - 1) as f64,
            _ => 0.0,
        }
    }

    /// Returns the limit on microbatches between forward and backward at a position. With `most`,
    /// open choices count in its favour.
    pub fn ahead(&self, choice: &LayerMode<'_>, most: bool) -> u64 {
        let behind = (self.places.len() - choice.place) as u64;
        let Some(Warmup::OneFOneB(ahead)) = self.turn else { return self.costs.microbatches };
        let certain = choice.device.is_cpu;
        let possible = certain || (most && choice.place + 1 < self.places.len());
        behind + if possible { ahead } else { 0 }
    }

    /// Returns the forwards that remain at a position when the first microbatch returns to it; for
    /// GPipe, those after the first.
    pub fn following(&self, choice: &LayerMode<'_>) -> f64 {
        let m = self.costs.microbatches;
        match self.turn {
            None => 0.0,
            Some(Warmup::GPipe) => (m - 1) as f64,
            Some(Warmup::OneFOneB(_)) => m.saturating_sub(self.ahead(choice, true)) as f64,
        }
    }

    /// Adds the bounds of every position in a chain of devices, unused positions first.
    ///
    /// The first microbatch travels from position j to the end, where a CPU runs H more forwards
    /// before the first backward, and returns to position i ≥ j when at most K_i forwards have run
    /// there. The other m − K_i forwards and m − 1 backwards follow, then the last gradient travels
    /// to position j, which updates its layers before its next iteration. With P_j = Σ (F + B) from
    /// position j on and S_j for the optimizer steps of its device,
    ///
    /// `T ≥ P_j + H F_last + max_{i≥j} [(m − K_i) F_i + (m − 1)(R_i + B_i)] + S_j`.
    ///
    /// In GPipe, m − 1 forwards follow the first at one position on the way to the end, and m − 1
    /// backwards at one position on the way back. This bound also holds for the devices of a class
    /// together, at whatever positions.
    ///
    /// Position i starts after one pass through positions j to i − 1, and ends before another:
    ///
    /// `T ≥ Σ_{j≤k<i} (F_k + B_k) + m (F_i + R_i + B_i) + S_j`.
    ///
    /// The host updates positions up to i after position i starts its last backward and before it
    /// ends its first forward. Outside that window, the first microbatch travels to the end and
    /// back, and the other m − K_i forwards and m − 1 backwards run. With H for these updates on
    /// all sockets at once,
    ///
    /// `T ≥ Σ_{j>i} (F_j + B_j) + (m − K_i) F_i + (m − 1) B_i + (m − 2) R_i + H`.
    pub fn chain_of_places(
        &mut self,
        (classes, burdens): (&[DeviceClass], &[ResourceLoad]),
        vars: &mut ProblemVariables,
    ) {
        let m = self.costs.microbatches as f64;
        let pass = |places: &[Position]| -> Expression { places.iter().map(Position::pass).sum() };
        let all = pass(&self.places) + self.before_turning.clone();
        // `slowest`: the largest remainder after the turnaround over the positions from here on;
        // GPipe has one for forwards and one for backwards. `there`: the largest time to reach a
        // position, do all its work and return.
        let mut slowest = [Expression::default(), Expression::default()];
        let mut there = Expression::default();
        let mut least = |of: &[Expression]| -> Expression {
            let most = vars.add(variable().min(0.0));
            self.rows.extend(of.iter().map(|one| constraint!(one.clone() <= most)));
            most.into()
        };
        let mut rows = Vec::new();
        let mut behind = self.before_turning.clone();
        for place in self.places.iter().rev() {
            behind += place.pass();
            let (following, back) = (place.following.clone(), place.backward.clone() + place.again.clone());
            let [forwards, backwards] = &slowest;
            slowest = match self.turn {
                Some(Warmup::GPipe) => {
                    [least(&[following, forwards.clone()]), least(&[back.clone() * (m - 1.0), backwards.clone()])]
                }
                _ => [Expression::default(), least(&[following + back.clone() * (m - 1.0), backwards.clone()])],
            };
            let turned: Expression = slowest.iter().cloned().sum();
            rows.push(behind.clone() + turned + place.stepped.clone());
            there = least(&[(place.forward.clone() + back) * m, place.pass() + there]);
            rows.push(there.clone() + place.stepped.clone());
        }
        for (index, place) in self.places.iter().enumerate() {
            let between =
                place.following.clone() + place.backward.clone() * (m - 1.0) + place.again.clone() * (m - 2.0).max(0.0);
            let stepped: Expression = self.places[..=index].iter().map(|place| place.stepped_by_host.clone()).sum();
            let rate = self.step_rate() * self.unit;
            if rate > 0.0 {
                rows.push(pass(&self.places[index + 1..]) + between + stepped / rate);
            }
        }
        // No GPU at this position has a faster link of its own.
        for way in [0, 1] {
            let gpus =
                classes.iter().flat_map(|class| &class.members).filter(|member| !self.costs.devices[**member].is_cpu);
            let fastest = gpus.map(|gpu| rate(self.costs, &[*gpu], way == 0)).fold(0.0, f64::max);
            if fastest > 0.0 && fastest.is_finite() {
                let time = |place: &Position| place.copied[way].clone() / (fastest * self.unit / 1e3);
                rows.extend(self.places.iter().map(time));
            }
        }
        self.rows.extend(rows.into_iter().map(|row| constraint!(row <= self.busiest)));
        for (class, burden) in classes.iter().zip(burdens) {
            let count = class.count as f64;
            self.rows.push(constraint!(all.clone() * count + burden.turned.clone() <= count * self.busiest));
        }
    }

    /// Assigns at most one class to every position, unused positions first, and to each class at
    /// most as many positions as it has devices.
    pub fn assign_classes(&mut self, classes: &[DeviceClass], vars: &mut ProblemVariables) {
        let layers = self.costs.layers as f64;
        let mut before = Expression::from(0.0);
        let mut positions: Vec<Expression> = vec![Expression::default(); classes.len()];
        for (index, place) in self.places.iter().enumerate() {
            let (mut taken, mut usable) = (Expression::default(), Expression::default());
            for (number, class) in classes.iter().enumerate() {
                let here = vars.add(variable().binary().name(format!("taken_{index}_{number}")));
                self.rows.push(constraint!(place.layers[number].clone() <= layers * here));
                usable.add_mul(self.usable(class).to_gib(), here);
                taken += here;
                positions[number] += here;
            }
            self.rows.push(constraint!(taken.clone() <= 1.0));
            self.rows.push(constraint!(before <= taken.clone()));
            self.rows.push(constraint!(place.held.clone() <= usable));
            self.rows.push(constraint!(place.busy.clone() <= self.busiest));
            before = taken;
        }
        for (positions, class) in positions.into_iter().zip(classes) {
            self.rows.push(constraint!(positions <= class.count as f64));
        }
    }

    /// Requires consecutive layers at every position, in model order.
    pub fn in_order(&mut self, vars: &mut ProblemVariables) {
        let counts: Vec<f64> = self.costs.runs.iter().map(|(_, count)| *count as f64).collect();
        for place in 0..self.places.len() {
            let mut done = vec![Expression::default(); counts.len()];
            for (run, _, _, share) in self.shares.iter().filter(|(_, _, choice, _)| choice.place <= place) {
                done[*run] += *share;
            }
            for run in 1..counts.len() {
                let begun = vars.add(variable().binary());
                self.rows.push(constraint!(done[run].clone() <= counts[run] * begun));
                self.rows.push(constraint!(done[run - 1].clone() >= counts[run - 1] * begun));
            }
        }
    }
}
