//! Stages without a backward: all of their layers are frozen, and so are all layers before them.

use crate::formulation::stage_milp::{GIB, StageMilp, Unknowns};
use good_lp::{Constraint, Expression, constraint};

impl StageMilp<'_, '_> {
    /// Returns t_i ∈ {0, 1}: whether stage i has a backward. With f the first run that has one,
    /// `t_i = v_if`.
    fn returns(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        let Some(run) = self.runs().iter().position(|(first, _)| *first == self.costs.frozen) else {
            return 0.0.into();
        };
        unknowns.begun.get(stage).map_or(Expression::from(1.0), |begun| begun[run].into())
    }

    /// Returns a°_i, in GiB.
    pub(crate) fn once(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        unknowns.once.get(stage).map_or_else(Expression::default, |once| (*once).into())
    }

    /// Returns s_i, in GiB.
    pub(crate) fn stays(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        unknowns.stays.get(stage).map_or_else(Expression::default, |stays| (*stays).into())
    }

    /// Returns the GiB that one microbatch of stage i keeps besides its input: `M_i + a°_i − a_i`.
    pub(crate) fn leaving(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        unknowns.held[stage] + self.once(unknowns, stage) - self.input(unknowns, stage)
    }

    /// Returns the largest input that stage i may have, in GiB.
    pub(crate) fn largest_input(&self, stage: usize) -> f64 {
        let device = self.device(stage);
        let most = device.bytes.iter().map(|bytes| bytes.boundary).chain([device.bytes[0].input]).max();
        most.unwrap_or_default().as_f64() / GIB
    }

    /// Rows for stages without a backward: a° is the input and s the parameters of such a stage.
    /// Both are zero for other stages.
    ///
    /// `a_i − max a t_i ≤ a°_i ≤ a_i`, `a°_i ≤ max a (1 − t_i)`, `s_i ≤ Σ_{k<f} parameters_k x_ik`,
    /// `s_i ≤ Σ_{k<f} parameters_k n_k (1 − t_i)`.
    pub(crate) fn without_backward(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut rows = Vec::new();
        for (stage, (once, stays)) in unknowns.once.iter().zip(&unknowns.stays).enumerate() {
            let (returns, input, most) =
                (self.returns(unknowns, stage), self.input(unknowns, stage), self.largest_input(stage));
            rows.push(constraint!(*once <= input.clone()));
            rows.push(constraint!(*once + most * returns.clone() >= input));
            rows.push(constraint!(*once + most * returns.clone() <= most));
            let frozen = 0..self.costs.frozen;
            let parameters = |layer: usize| self.device(stage).bytes[layer].parameters.as_f64() / GIB;
            let all: f64 = frozen.clone().map(parameters).sum();
            let of = |layer: usize| if frozen.contains(&layer) { parameters(layer) } else { 0.0 };
            rows.push(constraint!(*stays <= self.sum(unknowns, stage, of)));
            rows.push(constraint!(*stays + all * returns <= all));
        }
        rows
    }
}
