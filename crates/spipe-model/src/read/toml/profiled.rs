//! Model files of kind `profiled`.

use super::document::advice;
use crate::{
    Batch, Profiled, ProfiledGroup, ProfiledLayer, ProfiledTime,
    read::check::{Check, LARGEST, MOST_LAYERS, MOST_PARAMETERS},
};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, Diagnostic, Exact, Seconds};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

/// The largest size: more than any layer needs, and sums over layers fit in 64 bits.
const LARGEST_SIZE: Bytes = Bytes::gib(1 << 18);
/// The longest duration in seconds: more than any layer takes, and sums in nanoseconds fit in 64
/// bits.
const LONGEST: f64 = 1e5;

/// Layers described by measurements.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ProfiledFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: ProfiledKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The sequences per microbatch at which times and bytes were measured.
    pub microbatch: u64,
    /// The tokens per sequence at which times and bytes were measured.
    pub seq_len: u64,
    /// The layers in model order.
    pub layer: Vec<LayerTable>,
}

/// The `kind` of these files.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProfiledKind {
    /// Layers described by measurements.
    Profiled,
}

/// A layer, or several identical ones.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LayerTable {
    /// Its name.
    pub name: String,
    /// The number of identical layers, named `name.0`, `name.1` …; 1 if absent.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
    /// Earlier layers whose output it reads beside that of its predecessor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// Whether it reads its predecessor's output; `true` if absent.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub chain: bool,
    /// The parameters of each layer.
    pub parameters: u64,
    /// The output for the next layer: a size.
    pub boundary_activation: String,
    /// The activations saved for the backward without recompute: a size.
    pub saved_activation: String,
    /// The activations saved with selective recompute: a size, `saved-activation` if absent.
    pub selective_activation: Option<String>,
    /// The activations saved with full recompute: a size. If absent, it is the sum of the outputs
    /// that the layer reads (its own output if it reads none), at most `saved-activation`.
    pub recompute_activation: Option<String>,
    /// The memory needed only within a pass: a size; none if absent.
    pub workspace: Option<String>,
    /// Times by device name or by kind (`gpu`, `cpu`); a device name takes precedence.
    pub time: BTreeMap<String, TimeTable>,
}

/// The times of one layer on one device.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct TimeTable {
    /// The forward: a duration.
    pub forward: String,
    /// The gradient of the input: a duration.
    pub backward_input: String,
    /// The gradients of the parameters: a duration.
    pub backward_weight: String,
}

