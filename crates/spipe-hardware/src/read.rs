//! A reader of TOML text into a [`HardwareFile`]. Serde stops at the first fault; this reader
//! reports each one, substitutes a placeholder, and continues.

use crate::{
    AttentionFile, AttentionKernel, BackwardPrefetch, CollectiveFile, CollectiveKind, CollectiveRates, CopyFile,
    DataType, DramFile, EfficiencyFile, FactorsFile, FittedFile, GpuFile, HardwareFile, HoldingsFile, HostFile,
    KernelsFile, LaunchesFile, LayerTimeFile, LinkFile, LossKernel, MeasuredFile, NetworkFile, NodeFile, NormKernel,
    NvmeFile, ProductRates, RuntimeFile, SocketFile, VectorExtension,
    report::{Report, Source},
    words::Word,
};
use spipe_base::{
    Bytes, BytesPerSecond, Diagnostic, Faults, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text, similar_word,
};
use std::{collections::BTreeMap, fmt, str::FromStr};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

type Value<'i> = Spanned<DeValue<'i>>;

/// A type that is read from a value of a file.
pub(crate) trait Read: Sized {
    /// The expected value, for messages.
    const WANTED: &'static str;

    /// Reads the value, or reports a fault and returns a placeholder.
    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self;

    /// Returns the placeholder for an unreadable value, so that the rest can be checked.
    fn stand_in() -> Self;

    /// Returns the value of an absent key, if it may be absent.
    fn absent() -> Option<Self> {
        None
    }
}

impl HardwareFile {
    /// Reads the tables of a file without checking the machine.
    ///
    /// # Errors
    /// Every syntax error, unknown key, missing key, and value of a wrong type or unit, with its
    /// position.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let mut report = Report::new(Source { file, text, root: Some(&root) });
        let parsed = parse(&mut report, &syntax)?;
        report.into_sorted().or(parsed)
    }
}

/// Reads the tables of a hardware file, or returns its syntax errors.
pub(crate) fn parse(report: &mut Report<'_>, syntax: &[toml::de::Error]) -> Result<HardwareFile, Faults> {
    parse_table(report, syntax)
}

/// Reads the tables of a runtime file, or returns its syntax errors.
pub(crate) fn parse_runtime(report: &mut Report<'_>, syntax: &[toml::de::Error]) -> Result<RuntimeFile, Faults> {
    parse_table(report, syntax)
}

fn parse_table<T: ReadTable>(report: &mut Report<'_>, syntax: &[toml::de::Error]) -> Result<T, Faults> {
    for error in syntax {
        let offset = error.span().map_or(0, |span| span.start);
        report.push_at(offset, Diagnostic::error(error.message().trim_end()));
    }
    match report.source.root {
        Some(root) if syntax.is_empty() => Ok(T::read_table(root.get_ref(), root.span().start, report)),
        _ => Err(std::mem::take(&mut report.faults)),
    }
}

trait ReadTable: Sized {
    fn read_table(table: &DeTable<'_>, offset: usize, report: &mut Report<'_>) -> Self;
}

fn mismatch(value: &Value<'_>, wanted: &str, report: &mut Report<'_>) {
    let found = match value.get_ref() {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(number) => format!("the bare number {number}"),
        DeValue::Float(number) => format!("the bare number {}", number.as_str()),
        DeValue::Boolean(truth) => format!("`{truth}`"),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    };
    report.push_at(value.span().start, Diagnostic::error(format!("expected {wanted}, found {found}")));
}

impl Read for String {
    const WANTED: &'static str = "a text in quotes";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::String(text) = value.get_ref() else {
            mismatch(value, Self::WANTED, report);
            return Self::stand_in();
        };
        text.clone().into_owned()
    }

    fn stand_in() -> Self {
        Self::new()
    }
}

