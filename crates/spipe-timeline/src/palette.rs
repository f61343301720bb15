//! Colours, letters and names of actions and idle causes.
//!
//! The colours are those of Okabe and Ito ("Color Universal Design", 2008), with lighter and darker
//! tones for groups: blue for forward, warm for backward, purple for transfers, green for the
//! optimizer. Tones of one group differ in lightness, so they are distinguishable without hue.

use spipe_base::{ActionKind, IdleCause, Payload};

/// Red, green, blue.
pub(crate) type Color = [u8; 3];

/// A group of action kinds with the same appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Forward,
    Recompute,
    Backward,
    BackwardInput,
    BackwardWeight,
    Boundary,
    Weights,
    Offload,
    Collective,
    Optimizer,
    Control,
}

impl Family {
    /// Every family, in the order of legends.
    pub(crate) const ALL: [Self; 11] = [
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::BackwardInput,
        Self::BackwardWeight,
        Self::Boundary,
        Self::Weights,
        Self::Offload,
        Self::Collective,
        Self::Optimizer,
        Self::Control,
    ];

    /// Returns the family of a kind of action.
    pub(crate) const fn of(kind: ActionKind) -> Self {
        match kind {
            ActionKind::Forward => Self::Forward,
            ActionKind::Recompute => Self::Recompute,
            ActionKind::Backward => Self::Backward,
            ActionKind::BackwardInput => Self::BackwardInput,
            ActionKind::BackwardWeight => Self::BackwardWeight,
            ActionKind::Copy(Payload::Activation | Payload::Gradient) => Self::Boundary,
            ActionKind::Copy(Payload::WeightsIn | Payload::GradientsOut | Payload::WriteBack) => Self::Weights,
            ActionKind::Copy(Payload::Checkpoint | Payload::Offload | Payload::Reload) => Self::Offload,
            ActionKind::Collective(_) => Self::Collective,
            ActionKind::Accumulate | ActionKind::Norm | ActionKind::OptimizerStep => Self::Optimizer,
            ActionKind::Check | ActionKind::Rollback | ActionKind::Barrier => Self::Control,
        }
    }

    /// Returns its name in legends.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward (F)",
            Self::Recompute => "recompute (R)",
            Self::Backward => "backward (B)",
            Self::BackwardInput => "backward-input (I)",
            Self::BackwardWeight => "backward-weight (W)",
            Self::Boundary => "transfer between stages",
            Self::Weights => "transfer of weights",
            Self::Offload => "transfer of saved activations",
            Self::Collective => "collective",
            Self::Optimizer => "optimizer",
            Self::Control => "check, rollback",
        }
    }

    /// Returns the fill colour of its bars.
    pub(crate) const fn color(self) -> Color {
        match self {
            Self::Forward => [0x00, 0x72, 0xB2],
            Self::Recompute => [0x56, 0xB4, 0xE9],
            Self::Backward => [0xD5, 0x5E, 0x00],
            Self::BackwardInput => [0xE6, 0x9F, 0x00],
            Self::BackwardWeight => [0xF0, 0xE4, 0x42],
            Self::Boundary => [0xCC, 0x79, 0xA7],
            Self::Weights => [0xA0, 0x2C, 0x80],
            Self::Offload => [0xEF, 0xC8, 0xDD],
            Self::Collective => [0x4E, 0x3D, 0xB4],
            Self::Optimizer => [0x00, 0x9E, 0x73],
            Self::Control => [0x40, 0x40, 0x40],
        }
    }

    /// Returns the first and the repeated character of its bars in a terminal.
    pub(crate) const fn letters(self) -> (char, char) {
        match self {
            Self::Forward => ('F', 'f'),
            Self::Recompute => ('R', 'r'),
            Self::Backward => ('B', 'b'),
            Self::BackwardInput => ('I', 'i'),
            Self::BackwardWeight => ('W', 'w'),
            Self::Boundary | Self::Weights | Self::Offload => ('>', '-'),
            Self::Collective => ('=', '='),
            Self::Optimizer => ('O', 'o'),
            Self::Control => ('?', '?'),
        }
    }
}

