//! Schedules of the learning rate.

/// The learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// Constant.
    #[default]
    Constant,
    /// Falls linearly to zero at the end of the run.
    Linear,
    /// Falls to zero along half a cosine wave.
    Cosine,
}

/// A linear warm-up from zero, then a decay, as in transformers'
/// `get_constant_schedule_with_warmup`, `get_linear_…` and `get_cosine_…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of warm-up steps.
    pub warmup_steps: u32,
    /// The decay after them.
    pub decay: Decay,
}

impl Schedule {
    /// The factor of the learning rate in step `step`, from 0, of a run of `steps`.
    pub fn factor(self, step: u32, steps: u32) -> f64 {
        if step < self.warmup_steps {
            return f64::from(step) / f64::from(self.warmup_steps);
        }
        let done = f64::from(step - self.warmup_steps) / f64::from(steps.saturating_sub(self.warmup_steps).max(1));
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => (1.0 - done).max(0.0),
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten steps, four of them warm-up; computed with transformers' `get_*_schedule_with_warmup`.
    #[test]
    fn learning_rates_rise_and_fall_as_transformers_has_them() {
        let rise = [0.0, 0.25, 0.5, 0.75];
        for (decay, fall) in [
            (Decay::Constant, [1.0; 6]),
            (Decay::Linear, [1.0, 5.0 / 6.0, 4.0 / 6.0, 0.5, 2.0 / 6.0, 1.0 / 6.0]),
            (Decay::Cosine, [1.0, 0.933_012_7, 0.75, 0.5, 0.25, 0.066_987_3]),
        ] {
            let schedule = Schedule { warmup_steps: 4, decay };
            let expected = rise.iter().chain(&fall);
            for (step, expected) in (0..).zip(expected) {
                assert!((schedule.factor(step, 10) - expected).abs() < 1e-7, "{decay:?} {step}");
            }
        }
        assert_eq!(Schedule::default().factor(0, 1).to_bits(), 1.0f64.to_bits());
        let late = Schedule { warmup_steps: 20, decay: Decay::Linear };
        assert_eq!((late.factor(10, 10), late.factor(30, 10)), (0.5, 0.0));
    }
}
