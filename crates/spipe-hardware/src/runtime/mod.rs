//! A runtime: what executes a plan, and what it costs beside the schedule.
//!
//! ```text
//! hardware-profiles/runtimes/NAME.toml ──► RuntimeFile ──check──► Runtime
//!                                                                    │
//! Hardware ──────────────────────────────────────────────── under ───┴──► Hardware
//! ```
//!
//! The machine says what is possible, the runtime what is reached. [`Hardware::under`] joins them:
//! memories shrink by what the runtime holds, and the cost model reads rates and launches from
//! [`Hardware::runtime`].

mod file;
mod shipped;
mod words;

pub use file::{FactorsFile, HoldingsFile, HostFile, KernelsFile, LaunchesFile, RuntimeFile, runtime_schema};
pub use shipped::shipped_runtimes;
pub use words::{
    AttentionKernel, BackwardPrefetch, CollectiveKind, CollectiveRates, LossKernel, NormKernel, ProductRates,
};

use crate::report::{Report, Source};
use spipe_base::{Bytes, Diagnostic, Faults, Seconds, Text};

/// A checked runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    file: RuntimeFile,
}

/// A constant of a runtime that measured runs can determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Constant {
    /// The factor on the rate of matrix products.
    Products,
    /// The factor on the rate of attention kernels.
    Attention,
    /// The host's seconds per kernel launch.
    Launch,
    /// The seconds of an iteration in which neither kernels nor copies run.
    Iteration,
    /// The factor on the rates of copies and collectives.
    Links,
    /// The factor on the rate of optimizer steps.
    Optimizer,
}

impl Constant {
    /// Every constant, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Products, Self::Attention, Self::Launch, Self::Iteration, Self::Links, Self::Optimizer];

    /// Returns the name used in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Products => "product-efficiency",
            Self::Attention => "attention-efficiency",
            Self::Launch => "host-launch",
            Self::Iteration => "host-iteration",
            Self::Links => "link-efficiency",
            Self::Optimizer => "optimizer-efficiency",
        }
    }

    /// Returns the constant with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|constant| constant.name() == name)
    }

    /// Whether its value is a time in seconds; the others are factors.
    pub const fn is_time(self) -> bool {
        matches!(self, Self::Launch | Self::Iteration)
    }
}

/// The version of the format of runtime files.
const FORMAT_VERSION: u32 = 1;

/// The description of the runtime `spipe`, as in its file.
const OWN: &str = "The executor of this program: layers and optimizer steps as the machine's profile measures or states them, and nothing beside them.";

/// The source of a table whose first number is fitted.
const FITTED: &str = "fitted to measured runs";

/// The largest factor on a rate: a machine whose rates are off by more is described wrongly.
const LARGEST_FACTOR: f64 = 100.0;

impl Default for Runtime {
    /// The runtime `spipe`, which adds nothing to the machine.
    fn default() -> Self {
        let description = Some(OWN.into());
        let file =
            RuntimeFile { format_version: FORMAT_VERSION, name: "spipe".into(), description, ..Default::default() };
        Self { file }
    }
}

impl Runtime {
    /// Checks a runtime that was not read from text. `file` is its name in messages.
    ///
    /// # Errors
    /// All faults of the runtime.
    pub fn from_file(file: &str, parsed: RuntimeFile) -> Result<Self, Faults> {
        Self::checked(parsed, Report::new(Source { file, text: "", root: None }))
    }

    pub(crate) fn checked(file: RuntimeFile, mut report: Report<'_>) -> Result<Self, Faults> {
        check(&file, &mut report);
        report.into_sorted().or(Self { file })
    }

    /// Returns the shipped runtime of this name.
    pub fn shipped(name: &str) -> Option<Self> {
        let (name, text) = shipped_runtimes().iter().find(|(known, _)| *known == name)?;
        Self::from_toml(&format!("{name}.toml"), text).ok()
    }

    /// Formats the runtime as a file that reads back as an equal runtime.
    pub fn to_toml(&self) -> String {
        match toml::to_string(&self.file) {
            Ok(text) => text,
            Err(error) => unreachable!("a runtime file has string keys and finite numbers only: {error}"),
        }
    }

