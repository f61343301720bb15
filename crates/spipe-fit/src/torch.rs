//! Traces of `torch.profiler` (Chrome's JSON format, as `export_chrome_trace` writes it): kernel
//! times by layer.
//!
//! ```text
//! kernel ──correlation──► launch on the host ──thread, time──► modules around it ──► layer, forward
//!                                   │
//!                                   └─► operator with a sequence number ──► its forward ──► layer, backward
//! ```
//!
//! Modules are events named `nn.Module: GPT2Block_3` (`with_stack` or `with_modules`). The layer is the
//! outermost module of a class that occurs more than once. Kernels outside of modules count by the
//! innermost annotation (`record_function`), such as that of the optimizer, or as `other`.

use serde::{Deserialize, Serialize};
use spipe_base::{Diagnostic, Faults, Position};
use std::collections::{BTreeMap, BTreeSet};

/// The kernel times of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Profile {
    format_version: u32,
    /// The iterations: steps of the profiler, or one if the trace has none.
    pub iterations: usize,
    /// The kernels of all iterations.
    pub kernels: usize,
    /// The sum of their times, in ms.
    pub kernel_ms: f64,
    /// The time from the first start to the last end of a kernel, in ms.
    pub span_ms: f64,
    /// The median time between two launches that follow each other on a host thread, in µs.
    pub launch_us: Option<f64>,
    /// Kernel times by layer and pass, in the order of their first kernel.
    pub layers: Vec<LayerKernels>,
    /// Kernel times by kind.
    pub kinds: BTreeMap<&'static str, Total>,
}

/// The kernels of one layer in one pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayerKernels {
    /// The layer: a module, an annotation, or `other`.
    pub name: String,
    /// The pass.
    pub pass: Pass,
    /// The kernels of all iterations.
    pub kernels: usize,
    /// The sum of their times, in ms.
    pub kernel_ms: f64,
}

/// The pass of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Launched within a module.
    Forward,
    /// Launched by the gradient of an operation within a module.
    Backward,
    /// Neither.
    Other,
}

impl Pass {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Other => "–",
        }
    }
}

/// A number of kernels and the sum of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Total {
    /// The kernels.
    pub kernels: usize,
    /// The sum of their times, in ms.
    pub kernel_ms: f64,
}

/// A file; events have many more keys than are read.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    /// µs.
    #[serde(default)]
    ts: f64,
    /// µs.
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    tid: serde_json::Value,
    #[serde(default)]
    args: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    correlation: Option<i64>,
    #[serde(rename = "Sequence number")]
    sequence: Option<i64>,
    #[serde(rename = "Fwd thread id")]
    forward_thread: Option<i64>,
}

impl Event {
    fn end(&self) -> f64 {
        self.ts + self.dur
    }

    fn contains(&self, at: f64) -> bool {
        self.ts <= at && at < self.end()
    }
}

/// The beginning of the names of modules.
const MODULE: &str = "nn.Module: ";

/// The beginning of the names of iterations.
const STEP: &str = "ProfilerStep#";

/// The spans of one host thread, sorted by their start, each with the one that it is in.
#[derive(Default)]
struct Thread<'a> {
    spans: Vec<&'a Event>,
    parents: Vec<Option<usize>>,
}

impl<'a> Thread<'a> {
    fn sorted(mut spans: Vec<&'a Event>) -> Self {
        spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let (mut parents, mut open) = (Vec::with_capacity(spans.len()), Vec::<usize>::new());
        for (index, span) in spans.iter().enumerate() {
            while open.last().is_some_and(|last| spans[*last].end() <= span.ts) {
                open.pop();
            }
            parents.push(open.last().copied());
            open.push(index);
        }
        Self { spans, parents }
    }

    /// Returns the spans around `at`, the innermost first.
    fn around(&self, at: f64) -> impl Iterator<Item = &'a Event> {
        let last = self.spans.partition_point(|span| span.ts <= at).checked_sub(1);
        let chain = std::iter::successors(last, |index| self.parents[*index]);
        chain.map(|index| self.spans[index]).filter(move |span| span.contains(at))
    }
}

