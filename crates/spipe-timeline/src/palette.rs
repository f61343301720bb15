//! Colours, letters and names of actions and idle causes.
//!
//! The colours are close to those of Okabe and Ito ("Color Universal Design", 2008), with lighter and
//! darker tones for groups: blue for forward, warm for backward, purple for transfers, green for the
//! optimizer. They were moved as little as possible until any two differ by a CIEDE2000 of 11 for
//! people with protanopia, deuteranopia and tritanopia.

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
            ActionKind::Copy(
                Payload::WeightsIn | Payload::GradientsOut | Payload::WriteBack | Payload::StateIn | Payload::StateOut,
            ) => Self::Weights,
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
            Self::Forward => [0x09, 0x74, 0xB5],
            Self::Recompute => [0x56, 0xB4, 0xE9],
            Self::Backward => [0xD5, 0x5E, 0x00],
            Self::BackwardInput => [0xE7, 0xA0, 0x04],
            Self::BackwardWeight => [0xF2, 0xEA, 0x3F],
            Self::Boundary => [0xCD, 0x76, 0xA6],
            Self::Weights => [0x98, 0x31, 0x6D],
            Self::Offload => [0xEF, 0xC8, 0xDD],
            Self::Collective => [0x46, 0x37, 0xAF],
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
        IdleCause::Collective => Family::Collective.color(),
        IdleCause::Order => [0xA0, 0x8A, 0x2A],
    }
}