const fn one() -> u64 {
    1
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(count: &u64) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_yes(chain: &bool) -> bool {
    *chain
}

/// Parses the size at `key`; zero with a fault if it is none.
fn size(check: &mut Check<'_>, key: &str, text: &str) -> Bytes {
    let size = quantity(check, key, text, Bytes::ZERO);
    if size > LARGEST_SIZE {
        check.error(key, format!("`{key}` is {size}, more than the {LARGEST_SIZE} that are supported"));
    }
    size
}

/// Parses the duration at `key`; zero with a fault if it is none.
fn duration(check: &mut Check<'_>, key: &str, text: &str) -> Seconds {
    let duration = quantity(check, key, text, Seconds::ZERO);
    if duration.get() > LONGEST {
        check.error(key, format!("`{key}` is {duration}, more than the {LONGEST} s that are supported"));
    }
    duration
}

/// Parses the quantity at `key`; `default` with a fault if it is none.
fn quantity<T: FromStr<Err: fmt::Display>>(check: &mut Check<'_>, key: &str, text: &str, default: T) -> T {
    text.parse().unwrap_or_else(|error: T::Err| {
        check.error(key, format!("`{key}`: {error}"));
        default
    })
}

/// The layers read so far: the output bytes of each by name.
#[derive(Default)]
struct Known {
    boundaries: BTreeMap<String, Bytes>,
    names: BTreeSet<String>,
    last: Option<Bytes>,
}

impl ProfiledFile {
    /// Returns the network, and reports its faults to `check`.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Profiled {
        check.sizes(&[("microbatch", self.microbatch), ("seq-len", self.seq_len)]);
        if self.layer.is_empty() {
            check.error("layer", "there is no `[[layer]]`".into());
        }
        let layers = self.layer.iter().fold(0_u64, |sum, table| sum.saturating_add(table.count));
        if layers > 0 {
            check.size("layer", layers, MOST_LAYERS);
        }
        let parameters: f64 = self.layer.iter().map(|table| table.parameters as f64 * table.count as f64).sum();
        if parameters > MOST_PARAMETERS {
            check.error(
                "layer",
                format!("{parameters:.1e} parameters are more than the {MOST_PARAMETERS:.0e} supported"),
            );
        }
        let measured_at = Batch { microbatch: self.microbatch, seq_len: self.seq_len };
        let mut known = Known::default();
        let groups = self.layer.iter().enumerate().map(|(index, table)| {
            check.within(&format!("layer.{index}"), |check| {
                table.check_inputs(check, &known, &self.layer[index..]);
                let group = table.resolve(check, &known, measured_at);
                known.add(check, &group);
                group
            })
        });
        Profiled { measured_at, groups: groups.collect() }
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_profiled(name: &str, source: Option<&str>, profiled: &Profiled) -> Self {
        Self {
            format_version: super::FORMAT_VERSION,
            kind: ProfiledKind::Profiled,
            name: name.into(),
            source: source.map(str::to_owned),
            frozen: Vec::new(),
            microbatch: profiled.measured_at.microbatch,
            seq_len: profiled.measured_at.seq_len,
            layer: profiled.groups.iter().map(LayerTable::from_group).collect(),
        }
    }
}

impl Known {
    fn add(&mut self, check: &mut Check<'_>, group: &ProfiledGroup) {
        let name = &group.layer.group;
        if name.is_empty() {
            check.error("name", "`name` is empty".into());
        }
        // Too many layers are a fault already, so a million names need not be collected.
        if group.count <= LARGEST {
            for layer in group.names().chain((group.count > 1).then(|| name.clone())) {
                if !self.names.insert(layer.clone()) {
                    check.error("name", format!("there is another layer `{layer}`"));
                }
                self.boundaries.insert(layer, group.layer.boundary);
            }
        }
        self.last = Some(group.layer.boundary);
    }
}

impl LayerTable {
    /// Refuses inputs that do not come before this layer.
    fn check_inputs(&self, check: &mut Check<'_>, known: &Known, rest: &[Self]) {
        for (index, input) in self.inputs.iter().enumerate() {
            let key = format!("inputs.{index}");
            let base = input.rsplit_once('.').map_or(input.as_str(), |(base, _)| base);
            if known.boundaries.contains_key(input) {
                continue;
            }
            let diagnostic = if rest.iter().any(|table| table.name == *input || table.name == base) {
                Diagnostic::error(format!("layer `{}` reads `{input}`, which is not before it", self.name))
                    .hint("layers are listed in the order in which they compute")
            } else {
                let names = known.boundaries.keys().map(String::as_str);
                Diagnostic::error(format!("layer `{}` reads `{input}`, which does not exist", self.name))
                    .hint(advice(input, names))
            };
            check.add(&key, diagnostic);
        }
    }

    fn resolve(&self, check: &mut Check<'_>, known: &Known, measured_at: Batch) -> ProfiledGroup {
        check.sizes(&[("count", self.count)]);
        let boundary = size(check, "boundary-activation", &self.boundary_activation);
        let saved = size(check, "saved-activation", &self.saved_activation);
        let mut kept = |key: &str, text: &Option<String>, default: Bytes| {
            let Some(text) = text else { return default };
            let bytes = size(check, key, text);
            if bytes > saved {
                check.error(key, format!("`{key}` is {bytes}, more than `saved-activation`, which is {saved}"));
            }
            bytes
        };
        let selective = kept("selective-activation", &self.selective_activation, saved);
        let read = self.read(known, boundary).min(saved);
        let recompute = kept("recompute-activation", &self.recompute_activation, read);
        if recompute > selective && recompute <= saved {
            let message =
                format!("a full recompute keeps {recompute}, more than a selective one, which keeps {selective}");
            check.error("selective-activation", message);
        }
        let workspace = self.workspace.as_deref().map_or(Bytes::ZERO, |text| size(check, "workspace", text));
        if self.time.is_empty() {
            let fault = Diagnostic::error(format!("layer `{}` has no times", self.name));
            check.add("time", fault.hint("give times for `gpu`, `cpu` or the name of a device"));
        }
        let times = check.within("time", |check| {
            self.time.iter().map(|(device, table)| (device.clone(), table.resolve(check, device))).collect()
        });
        ProfiledGroup {
            layer: ProfiledLayer {
                group: self.name.clone(),
                measured_at,
                boundary,
                saved,
                selective,
                recompute,
                workspace,
                times,
            },
            count: self.count,
            parameters: self.parameters,
            inputs: self.inputs.clone(),
            chain: self.chain,
        }
    }

    /// Returns the bytes that each of these layers reads; `boundary` for a layer without inputs.
    fn read(&self, known: &Known, boundary: Bytes) -> Bytes {
        let before = if self.count > 1 { Some(boundary) } else { known.last.filter(|_| self.chain) };
        let skips = self.inputs.iter().filter_map(|input| known.boundaries.get(input).copied());
        let read: Vec<Bytes> = before.into_iter().chain(skips).collect();
        // Each size in a file is below 2⁶⁴; their sum may not be.
        let total = read.iter().fold(0_u64, |sum, bytes| sum.saturating_add(bytes.get()));
        if read.is_empty() { boundary } else { Bytes::new(total) }
    }

    fn from_group(group: &ProfiledGroup) -> Self {
        let layer = &group.layer;
        Self {
            name: layer.group.clone(),
            count: group.count,
            inputs: group.inputs.clone(),
            chain: group.chain,
            parameters: group.parameters,
            boundary_activation: layer.boundary.exact(),
            saved_activation: layer.saved.exact(),
            selective_activation: Some(layer.selective.exact()).filter(|_| layer.selective != layer.saved),
            recompute_activation: Some(layer.recompute.exact()),
            workspace: Some(layer.workspace.exact()).filter(|_| layer.workspace != Bytes::ZERO),
            time: layer.times.iter().map(|(device, time)| (device.clone(), TimeTable::from_time(time))).collect(),
        }
    }
}

impl TimeTable {
    fn resolve(&self, check: &mut Check<'_>, device: &str) -> ProfiledTime {
        check.within(device, |check| ProfiledTime {
            forward: duration(check, "forward", &self.forward),
            backward_input: duration(check, "backward-input", &self.backward_input),
            backward_weight: duration(check, "backward-weight", &self.backward_weight),
        })
    }

    fn from_time(time: &ProfiledTime) -> Self {
        Self {
            forward: time.forward.exact(),
            backward_input: time.backward_input.exact(),
            backward_weight: time.backward_weight.exact(),
        }
    }
}