/// Host spans by thread: modules, annotations, operators.
struct Host<'a> {
    modules: BTreeMap<String, Thread<'a>>,
    annotations: BTreeMap<String, Thread<'a>>,
    operators: BTreeMap<String, Thread<'a>>,
    /// The operator of the forward with this sequence number.
    forwards: BTreeMap<i64, &'a Event>,
    /// Classes of modules that occur more than once.
    repeated: BTreeSet<&'a str>,
}

fn by_thread<'a>(events: impl Iterator<Item = &'a Event>) -> BTreeMap<String, Thread<'a>> {
    let mut threads: BTreeMap<String, Vec<&Event>> = BTreeMap::new();
    for event in events {
        threads.entry(event.tid.to_string()).or_default().push(event);
    }
    threads.into_iter().map(|(thread, spans)| (thread, Thread::sorted(spans))).collect()
}

/// Returns the class of a module's name: `GPT2Block` of `GPT2Block_3`.
fn class(module: &str) -> &str {
    match module.rsplit_once('_') {
        Some((class, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => class,
        _ => module,
    }
}

impl<'a> Host<'a> {
    fn new(events: &'a [Event]) -> Self {
        let modules = || events.iter().filter(|event| event.name.starts_with(MODULE));
        let annotations = events.iter().filter(|event| event.cat == "user_annotation" && !event.name.starts_with(STEP));
        let operators = || events.iter().filter(|event| event.cat == "cpu_op");
        let names: BTreeSet<&str> = modules().map(|event| &event.name[MODULE.len()..]).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        names.iter().for_each(|name| *counts.entry(class(name)).or_default() += 1);
        let mut forwards = BTreeMap::new();
        for event in operators().filter(|event| event.args.forward_thread.is_none_or(|thread| thread == 0)) {
            if let Some(sequence) = event.args.sequence {
                forwards.entry(sequence).or_insert(event);
            }
        }
        Self {
            modules: by_thread(modules()),
            annotations: by_thread(annotations),
            operators: by_thread(operators()),
            forwards,
            repeated: counts.into_iter().filter(|(_, count)| *count > 1).map(|(class, _)| class).collect(),
        }
    }

    /// Returns the layer around a moment of a thread.
    fn layer(&self, thread: &str, at: f64) -> Option<&'a str> {
        let around = self.modules.get(thread)?.around(at).map(|event| &event.name[MODULE.len()..]);
        let mut names: Vec<&str> = around.collect();
        names.reverse();
        // Without a repeated class, the module below the whole model.
        names
            .iter()
            .find(|name| self.repeated.contains(class(name)))
            .or_else(|| names.get(1).or(names.first()))
            .copied()
    }

    /// Returns the layer and the pass of a launch.
    fn place(&self, launch: &Event) -> (String, Pass) {
        let thread = launch.tid.to_string();
        if let Some(layer) = self.layer(&thread, launch.ts) {
            return (layer.to_owned(), Pass::Forward);
        }
        let operators = self.operators.get(&thread).into_iter().flat_map(|thread| thread.around(launch.ts));
        for sequence in operators.filter_map(|event| event.args.sequence) {
            let forward = self.forwards.get(&sequence);
            if let Some(layer) = forward.and_then(|event| self.layer(&event.tid.to_string(), event.ts)) {
                return (layer.to_owned(), Pass::Backward);
            }
        }
        let annotation = self.annotations.get(&thread).and_then(|thread| thread.around(launch.ts).next());
        (annotation.map_or_else(|| "other".to_owned(), |event| event.name.clone()), Pass::Other)
    }
}

/// Returns the kind of a kernel, from words in the names that cuBLAS, cuDNN, CUTLASS, Triton, NCCL and
/// PyTorch give.
fn kind(name: &str) -> &'static str {
    let name = name.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["nccl"]) {
        "collectives"
    } else if has(&["flash", "fmha", "attention", "softmax"]) {
        "attention"
    } else if has(&["gemm", "cutlass", "matmul", "nvjet", "cublas", "xmma"]) {
        "products"
    } else if has(&["adam", "multi_tensor_apply"]) {
        "optimizer"
    } else {
        "elementwise"
    }
}

