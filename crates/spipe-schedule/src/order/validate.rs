//! Whether an order is complete and possible.

use super::{Order, Pass, Token};
use spipe_base::{Diagnostic, Faults, MicrobatchId, StageId};
use std::collections::{BTreeMap, BTreeSet};

impl Order {
    /// Every stage is on one device; every stage × microbatch has one forward and one backward (fused, or both parts), in
    /// that order; and no two devices wait for each other. Faults show the grid with the cells in question in brackets.
    pub fn validate(&self) -> Result<(), Faults> {
        let mut faults = Faults::new();
        self.check_devices(&mut faults);
        self.check_counts(&mut faults);
        if faults.is_harmless() {
            self.check_progress(&mut faults);
        }
        faults.or(())
    }

    fn fault(&self, message: String, marked: &[Token]) -> Diagnostic {
        Diagnostic::error(format!("{message}\n{}", self.grid(marked).trim_end()))
    }

    fn check_devices(&self, faults: &mut Faults) {
        let mut device_of = BTreeMap::new();
        for (device, tokens) in self.devices().iter().enumerate() {
            for token in tokens {
                let first = *device_of.entry(token.stage).or_insert(device);
                if first != device {
                    faults.push(
                        self.fault(format!("stage `{}` is on devices {first} and {device}", token.stage), &[*token]),
                    );
                }
            }
        }
    }

    fn check_counts(&self, faults: &mut Faults) {
        let mut passes: BTreeMap<(StageId, MicrobatchId), Vec<Pass>> = BTreeMap::new();
        for token in self.devices().iter().flatten() {
            passes.entry((token.stage, token.microbatch)).or_default().push(token.pass);
        }
        for stage in (0..self.stages()).map(StageId::from) {
            for microbatch in (0..self.microbatches()).map(MicrobatchId::from) {
                let found = passes.get(&(stage, microbatch)).map_or(&[][..], Vec::as_slice);
                let good = matches!(
                    found,
                    [Pass::Forward, Pass::Backward] | [Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight]
                );
                if !good {
                    let letters: String = found.iter().map(|pass| pass.letter()).collect();
                    let marked: Vec<Token> =
                        found.iter().map(|pass| Token { stage, pass: *pass, microbatch }).collect();
                    let found = if letters.is_empty() { "nothing".into() } else { format!("`{letters}`") };
                    let message =
                        format!("stage `{stage}`, microbatch `{microbatch}`: {found} where `FB` or `FIW` belongs");
                    faults.push(self.fault(message, &marked));
                }
            }
        }
    }

    /// Runs the order without times; what cannot start when nothing else can is a deadlock.
    fn check_progress(&self, faults: &mut Faults) {
        let mut done: BTreeSet<Token> = BTreeSet::new();
        let mut next = vec![0; self.devices().len()];
        let last = StageId::from(self.stages() - 1);
        loop {
            let mut moved = false;
            for (device, tokens) in self.devices().iter().enumerate() {
                while let Some(token) = tokens.get(next[device]).filter(|token| startable(token, last, &done)) {
                    done.insert(*token);
                    next[device] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let stuck: Vec<Token> =
            self.devices().iter().zip(&next).filter_map(|(tokens, next)| tokens.get(*next).copied()).collect();
        if !stuck.is_empty() {
            faults.push(self.fault("deadlock: these actions wait for each other".into(), &stuck));
        }
    }
}

fn startable(token: &Token, last: StageId, done: &BTreeSet<Token>) -> bool {
    let is_done = |stage: StageId, pass| done.contains(&Token { stage, pass, microbatch: token.microbatch });
    match token.pass {
        Pass::Forward => token.stage.index() == 0 || is_done(StageId::from(token.stage.index() - 1), Pass::Forward),
        Pass::BackwardWeight => is_done(token.stage, Pass::BackwardInput),
        Pass::Backward | Pass::BackwardInput if token.stage == last => is_done(token.stage, Pass::Forward),
        Pass::Backward | Pass::BackwardInput => {
            let after = StageId::from(token.stage.index() + 1);
            is_done(token.stage, Pass::Forward)
                && (is_done(after, Pass::Backward) || is_done(after, Pass::BackwardInput))
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
            deadlock.starts_with("error: deadlock: these actions wait for each other\ndevice  0  0F0 [0B0] 0F1"),
            "{deadlock}"
        );
        assert!(check("0F0,1F0\n0B0,1B0\n").contains("stage `s0` is on devices 0 and 1"));
    }
}
