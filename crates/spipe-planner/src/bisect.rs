//! Where something begins to hold that then goes on to hold.

/// The first number of `from..to` for which something holds that then holds for all behind it; `to` if there is none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_holds_is_found() {
        for (from, to) in [(0, 0), (0, 1), (3, 10), (3, 11)] {
            for first in from..=to {
                assert_eq!(first_of((from, to), |number| number >= first), first, "{from}..{to}");
            }
        }
    }
}
