//! Constants fitted on rows: a line by least squares, and a pattern search.

/// The number of step lengths of a search, each half of the one before: the last is 6e-5 of the
/// first (2⁻¹⁴).
const HALVINGS: usize = 14;

/// The line through points, by least squares: slope and intercept.
pub fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let slope = covariance / variance;
    (slope, y - slope * x)
}

/// Non-negative constants that minimise `cost`, by pattern search from `start` (Hooke and Jeeves
/// 1961): one constant after the other is moved up and down by its step; when no move lowers the
/// cost, the steps are halved.
pub fn least<E>(start: &[f64], cost: impl Fn(&[f64]) -> Result<f64, E>) -> Result<Vec<f64>, E> {
    let mut at = start.to_vec();
    let mut lowest = cost(&at)?;
    let mut steps: Vec<f64> = start.iter().map(|constant| constant / 2.0).collect();
    for _ in 0..HALVINGS {
        let mut moved = true;
        while moved {
            moved = false;
            for index in 0..at.len() {
                for direction in [steps[index], -steps[index]] {
                    let mut there = at.clone();
                    there[index] = (there[index] + direction).max(0.0);
                    let found = cost(&there)?;
                    if found < lowest * (1.0 - 1e-9) {
                        (at, lowest, moved) = (there, found, true);
                    }
                }
            }
        }
        steps.iter_mut().for_each(|step| *step /= 2.0);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_meets_its_points() {
        let (slope, intercept) = line(&[(1.0, 5.0), (3.0, 9.0), (2.0, 7.0)]);
        assert!((slope - 2.0).abs() < 1e-12 && (intercept - 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_search_finds_the_bottom_of_a_bent_valley() {
        // The cost depends on the larger of two constants and on their sum.
        let cost = |at: &[f64]| Ok::<_, ()>((at[0].max(at[1]) - 2.0).powi(2) + (at[0] + at[1] - 3.0).powi(2));
        let found = least(&[1.0, 1.9], cost);
        assert!(found.is_ok_and(|at| cost(&at).is_ok_and(|cost| cost < 1e-6)));
    }
}
