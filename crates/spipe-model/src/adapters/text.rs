//! The text of `--lora`: `rank=16,alpha=32,targets=q,k,v,o,embeddings`.

use super::Lora;
use spipe_base::{Diagnostic, Faults, similar_word};
use std::collections::BTreeSet;

/// The keys that take a value.
const KEYS: [&str; 4] = ["rank", "alpha", "dropout", "targets"];

/// The words that stand alone.
const WORDS: [&str; 3] = ["embeddings", "dora", "rslora"];

/// The largest rank: more than any matrix that is trained is wide.
const LARGEST_RANK: u64 = 1 << 20;

impl Lora {
    /// Parses items separated by commas: `rank=`, `alpha=`, `dropout=`, `targets=`, `embeddings`,
    /// `dora`, `rslora`. An item without `=` after `targets=` is one more target. All matrices of all
    /// blocks are targets if none is named.
    ///
    /// ```
    /// use spipe_model::Lora;
    ///
    /// let lora = Lora::parse("rank=16,targets=q,v,rslora", None)?;
    /// assert_eq!((lora.rank, lora.targets.len(), lora.rslora), (16, 2, true));
    /// let fault = Lora::parse("rnak=16", None).unwrap_err().to_string();
    /// assert_eq!(fault, "error: `option lora` has no item `rnak`\nhint: did you mean `rank`");
    /// # Ok::<(), spipe_base::Faults>(())
    /// ```
    ///
    /// # Errors
    /// Each item that is unknown or has no valid value, and a missing rank unless `unless` is given.
    pub fn parse(text: &str, unless: Option<u64>) -> Result<Self, Faults> {
        let mut faults = Faults::new();
        let mut lora = Self {
            rank: 0,
            alpha: None,
            dropout: 0.0,
            targets: BTreeSet::new(),
            embeddings: false,
            dora: false,
            rslora: false,
        };
        let mut after_targets = false;
        for item in text.split(',').map(str::trim) {
            let read = match item.split_once('=') {
                Some((key, value)) => {
                    after_targets = key.trim() == "targets";
                    lora.set(key.trim(), value.trim())
                }
                None => lora.add(item, after_targets),
            };
            if let Err(fault) = read {
                faults.push(fault);
            }
        }
        match (lora.rank, unless) {
            (0, Some(rank)) => lora.rank = rank,
            (0, None) if faults.is_empty() => {
                faults.push(Diagnostic::error("`option lora` has no rank").hint("add one, such as `rank=16`"));
            }
            _ => {}
        }
        if lora.targets.is_empty() {
            lora.targets.insert(super::names::ALL_LINEAR.into());
        }
        faults.or(lora)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Diagnostic> {
        let wrong = |wanted: &str| Diagnostic::error(format!("`{key}={value}` is not {wanted}"));
        match key {
            "rank" => {
                let rank = value.parse().ok().filter(|rank| (1..=LARGEST_RANK).contains(rank));
                self.rank = rank.ok_or_else(|| wrong("a rank: a whole number from 1").hint("such as `rank=16`"))?;
            }
            "alpha" => {
                let alpha = value.parse().ok().filter(|alpha: &f64| *alpha > 0.0 && alpha.is_finite());
                self.alpha = Some(alpha.ok_or_else(|| wrong("a number above 0").hint("such as `alpha=32`"))?);
            }
            "dropout" => {
                let share = value.parse().ok().filter(|share| (0.0..1.0).contains(share));
                self.dropout =
                    share.ok_or_else(|| wrong("a share from 0 to below 1").hint("such as `dropout=0.05`"))?;
            }
            "targets" => self.add(value, true)?,
            _ => return Err(unknown(key)),
        }
        Ok(())
    }

    fn add(&mut self, word: &str, after_targets: bool) -> Result<(), Diagnostic> {
        match word {
            "embeddings" => self.embeddings = true,
            "dora" => self.dora = true,
            "rslora" => self.rslora = true,
            "" => return Err(Diagnostic::error("`option lora` has an empty item").hint("leave out a comma")),
            target if after_targets => drop(self.targets.insert(target.into())),
            _ => return Err(unknown(word)),
        }
        Ok(())
    }
}

fn unknown(word: &str) -> Diagnostic {
    let fault = Diagnostic::error(format!("`option lora` has no item `{word}`"));
    match similar_word(word, KEYS.into_iter().chain(WORDS)) {
        Some(near) => fault.hint(format!("did you mean `{near}`")),
        None => fault.hint("write such as `rank=16,targets=q,k,v,o`; `alpha=`, `dropout=`, `embeddings`, `dora` and `rslora` may be added"),
    }
}
