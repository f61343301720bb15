//! Devices and memories that stand for others.

use serde::{Deserialize, Serialize};

/// A device or memory of a program or trace that stands for others, which do the same at the same time: those of its
/// team, and those at its place in other replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Fold {
    /// Its name, such as `gpu0`.
    pub name: String,
    /// The names of its team with its own, consecutive ones as a range, such as `gpu0..gpu1`.
    pub team: String,
    /// The number of such teams with its own: 1 or more.
    pub teams: u64,
}

impl Fold {
    /// Its label in reports and pictures: the team and, of several, their number.
    ///
    /// ```
    /// let team = |teams| spipe_base::Fold { name: "gpu0".into(), team: "gpu0..gpu1".into(), teams };
    /// assert_eq!([team(1).label(), team(8).label()], ["gpu0..gpu1", "gpu0..gpu1 × 8"]);
    /// ```
    pub fn label(&self) -> String {
        if self.teams > 1 { format!("{} × {}", self.team, self.teams) } else { self.team.clone() }
    }
}
