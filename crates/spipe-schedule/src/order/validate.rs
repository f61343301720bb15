//! The checker of orders.

use super::{Grid, Order, Pass, PassGrid, Token};
use spipe_base::{Diagnostic, Faults, MicrobatchId, StageId};
use std::collections::BTreeMap;

impl Order {
    /// Checks the order.
    ///
    /// - Every stage is on one device.
    /// - Every stage and microbatch has one forward, and then one backward: fused, or both parts.
    /// - The devices do not deadlock.
    ///
    /// # Errors
    /// Every fault, with a grid that has the affected tokens in brackets.
    pub fn validate(&self) -> Result<(), Faults> {
        let mut faults = Faults::new();
        if self.stages() == 0 {
            faults.push(Diagnostic::error("the order is empty").hint("write one line per device, such as 0F0,0B0"));
            return faults.or(());
        }
        self.check_devices(&mut faults);
        if !self.is_complete() {
            self.check_counts(&mut faults);
        }
        if faults.is_harmless() {
            self.check_progress(&mut faults);
        }
        faults.or(())
    }

    fn fault(&self, message: String, marked: &[Token]) -> Diagnostic {
        Diagnostic::error(format!("{message}\n{}", self.grid(marked).trim_end()))
    }

    fn check_devices(&self, faults: &mut Faults) {
        let mut device_of = vec![None; self.stages()];
        for (device, tokens) in self.devices().iter().enumerate() {
            for token in tokens {
                let first = *device_of[token.stage.index()].get_or_insert(device);
                if first != device {
                    faults.push(
                        self.fault(format!("stage `{}` is on devices {first} and {device}", token.stage), &[*token]),
                    );
                }
            }
        }
    }

    /// Whether every stage and microbatch has `FB` or `FIW`: what [`Self::check_counts`] finds, without
    /// a map of passes.
    fn is_complete(&self) -> bool {
        let (stages, microbatches) = (self.stages(), self.microbatches());
        // Each has two tokens at least, so the table is no larger than the order.
        if stages.saturating_mul(microbatches) > self.tokens().count() / 2 {
            return false;
        }
        // The passes so far as octal digits.
        let mut passes = Grid::new([stages, microbatches], 0u16);
        for token in self.tokens() {
            let found = &mut passes[(token.stage, token.microbatch)];
            if *found > 0o77 {
                return false;
            }
            *found = *found << 3 | (1 + token.pass as u16);
        }
        const WHOLE: u16 = 0o12;
        const SPLIT: u16 = 0o134;
        passes.values().all(|found| matches!(*found, WHOLE | SPLIT))
    }

    /// Faults of the same kind are one error with their count.
    fn check_counts(&self, faults: &mut Faults) {
        let mut passes: BTreeMap<(StageId, MicrobatchId), Vec<Pass>> = BTreeMap::new();
        for token in self.devices().iter().flatten() {
            passes.entry((token.stage, token.microbatch)).or_default().push(token.pass);
        }
        let mut kinds: BTreeMap<&[Pass], (usize, (StageId, MicrobatchId))> = BTreeMap::new();
        for (at, found) in &passes {
            let good = matches!(
                found[..],
                [Pass::Forward, Pass::Backward] | [Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight]
            );
            if !good {
                kinds.entry(found).or_insert((0, *at)).0 += 1;
            }
        }
        let (stages, microbatches) = (self.stages(), self.microbatches());
        let missing = stages.saturating_mul(microbatches) - passes.len();
        let mut all = (0..stages).flat_map(|stage| (0..microbatches).map(move |one| (stage.into(), one.into())));
        if let Some(first) = all.find(|at| missing > 0 && !passes.contains_key(at)) {
            kinds.insert(&[], (missing, first));
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, (_, first))| *first);
        for (found, (count, (stage, microbatch))) in kinds {
            let letters: String = found.iter().map(|pass| pass.letter()).collect();
            let marked: Vec<Token> = found.iter().map(|pass| Token { stage, pass: *pass, microbatch }).collect();
            let found = if letters.is_empty() { "nothing".into() } else { format!("`{letters}`") };
            let more = if count > 1 { format!(" (the first of {count} like this)") } else { String::new() };
            let message =
                format!("stage `{stage}`, microbatch `{microbatch}`: {found} where `FB` or `FIW` belongs{more}");
            faults.push(self.fault(message, &marked));
        }
    }

    /// Runs the order without times. Passes that remain when none can start are a deadlock.
    fn check_progress(&self, faults: &mut Faults) {
        let mut done = PassGrid::of_passes([self.stages(), self.microbatches()], false);
        let mut next = vec![0; self.devices().len()];
        let last = StageId::from(self.stages() - 1);
        loop {
            let mut moved = false;
            for (device, tokens) in self.devices().iter().enumerate() {
                while let Some(action) = self.action_at(tokens, next[device]) {
                    if !action.iter().all(|token| startable(token, last, &done)) {
                        break;
                    }
                    for token in action {
                        done[*token] = true;
                    }
                    next[device] += action.len();
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let heads: Vec<Option<Token>> =
            self.devices().iter().zip(&next).map(|(tokens, next)| tokens.get(*next).copied()).collect();
        if let Some(first) = heads.iter().flatten().next() {
            let cycle = self.cycle(*first, &heads, &done);
            let waits: Vec<String> = cycle
                .iter()
                .map(|(head, needed, before)| format!("`{head}` needs `{needed}`, which comes after `{before}`"))
                .collect();
            let marked: Vec<Token> = cycle.iter().map(|(head, ..)| *head).collect();
            faults.push(self.fault(format!("deadlock: {}", waits.join("; ")), &marked));
        }
    }

    /// The tokens of the action at `position`: one, or an overlapped pair.
    fn action_at<'a>(&self, tokens: &'a [Token], position: usize) -> Option<&'a [Token]> {
        let first = tokens.get(position)?;
        let end = position + 1 + usize::from(self.overlaps(first, tokens.get(position + 1)));
        Some(&tokens[position..end])
    }

    /// A cycle of tokens at the heads of devices that wait for each other, found from `from`. Each
    /// comes with the token that it needs, and with the head of the device where that token is
    /// queued, which is the next of the cycle.
    fn cycle(&self, from: Token, heads: &[Option<Token>], done: &PassGrid<bool>) -> Vec<(Token, Token, Token)> {
        let last = StageId::from(self.stages() - 1);
        let mut seen: Vec<(Token, Token, Token)> = Vec::new();
        let mut at = from;
        while seen.iter().all(|(head, ..)| *head != at) {
            let partner = self.overlapped().find(|pair| pair[0] == at).map(|pair| pair[1]);
            let all = needs(&at, last).into_iter().chain(partner.iter().flat_map(|partner| needs(partner, last)));
            let missing = { all }.find(|options| !is_met(options, done));
            let queued = |token: &Token| self.devices().iter().position(|tokens| tokens.contains(token));
            let blocked = missing.iter().flatten().flatten().find_map(|token| Some((*token, heads[queued(token)?]?)));
            let Some((needed, before)) = blocked else { break };
            seen.push((at, needed, before));
            at = before;
        }
        let start = seen.iter().position(|(head, ..)| *head == at).unwrap_or(0);
        seen.split_off(start)
    }
}