/// Returns the tone of a bubble on a dark page: half of the accent over the paper, and greys that are far
/// apart.
pub(crate) fn cause_on_dark(cause: IdleCause) -> Color {
    const PAPER: Color = [0x16, 0x18, 0x1B];
    match cause {
        IdleCause::WarmUp => [0x44, 0x48, 0x4D],
        IdleCause::Drain => [0x88, 0x8C, 0x92],
        IdleCause::Check => [0xC8, 0xC8, 0xC8],
        _ => std::array::from_fn(|part| u8::midpoint(cause_color(cause)[part], PAPER[part])),
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
        IdleCause::Collective => "a gather or reduction of the devices that share parameters ended last",
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

    /// Simulates how a dichromat sees a colour, in CIELAB under D65: a matrix on linear light.
    fn seen_by(matrix: [[f64; 3]; 3], color: Color) -> [f64; 3] {
        let linear = color.map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        let product = |rows: [[f64; 3]; 3], column: [f64; 3]| {
            rows.map(|row| row.iter().zip(column).map(|(weight, part)| weight * part).sum::<f64>())
        };
        let seen = product(matrix, linear).map(|part| part.clamp(0.0, 1.0));
        let to_xyz = [
            [0.412_456_4, 0.357_576_1, 0.180_437_5],
            [0.212_672_9, 0.715_152_2, 0.072_175],
            [0.019_333_9, 0.119_192, 0.950_304_1],
        ];
        let [x, y, z] = product(to_xyz, seen);
        let root = |t: f64| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 };
        let [x, y, z] = [root(x / 0.950_47), root(y), root(z / 1.088_83)];
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// The difference of two colours in CIELAB (Sharma, Wu and Dalal, "The CIEDE2000 color-difference
    /// formula", 2005).
    fn ciede2000([l1, a1, b1]: [f64; 3], [l2, a2, b2]: [f64; 3]) -> f64 {
        let seventh = |c: f64| (c.powi(7) / (c.powi(7) + 25f64.powi(7))).sqrt();
        let g = 0.5 * (1.0 - seventh(a1.hypot(b1).midpoint(a2.hypot(b2))));
        let (a1, a2) = (a1 * (1.0 + g), a2 * (1.0 + g));
        let (c1, c2) = (a1.hypot(b1), a2.hypot(b2));
        let hue = |a: f64, b: f64| b.atan2(a).to_degrees().rem_euclid(360.0);
        let (h1, h2) = (hue(a1, b1), hue(a2, b2));
        let turn = (h2 - h1 + 180.0).rem_euclid(360.0) - 180.0;
        let grey = c1 * c2 <= 0.0;
        let dh = if grey { 0.0 } else { 2.0 * (c1 * c2).sqrt() * (turn / 2.0).to_radians().sin() };
        let (l, c) = (l1.midpoint(l2), c1.midpoint(c2));
        let h = if grey { h1 + h2 } else { (h1 + turn / 2.0).rem_euclid(360.0) };
        let cos = |angle: f64| angle.to_radians().cos();
        let t =
            1.0 - 0.17 * cos(h - 30.0) + 0.24 * cos(2.0 * h) + 0.32 * cos(3.0 * h + 6.0) - 0.2 * cos(4.0 * h - 63.0);
        let rotation = -2.0 * seventh(c) * (60.0 * (-((h - 275.0) / 25.0).powi(2)).exp()).to_radians().sin();
        let sl = 1.0 + 0.015 * (l - 50.0).powi(2) / (20.0 + (l - 50.0).powi(2)).sqrt();
        let (dl, dc) = ((l2 - l1) / sl, (c2 - c1) / (1.0 + 0.045 * c));
        let dh = dh / (1.0 + 0.015 * c * t);
        (dl * dl + dc * dc + dh * dh + rotation * dc * dh).sqrt()
    }

    #[test]
    fn differences_are_those_of_the_published_pairs() {
        // Pairs of table 1 of Sharma et al.
        for (one, other, difference) in [
            ([50.0, 2.6772, -79.7751], [50.0, 0.0, -82.7485], 2.0425),
            ([50.0, 0.0, 0.0], [50.0, -1.0, 2.0], 2.3669),
            ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
        ] {
            assert!((ciede2000(one, other) - difference).abs() < 1e-4, "{}", ciede2000(one, other));
        }
    }

    #[test]
    fn families_stay_apart_for_dichromats() {
        let all = [
            ("everybody", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
            // Machado, Oliveira and Fernandes 2009, table 1, severity 1.0.
            (
                "protanopia",
                [
                    [0.152_286, 1.052_583, -0.204_868],
                    [0.114_503, 0.786_281, 0.099_216],
                    [-0.003_882, -0.048_116, 1.051_998],
                ],
            ),
            (
                "deuteranopia",
                [
                    [0.367_322, 0.860_646, -0.227_968],
                    [0.280_085, 0.672_501, 0.047_413],
                    [-0.011_82, 0.042_94, 0.968_881],
                ],
            ),
            (
                "tritanopia",
                [
                    [1.255_528, -0.076_749, -0.178_779],
                    [-0.078_411, 0.930_809, 0.147_602],
                    [0.004_733, 0.691_367, 0.303_9],
                ],
            ),
            // Viénot, Brettel and Mollon 1999.
            ("protanopia, 1999", [[0.112_38, 0.887_62, 0.0], [0.112_38, 0.887_62, 0.0], [0.004_01, -0.004_01, 1.0]]),
            ("deuteranopia, 1999", [[0.292_75, 0.707_25, 0.0], [0.292_75, 0.707_25, 0.0], [-0.022_34, 0.022_34, 1.0]]),
        ];
        for (eyes, matrix) in all {
            for (index, left) in Family::ALL.iter().enumerate() {
                for right in &Family::ALL[index + 1..] {
                    let apart = ciede2000(seen_by(matrix, left.color()), seen_by(matrix, right.color()));
                    assert!(apart >= 10.0, "{left:?} and {right:?} are only {apart:.1} apart with {eyes}");
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
    fn bubbles_stay_apart_on_dark_pages() {
        let everybody = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let ground = [0x20, 0x23, 0x27];
        let tones = IdleCause::ALL.into_iter().map(|cause| (cause.name(), cause_on_dark(cause)));
        let tones: Vec<(&str, Color)> = tones.chain([("the ground", ground)]).collect();
        for (index, (left, one)) in tones.iter().enumerate() {
            for (right, other) in &tones[index + 1..] {
                let apart = ciede2000(seen_by(everybody, *one), seen_by(everybody, *other));
                assert!(apart >= 10.0, "{left} and {right} are only {apart:.1} apart");
            }
        }
    }

    #[test]
    fn codes_of_causes_differ() {
        let codes: std::collections::BTreeSet<&str> = IdleCause::ALL.into_iter().map(cause_code).collect();
        assert_eq!(codes.len(), IdleCause::ALL.len());
    }
}
