//! The physical rules of figures, each with its name.

use crate::{
    BoardPart, DramPart, DrivePart, Family, GpuPart, NetworkCardPart, NetworkSwitchPart, PlatformPart, RentPart,
    catalogue::Source,
};
use spipe_base::{Bytes, Diagnostic, Faults, FlopsPerSecond};
use spipe_hardware::DataType;

/// The tolerance of every ratio: data sheets round to three digits.
pub const TOLERANCE: f64 = 0.015;

/// The most that a measured matmul may exceed the stated peak: GeForce cards run up to 10 % above
/// the boost clock that the peak is stated at.
const BOOST: f64 = 1.12;

/// The least share of the peak that a good matmul reaches; below it, the peak counts something else.
const LEAST_REACHED: f64 = 0.5;

/// The rules of GPUs, each with its meaning.
pub const RULES: [(&str, &str); 8] = [
    ("tensor-ratio", "dense 16-bit peaks are 2 × f32 on GeForce and L40, 4 × f32 on RTX, A10, A40, L4 and L40S"),
    ("half-rates", "bf16 and f16 have one rate"),
    ("fp8-ratio", "fp8 is between one and two times bf16"),
    ("tf32-half", "tf32 is half of bf16"),
    ("measured-matmul", "the best measured matmul is between 0.5 and 1.12 of the peak"),
    ("bandwidth", "bandwidth is bus width × data rate"),
    ("memory-size", "the memory is a size that the family is sold with"),
    ("sources", "figures have two sources, or the word estimate"),
];

impl Family {
    /// Dense 16-bit tensor rate with f32 accumulation, over the vector rate in f32.
    const fn tensor_ratio(self) -> Option<f64> {
        match self {
            Self::Geforce30 | Self::Geforce40 | Self::Geforce50 | Self::AdaHalf | Self::Radeon7000 => Some(2.0),
            Self::RtxAmpere | Self::RtxAda | Self::RtxPro | Self::AmpereServer | Self::AdaServer => Some(4.0),
            _ => None,
        }
    }

    /// The sizes of memory that cards of the family are sold with, in GiB; empty if unknown.
    const fn sizes(self) -> &'static [u64] {
        match self {
            Self::Geforce30 => &[4, 6, 8, 10, 12, 24],
            Self::Geforce40 | Self::Radeon7000 => &[8, 12, 16, 20, 24],
            Self::Geforce50 => &[8, 12, 16, 24, 32],
            Self::RtxAmpere => &[4, 6, 8, 12, 16, 20, 24, 48],
            Self::RtxAda => &[8, 12, 16, 20, 24, 32, 48],
            Self::RtxPro => &[8, 16, 24, 32, 48, 72, 96],
            Self::TuringServer => &[16],
            Self::Volta => &[16, 32],
            Self::AmpereServer => &[16, 24, 48],
            Self::AmpereHbm => &[24, 40, 80],
            Self::AdaServer => &[24, 48],
            Self::AdaHalf => &[24, 48],
            Self::Hopper => &[80, 94, 96, 141, 144],
            Self::BlackwellServer => &[180, 186, 192, 288],
            Self::Cdna2 => &[64, 128],
            Self::Cdna3 => &[128, 192, 256],
            Self::PonteVecchio => &[48, 96, 128],
            Self::Gaudi => &[32, 96, 128],
            Self::ArcPro => &[8, 12, 16, 24, 48],
            Self::Other => &[],
        }
    }
}

/// A reporter of the faults of one GPU.
struct Judge<'a> {
    part: &'a GpuPart,
    source: &'a Source,
    faults: &'a mut Faults,
}

impl Judge<'_> {
    /// Reports a broken rule, unless the part names it as an exception.
    fn broken(&mut self, rule: &str, message: String) {
        if self.part.exception.iter().any(|exception| exception.rule == rule) {
            return;
        }
        let meaning = RULES.iter().find(|(name, _)| *name == rule).map_or("", |(_, meaning)| meaning);
        let fault = Diagnostic::error(format!("`{}` breaks the rule `{rule}`: {message}", self.part.name));
        let hint = format!("{meaning}; correct the figure, or state an `exception` with its reason");
        self.faults.push(self.source.at(&self.part.name, fault.hint(hint)));
    }

    fn rate(&self, kind: DataType) -> Option<FlopsPerSecond> {
        self.part.peak.get(&kind).map(|rate| rate.0)
    }
}

/// Whether `figure` is further from `wanted` than the tolerance.
fn differs(figure: f64, wanted: f64) -> bool {
    (figure / wanted - 1.0).abs() > TOLERANCE
}