    /// Returns the file from which it was built.
    pub const fn file(&self) -> &RuntimeFile {
        &self.file
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Whether predictions of this system were compared with measured runs, or need no constants beside those of the
    /// machine's profile.
    pub fn is_measured_for(&self, system: &str) -> bool {
        let RuntimeFile { host, kernels, efficiency, memory, .. } = &self.file;
        let adds_nothing = host.is_none() && kernels.is_none() && efficiency.is_none() && memory.is_none();
        adds_nothing || self.file.measured_systems.iter().any(|measured| measured == system)
    }

    /// Returns the value of `constant`, in seconds or as a factor.
    pub fn constant(&self, constant: Constant) -> f64 {
        let host = self.file.host.as_ref();
        let factors = self.file.efficiency.as_ref();
        let seconds = |time: Option<Text<Seconds>>| time.map_or(0.0, |text| text.0.get());
        match constant {
            Constant::Launch => seconds(host.and_then(|host| host.launch)),
            Constant::Iteration => seconds(host.and_then(|host| host.iteration)),
            Constant::Products => factors.and_then(|factors| factors.products).unwrap_or(1.0),
            Constant::Attention => factors.and_then(|factors| factors.attention).unwrap_or(1.0),
            Constant::Links => factors.and_then(|factors| factors.links).unwrap_or(1.0),
            Constant::Optimizer => factors.and_then(|factors| factors.optimizer).unwrap_or(1.0),
        }
    }

    /// Returns the same runtime with another value of `constant`.
    ///
    /// # Errors
    /// If the value is out of range.
    pub fn with_constant(&self, constant: Constant, value: f64) -> Result<Self, Faults> {
        let mut file = self.file.clone();
        if constant.is_time() {
            let time = Seconds::new(value)
                .ok_or_else(|| Diagnostic::error(format!("{value} s is no value of `{}`", constant.name())))?;
            let host = file.host.get_or_insert_default();
            host.source.get_or_insert_with(|| FITTED.into());
            *(if constant == Constant::Launch { &mut host.launch } else { &mut host.iteration }) = Some(Text(time));
        } else {
            let factors = file.efficiency.get_or_insert_default();
            factors.source.get_or_insert_with(|| FITTED.into());
            let place = match constant {
                Constant::Attention => &mut factors.attention,
                Constant::Links => &mut factors.links,
                Constant::Optimizer => &mut factors.optimizer,
                _ => &mut factors.products,
            };
            *place = Some(value);
        }
        Self::from_file(&file.name.clone(), file)
    }

    /// Returns the host's time per kernel launch.
    pub fn launch(&self) -> Seconds {
        Seconds::s(self.constant(Constant::Launch))
    }

    /// Returns the time of an iteration in which neither kernels nor copies run.
    pub fn iteration(&self) -> Seconds {
        Seconds::s(self.constant(Constant::Iteration))
    }

    /// Whether the host waits for copies between stages, so that host and device times add up.
    pub fn waits_for_copies(&self) -> bool {
        self.file.host.as_ref().is_some_and(|host| host.waits_for_copies)
    }

    /// Returns the table of kernels, if the file has one.
    pub const fn kernels(&self) -> Option<&KernelsFile> {
        self.file.kernels.as_ref()
    }

    /// Returns the host's time to launch the kernels of an optimizer step.
    pub fn optimizer_launches(&self) -> Seconds {
        self.launch() * self.kernels().and_then(|kernels| kernels.optimizer).unwrap_or(0.0)
    }

    /// Returns the rate of matrix products.
    pub fn products(&self) -> ProductRates {
        self.kernels().and_then(|kernels| kernels.products).unwrap_or(ProductRates::Work)
    }

    /// Returns the attention kernel.
    pub fn attention(&self) -> AttentionKernel {
        self.kernels().and_then(|kernels| kernels.attention).unwrap_or(AttentionKernel::Products)
    }

    /// Returns the kernels of norms, activation functions and sums.
    pub fn norms(&self) -> NormKernel {
        self.kernels().and_then(|kernels| kernels.norms).unwrap_or(NormKernel::Fused)
    }

    /// Returns the kernels of the loss.
    pub fn loss(&self) -> LossKernel {
        self.kernels().and_then(|kernels| kernels.loss).unwrap_or(LossKernel::Fused)
    }

    /// Returns the rate of collectives.
    pub fn collectives(&self) -> CollectiveRates {
        self.kernels().and_then(|kernels| kernels.collectives).unwrap_or(CollectiveRates::Rings)
    }

    /// Returns when the backward gathers the parameters of the next stage.
    pub fn backward_prefetch(&self) -> BackwardPrefetch {
        self.kernels().and_then(|kernels| kernels.backward_prefetch).unwrap_or(BackwardPrefetch::Pre)
    }

    /// Returns the factor on the rate of computation beside collectives.
    pub fn beside_collectives(&self) -> f64 {
        let factor = self.file.efficiency.as_ref().and_then(|factors| factors.beside_collectives);
        factor.unwrap_or(1.0).min(1.0)
    }

    /// Returns the bytes per parameter beside its optimizer state, in 16-bit training.
    pub fn gradient_copy_bytes(&self) -> u64 {
        self.file.memory.as_ref().and_then(|memory| memory.gradient_copy_bytes).unwrap_or(0).into()
    }

    /// Returns the bytes of context, libraries and communicators on a GPU of a machine with `gpus`.
    pub fn context(&self, gpus: usize) -> Bytes {
        let alone = self.held(|memory| memory.context);
        if gpus > 1 { alone + self.held(|memory| memory.communicators) } else { alone }
    }

    /// Returns the bytes of workspaces, communication buckets and parameters that stay gathered, on a
    /// GPU of a machine with `gpus`.
    pub fn buffers(&self, gpus: usize) -> Bytes {
        let alone = self.held(|memory| memory.workspaces);
        let shared = || self.held(|memory| memory.buckets) + self.held(|memory| memory.gathered);
        if gpus > 1 { alone + shared() } else { alone }
    }

    fn held(&self, part: fn(&HoldingsFile) -> Option<Text<Bytes>>) -> Bytes {
        self.file.memory.as_ref().and_then(part).map_or(Bytes::ZERO, |text| text.0)
    }

    /// Returns the share of a GPU's memory that fragmentation makes unusable.
    pub fn allocator_share(&self) -> f64 {
        self.file.memory.as_ref().and_then(|memory| memory.allocator_share).unwrap_or(0.0)
    }

    /// Returns the share of host memory that cannot be used.
    pub fn host_share(&self) -> f64 {
        self.file.memory.as_ref().and_then(|memory| memory.host_share).unwrap_or(0.0)
    }
}

fn check(file: &RuntimeFile, report: &mut Report<'_>) {
    if file.format_version != FORMAT_VERSION {
        let found = file.format_version;
        let message = format!("the format version is {found}, this program reads version {FORMAT_VERSION}");
        report.error("format-version", message);
    }
    if file.name.is_empty() {
        report.error("name", "the runtime has an empty name".into());
    }
    let factors = file.efficiency.clone().unwrap_or_default();
    for (key, factor) in [
        ("products", factors.products),
        ("attention", factors.attention),
        ("links", factors.links),
        ("optimizer", factors.optimizer),
        ("beside-collectives", factors.beside_collectives),
    ] {
        if let Some(factor) = factor.filter(|factor| !(*factor > 0.0 && *factor <= LARGEST_FACTOR)) {
            let message = format!("`{key}` is {factor}, expected a factor above 0 and at most {LARGEST_FACTOR}");
            report.error(&format!("efficiency.{key}"), message);
        }
    }
    let memory = file.memory.clone().unwrap_or_default();
    for (key, share) in [("allocator-share", memory.allocator_share), ("host-share", memory.host_share)] {
        if let Some(share) = share.filter(|share| !(0.0..1.0).contains(share)) {
            report.error(&format!("memory.{key}"), format!("`{key}` is {share}, expected a share from 0 to 1"));
        }
    }
    let kernels = file.kernels.clone().unwrap_or_default();
    let pair = |key: &'static str, launches: Option<LaunchesFile>| {
        let launches = launches.unwrap_or_default();
        [(format!("{key}.forward"), launches.forward), (format!("{key}.backward"), launches.backward)]
    };
    let counts = [pair("block", kernels.block), pair("embedding", kernels.embedding), pair("head", kernels.head)];
    let others = [
        ("per-operation".to_owned(), kernels.per_operation.unwrap_or_default()),
        ("optimizer".to_owned(), kernels.optimizer.unwrap_or_default()),
    ];
    for (key, count) in counts.into_iter().flatten().chain(others) {
        if !(0.0..=1e6).contains(&count) {
            report.error(&format!("kernels.{key}"), format!("`{key}` is {count}, expected a number of launches"));
        }
    }
    for (key, found) in sources(file) {
        if !found {
            let message = format!("the table `{key}` has no source");
            report.push(key, Diagnostic::error(message).hint("write `source =` and where its numbers come from"));
        }
    }
}

/// The tables that are present, and whether each has a source.
fn sources(file: &RuntimeFile) -> Vec<(&'static str, bool)> {
    let table = |key, source: Option<Option<&String>>| source.map(|source| (key, source.is_some()));
    let tables = [
        table("host", file.host.as_ref().map(|host| host.source.as_ref())),
        table("kernels", file.kernels.as_ref().map(|kernels| kernels.source.as_ref())),
        table("efficiency", file.efficiency.as_ref().map(|factors| factors.source.as_ref())),
        table("memory", file.memory.as_ref().map(|memory| memory.source.as_ref())),
    ];
    tables.into_iter().flatten().collect()
}
