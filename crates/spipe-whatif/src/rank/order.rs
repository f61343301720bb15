//! The order of figures: the front, and letters of ties.

use std::collections::BTreeSet;

/// The positions of points that no other point beats: at most as large in both, and smaller in one.
pub(super) fn front_of(points: &[(f64, f64)]) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|left, right| {
        points[*left].0.total_cmp(&points[*right].0).then(points[*left].1.total_cmp(&points[*right].1))
    });
    let mut best = (f64::INFINITY, f64::INFINITY);
    let mut front = BTreeSet::new();
    for index in order {
        let equal = points[index].0.total_cmp(&best.0).is_eq() && points[index].1.total_cmp(&best.1).is_eq();
        if points[index].1 < best.1 || equal {
            front.insert(index);
            best = points[index];
        }
    }
    front
}

/// The letter of each rank: a machine has the letter of the first one of its group unless it is worse by more than
/// `width`.
pub(super) fn letters(keys: &[(bool, f64)], width: f64) -> Vec<String> {
    let mut letters: Vec<String> = Vec::new();
    let (mut group, mut first) = (0, None::<(bool, f64)>);
    for key in keys {
        match first {
            Some(start) if start.0 == key.0 && key.1 <= start.1 * (1.0 + width) => {}
            Some(_) => {
                group += 1;
                first = Some(*key);
            }
            None => first = Some(*key),
        }
        letters.push(letter(group));
    }
    letters
}

/// a, b, …, z, aa, ab, …
fn letter(mut group: usize) -> String {
    let mut text = String::new();
    loop {
        text.insert(0, char::from(b'a' + (group % 26) as u8));
        if group < 26 {
            return text;
        }
        group = group / 26 - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_the_letter_of_their_first() {
        let keys = [100.0, 102.0, 103.0, 104.0, 120.0].map(|figure| (false, figure));
        assert_eq!(letters(&keys, 0.03), ["a", "a", "a", "b", "c"]);
        assert_eq!(letters(&[(false, 1.0), (true, 1.0)], 0.03), ["a", "b"], "late machines are no ties");
        assert_eq!([0, 25, 26, 701, 702].map(letter), ["a", "z", "aa", "zz", "aaa"]);
    }

    #[test]
    fn the_front_has_no_dominated_point() {
        let points = [(1.0, 5.0), (2.0, 3.0), (2.0, 4.0), (3.0, 3.0), (4.0, 1.0), (4.0, 1.0)];
        assert_eq!(front_of(&points), BTreeSet::from([0, 1, 4, 5]));
    }
}
