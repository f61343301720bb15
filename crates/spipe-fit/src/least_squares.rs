//! Least squares over few coordinates: Levenberg's and Marquardt's method, and the directions that
//! residuals do not determine.
//!
//! Levenberg 1944; Marquardt 1963, doi 10.1137/0111030; rank-revealing QR with column pivoting:
//! Golub 1965, doi 10.1007/BF01436075. Nothing here is random, and no clock is read.

/// The difference of a coordinate for derivatives. Simulated times are whole nanoseconds and have
/// kinks, so that it is not small: 2 % of a factor.
const STEP: f64 = 0.02;

/// The most steps of a fit.
const MOST_STEPS: usize = 40;

/// A step must lower the sum of squares by this fraction to count.
const LEAST_GAIN: f64 = 1e-7;

/// The damping at the start, its factor after a refused step, and its largest value.
const DAMPING: (f64, f64, f64) = (1e-3, 8.0, 1e7);

/// The step lengths along single coordinates that are tried where damped steps fail, at a kink.
const PROBES: [f64; 4] = [0.1, 0.03, 0.01, 0.003];

/// The residuals at coordinates.
type Residuals<'a, E> = dyn Fn(&[f64]) -> Result<Vec<f64>, E> + 'a;

/// A sum of squares to minimise within bounds.
pub struct Problem<'a, E> {
    /// The residuals at coordinates.
    pub residuals: &'a Residuals<'a, E>,
    /// The least and the largest value of each coordinate.
    pub bounds: Vec<(f64, f64)>,
}

/// The end of a fit.
#[derive(Clone, Debug)]
pub struct Minimum {
    /// The coordinates.
    pub at: Vec<f64>,
    /// The residuals there.
    pub residuals: Vec<f64>,
}

fn squares(residuals: &[f64]) -> f64 {
    residuals.iter().map(|residual| residual * residual).sum()
}

impl<E> Problem<'_, E> {
    fn bounded(&self, at: &[f64]) -> Vec<f64> {
        at.iter().zip(&self.bounds).map(|(value, (least, most))| value.clamp(*least, *most)).collect()
    }

    /// Returns the columns of the Jacobian at a point where the residuals are known.
    ///
    /// # Errors
    /// The error of the residuals.
    pub fn jacobian(&self, at: &[f64], residuals: &[f64]) -> Result<Vec<Vec<f64>>, E> {
        let column = |index: usize| {
            let mut there = at.to_vec();
            let step = if at[index] + STEP > self.bounds[index].1 { -STEP } else { STEP };
            there[index] += step;
            let moved = (self.residuals)(&there)?;
            Ok(moved.iter().zip(residuals).map(|(there, here)| (there - here) / step).collect())
        };
        (0..at.len()).map(column).collect()
    }

    /// Returns a point of least squares near `start`.
    ///
    /// # Errors
    /// The error of the residuals.
    pub fn minimum(&self, start: &[f64]) -> Result<Minimum, E> {
        let mut at = self.bounded(start);
        let mut residuals = (self.residuals)(&at)?;
        let mut damping = DAMPING.0;
        for _ in 0..MOST_STEPS {
            let jacobian = self.jacobian(&at, &residuals)?;
            let before = squares(&residuals);
            let found = self.damped_step(&at, (&residuals, &jacobian), &mut damping)?;
            let found = match found {
                Some(found) => Some(found),
                None => self.probe(&at, before)?,
            };
            let Some(found) = found else { break };
            let gained = before - squares(&found.residuals);
            (at, residuals) = (found.at, found.residuals);
            if gained < LEAST_GAIN * before {
                break;
            }
        }
        Ok(Minimum { at, residuals })
    }

    /// Returns the first damped step that lowers the sum of squares.
    fn damped_step(
        &self,
        at: &[f64],
        (residuals, jacobian): (&[f64], &[Vec<f64>]),
        damping: &mut f64,
    ) -> Result<Option<Minimum>, E> {
        let before = squares(residuals);
        while *damping < DAMPING.2 {
            if let Some(step) = damped(jacobian, residuals, *damping) {
                let there = self.bounded(&at.iter().zip(&step).map(|(at, step)| at + step).collect::<Vec<f64>>());
                let moved = (self.residuals)(&there)?;
                if squares(&moved) < before * (1.0 - LEAST_GAIN) {
                    *damping = (*damping / DAMPING.1).max(1e-9);
                    return Ok(Some(Minimum { at: there, residuals: moved }));
                }
            }
            *damping *= DAMPING.1;
        }
        *damping = DAMPING.0;
        Ok(None)
    }

    /// Returns the best of the steps along one coordinate, the longest that helps.
    fn probe(&self, at: &[f64], before: f64) -> Result<Option<Minimum>, E> {
        for length in PROBES {
            let mut best: Option<(f64, Minimum)> = None;
            for (index, sign) in (0..at.len()).flat_map(|index| [(index, 1.0), (index, -1.0)]) {
                let mut there = at.to_vec();
                there[index] += sign * length;
                let there = self.bounded(&there);
                let residuals = (self.residuals)(&there)?;
                let cost = squares(&residuals);
                if cost < best.as_ref().map_or(before * (1.0 - LEAST_GAIN), |(least, _)| *least) {
                    best = Some((cost, Minimum { at: there, residuals }));
                }
            }
            if let Some((_, best)) = best {
                return Ok(Some(best));
            }
        }
        Ok(None)
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Solves (JᵀJ + damping · diag(JᵀJ)) step = −Jᵀ residuals by elimination; none if it is singular.
fn damped(jacobian: &[Vec<f64>], residuals: &[f64], damping: f64) -> Option<Vec<f64>> {
    let count = jacobian.len();
    let mut rows: Vec<Vec<f64>> = (0..count)
        .map(|row| {
            let products = (0..count).map(|column| dot(&jacobian[row], &jacobian[column]));
            let mut row_of: Vec<f64> = products.collect();
            row_of[row] *= 1.0 + damping;
            row_of.push(-dot(&jacobian[row], residuals));
            row_of
        })
        .collect();
    for pivot in 0..count {
        let largest = (pivot..count).max_by(|a, b| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs()))?;
        rows.swap(pivot, largest);
        if rows[pivot][pivot].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for below in pivot + 1..count {
            let factor = rows[below][pivot] / rows[pivot][pivot];
            let (upper, lower) = rows.split_at_mut(below);
            lower[0].iter_mut().zip(&upper[pivot]).skip(pivot).for_each(|(own, other)| *own -= factor * other);
        }
    }
    let mut step = vec![0.0; count];
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|column| rows[row][column] * step[column]).sum();
        step[row] = (rows[row][count] - known) / rows[row][row];
    }
    step.iter().all(|value| value.is_finite()).then_some(step)
}

