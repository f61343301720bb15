//! A text as tokens, and the batches drawn from it.

use super::{DataError, Draw, choice};
use safetensors::{Dtype, SafeTensors};

/// A text as tokens, cut into sequences at random places.
#[derive(Clone, Debug)]
pub struct Tokens {
    numbers: Numbers,
    seq_len: usize,
}

/// The tokens of the whole text, in order.
#[derive(Clone, Debug)]
enum Numbers {
    /// The bytes of a text.
    Bytes(Vec<u8>),
    /// The ids of a tokenizer with `known` tokens.
    Ids { ids: Vec<u32>, known: u64 },
    /// The sequences of each step, one after the other, each with the token after it.
    Listed { ids: Vec<u32>, sequences: usize },
}

impl Numbers {
    const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Ids { ids, .. } | Self::Listed { ids, .. } => ids.len(),
        }
    }

    /// `count` tokens from `first` on, as models read them.
    fn window(&self, first: usize, count: usize) -> Vec<i32> {
        match self {
            Self::Bytes(bytes) => bytes[first..first + count].iter().map(|byte| i32::from(*byte)).collect(),
            Self::Ids { ids, .. } | Self::Listed { ids, .. } => {
                ids[first..first + count].iter().map(|id| id.cast_signed()).collect()
            }
        }
    }

    /// The first token not below `end`, with its position.
    fn beyond(&self, end: u64) -> Option<(usize, u32)> {
        match self {
            Self::Bytes(bytes) => {
                bytes.iter().map(|byte| u32::from(*byte)).enumerate().find(|(_, id)| u64::from(*id) >= end)
            }
            Self::Ids { ids, .. } | Self::Listed { ids, .. } => {
                ids.iter().copied().enumerate().find(|(_, id)| u64::from(*id) >= end)
            }
        }
    }

    /// The word for one token.
    const fn unit(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "byte",
            Self::Ids { .. } | Self::Listed { .. } => "token",
        }
    }

    /// Number of distinct tokens there may be.
    const fn known(&self) -> u64 {
        match self {
            Self::Bytes(_) => 256,
            Self::Ids { known, .. } => *known,
            Self::Listed { .. } => 1 << 32,
        }
    }
}