/// Checks the figures of a GPU.
pub(super) fn gpu(part: &GpuPart, source: &Source, faults: &mut Faults) {
    let mut judge = Judge { part, source, faults };
    rates(&mut judge);
    measured(&mut judge);
    memory(&mut judge);
    let unknown = part.exception.iter().filter(|exception| !RULES.iter().any(|(name, _)| *name == exception.rule));
    for exception in unknown {
        let names: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
        let fault = Diagnostic::error(format!("`{}` is an exception to no rule: `{}`", part.name, exception.rule));
        judge.faults.push(source.at(&part.name, fault.hint(format!("known rules: {}", names.join(", ")))));
    }
    if part.peak.is_empty() {
        let fault = Diagnostic::error(format!("`{}` has no peak", part.name));
        judge.faults.push(source.at(&part.name, fault.hint("state at least the dense bf16 or f32 rate")));
    }
    if !(part.power.training > 0.0 && part.power.training <= 1.5) {
        let message = format!("`{}` draws {} of its board power in training", part.name, part.power.training);
        judge.faults.push(source.at(&part.name, Diagnostic::error(message).hint("state a share such as 0.8")));
    }
    if part.power.idle.0 > part.power.board.0 {
        let message = format!("`{}` draws more idle than busy", part.name);
        judge.faults.push(source.at(&part.name, Diagnostic::error(message).hint("exchange `idle` and `board`")));
    }
    if !(part.source.contains(';') || part.source.to_lowercase().contains("estimate")) {
        let message = format!("the figures of `{}` have a single source", part.name);
        let hint = "name a second one after a semicolon, or write the word estimate";
        judge.faults.push(source.at(&part.name, Diagnostic::warning(message).hint(hint)));
    }
}

/// The rules between rates.
fn rates(judge: &mut Judge<'_>) {
    let (f32, bf16, f16) = (judge.rate(DataType::F32), judge.rate(DataType::Bf16), judge.rate(DataType::F16));
    for (name, rate) in [("bf16", bf16), ("f16", f16)] {
        if let (Some(rate), Some(f32), Some(ratio)) = (rate, f32, judge.part.family.tensor_ratio())
            && differs(rate / f32, ratio)
        {
            let family = judge.part.family;
            judge.broken(
                "tensor-ratio",
                format!("{name} is {rate}, which is {:.2} × f32; {family} has {ratio} ×", rate / f32),
            );
        }
    }
    if let (Some(bf16), Some(f16)) = (bf16, f16)
        && differs(f16 / bf16, 1.0)
    {
        judge.broken("half-rates", format!("bf16 is {bf16}, f16 is {f16}"));
    }
    let Some(half) = bf16.or(f16) else { return };
    if let Some(fp8) = judge.rate(DataType::Fp8)
        && !(1.0 - TOLERANCE..=2.0 * (1.0 + TOLERANCE)).contains(&(fp8 / half))
    {
        judge.broken("fp8-ratio", format!("fp8 is {fp8}, which is {:.2} × the 16-bit rate", fp8 / half));
    }
    if let Some(tf32) = judge.rate(DataType::Tf32)
        && differs(tf32 / half, 0.5)
    {
        judge.broken("tf32-half", format!("tf32 is {tf32}, which is {:.2} × the 16-bit rate of {half}", tf32 / half));
    }
}

/// The rule between the best matmul and the peaks.
fn measured(judge: &mut Judge<'_>) {
    let Some(best) = judge.part.measured_matmul.as_ref().map(|matmul| matmul.rate.0) else { return };
    for kind in [DataType::Bf16, DataType::F16] {
        if let Some(peak) = judge.rate(kind)
            && !(LEAST_REACHED..=BOOST).contains(&(best / peak))
        {
            judge.broken(
                "measured-matmul",
                format!("{best} was measured, which is {:.2} of the {kind} peak of {peak}", best / peak),
            );
        }
    }
}

/// The rules of memory.
fn memory(judge: &mut Judge<'_>) {
    let part = judge.part;
    if let Some(bus) = &part.bus {
        // The rate is per bit of the bus and read as bytes.
        let bandwidth = bus.rate.0 * f64::from(bus.width);
        if bus.width == 0 || differs(part.memory_bandwidth.0 / bandwidth, 1.0) {
            let message =
                format!("{} is stated; {} bits at this rate give {bandwidth}", part.memory_bandwidth.0, bus.width);
            judge.broken("bandwidth", message);
        }
    }
    let sizes = part.family.sizes();
    if !sizes.is_empty() && !sizes.iter().any(|size| Bytes::gib(*size) == part.memory.0) {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        judge.broken("memory-size", format!("{} is not among {} GiB", part.memory.0, sizes.join(", ")));
    }
}