impl Read for u32 {
    const WANTED: &'static str = "a whole number";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let number = match value.get_ref() {
            DeValue::Integer(number) => Self::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        number.unwrap_or_else(|| {
            mismatch(value, Self::WANTED, report);
            Self::stand_in()
        })
    }

    fn stand_in() -> Self {
        1
    }
}

impl Read for f64 {
    const WANTED: &'static str = "a number";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => None,
        };
        number.unwrap_or_else(|| {
            mismatch(value, Self::WANTED, report);
            Self::stand_in()
        })
    }

    fn stand_in() -> Self {
        1.0
    }
}

impl Read for bool {
    const WANTED: &'static str = "`true` or `false`";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::Boolean(truth) = value.get_ref() else {
            mismatch(value, Self::WANTED, report);
            return Self::stand_in();
        };
        *truth
    }

    fn stand_in() -> Self {
        false
    }

    fn absent() -> Option<Self> {
        Some(false)
    }
}

/// A quantity written with its unit.
trait Quantity: FromStr<Err: fmt::Display> {
    const WANTED: &'static str;
    const ONE: fn() -> Self;
}

macro_rules! quantities {
    ($($type:ident $wanted:literal $one:expr),+ $(,)?) => {$(
        impl Quantity for $type {
            const WANTED: &'static str = $wanted;
            const ONE: fn() -> Self = || $one;
        }
    )+};
}

quantities! {
    Bytes "a size like \"24 GiB\"" Bytes::gib(1),
    BytesPerSecond "a bandwidth like \"32 GB/s\"" BytesPerSecond::gb(1.0),
    Flops "a number of operations like \"4 GFLOP\"" Flops::flop(1.0),
    FlopsPerSecond "an arithmetic rate like \"165 TFLOP/s\"" FlopsPerSecond::tflops(1.0),
    ParamsPerSecond "an optimizer rate like \"2 Gparam/s\"" ParamsPerSecond::gparams(1.0),
    Seconds "a duration like \"6 us\"" Seconds::us(1.0),
}

impl<Q: Quantity> Read for Text<Q> {
    const WANTED: &'static str = Q::WANTED;

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::String(text) = value.get_ref() else {
            mismatch(value, Self::WANTED, report);
            return Self::stand_in();
        };
        text.parse().map(Self).unwrap_or_else(|error: Q::Err| {
            report.push_at(value.span().start, Diagnostic::error(error.to_string()));
            Self::stand_in()
        })
    }

    fn stand_in() -> Self {
        Self(Q::ONE())
    }
}

fn word<W: Word>(text: &str, offset: usize, report: &mut Report<'_>) -> Option<W> {
    let words = W::words();
    let known = words.iter().find(|(name, _)| *name == text);
    if known.is_none() {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let fault = Diagnostic::error(format!("unknown {} `{text}` (known: {})", W::WHAT, names.join(", ")));
        report.push_at(offset, meant(fault, text, names));
    }
    known.map(|(_, value)| *value)
}

macro_rules! read_words {
    ($($type:ident $what:literal)+) => {$(
        impl Read for $type {
            const WANTED: &'static str = concat!("the name of a ", $what);

            fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
                let DeValue::String(text) = value.get_ref() else {
                    mismatch(value, Self::WANTED, report);
                    return Self::stand_in();
                };
                word(text, value.span().start, report).unwrap_or_else(Self::stand_in)
            }

            fn stand_in() -> Self {
                Self::words()[0].1
            }
        }
    )+};
}

read_words! {
    DataType "data type"
    VectorExtension "vector extension"
    ProductRates "rate of products"
    AttentionKernel "attention kernel"
    NormKernel "kind of elementwise kernels"
    LossKernel "kind of loss"
    CollectiveRates "rate of collectives"
    BackwardPrefetch "prefetch in the backward"
    CollectiveKind "collective"
}

