//! The shipped catalogue keeps its own rules, and the rules find wrong figures that were published.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Diagnostic, Severity};
use spipe_market::{Catalogue, CatalogueFile, Date, Source, check, check_fitting, shipped};

fn day(text: &str) -> Date {
    text.parse().unwrap()
}

fn source(name: &str) -> Source {
    let (_, text) = shipped().iter().find(|(file, _)| *file == name).unwrap();
    Source::read(name, text).unwrap()
}

/// The errors of a file, without warnings.
fn errors(source: &Source) -> Vec<String> {
    let faults = check(source, day("2026-11-27"));
    let of = |fault: &&Diagnostic| fault.severity == Severity::Error;
    faults.iter().filter(of).map(|fault| fault.message.clone()).collect()
}

#[test]
fn the_shipped_files_keep_the_rules() {
    let whole = Catalogue::shipped().unwrap();
    for (name, text) in shipped() {
        let source = Source::read(name, text).unwrap();
        assert_eq!(errors(&source), Vec::<String>::new(), "{name}");
        assert!(check_fitting(&source, &whole).is_empty(), "{name}: {}", check_fitting(&source, &whole));
    }
    assert!(whole.gpus.len() >= 47, "{} GPUs", whole.gpus.len());
}

/// Without its exceptions, each part that has some breaks exactly the rules that it names.
#[test]
fn every_exception_is_needed() {
    let mut file = source("gpus");
    let exceptions: Vec<(String, String)> = file
        .parsed
        .gpu
        .iter()
        .flat_map(|gpu| gpu.exception.iter().map(|one| (gpu.name.clone(), one.rule.clone())))
        .collect();
    assert!(exceptions.iter().any(|(name, _)| name == "gaudi3"));
    file.parsed.gpu.iter_mut().for_each(|gpu| gpu.exception.clear());
    let found = errors(&file);
    assert_eq!(found.len(), exceptions.len(), "{found:#?}");
    for (name, rule) in exceptions {
        assert!(found.iter().any(|fault| fault.contains(&name) && fault.contains(&rule)), "{name}: {rule}");
    }
}

/// One changed figure of a shipped GPU.
type Change = fn(&mut spipe_market::GpuPart);

fn tflops(part: &mut spipe_market::GpuPart, kind: spipe_base::DataType, rate: f64) {
    part.peak.insert(kind, spipe_base::Text(spipe_base::FlopsPerSecond::tflops(rate)));
}

/// Wrong figures in public tables, each with the rule that finds it.
#[test]
fn published_wrong_figures_are_found() {
    use spipe_base::{Bytes, BytesPerSecond, DataType::*, Text};
    let cases: [(&str, &str, &str, Change); 17] = [
        ("llm.c mfu.h", "rtx-a6000", "tensor-ratio", |part| tflops(part, Bf16, 77.0)),
        ("llm.c mfu.h", "rtx6000-ada", "tensor-ratio", |part| tflops(part, Bf16, 182.0)),
        ("Lightning throughput.py", "rtx4090", "tensor-ratio", |part| tflops(part, Bf16, 82.6)),
        ("Lightning throughput.py", "rtx-a6000", "tensor-ratio", |part| tflops(part, Bf16, 38.7)),
        ("Hugging Face hardware file", "h100-sxm", "measured-matmul", |part| tflops(part, Bf16, 267.6)),
        ("Hugging Face hardware file", "a100-80-sxm", "measured-matmul", |part| tflops(part, Bf16, 77.97)),
        ("Hugging Face hardware file", "mi300x", "measured-matmul", |part| tflops(part, Bf16, 383.0)),
        ("Wikipedia-derived JSON", "h200-sxm", "bandwidth", |part| {
            part.memory_bandwidth = Text(BytesPerSecond::gb(3360.0))
        }),
        ("llm-analysis", "a10", "memory-size", |part| part.memory = Text(Bytes::gib(28))),
        ("gpu_poor", "rtx3090", "tensor-ratio", |part| tflops(part, F16, 16.3)),
        ("gpu_poor", "rtx-a4000", "bandwidth", |part| part.memory_bandwidth = Text(BytesPerSecond::gb(768.0))),
        ("gpu.blog", "h100-nvl", "measured-matmul", |part| tflops(part, Bf16, 133.0)),
        ("gpu.blog", "mi300x", "measured-matmul", |part| tflops(part, Bf16, 330.6)),
        ("codesota.com", "mi300x", "measured-matmul", |part| tflops(part, F16, 2615.0)),
        ("deploybase.ai", "a100-80-sxm", "tf32-half", |part| tflops(part, Tf32, 312.0)),
        ("y-ic.de", "h100-sxm", "measured-matmul", |part| tflops(part, Bf16, 1979.0)),
        ("gigagpu.com", "rtx-pro6000", "memory-size", |part| part.memory = Text(Bytes::gib(80))),
    ];
    for (page, name, rule, change) in cases {
        let mut file = source("gpus");
        change(file.parsed.gpu.iter_mut().find(|gpu| gpu.name == name).unwrap());
        let found = errors(&file);
        let wanted = format!("`{name}` breaks the rule `{rule}`");
        assert!(found.iter().any(|fault| fault.starts_with(&wanted)), "{page}, {name}: {found:#?}");
    }
}

