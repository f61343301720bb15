//! The choice of a board and of supplies.

use super::{
    ComposeError,
    choice::{Choice, Parts},
    network,
    rules::{self, broken},
};
use crate::{BoardPart, Catalogue, Condition, SupplyPart, Watts, file::sold};

/// The most supplies of one machine.
const MOST_SUPPLIES: u32 = 3;

/// Returns the chosen board if it fits, or else the smallest one that does: priced before
/// unpriced, fewer CPUs, fewer GPUs, then the order of the catalogue.
pub(super) fn pick<'a>(
    catalogue: &'a Catalogue,
    choice: &Choice,
    parts: &Parts<'a>,
) -> Result<&'a BoardPart, ComposeError> {
    if let Some(board) = parts.board {
        return Ok(rules::fits(parts, board).map(|()| board)?);
    }
    let mut boards: Vec<&BoardPart> = catalogue.boards.iter().collect();
    let priced =
        |board: &BoardPart| board.share_of_gpus.is_some() || Condition::ALL.iter().any(|one| sold(board, *one));
    boards.sort_by_key(|board| (!priced(board), board.socket_count, board.gpu_slots));
    // The fault of the board that fits best: the one that breaks the latest rule.
    let rank = |rule: &str| rules::COMPOSITION_RULES.iter().position(|(name, _)| *name == rule);
    let mut closest: Option<super::Illegal> = None;
    for board in boards {
        let fits = rules::fits(parts, board).and_then(|()| rules::lanes(parts, board));
        let fault = match fits.and_then(|lanes| network::cards(parts, board, lanes)) {
            Ok(_) => return Ok(board),
            Err(fault) => fault,
        };
        if closest.as_ref().is_none_or(|best| rank(fault.rule) > rank(best.rule)) {
            closest = Some(fault);
        }
    }
    match closest {
        Some(fault) => Err(fault.into()),
        None => {
            Ok(broken("socket", format!("no board takes `{}`", choice.platform), "add a `[[board]]` to the catalogue")?)
        }
    }
}

/// Returns the chosen supplies if they suffice, or the fewest and smallest that do; `None` if the
/// board has a sufficient one.
pub(super) fn supply<'a>(
    catalogue: &'a Catalogue,
    choice: &Choice,
    parts: &Parts<'a>,
    (board, cards): (&BoardPart, Watts),
) -> Result<Option<(u32, &'a SupplyPart)>, ComposeError> {
    let demand = rules::demand(parts, board, cards);
    let too_weak = |power: Watts, what: &str| {
        let message = format!("{what} gives {power}, and the machine needs {demand}");
        broken("supply", message, "choose a larger supply, or fewer GPUs")
    };
    if let Some((count, supply)) = parts.supply {
        let power = supply.power.0 * f64::from(count);
        return if power >= demand { Ok(Some((count, supply))) } else { Ok(too_weak(power, &supply.name)?) };
    }
    if let Some(own) = board.supply {
        return if own.0 >= demand { Ok(None) } else { Ok(too_weak(own.0, &board.name)?) };
    }
    let mut all: Vec<(u32, &SupplyPart)> = (1..=MOST_SUPPLIES)
        .flat_map(|count| catalogue.supplies.iter().map(move |supply| (count, supply)))
        .filter(|(count, supply)| supply.power.0 * f64::from(*count) >= demand)
        .collect();
    all.sort_by(|left, right| {
        let key = |(count, supply): &(u32, &SupplyPart)| (*count, supply.power.0);
        key(left).cmp(&key(right))
    });
    match all.first() {
        Some(found) => Ok(Some(*found)),
        None => {
            let message = format!("no supply of the catalogue gives the {demand} that `{}` needs", choice.name());
            Ok(broken("supply", message, "add a larger `[[supply]]`, or choose fewer GPUs")?)
        }
    }
}