impl<T: Read> Read for Option<T> {
    const WANTED: &'static str = T::WANTED;

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        Some(T::read(value, report))
    }

    fn stand_in() -> Self {
        None
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Read> Read for Vec<T> {
    const WANTED: &'static str = "a list";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::Array(items) = value.get_ref() else {
            mismatch(value, "a list", report);
            return Self::stand_in();
        };
        items.iter().map(|item| T::read(item, report)).collect()
    }

    fn stand_in() -> Self {
        Self::new()
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// Returns the elements of a list of exactly two.
fn pair<'a, 'i>(value: &'a Value<'i>, wanted: &str, report: &mut Report<'_>) -> Option<[&'a Value<'i>; 2]> {
    let elements: Option<&[Value<'i>]> = match value.get_ref() {
        DeValue::Array(items) => Some(items),
        _ => None,
    };
    let Some([first, second]) = elements else {
        match elements {
            Some(items) => report.push_at(
                value.span().start,
                Diagnostic::error(format!("expected {wanted}, found a list of {}", items.len())),
            ),
            None => mismatch(value, wanted, report),
        }
        return None;
    };
    Some([first, second])
}

impl Read for [String; 2] {
    const WANTED: &'static str = "a list of two names like [\"gpu0\", \"root0\"]";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        pair(value, Self::WANTED, report).map_or_else(Self::stand_in, |ends| ends.map(|end| String::read(end, report)))
    }

    fn stand_in() -> Self {
        [String::new(), String::new()]
    }
}

impl<A: Read, B: Read> Read for (A, B) {
    const WANTED: &'static str = "a list of two like [\"1 MiB\", \"5 GB/s\"]";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        match pair(value, Self::WANTED, report) {
            Some([size, rate]) => (A::read(size, report), B::read(rate, report)),
            None => Self::stand_in(),
        }
    }

    fn stand_in() -> Self {
        (A::stand_in(), B::stand_in())
    }
}

