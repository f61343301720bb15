//! The names of devices of a machine, as options take them.

use std::str::FromStr;

/// The most devices of one range: more than any machine has.
const MOST: u32 = 4096;

/// One item of `--devices`: a name, such as `cpu0`, or a range of names with both ends, such as
/// `gpu0..gpu3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(Vec<String>);

impl Devices {
    /// The names of all items, in their order.
    pub fn names(items: &[Self]) -> Vec<String> {
        items.iter().flat_map(|item| item.0.iter().cloned()).collect()
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((first, last)) = text.split_once("..") else { return Ok(Self(vec![text.to_owned()])) };
        let (Some((prefix, low)), Some((other, high))) = (numbered(first), numbered(last)) else {
            return Err("a range of devices has a number at both ends, such as gpu0..gpu3".into());
        };
        if prefix != other {
            return Err(format!(
                "a range is of one kind of device, not from `{prefix}` to `{other}`: write one range for each, separated by commas"
            ));
        }
        if low > high {
            return Err(format!("a range ascends: write {last}..{first}"));
        }
        if high - low >= MOST {
            return Err(format!("a range names at most {MOST} devices"));
        }
        Ok(Self((low..=high).map(|number| format!("{prefix}{number}")).collect()))
    }
}

/// The letters and the number of a name such as `gpu3`.
fn numbered(name: &str) -> Option<(&str, u32)> {
    let prefix = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    Some((prefix, name[prefix.len()..].parse().ok()?)).filter(|_| !prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_name_both_ends_and_all_between() {
        let names = |text: &str| {
            let items: Result<Vec<Devices>, String> = text.split(',').map(str::parse).collect();
            items.map(|items| Devices::names(&items).join(" "))
        };
        assert_eq!(names("gpu9..gpu11,cpu0").as_deref(), Ok("gpu9 gpu10 gpu11 cpu0"));
        assert_eq!(names("cpu1,gpu4..gpu4,gpu0").as_deref(), Ok("cpu1 gpu4 gpu0"));
        for (text, part) in [
            ("gpu3..gpu0", "write gpu0..gpu3"),
            ("gpu0..cpu1", "from `gpu` to `cpu`"),
            ("gpu0..3", "a number at both ends"),
            ("gpu0..", "a number at both ends"),
            ("gpu0..gpu9999999999", "a number at both ends"),
            ("gpu0..gpu4096", "at most 4096"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
