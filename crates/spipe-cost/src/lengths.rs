//! The distribution of the lengths of documents.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The most lengths that are kept apart; neighbours of more are joined at their mean.
const MOST: usize = 32;

/// A length with the share of the documents that have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LengthShare {
    /// Tokens, at least 1.
    pub length: u32,
    /// The documents of this length: any positive number, relative to the others.
    pub share: f64,
}

/// A histogram of lengths, in ascending order; the shares sum to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "Vec<LengthShare>", into = "Vec<LengthShare>")]
#[schemars(with = "Vec<LengthShare>")]
pub struct Lengths {
    shares: [LengthShare; MOST],
    count: usize,
}

// No share is NaN.
impl Eq for Lengths {}

impl Lengths {
    /// Returns the histogram with these lengths and weights, in any order.
    ///
    /// # Errors
    /// If there is no length, a length is zero, or a weight is not positive and finite.
    pub fn new(weights: &[LengthShare]) -> Result<Self, String> {
        let mut all = weights.to_vec();
        all.sort_by_key(|one| one.length);
        for LengthShare { length, share } in &all {
            if *length == 0 {
                return Err("a length is zero".into());
            }
            if !(*share > 0.0 && share.is_finite()) {
                return Err(format!("the weight {share} of length {length} is not above 0"));
            }
        }
        all.dedup_by(|next, kept| {
            let same = next.length == kept.length;
            kept.share += if same { next.share } else { 0.0 };
            same
        });
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Err("there is no length".into()) };
        if all.len() > MOST {
            all = joined(&all, (first.length, last.length));
        }
        let sum: f64 = all.iter().map(|one| one.share).sum();
        let mut shares = [LengthShare::default(); MOST];
        for (place, one) in shares.iter_mut().zip(&all) {
            *place = LengthShare { share: one.share / sum, ..*one };
        }
        Ok(Self { shares, count: all.len() })
    }

    /// Returns the lengths with their shares, in ascending order.
    pub fn shares(&self) -> &[LengthShare] {
        &self.shares[..self.count]
    }

    /// Returns the longest length.
    pub fn longest(&self) -> u64 {
        self.shares().last().map_or(0, |one| u64::from(one.length))
    }

    /// Returns the mean length.
    pub fn mean(&self) -> f64 {
        self.shares().iter().map(|one| one.share * f64::from(one.length)).sum()
    }

    /// Returns the distribution of the longest of `count` documents: its share of a length is
    /// F(l)ⁿ − F(l′)ⁿ, where F is the distribution function and l′ the next shorter length.
    #[must_use]
    pub fn longest_of(&self, count: u64) -> Self {
        let (mut longest, mut below, mut reached) = (*self, 0.0, 0.0_f64);
        for one in &mut longest.shares[..self.count] {
            reached = (reached + one.share).min(1.0);
            let up_to = reached.powf(count as f64);
            one.share = up_to - below;
            below = up_to;
        }
        longest
    }
}

/// Joins lengths into `MOST` intervals of equal width, each at its mean.
fn joined(all: &[LengthShare], (first, last): (u32, u32)) -> Vec<LengthShare> {
    let width = f64::from(last - first + 1) / MOST as f64;
    let interval = |length: u32| (f64::from(length - first) / width) as usize;
    let groups = all.chunk_by(|one, other| interval(one.length) == interval(other.length));
    let join = |group: &[LengthShare]| {
        let share: f64 = group.iter().map(|one| one.share).sum();
        let mean = group.iter().map(|one| one.share * f64::from(one.length)).sum::<f64>() / share;
        LengthShare { length: mean.round() as u32, share }
    };
    groups.map(join).collect()
}

impl TryFrom<Vec<LengthShare>> for Lengths {
    type Error = String;

    fn try_from(weights: Vec<LengthShare>) -> Result<Self, String> {
        Self::new(&weights)
    }
}

impl From<Lengths> for Vec<LengthShare> {
    fn from(lengths: Lengths) -> Self {
        lengths.shares().to_vec()
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.shares().iter().map(|one| format!("{}:{}", one.length, one.share)).collect();
        f.pad(&words.join(","))
    }
}

impl FromStr for Lengths {
    type Err = String;

    /// Reads lengths, each with a weight behind a colon, a comma or a space, or without (1). They are
    /// separated by commas, or one in each line; `#` begins a comment, and a line of words is a heading.
    fn from_str(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> = match text.contains('\n') {
            true => text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect(),
            false => text.split(',').map(str::trim).collect(),
        };
        let is_heading = |line: &str| line.starts_with(|letter: char| letter.is_alphabetic());
        let skip = usize::from(text.contains('\n') && lines.first().is_some_and(|line| is_heading(line)));
        let weights: Result<Vec<LengthShare>, String> =
            lines.into_iter().skip(skip).filter(|line| !line.is_empty()).map(entry).collect();
        Self::new(&weights?)
    }
}

fn entry(line: &str) -> Result<LengthShare, String> {
    let mut words = line.split([':', ',', ' ', '\t']).filter(|word| !word.is_empty());
    let refused = || format!("`{line}` is no length with its weight, such as 512:3");
    let length = words.next().and_then(|word| word.parse().ok()).ok_or_else(refused)?;
    let share = words.next().map_or(Ok(1.0), |word| word.parse().map_err(|_| refused()))?;
    if words.next().is_some() { Err(refused()) } else { Ok(LengthShare { length, share }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_a_line_and_in_lines() {
        let one: Lengths = "1024:1,512:3".parse().unwrap();
        assert_eq!(one, "length,count\n512,3\n1024,1 # long\n".parse().unwrap());
        assert_eq!(one, "512\n1024\n512\n512\n".parse().unwrap());
        assert_eq!(one.to_string(), "512:0.75,1024:0.25");
        assert_eq!((one.mean().round(), one.longest()), (640.0, 1024));
        for (text, expected) in [
            ("", "no length"),
            ("\n", "no length"),
            ("0:1", "zero"),
            ("5:-1", "not above 0"),
            ("5:0", "not above 0"),
            ("five:1", "no length with its weight"),
            ("5:1:2", "no length with its weight"),
        ] {
            let fault = text.parse::<Lengths>().unwrap_err();
            assert!(fault.contains(expected), "{text}: {fault}");
        }
    }

    #[test]
    fn the_longest_of_several_has_the_expected_distribution() {
        let one: Lengths = "100:1,200:1".parse().unwrap();
        assert!((one.longest_of(1).mean() - 150.0).abs() < 1e-9);
        // Three of four pairs have a document of 200 tokens.
        assert!((one.longest_of(2).mean() - 175.0).abs() < 1e-9);
        assert!((one.longest_of(1000).mean() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn many_lengths_are_joined_and_keep_their_moments() {
        let all: Vec<LengthShare> = (1..=4096).map(|length| LengthShare { length, share: 1.0 }).collect();
        let joined = Lengths::new(&all).unwrap();
        let square = |one: &LengthShare| one.share * f64::from(one.length).powi(2);
        let squares: f64 = joined.shares().iter().map(square).sum();
        let exact = all.iter().map(square).sum::<f64>() / 4096.0;
        assert_eq!(joined.shares().len(), 32);
        assert!((joined.mean() / 2048.5 - 1.0).abs() < 1e-3, "{}", joined.mean());
        assert!((squares / exact - 1.0).abs() < 1e-3, "{squares} {exact}");
    }
}