/// Peaks are required; measured points are optional.
impl<T: Read> Read for BTreeMap<DataType, T> {
    const WANTED: &'static str = "a table like { bf16 = … }";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::Table(table) = value.get_ref() else {
            mismatch(value, Self::WANTED, report);
            return Self::stand_in();
        };
        let entry = |(key, value): (&Spanned<_>, &Value<'_>)| {
            let data_type = word(AsRef::<str>::as_ref(key.get_ref()), key.span().start, report);
            (data_type.unwrap_or_else(DataType::stand_in), T::read(value, report))
        };
        table.iter().map(entry).collect()
    }

    fn stand_in() -> Self {
        Self::new()
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// Numbers by name.
impl Read for BTreeMap<String, f64> {
    const WANTED: &'static str = "a table like { product-efficiency = 0.9 }";

    fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
        let DeValue::Table(table) = value.get_ref() else {
            mismatch(value, Self::WANTED, report);
            return Self::stand_in();
        };
        table.iter().map(|(key, value)| (key.get_ref().to_string(), f64::read(value, report))).collect()
    }

    fn stand_in() -> Self {
        Self::new()
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// Adds the hint "did you mean" if a similar word is known.
fn meant<'a>(fault: Diagnostic, word: &str, known: impl IntoIterator<Item = &'a str>) -> Diagnostic {
    match similar_word(word, known) {
        Some(near) => fault.hint(format!("did you mean `{near}`")),
        None => fault,
    }
}

/// Reads the key of a table that belongs to the field `key`.
fn field<T: Read>(table: &DeTable<'_>, (at, what): (usize, &str), key: &str, report: &mut Report<'_>) -> T {
    let key = key.replace('_', "-");
    if let Some((_, value)) = table.iter().find(|(name, _)| name.get_ref() == key.as_str()) {
        return T::read(value, report);
    }
    T::absent().unwrap_or_else(|| {
        let name =
            table.iter().find(|(name, _)| name.get_ref() == "name").and_then(|(_, value)| value.get_ref().as_str());
        let of = name.map_or_else(|| what.to_string(), |name| format!("{what} `{name}`"));
        let fault =
            Diagnostic::error(format!("{of} has no `{key}`")).hint(format!("write `{key} =` and {}", T::WANTED));
        report.push_at(at, fault);
        T::stand_in()
    })
}

fn refuse_unknown(table: &DeTable<'_>, what: &str, known: &[&str], report: &mut Report<'_>) {
    let known: Vec<String> = known.iter().map(|key| key.replace('_', "-")).collect();
    for (key, _) in table.iter().filter(|(key, _)| !known.iter().any(|name| key.get_ref() == name.as_str())) {
        let word: &str = key.get_ref();
        let fault = Diagnostic::error(format!("a {what} has no key `{word}`"));
        let hinted = meant(fault, word, known.iter().map(String::as_str));
        let listed = hinted.hint.is_none();
        report.push_at(
            key.span().start,
            if listed { hinted.hint(format!("known: {}", known.join(", "))) } else { hinted },
        );
    }
}

macro_rules! tables {
    ($($type:ident $what:literal { $($field:ident)+ })+) => {$(
        impl ReadTable for $type {
            fn read_table(table: &DeTable<'_>, offset: usize, report: &mut Report<'_>) -> Self {
                refuse_unknown(table, $what, &[$(stringify!($field)),+], report);
                Self { $($field: field(table, (offset, $what), stringify!($field), report)),+ }
            }
        }

        impl Read for $type {
            const WANTED: &'static str = concat!("a table of a ", $what);

            fn read(value: &Value<'_>, report: &mut Report<'_>) -> Self {
                let DeValue::Table(table) = value.get_ref() else {
                    mismatch(value, Self::WANTED, report);
                    return Self::stand_in();
                };
                Self::read_table(table, value.span().start, report)
            }

            fn stand_in() -> Self {
                Self { $($field: Read::stand_in()),+ }
            }
        }
    )+};
}

tables! {
    HardwareFile "hardware file" {
        format_version name description parts nodes network socket gpu nvme root_complex switch nic link copy collective
        fitted
    }
    SocketFile "socket" {
        name memory_only cores peak optimizer_rate dram numa_node memory_channels vector_extensions launch_floor
        efficiency matmul elementwise matvec layer_time measured source
    }
    DramFile "dram" { name capacity bandwidth reserved pageable_bandwidth }
    GpuFile "gpu" {
        name memory memory_bandwidth peak reserved launch_floor peer_access emulated cores index efficiency attention matmul
        elementwise matvec layer_time measured source
    }
    EfficiencyFile "table of efficiencies" {
        matmul_fraction matmul_startup elementwise_fraction elementwise_startup rows fraction sustained source
    }
    AttentionFile "table of attention" { length head_64 head_128 flash_2 source }
    LayerTimeFile "layer time" { layer data_type forward backward_input backward_weight replay split }
    MeasuredFile "measurement" { date command spread }
    NvmeFile "nvme" { name capacity read write reserved latency source }
    NodeFile "node" { name source }
    NetworkFile "network" { cards at rate latency oversubscription source }
    CollectiveFile "collective" { kind gpus latency bandwidth source }
    LinkFile "link" { name between up down bandwidth both latency source }
    CopyFile "copy" { among bandwidth both source }
    RuntimeFile "runtime" { format_version name description host kernels efficiency memory fitted_from measured_systems }
    HostFile "table of the host" { launch iteration waits_for_copies source }
    KernelsFile "table of kernels" {
        block embedding head per_operation optimizer products attention norms loss collectives
        backward_prefetch source
    }
    LaunchesFile "table of launches" { forward backward }
    FactorsFile "table of factors" { products attention links optimizer beside_collectives source }
    HoldingsFile "table of memory" {
        context communicators workspaces buckets gathered gradient_copy_bytes allocator_share host_share source
    }
    FittedFile "fitted" { runtime class count predicted mean_error largest_error constants source }
}
