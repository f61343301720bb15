//! Bisection on monotone predicates.

/// Returns the first number of `from..to` for which `holds`, or `to` if there is none. `holds` must
/// stay true once it is true.
pub(crate) fn first_of((mut from, mut to): (usize, usize), holds: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = from.midpoint(to);
        if holds(middle) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    from
}

/// Like [`first_of`], with a search in growing steps from `near`.
pub(crate) fn first_near((from, to): (usize, usize), near: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (from, to);
    let mut step = 1;
    let mut at = near.clamp(from, to);
    while low < high && at < high && at >= low {
        if holds(at) {
            high = at;
            at = at.saturating_sub(step);
        } else {
            low = at + 1;
            at += step;
        }
        step *= 2;
    }
    first_of((low, high), holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_holds_is_found() {
        for (from, to) in [(0, 0), (0, 1), (3, 10), (3, 11)] {
            for first in from..=to {
                let holds = |number| number >= first;
                assert_eq!(first_of((from, to), holds), first, "{from}..{to}");
                for near in 0..=to + 1 {
                    assert_eq!(first_near((from, to), near, holds), first, "{from}..{to} near {near}");
                }
            }
        }
    }
}
