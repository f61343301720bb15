//! Changes of one kind of part: repairs of a machine, and the next part to buy.

use super::{solved::Solved, table::Change};
use crate::{Candidate, Sweep};
use spipe_market::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the parts in which two machines differ, as a change of one kind of part of each computer, or of the number
/// of computers. What follows from others does not count: board, supply, switches and cables; and the cards of a network
/// where the number of computers changes, or their number where that of GPUs does. `None` if they differ in more, or in
/// their condition.
pub fn change_of(from: &Candidate, to: &Candidate) -> Option<String> {
    if from.condition != to.condition {
        return None;
    }
    let nodes = [from, to].map(|candidate| candidate.machine.nodes);
    let (before, after) = (parts(from), parts(to));
    if nodes[0] != nodes[1] {
        let alike = |kind: &Kind| *kind == Kind::NetworkCard || before.get(kind) == after.get(kind);
        return before.keys().chain(after.keys()).all(alike).then(|| format!("{} → {} nodes", nodes[0], nodes[1]));
    }
    let kinds: BTreeSet<Kind> = before.keys().chain(after.keys()).copied().collect();
    let mut changed = kinds.into_iter().filter(|kind| before.get(kind) != after.get(kind));
    let kind = changed.next().filter(|_| changed.next().is_none())?;
    let words = |parts: Option<&Vec<String>>| parts.map_or_else(|| "none".to_owned(), |parts| parts.join(" + "));
    let each = if nodes[0] > 1 { " in each node" } else { "" };
    Some(format!("{} → {}{each}", words(before.get(&kind)), words(after.get(&kind))))
}

/// The parts of one computer that tell machines apart, by kind.
fn parts(candidate: &Candidate) -> BTreeMap<Kind, Vec<String>> {
    let mut parts: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    for item in &candidate.machine.items {
        let count = item.count / candidate.machine.nodes;
        let words = match item.kind {
            Kind::Board | Kind::Supply | Kind::NetworkSwitch | Kind::Cable => continue,
            Kind::NetworkCard => item.name.clone(),
            _ => format!("{count} × {}", item.name),
        };
        parts.entry(item.kind).or_default().push(words);
    }
    parts
}

/// Returns the places of the machines that differ from one in a single kind of part.
pub fn neighbours(sweep: &Sweep, index: usize) -> Vec<usize> {
    let from = &sweep.candidates[index];
    let near = |to: &&Candidate| to.index != index && change_of(from, to).is_some();
    sweep.candidates.iter().filter(near).map(|to| to.index).collect()
}

/// The cheapest solved machine that differs in one kind of part.
pub(super) fn repair(candidate: &Candidate, solved: &[Solved<'_>]) -> Option<Change> {
    let changes = solved.iter().filter_map(|other| Some((change_of(candidate, other.candidate)?, other)));
    let priced = changes.map(|(change, other)| Change {
        change,
        price: other.candidate.price.range.typical - candidate.price.range.typical,
        gain: None,
    });
    priced.min_by(|left, right| left.price.total_cmp(&right.price))
}

/// The single changes of a machine that make it faster, by gain per money.
pub(super) fn next(first: &Solved<'_>, solved: &[Solved<'_>]) -> Vec<Change> {
    let mut changes: Vec<Change> = solved
        .iter()
        .filter_map(|other| {
            let change = change_of(first.candidate, other.candidate)?;
            let price = other.candidate.price.range.typical - first.candidate.price.range.typical;
            let gain = other.figures.tokens_per_second / first.figures.tokens_per_second - 1.0;
            (gain > 0.0).then_some(Change { change, price, gain: Some(gain) })
        })
        .collect();
    // Gains that cost nothing come first.
    let worth = |change: &Change| change.gain.unwrap_or(0.0) / change.price.max(1.0);
    changes.sort_by(|left, right| worth(right).total_cmp(&worth(left)).then(left.change.cmp(&right.change)));
    changes
}
