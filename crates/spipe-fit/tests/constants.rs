//! Constants from runs whose times are predictions with known constants.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_cost::{Mode, Parallelism, Workload};
use spipe_fit::{
    FitError, Fitted, LeftOut, Run, Runs, TensorData, Usage, Work, error_of_class, fit, fitted_file, fitted_runtime,
};
use spipe_hardware::{Constant, Hardware, Runtime};
use spipe_model::{Model, Precision, Recompute};
use std::{collections::BTreeMap, fmt::Write as _};

fn shipped(all: &[(&'static str, &'static str)], name: &str) -> &'static str {
    all.iter().find(|(known, _)| *known == name).unwrap().1
}

fn machine() -> Hardware {
    let text = shipped(spipe_hardware::shipped(), "a100-80g-x8-nvlink");
    Hardware::from_toml("machine.toml", text).unwrap().under(Runtime::shipped("megatron").unwrap())
}

fn work(tensor: u64, data: u64, microbatch: u64, microbatches: u64) -> Work {
    let model = Model::from_toml("gpt2.toml", shipped(spipe_model::shipped(), "gpt2")).unwrap();
    let workload = Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch,
        microbatches: microbatches * data,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let spread = Parallelism { tensor, data, recompute: Recompute::Full };
    Work::TensorData(Box::new(TensorData { model, hardware: machine(), workload, spread }))
}

/// Runs that take as long as predicted with `truth`.
fn runs(works: &[Work], truth: &BTreeMap<String, f64>) -> Vec<Run> {
    let mut text = String::from("format-version = 1\n");
    for (index, work) in works.iter().enumerate() {
        let time = work.iteration(truth).unwrap().to_ms();
        write!(
            text,
            "[[run]]\nname = \"r{index}\"\nmodel = \"gpt2\"\nbaseline = []\nmeasured = {{ iteration = \"{time} ms\" }}\n"
        )
        .unwrap();
    }
    let stated = Runs::read("runs.toml", &text).unwrap().runs;
    stated.into_iter().zip(works).map(|(stated, work)| Run { stated, work: work.clone() }).collect()
}

fn truth(values: &[(Constant, f64)]) -> BTreeMap<String, f64> {
    values.iter().map(|(constant, value)| (constant.name().to_owned(), *value)).collect()
}

fn varied() -> Vec<Work> {
    [(1, 1, 1, 2), (1, 1, 8, 1), (1, 2, 1, 8), (1, 8, 4, 2), (2, 1, 2, 2), (1, 4, 2, 1), (1, 1, 16, 4), (1, 2, 8, 2)]
        .map(|(tensor, data, microbatch, microbatches)| work(tensor, data, microbatch, microbatches))
        .to_vec()
}

fn value(fitted: &Fitted, constant: Constant) -> Option<f64> {
    fitted.constants.iter().find(|one| one.constant == constant).unwrap().value
}

#[test]
fn known_constants_are_found_again() {
    let wanted = truth(&[(Constant::Products, 0.7), (Constant::Iteration, 25e-3)]);
    let runs = runs(&varied(), &wanted);
    let fitted = fit(&runs, None, Vec::new()).unwrap();
    let errors = fitted.errors(Usage::Fit, None);
    assert!(errors.largest < 0.02 && errors.count == 8, "{errors:?}");
    assert!((value(&fitted, Constant::Products).unwrap() / 0.7 - 1.0).abs() < 0.05, "{fitted:?}");
    assert!((value(&fitted, Constant::Iteration).unwrap() - 25e-3).abs() < 2e-3, "{fitted:?}");
    // Nothing was offloaded: the optimizer's rate of the CPU does not matter.
    assert_eq!(fit(&runs, None, Vec::new()).unwrap().values(), fitted.values());
}

#[test]
fn constants_that_no_run_feels_stay() {
    let one_gpu: Vec<Work> = [1, 2, 4, 8, 16, 32].map(|microbatch| work(1, 1, microbatch, 2)).to_vec();
    let fitted = fit(&runs(&one_gpu, &truth(&[(Constant::Products, 0.8)])), None, Vec::new()).unwrap();
    assert_eq!(value(&fitted, Constant::Links), None, "there is no copy");
}

#[test]
fn one_run_does_not_determine_two_constants() {
    let runs = runs(&[work(1, 1, 8, 2)], &truth(&[(Constant::Products, 0.8)]));
    let asked = [Constant::Products, Constant::Iteration].map(|constant| constant.name().to_owned());
    let refused = fit(&runs, Some(&asked), Vec::new()).unwrap_err();
    assert!(refused.to_string().starts_with("1 run cannot determine 2 constants"), "{refused}");
    let fitted = fit(&runs, Some(&asked[..1]), Vec::new()).unwrap();
    assert!((value(&fitted, Constant::Products).unwrap() / 0.8 - 1.0).abs() < 1e-3);
    let unknown = fit(&runs, Some(&["product-efficency".into()]), Vec::new()).unwrap_err();
    assert_eq!(unknown.diagnostic().hint.as_deref(), Some("did you mean `product-efficiency`"));
    assert_eq!(fit(&[], None, Vec::new()).unwrap_err(), FitError::NoRuns);
}

#[test]
fn a_fitted_profile_carries_constants_and_errors() {
    let wanted = truth(&[(Constant::Products, 0.7)]);
    let left_out =
        vec![LeftOut { name: "large".into(), reason: "80 GiB".into(), not_counted: None, as_measured: false }];
    let fitted = fit(&runs(&varied(), &wanted), Some(&[Constant::Products.name().into()]), left_out).unwrap();
    let profile = fitted_file(&machine(), &fitted, ("megatron", "test")).unwrap();
    let again = Hardware::from_toml("fitted.toml", &profile.to_toml()).unwrap();
    assert_eq!(again.file(), profile.file());
    let runtime = fitted_runtime(&again, Runtime::shipped("megatron").unwrap()).unwrap();
    assert!((runtime.constant(Constant::Products) - 0.7).abs() < 1e-3);
    let classes: Vec<(&str, u32)> =
        again.file().fitted.iter().map(|table| (table.class.as_str(), table.count)).collect();
    assert_eq!(classes, [("one-gpu", 3), ("data-parallel", 4), ("tensor-parallel", 1)]);
    let pipeline = error_of_class(&again, "megatron", spipe_fit::Class::Pipeline).unwrap();
    assert_eq!(pipeline.known, None);
    assert_eq!(error_of_class(&again, "deepspeed", spipe_fit::Class::Pipeline), None);
    let bad = profile.to_toml().replace("product-efficiency", "product-efficency");
    let bad = Hardware::from_toml("fitted.toml", &bad).unwrap();
    assert!(fitted_runtime(&bad, Runtime::shipped("megatron").unwrap()).is_err());
}