#[test]
fn f16_with_f16_accumulation_is_found() {
    let mut file = source("gpus");
    tflops(file.parsed.gpu.iter_mut().find(|gpu| gpu.name == "rtx4090").unwrap(), spipe_base::DataType::F16, 330.3);
    assert!(errors(&file).iter().any(|fault| fault.contains("half-rates")));
}

const MODULE: &str = r#"
format-version = 1
name = "mine"
[[dram]]
name = "module"
kind = "ddr5-rdimm"
capacity = "32 GiB"
rate = "4800 MT/s"
date = 2026-05-01
source = "a; b"
price = [ PRICE ]
"#;

#[test]
fn bad_prices_are_refused_or_warned_about() {
    let price = |low: i32, typical: i32, high: i32, date: &str| {
        format!(
            "{{ condition = \"new\", low = {low}, typical = {typical}, high = {high}, currency = \"USD\", date = {date}, source = \"a page\" }}"
        )
    };
    let said = |price: &str| match Source::read("mine.toml", &MODULE.replace("PRICE", price)) {
        Ok(source) => check(&source, day("2026-11-27")).to_string(),
        Err(faults) => faults.to_string(),
    };
    assert_eq!(said(&price(1, 2, 3, "2026-11-01")), "");
    assert!(said(&price(-1, 2, 3, "2026-11-01")).contains("is negative"));
    assert!(said(&price(3, 2, 1, "2026-11-01")).contains("is reversed"));
    assert!(said(&price(1, 2, 3, "2026-11-01").replace("date = 2026-11-01, ", "")).contains("missing field `date`"));
    assert!(said(&price(1, 2, 3, "\"soon\"")).starts_with("error: "));
    assert!(said(&price(1, 2, 3, "2026-11-01").replace("USD", "dollars")).contains("is not a currency"));
    assert!(said(&price(1, 2, 3, "2026-11-01").replace("a page", "")).contains("has no source"));
    assert!(said(&price(1, 2, 3, "2026-11-01").replace("low", "least")).contains("least"), "unknown keys are refused");
    // 2026-08-29 is 90 days before.
    assert_eq!(said(&price(1, 2, 3, "2026-08-29")), "");
    assert!(said(&price(1, 2, 3, "2026-08-28")).starts_with("warning: the newest price of `module` is 91 days old"));
    assert!(said(&price(1, 2, 3, "2025-11-26")).contains("widened"));
    assert!(said(&price(1, 2, 3, "2026-08-28")).contains("mine.toml:5:1"), "{}", said(&price(1, 2, 3, "2026-08-28")));
}

#[test]
fn an_empty_catalogue_and_a_part_that_fits_nothing_are_refused() {
    let empty = Source::read("empty.toml", "format-version = 1\nname = \"empty\"\n").unwrap();
    assert!(check(&empty, day("2026-11-27")).to_string().contains("the catalogue has no part"));
    let mut whole = Catalogue::default();
    whole.add(source("gpus").parsed);
    let faults = check_fitting(&source("gpus"), &whole).to_string();
    assert!(faults.contains("`rtx4090` fits no board: it is mounted as pcie"), "{faults}");
    assert!(
        Source::read("x.toml", "format-version = 2\nname = \"x\"\n").unwrap_err().to_string().contains("version 2")
    );
}

#[test]
fn a_part_of_a_later_file_replaces_the_shipped_one() {
    let mut whole = Catalogue::shipped().unwrap();
    let before = whole.gpus.len();
    let mut own: CatalogueFile = source("gpus").parsed;
    own.gpu.retain(|gpu| gpu.name == "rtx4090");
    own.gpu[0].price.clear();
    whole.add(own);
    assert_eq!(whole.gpus.len(), before);
    assert!(whole.gpus.iter().any(|gpu| gpu.name == "rtx4090" && gpu.price.is_empty()));
}

#[test]
fn bad_network_parts_are_refused() {
    let said = |change: &dyn Fn(&mut CatalogueFile)| {
        let mut file = source("network");
        change(&mut file.parsed);
        let mut whole = Catalogue::shipped().unwrap();
        (whole.network_switches, whole.cables) = (Vec::new(), Vec::new());
        whole.add(file.parsed.clone());
        let unfit = check_fitting(&file, &whole);
        [errors(&file), unfit.iter().map(|fault| fault.message.clone()).collect()].concat()
    };
    assert_eq!(said(&|_| ()), Vec::<String>::new());
    let slow = |file: &mut CatalogueFile| file.network_card[0].pcie.generation = 4;
    assert_eq!(said(&slow), ["`connectx7-400g` is faster than its lanes"]);
    let one = |file: &mut CatalogueFile| file.network_switch[0].ports = 1;
    assert_eq!(said(&one), ["`qm9700` has 1 ports"]);
    let no_cable = said(&|file| file.cable.retain(|cable| cable.name != "optical-400g"));
    assert!(
        no_cable.len() == 1 && no_cable[0].starts_with("`connectx7-400g` fits no switch or no cable"),
        "{no_cable:?}"
    );
    let twice = said(&|file| file.cable.push(file.cable[0].clone()));
    assert_eq!(twice, ["the cable `optical-400g` is there twice"]);
    let mut rent = source("rent");
    let joined = rent.parsed.rent.iter_mut().find_map(|rent| rent.network.as_mut()).unwrap();
    joined.cards = 0;
    assert!(errors(&rent)[0].contains("has a network without cards or rate"), "{:?}", errors(&rent));
}