/// The sequences of one microbatch, one after the other, and for each token the one that follows
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Inputs, `sequences × seq-len`.
    pub inputs: Vec<i32>,
    /// The following tokens, of the same shape.
    pub targets: Vec<i32>,
    /// Number of sequences.
    pub sequences: usize,
    /// Tokens per sequence.
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
    /// A text whose bytes are tokens.
    ///
    /// # Errors
    /// A text that is shorter than one sequence and the token after it.
    pub fn bytes(text: &[u8], seq_len: u64) -> Result<Self, DataError> {
        Self::new(Numbers::Bytes(text.to_vec()), seq_len)
    }

    /// A text as the ids of a tokenizer with `known` tokens.
    ///
    /// # Errors
    /// As [`Tokens::bytes`].
    pub fn ids(ids: Vec<u32>, known: u64, seq_len: u64) -> Result<Self, DataError> {
        Self::new(Numbers::Ids { ids, known }, seq_len)
    }

    /// The tokens of each step, listed: `ids` has `steps × sequences × (seq-len + 1)` numbers, of
    /// which the last of each sequence is only a target. After the last step comes the first again.
    ///
    /// # Errors
    /// No whole step.
    pub fn listed(ids: Vec<u32>, sequences: u64, seq_len: u64) -> Result<Self, DataError> {
        let each = sequences.saturating_mul(seq_len.saturating_add(1));
        let found = ids.len() as u64;
        if each == 0 || found == 0 || !found.is_multiple_of(each) {
            return Err(DataError::Steps { found, sequences, seq_len });
        }
        Self::new(Numbers::Listed { ids, sequences: sequences as usize }, seq_len)
    }

    /// The tokens of each step from a safetensors file: its `tokens` are i32 of the shape steps ×
    /// sequences × tokens and one.
    ///
    /// # Errors
    /// No such file, and steps of other sizes than `sequences` of `seq_len` tokens.
    pub fn from_safetensors(file: &[u8], sequences: u64, seq_len: u64) -> Result<Self, DataError> {
        let broken = |reason: String| DataError::Listed { reason };
        let tensors = SafeTensors::deserialize(file).map_err(|error| broken(error.to_string()))?;
        let tokens = tensors.tensor("tokens").map_err(|error| broken(error.to_string()))?;
        if tokens.dtype() != Dtype::I32 {
            return Err(broken(format!("its `tokens` are {:?}, not I32", tokens.dtype())));
        }
        if tokens.shape().get(1..) != Some(&[sequences as usize, seq_len as usize + 1][..]) {
            let shape = tokens.shape();
            return Err(broken(format!("its `tokens` are {shape:?}, not steps × {sequences} × {}", seq_len + 1)));
        }
        let (fours, _) = tokens.data().as_chunks::<4>();
        Self::listed(fours.iter().map(|four| u32::from_le_bytes(*four)).collect(), sequences, seq_len)
    }

    fn new(numbers: Numbers, seq_len: u64) -> Result<Self, DataError> {
        if seq_len == 0 {
            return Err(DataError::NoLength);
        }
        let (found, needed) = (numbers.len() as u64, seq_len.saturating_add(1));
        if found < needed {
            return Err(DataError::TooShort { found, unit: numbers.unit(), seq_len, needed });
        }
        Ok(Self { numbers, seq_len: seq_len as usize })
    }

    /// Tokens per sequence.
    pub const fn seq_len(&self) -> u64 {
        self.seq_len as u64
    }

    /// Number of tokens.
    pub const fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there are none; never.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sequences of `draw`.
    pub fn batch(&self, draw: Draw, sequences: usize) -> Batch {
        let mut batch = Batch {
            inputs: Vec::with_capacity(sequences * self.seq_len),
            targets: Vec::with_capacity(sequences * self.seq_len),
            sequences,
            seq_len: self.seq_len,
        };
        let places = (self.len() - self.seq_len) as u64;
        for sequence in 0..sequences {
            let place = match &self.numbers {
                Numbers::Listed { ids, sequences: each } => {
                    let width = self.seq_len + 1;
                    let step = draw.step as usize % (ids.len() / (each * width)).max(1);
                    (step * each + (draw.microbatch * sequences + sequence) % each) * width
                }
                _ => choice(draw.key(sequence, sequences), places) as usize,
            };
            let window = self.numbers.window(place, self.seq_len + 1);
            batch.inputs.extend(&window[..self.seq_len]);
            batch.targets.extend(&window[1..]);
        }
        batch
    }

    /// Checks sequence length and vocabulary.
    pub(crate) fn check(&self, vocabulary: u64, seq_len: u64) -> Result<(), DataError> {
        if seq_len != self.seq_len() {
            return Err(DataError::Length { found: self.seq_len(), wanted: seq_len });
        }
        let (unit, known) = (self.numbers.unit(), self.numbers.known());
        match self.numbers.beyond(vocabulary) {
            Some((offset, token)) => Err(DataError::Vocabulary { unit, token, offset, known, vocabulary }),
            None => Ok(()),
        }
    }

    /// Adds everything that identifies these tokens.
    pub(super) fn sum(&self, sum: &mut crc32fast::Hasher) {
        match &self.numbers {
            Numbers::Bytes(bytes) => sum.update(bytes),
            Numbers::Ids { ids, .. } | Numbers::Listed { ids, .. } => {
                ids.iter().for_each(|id| sum.update(&id.to_le_bytes()));
            }
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
        let halves = [2, 3].map(|microbatch| tokens.batch(draw(3, microbatch), 2).inputs);
        assert_eq!(batch.inputs, halves.concat(), "a step's sequences do not depend on its microbatches");
    }

    #[test]
    fn listed_steps_are_read_in_order_and_again() {
        // Two steps of two sequences of two tokens and the one after them.
        let tokens = Tokens::listed((0..12).collect(), 2, 2).unwrap();
        let both = tokens.batch(draw(1, 0), 2);
        assert_eq!((both.inputs, both.targets), (vec![6, 7, 9, 10], vec![7, 8, 10, 11]));
        assert_eq!(tokens.batch(draw(1, 1), 1).inputs, [9, 10], "the second microbatch of one sequence");
        assert_eq!(tokens.batch(draw(2, 0), 1).inputs, [0, 1], "after the last step comes the first");
        let message = Tokens::listed(vec![1, 2, 3], 2, 2).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(message, Err("3 tokens are no whole number of steps of 2 sequences of 2 tokens and one".into()));
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
        let beyond = DataError::Vocabulary { unit: "byte", token: 255, offset: 1, known: 256, vocabulary: 128 };
        assert_eq!(tokens.check(128, 1), Err(beyond));
        assert_eq!(tokens.check(256, 1), Ok(()));
        assert_eq!(tokens.check(256, 2), Err(DataError::Length { found: 1, wanted: 2 }));
        let tokens = Tokens::ids(vec![3, 70_000, 1], 100_000, 1).unwrap();
        let beyond = tokens.check(70_000, 1).map_err(|error| error.to_string());
        assert_eq!(beyond, Err("the text has token 70000 at offset 1, the model's vocabulary has 70000 tokens".into()));
        assert_eq!(tokens.check(70_001, 1), Ok(()));
    }

    #[test]
    fn tokens_of_a_tokenizer_are_drawn_like_bytes() {
        let text: Vec<u8> = (0..200).collect();
        let ids = text.iter().map(|byte| 1000 + u32::from(*byte)).collect();
        let (bytes, ids) = (Tokens::bytes(&text, 8).unwrap(), Tokens::ids(ids, 2000, 8).unwrap());
        assert_eq!((ids.len(), ids.seq_len()), (200, 8));
        let [bytes, ids] = [bytes, ids].map(|tokens| tokens.batch(draw(3, 1), 4));
        let above = |numbers: Vec<i32>| -> Vec<i32> { numbers.into_iter().map(|number| number + 1000).collect() };
        assert_eq!((ids.inputs, ids.targets), (above(bytes.inputs), above(bytes.targets)));
        let short = Tokens::ids(vec![1, 2], 3, 2).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(short, Err("the text has 2 tokens, one sequence of 2 tokens and the one after it needs 3".into()));
    }
}
