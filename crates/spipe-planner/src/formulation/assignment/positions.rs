//! Where each device has neighbouring layers: what is at each place of the chain of devices, and the rows that bound an iteration there.

use crate::formulation::assignment::{
    Class,
    columns::{Burden, Choice, Spread, rate},
};
use crate::space::rules::Warmup;
use good_lp::{Expression, ProblemVariables, constraint, variable};

/// What is at one place.
#[derive(Default)]
pub(crate) struct Place {
    /// What one microbatch takes forward, backward, and in its recompute.
    pub forward: Expression,
    pub backward: Expression,
    pub again: Expression,
    /// The forwards that it still has when the first microbatch comes back to it.
    pub following: Expression,
    /// What its device steps, and billions of parameters that the host steps for it.
    pub stepped: Expression,
    pub stepped_by_host: Expression,
    /// GB that are copied in and out.
    pub copied: [Expression; 2],
    /// Layers by class of devices, and what its device does and holds.
    pub layers: Vec<Expression>,
    pub busy: Expression,
    pub held: Expression,
}

impl Place {
    /// Of a device of one of so many classes.
    pub fn new(classes: usize) -> Self {
        Self { layers: vec![Expression::default(); classes], ..Self::default() }
    }

    /// One microbatch there and back, with no recompute, which may be done while it is away.
    fn pass(&self) -> Expression {
        self.forward.clone() + self.backward.clone()
    }
}

impl Spread<'_, '_> {
    /// How many forwards more than a chain of GPUs a place has before its first backward: the head start is given where a CPU is at or
    /// after the place.
    pub fn head_start(&self, choice: &Choice<'_>) -> f64 {
        match self.turn {
            Some(Warmup::OneFOneB(ahead)) if choice.device.is_cpu => ahead.min(self.costs.microbatches - 1) as f64,
            _ => 0.0,
        }
    }

    /// How many microbatches a place may have between forward and backward: with `most` if what is left open is in its favour.
    pub fn ahead(&self, choice: &Choice<'_>, most: bool) -> u64 {
        let behind = (self.places.len() - choice.place) as u64;
        let Some(Warmup::OneFOneB(ahead)) = self.turn else { return self.costs.microbatches };
        let certain = choice.device.is_cpu;
        let possible = certain || (most && choice.place + 1 < self.places.len());
        behind + if possible { ahead } else { 0 }
    }

    /// How many forwards a place still has when the first microbatch comes back to it, or after the first one on its way to the end.
    pub fn following(&self, choice: &Choice<'_>) -> f64 {
        let m = self.costs.microbatches;
        match self.turn {
            None => 0.0,
            Some(Warmup::GPipe) => (m - 1) as f64,
            Some(Warmup::OneFOneB(_)) => m.saturating_sub(self.ahead(choice, true)) as f64,
        }
    }

    /// The bounds of every place in a chain of devices, the unused ones first.
    ///
    /// The first microbatch goes from place j to the end, where a CPU has H forwards more before the first backward, and comes back to
    /// place i ≥ j when at most K_i forwards have been there; the other m − K_i and m − 1 backwards follow, the last gradient goes on to
    /// place j, which then steps its layers before its next iteration begins. Where all forwards come first, m − 1 follow the first one at
    /// one place on the way to the end, and m − 1 backwards at one place on the way back. With P_j = Σ (F + B) from place j on and S_j for
    /// the steps of its device,
    ///
    /// `T ≥ P_j + H F_last + max_{i≥j} [(m − K_i) F_i + (m − 1)(R_i + B_i)] + S_j`.
    ///
    /// And place i begins after the places from j on before it have been passed once, and they are passed again after its end:
    ///
    /// `T ≥ Σ_{j≤k<i} (F_k + B_k) + m (F_i + R_i + B_i) + S_j`.
    ///
    /// The former holds for the devices of a class together, whatever places they have.
    ///
    /// What the host steps for the places up to i comes after place i begins its last backward and before it ends its first forward, between
    /// which the first microbatch goes to the end and comes back, and the other m − K_i forwards and m − 1 backwards are done: with H for
    /// these steps on all sockets at once, `T ≥ Σ_{j>i} (F_j + B_j) + (m − K_i) F_i + (m − 1) B_i + (m − 2) R_i + H`.
    pub fn chain_of_places(&mut self, (classes, burdens): (&[Class], &[Burden]), vars: &mut ProblemVariables) {
        let m = self.costs.microbatches as f64;
        let pass = |places: &[Place]| -> Expression { places.iter().map(Place::pass).sum() };
        let all = pass(&self.places) + self.before_turning.clone();
        // What comes after the first microbatch has turned around at the slowest of the places from here on, or there forwards and
        // backwards each; and what it takes to come to one of them, to do all there, and to come back.
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
        // Whichever GPU is there has no faster link of its own.
        for way in [0, 1] {
            let gpus =
                classes.iter().flat_map(|class| &class.members).filter(|member| !self.costs.devices[**member].is_cpu);
            let fastest = gpus.map(|gpu| rate(self.costs, &[*gpu], way == 0)).fold(0.0, f64::max);
            if fastest > 0.0 && fastest.is_finite() {
                let time = |place: &Place| place.copied[way].clone() / (fastest * self.unit / 1e3);
                rows.extend(self.places.iter().map(time));
            }
        }
        self.rows.extend(rows.into_iter().map(|row| constraint!(row <= self.busiest)));
        for (class, burden) in classes.iter().zip(burdens) {
            let count = class.count as f64;
            self.rows.push(constraint!(all.clone() * count + burden.turned.clone() <= count * self.busiest));
        }
    }

    /// At every place is a device of one class at most, the unused places first, and no class is at more places than it has devices.
    pub fn seat(&mut self, classes: &[Class], vars: &mut ProblemVariables) {
        let layers = self.costs.layers as f64;
        let mut before = Expression::from(0.0);
        let mut seats: Vec<Expression> = vec![Expression::default(); classes.len()];
        for (index, place) in self.places.iter().enumerate() {
            let (mut taken, mut usable) = (Expression::default(), Expression::default());
            for (number, class) in classes.iter().enumerate() {
                let seat = vars.add(variable().binary().name(format!("seat_{index}_{number}")));
                self.rows.push(constraint!(place.layers[number].clone() <= layers * seat));
                usable.add_mul(self.usable(class).to_gib(), seat);
                taken += seat;
                seats[number] += seat;
            }
            self.rows.push(constraint!(taken.clone() <= 1.0));
            self.rows.push(constraint!(before <= taken.clone()));
            self.rows.push(constraint!(place.held.clone() <= usable));
            self.rows.push(constraint!(place.busy.clone() <= self.busiest));
            before = taken;
        }
        for (seats, class) in seats.into_iter().zip(classes) {
            self.rows.push(constraint!(seats <= class.count as f64));
        }
    }

    /// At every place are neighbouring layers, in the order of the model.
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
