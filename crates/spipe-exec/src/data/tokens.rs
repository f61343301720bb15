//! Bytes of a text as tokens, and the batches that follow from a seed.

use super::{DataError, Draw, choice};

/// A text as tokens, one per byte, cut into sequences at random places.
#[derive(Clone, Debug)]
pub struct Tokens {
    bytes: Vec<u8>,
    seq_len: usize,
}

/// The sequences of one microbatch, one after the other, and for each token the one that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Inputs, `sequences × seq-len`.
    pub inputs: Vec<i32>,
    /// What is to be predicted, of the same shape.
    pub targets: Vec<i32>,
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each.
    pub seq_len: usize,
}

impl Batch {
    /// The first `tokens` of each sequence.
    pub(crate) fn cut(&self, tokens: usize) -> Self {
        let tokens = tokens.min(self.seq_len);
        let first = |all: &[i32]| all.chunks(self.seq_len).flat_map(|sequence| &sequence[..tokens]).copied().collect();
        Self { inputs: first(&self.inputs), targets: first(&self.targets), sequences: self.sequences, seq_len: tokens }
    }
}

impl Tokens {
    /// Every byte of `text` is a token.
    ///
    /// # Errors
    /// A text that is shorter than one sequence and the token after it.
    pub fn bytes(text: &[u8], seq_len: u64) -> Result<Self, DataError> {
        if seq_len == 0 {
            return Err(DataError::NoLength);
        }
        let (found, needed) = (text.len() as u64, seq_len.saturating_add(1));
        if found < needed {
            return Err(DataError::TooShort { found, seq_len, needed });
        }
        Ok(Self { bytes: text.to_vec(), seq_len: seq_len as usize })
    }

    /// Tokens of a sequence.
    pub const fn seq_len(&self) -> u64 {
        self.seq_len as u64
    }

    /// How many tokens there are.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none; never.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The sequences that `draw` draws.
    pub fn batch(&self, draw: Draw, sequences: usize) -> Batch {
        let mut batch = Batch {
            inputs: Vec::with_capacity(sequences * self.seq_len),
            targets: Vec::with_capacity(sequences * self.seq_len),
            sequences,
            seq_len: self.seq_len,
        };
        let places = (self.bytes.len() - self.seq_len) as u64;
        for sequence in 0..sequences {
            let place = choice(draw.key(sequence), places) as usize;
            let window = &self.bytes[place..=place + self.seq_len];
            batch.inputs.extend(window[..self.seq_len].iter().map(|byte| i32::from(*byte)));
            batch.targets.extend(window[1..].iter().map(|byte| i32::from(*byte)));
        }
        batch
    }

    /// Whether a model with that many tokens has all of these.
    pub(crate) fn check(&self, vocabulary: u64, seq_len: u64) -> Result<(), DataError> {
        if seq_len != self.seq_len() {
            return Err(DataError::Length { found: self.seq_len(), wanted: seq_len });
        }
        let beyond = self.bytes.iter().position(|byte| u64::from(*byte) >= vocabulary);
        match beyond {
            Some(offset) => Err(DataError::Vocabulary { token: self.bytes[offset], offset, vocabulary }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(step: u32, microbatch: usize) -> Draw {
        Draw { seed: 7, step, microbatch }
    }

    #[test]
    fn a_short_text_is_refused_with_both_lengths() {
        let message = Tokens::bytes(b"abc", 3).map(|_| ()).map_err(|error| error.to_string());
        let text = "the text has 3 bytes, one sequence of 3 tokens and the one after it needs 4";
        assert_eq!(message, Err(text.into()));
        assert!(Tokens::bytes(b"abcd", 3).is_ok());
        assert_eq!(Tokens::bytes(b"abcd", 0).err(), Some(DataError::NoLength));
    }

    #[test]
    fn targets_follow_inputs_and_batches_repeat() {
        let text: Vec<u8> = (0..200).collect();
        let tokens = Tokens::bytes(&text, 8).unwrap();
        let batch = tokens.batch(draw(3, 1), 4);
        assert_eq!((batch.inputs.len(), batch.targets.len()), (32, 32));
        assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| input + 1 == *target));
        assert_eq!(batch, tokens.batch(draw(3, 1), 4));
        assert_ne!(batch, tokens.batch(draw(4, 1), 4));
        assert_ne!(batch, tokens.batch(draw(3, 2), 4));
    }

    #[test]
    fn every_place_can_be_drawn() {
        let tokens = Tokens::bytes(b"abcd", 2).unwrap();
        let first: std::collections::BTreeSet<i32> =
            (0..50).map(|step| tokens.batch(draw(step, 0), 1).inputs[0]).collect();
        assert_eq!(first.len(), 2);
    }

    #[test]
    fn the_vocabulary_is_checked() {
        let tokens = Tokens::bytes(b"a\xffc", 1).unwrap();
        assert_eq!(tokens.check(128, 1), Err(DataError::Vocabulary { token: 255, offset: 1, vocabulary: 128 }));
        assert_eq!(tokens.check(256, 1), Ok(()));
        assert_eq!(tokens.check(256, 2), Err(DataError::Length { found: 1, wanted: 2 }));
    }
}