fn startable(token: &Token, last: StageId, done: &PassGrid<bool>) -> bool {
    needs(token, last).iter().all(|options| is_met(options, done))
}

/// Tokens of which one is needed; none of them if nothing is.
type Options = [Option<Token>; 2];

fn is_met(options: &Options, done: &PassGrid<bool>) -> bool {
    options.iter().all(Option::is_none) || options.iter().flatten().any(|token| done[*token])
}

/// The tokens that `token` waits for: one of each list.
fn needs(token: &Token, last: StageId) -> [Options; 2] {
    let at = |stage: StageId, pass| Some(Token { stage, pass, ..*token });
    let forward = [at(token.stage, Pass::Forward), None];
    let nothing = [None; 2];
    match token.pass {
        Pass::Forward if token.stage.index() == 0 => [nothing; 2],
        Pass::Forward => [[at(StageId::from(token.stage.index() - 1), Pass::Forward), None], nothing],
        Pass::BackwardWeight => [[at(token.stage, Pass::BackwardInput), None], nothing],
        Pass::Backward | Pass::BackwardInput if token.stage == last => [forward, nothing],
        Pass::Backward | Pass::BackwardInput => {
            let after = StageId::from(token.stage.index() + 1);
            [forward, [at(after, Pass::Backward), at(after, Pass::BackwardInput)]]
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Order, gpipe, one_forward_one_backward};

    #[test]
    fn systems_are_valid() {
        for stages in 1..=8 {
            for microbatches in 1..=16 {
                assert_eq!(gpipe(stages, microbatches).validate(), Ok(()));
                for head_start in 0..3 {
                    let order = one_forward_one_backward(stages, microbatches, &vec![head_start; stages]);
                    assert_eq!(order.validate(), Ok(()), "{order}");
                }
            }
        }
    }

    #[test]
    fn faults_mark_the_grid() {
        let check = |text: &str| text.parse::<Order>().unwrap().validate().unwrap_err().to_string();
        assert_eq!(
            check("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n"),
            "error: stage `s0`, microbatch `m1`: `F` where `FB` or `FIW` belongs\n\
             device  0  0F0  0B0 [0F1]\ndevice  1  1F0  1B0  1F1  1B1"
        );
        let deadlock = check("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
        assert!(
            deadlock.starts_with(
                "error: deadlock: `0B0` needs `1B0`, which comes after `1F1`; `1F1` needs `0F1`, which comes after `0B0`\n\
                 device  0  0F0 [0B0] 0F1"
            ),
            "{deadlock}"
        );
        assert!(check("0F0,1F0\n0B0,1B0\n").contains("stage `s0` is on devices 0 and 1"));
    }
}