/// The columns of a Jacobian in the order of a QR decomposition with column pivoting: index, and the
/// norm of the part that the columns before do not explain.
pub fn pivoted(jacobian: &[Vec<f64>]) -> Vec<(usize, f64)> {
    let mut left: Vec<(usize, Vec<f64>)> = jacobian.iter().cloned().enumerate().collect();
    let mut order = Vec::new();
    let norm = |column: &[f64]| dot(column, column).sqrt();
    while !left.is_empty() {
        let mut at = 0;
        for index in 1..left.len() {
            if norm(&left[index].1) > norm(&left[at].1) {
                at = index;
            }
        }
        let (index, column) = left.remove(at);
        let length = norm(&column);
        order.push((index, length));
        if length > 0.0 {
            for (_, other) in &mut left {
                let share = dot(&column, other) / (length * length);
                other.iter_mut().zip(&column).for_each(|(own, explained)| *own -= share * explained);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exponential_is_found_within_bounds() {
        let data: Vec<(f64, f64)> = (0..6).map(|at| (f64::from(at), 3.0 * (-0.4 * f64::from(at)).exp())).collect();
        let residuals = |at: &[f64]| {
            Ok::<_, ()>(data.iter().map(|(x, y)| at[0] * (-at[1] * x).exp() / y - 1.0).collect::<Vec<f64>>())
        };
        let problem = Problem { residuals: &residuals, bounds: vec![(0.1, 10.0), (0.0, 2.0)] };
        let found = problem.minimum(&[1.0, 1.0]).unwrap().at;
        assert!((found[0] - 3.0).abs() < 1e-3 && (found[1] - 0.4).abs() < 1e-3, "{found:?}");
        let tight = Problem { residuals: &residuals, bounds: vec![(0.1, 2.0), (0.0, 2.0)] };
        assert!((tight.minimum(&[1.0, 1.0]).unwrap().at[0] - 2.0).abs() < 1e-9);
    }

    #[test]
    fn equal_columns_are_one_direction() {
        let order = pivoted(&[vec![1.0, 0.0, 0.1], vec![2.0, 0.0, 0.2], vec![0.0, 0.5, 0.0]]);
        assert_eq!(order.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2, 0]);
        assert!(order[2].1 < 1e-12 && order[1].1 > 0.49);
    }

    #[test]
    fn the_larger_of_two_times_does_not_stop_a_fit() {
        let measured = [3.0, 5.0, 8.0, 2.0];
        let residuals = |at: &[f64]| {
            let times = [at[0], at[0].max(at[1]), at[1] + 3.0, at[1].min(2.0)];
            Ok::<_, ()>(times.iter().zip(measured).map(|(own, measured)| own / measured - 1.0).collect::<Vec<f64>>())
        };
        let problem = Problem { residuals: &residuals, bounds: vec![(0.1, 10.0); 2] };
        let found = problem.minimum(&[1.0, 1.0]).unwrap();
        assert!(squares(&found.residuals) < 1e-4, "{found:?}");
    }
}