/// Returns the accent colour of a bubble: that of the awaited action.
pub(crate) const fn cause_color(cause: IdleCause) -> Color {
    match cause {
        IdleCause::WarmUp => [0x9A, 0x9A, 0x9A],
        IdleCause::Drain => [0xB8, 0xB8, 0xB8],
        IdleCause::Activation => Family::Forward.color(),
        IdleCause::Gradient => Family::Backward.color(),
        IdleCause::Weights => Family::Weights.color(),
        IdleCause::Reload => Family::Boundary.color(),
        IdleCause::Memory => ALARM,
        IdleCause::Optimizer => Family::Optimizer.color(),
        IdleCause::Check => Family::Control.color(),
        IdleCause::Order => [0xA0, 0x8A, 0x2A],
    }
}

/// Returns a two-letter code, unique among causes, for narrow bubbles.
pub(crate) fn cause_code(cause: IdleCause) -> &'static str {
    &cause.name()[..2]
}

/// Returns an explanation of a cause.
pub(crate) const fn cause_meaning(cause: IdleCause) -> &'static str {
    match cause {
        IdleCause::WarmUp => "before the lane's first action of the iteration",
        IdleCause::Drain => "after the lane's last action of the iteration",
        IdleCause::Activation => "the input activation arrived last",
        IdleCause::Gradient => "the incoming gradient arrived last",
        IdleCause::Weights => "the parameters arrived last",
        IdleCause::Reload => "the offloaded activations arrived last",
        IdleCause::Memory => "there was no memory for the result",
        IdleCause::Optimizer => "an optimizer step ended last",
        IdleCause::Check => "a global check ended last",
        IdleCause::Order => "an earlier action in the schedule, with no data dependency, ended last",
    }
}

/// The colour of faults and limits.
pub(crate) const ALARM: Color = [0xC0, 0x00, 0x20];

/// Mixes `color` with white: 0 is white, 1 is the colour itself.
pub(crate) fn tint(color: Color, share: f64) -> Color {
    color.map(|part| (255.0 - (255.0 - f64::from(part)) * share).round() as u8)
}

/// Returns black or white, whichever has more contrast on `color` (WCAG 2.1).
pub(crate) fn ink_on(color: Color) -> Color {
    let luminance = luminance(color);
    let (white, black) = (1.05 / (luminance + 0.05), (luminance + 0.05) / 0.05);
    if white >= black { [255; 3] } else { [0; 3] }
}

/// Returns the relative luminance, 0 to 1 (WCAG 2.1).
fn luminance(color: Color) -> f64 {
    let linear = |part: u8| {
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2])
}

/// Formats a colour as `#rrggbb`.
pub(crate) fn hex(color: Color) -> String {
    let [red, green, blue] = color;
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates how a dichromat sees a colour (Viénot, Brettel and Mollon 1999, on linear light).
    fn seen_by(matrix: [[f64; 3]; 3], color: Color) -> [f64; 3] {
        let linear = color.map(|part| (f64::from(part) / 255.0).powf(2.2));
        matrix
            .map(|row| row.iter().zip(linear).map(|(weight, part)| weight * part).sum::<f64>().max(0.0).powf(1.0 / 2.2))
    }

    fn distance(left: [f64; 3], right: [f64; 3]) -> f64 {
        left.iter().zip(right).map(|(left, right)| (left - right).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn families_stay_apart_for_dichromats() {
        let deuteranopia = [[0.292_75, 0.707_25, 0.0], [0.292_75, 0.707_25, 0.0], [-0.022_34, 0.022_34, 1.0]];
        let protanopia = [[0.112_38, 0.887_62, 0.0], [0.112_38, 0.887_62, 0.0], [0.004_01, -0.004_01, 1.0]];
        for matrix in [deuteranopia, protanopia] {
            for (index, left) in Family::ALL.iter().enumerate() {
                for right in &Family::ALL[index + 1..] {
                    let apart = distance(seen_by(matrix, left.color()), seen_by(matrix, right.color()));
                    assert!(apart > 0.14, "{left:?} and {right:?} are only {apart:.3} apart");
                }
            }
        }
    }

    #[test]
    fn ink_is_readable_on_every_bar() {
        for family in Family::ALL {
            let (bar, ink) = (luminance(family.color()), luminance(ink_on(family.color())));
            let contrast = (bar.max(ink) + 0.05) / (bar.min(ink) + 0.05);
            assert!(contrast >= 4.5, "{family:?} has contrast {contrast:.2}");
        }
    }

    #[test]
    fn codes_of_causes_differ() {
        let codes: std::collections::BTreeSet<&str> = IdleCause::ALL.into_iter().map(cause_code).collect();
        assert_eq!(codes.len(), IdleCause::ALL.len());
    }
}