impl Profile {
    /// Reads a trace; `file` is its name in messages.
    ///
    /// # Errors
    /// Text that is not such a trace, and a trace without kernels.
    pub fn read(file: &str, text: &str) -> Result<Self, Faults> {
        let parsed: File = serde_json::from_str(text).map_err(|error| {
            let at = Position { file: file.into(), line: error.line().max(1), column: error.column().max(1) };
            let message = format!("not a trace of torch.profiler: {error}");
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            Diagnostic::error(message).at(at).hint("write one with `profile.export_chrome_trace(\"trace.json\")`")
        })?;
        let events = parsed.events;
        let kernels: Vec<&Event> = events.iter().filter(|event| event.ph == "X" && event.cat == "kernel").collect();
        if kernels.is_empty() {
            let at = Position { file: file.into(), line: 1, column: 1 };
            let fault = Diagnostic::error("the trace has no kernels").at(at);
            return Err(fault.hint("profile with `ProfilerActivity.CUDA`, on a machine with a GPU").into());
        }
        Ok(Self::of(&events, kernels))
    }

    fn of(events: &[Event], mut kernels: Vec<&Event>) -> Self {
        kernels.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        let host = Host::new(events);
        let launches: BTreeMap<i64, &Event> = events
            .iter()
            .filter(|event| matches!(event.cat.as_str(), "cuda_runtime" | "cuda_driver" | "hip_runtime"))
            .filter_map(|event| Some((event.args.correlation?, event)))
            .collect();
        let mut layers: Vec<LayerKernels> = Vec::new();
        let mut kinds: BTreeMap<&'static str, Total> = BTreeMap::new();
        for kernel in &kernels {
            let launch = kernel.args.correlation.and_then(|correlation| launches.get(&correlation));
            let (name, pass) = launch.map_or_else(|| ("other".to_owned(), Pass::Other), |launch| host.place(launch));
            let place = layers.iter().position(|layer| layer.name == name && layer.pass == pass);
            let place = place.unwrap_or_else(|| {
                layers.push(LayerKernels { name, pass, kernels: 0, kernel_ms: 0.0 });
                layers.len() - 1
            });
            layers[place].kernels += 1;
            layers[place].kernel_ms += kernel.dur / 1e3;
            let total = kinds.entry(kind(&kernel.name)).or_default();
            total.kernels += 1;
            total.kernel_ms += kernel.dur / 1e3;
        }
        let start = kernels.iter().map(|kernel| kernel.ts).fold(f64::INFINITY, f64::min);
        let end = kernels.iter().map(|kernel| kernel.end()).fold(0.0, f64::max);
        let steps: BTreeSet<&str> = events
            .iter()
            .filter(|event| event.name.starts_with(STEP) && event.cat != "gpu_user_annotation")
            .map(|event| event.name.as_str())
            .collect();
        Self {
            format_version: 1,
            iterations: steps.len().max(1),
            kernels: kernels.len(),
            kernel_ms: kernels.iter().map(|kernel| kernel.dur / 1e3).sum(),
            span_ms: (end - start) / 1e3,
            launch_us: between_launches(&kernels, &launches),
            layers,
            kinds,
        }
    }
}

/// Returns the median time between the starts of launches that follow each other on one thread.
fn between_launches(kernels: &[&Event], launches: &BTreeMap<i64, &Event>) -> Option<f64> {
    let launched = kernels.iter().filter_map(|kernel| launches.get(&kernel.args.correlation?).copied());
    let mut gaps: Vec<f64> = Vec::new();
    for thread in by_thread(launched).values() {
        gaps.extend(thread.spans.windows(2).map(|pair| pair[1].ts - pair[0].ts));
    }
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied()
}