/// An error about a part that is not a GPU.
fn fault(name: &str, source: &Source, faults: &mut Faults, message: &str, hint: &str) {
    faults.push(source.at(name, Diagnostic::error(format!("`{name}` {message}")).hint(hint)));
}

/// Checks the figures of a CPU.
pub(super) fn platform(part: &PlatformPart, source: &Source, faults: &mut Faults) {
    let memory = &part.memory;
    if part.cores == 0 || memory.channels == 0 {
        fault(&part.name, source, faults, "has no cores or no memory channels", "state at least one of each");
    }
    if memory.rate.is_none() && memory.bandwidth.is_none() {
        fault(
            &part.name,
            source,
            faults,
            "has no memory rate",
            "state `rate`, or `bandwidth` where it does not follow",
        );
    }
    if let (Some(one), Some(two)) = (memory.rate, memory.two_per_channel)
        && two.0 > one.0
    {
        fault(&part.name, source, faults, "is faster with two modules per channel than with one", "exchange the rates");
    }
    if part.peak.is_empty() {
        fault(&part.name, source, faults, "has no peak", "state the f32 rate: cores × clock × operations per cycle");
    }
    if part.power.idle.0 > part.power.board.0 {
        fault(&part.name, source, faults, "draws more idle than busy", "exchange `idle` and `board`");
    }
}

/// The sizes of memory modules that are made, in GiB.
const MODULES: [u64; 10] = [4, 8, 16, 24, 32, 48, 64, 96, 128, 256];

/// Checks the figures of a module.
pub(super) fn dram(part: &DramPart, source: &Source, faults: &mut Faults) {
    if !MODULES.iter().any(|size| Bytes::gib(*size) == part.capacity.0) {
        let sizes: Vec<String> = MODULES.iter().map(u64::to_string).collect();
        let hint = format!("modules have {} GiB", sizes.join(", "));
        fault(&part.name, source, faults, &format!("has {}", part.capacity.0), &hint);
    }
}

/// Checks the figures of a drive: a PCIe lane carries 0.985 GB/s in generation 3, and twice that in
/// each later one.
pub(super) fn drive(part: &DrivePart, source: &Source, faults: &mut Faults) {
    let lane = crate::pcie::raw(part.pcie);
    if part.read.0 > lane || part.write.0 > lane {
        let hint = format!("{} lanes of generation {} carry {lane}", part.pcie.lanes, part.pcie.generation);
        fault(&part.name, source, faults, "is faster than its lanes", &hint);
    }
    if part.capacity.0 == Bytes::ZERO {
        fault(&part.name, source, faults, "has no capacity", "state it, such as \"2 TB\"");
    }
}

/// Checks the figures of a board.
pub(super) fn board(part: &BoardPart, source: &Source, faults: &mut Faults) {
    if part.socket_count == 0 || part.sockets.is_empty() {
        fault(&part.name, source, faults, "takes no CPU", "state `sockets` and `socket-count`");
    }
    if let Some(count) = part.gpu_counts.iter().find(|count| **count > part.gpu_slots || **count == 0) {
        let message = format!("takes {count} GPUs in {} slots", part.gpu_slots);
        fault(&part.name, source, faults, &message, "correct `gpu-counts` or `gpu-slots`");
    }
    if !part.price.is_empty() && part.share_of_gpus.is_some() {
        fault(&part.name, source, faults, "has a price and a share", "keep one of them");
    }
}

/// Checks the figures of a network card: it has a rate, which its lanes carry.
pub(super) fn network_card(part: &NetworkCardPart, source: &Source, faults: &mut Faults) {
    let lanes = crate::pcie::raw(part.pcie);
    if part.rate.get() <= 0.0 {
        fault(&part.name, source, faults, "has no rate", "state it, such as \"200 Gb/s\"");
    }
    if part.rate.0 > lanes {
        let hint = format!("{} lanes of generation {} carry {lanes}", part.pcie.lanes, part.pcie.generation);
        fault(&part.name, source, faults, "is faster than its lanes", &hint);
    }
}

/// Checks the figures of a switch: a leaf of several has half of its ports up.
pub(super) fn network_switch(part: &NetworkSwitchPart, source: &Source, faults: &mut Faults) {
    if part.ports < 2 {
        fault(&part.name, source, faults, &format!("has {} ports", part.ports), "state `ports`, at least 2");
    }
}

/// Checks the network of an offer.
pub(super) fn rent(part: &RentPart, source: &Source, faults: &mut Faults) {
    if part.network.as_ref().is_some_and(|network| network.cards == 0 || network.rate.get() <= 0.0) {
        let hint = "state `cards` and `rate`, or leave `network` out";
        fault(&part.name, source, faults, "has a network without cards or rate", hint);
    }
}
