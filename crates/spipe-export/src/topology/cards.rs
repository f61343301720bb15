//! Network cards of the matrix: which are used, and what they are at.

use super::{
    Printed,
    matrix::{Relation, Row},
};
use spipe_base::{Diagnostic, Faults};

/// The cards that are used, with their columns: those nearest to GPUs.
///
/// # Errors
/// The matrix has fewer.
pub fn used<'a>(rows: &'a [Row], printed: &Printed<'_>) -> Result<Vec<(usize, &'a Row)>, Faults> {
    let wanted = printed.network.as_ref().map_or(0, |network| network.cards as usize);
    let is_gpu = |row: &Row| row.name.starts_with("GPU");
    let mut cards: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, row)| !is_gpu(row)).collect();
    if cards.len() < wanted {
        let fault =
            Diagnostic::error(format!("`{}` has {} network cards, not {wanted}", printed.matrix.0, cards.len()));
        return Err(fault.hint("give the number of cards that training uses and their line rate").into());
    }
    let nearest =
        |row: &Row| row.relations.iter().zip(rows).filter(|(_, other)| is_gpu(other)).map(|(near, _)| *near).min();
    cards.sort_by_key(|(_, row)| nearest(row));
    cards.truncate(wanted);
    cards.sort_by_key(|(column, _)| *column);
    Ok(cards)
}

/// The node that each card is at: the switch that it shares with a GPU, or the root complex of the nearest GPU's node.
pub fn places(cards: &[(usize, &Row)], gpus: &[(usize, &Row)], switches: &[Option<usize>]) -> Vec<String> {
    let place = |(index, (_, card)): (usize, &(usize, &Row))| match switches[gpus.len() + index] {
        Some(switch) => format!("switch{switch}"),
        None => {
            let near = |(column, _): &&(usize, &Row)| card.relations.get(*column).copied().unwrap_or(Relation::Sys);
            let nearest = gpus.iter().min_by_key(near);
            format!("root{}", card.node.or_else(|| nearest?.1.node).unwrap_or(0))
        }
    };
    cards.iter().enumerate().map(place).collect()
}
