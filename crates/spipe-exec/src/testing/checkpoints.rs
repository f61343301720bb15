//! Checkpoints that are good, cut, garbled, of other runs, and of a full disk.

use crate::{
    device::Backend,
    error::RunError,
    options::Options,
    persist::checkpoint::{
        Checkpoint, CheckpointError, Checkpoints, Disk, OPTIMIZER, RealDisk, WEIGHTS, disk::Sink, name, steps,
    },
    report::Report,
    runtime::{Hooks, run, run_with},
    testing::machine::{self, Case, text},
};
use std::{
    fs,
    io::{self, Write},
    ops::ControlFlow,
    path::Path,
};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

fn train(case: &Case<'_>, options: &Options) -> Result<Report, RunError> {
    let (plan, program) = case.build();
    run(&plan, &program, &text(), options, &mut |_| GO_ON)
}

/// Options that write a checkpoint every two steps.
fn writing(case: &Case<'_>, steps: u32, folder: &Path) -> Options {
    let checkpoints = Some(Checkpoints { folder: folder.into(), every: 2 });
    Options { checkpoints, keep_gradients: false, ..case.options(Backend::Ndarray, steps) }
}

/// The same options, resuming from the newest checkpoint.
fn going_on(case: &Case<'_>, steps: u32, folder: &Path) -> Options {
    let resume = Checkpoint::newest(folder).unwrap().checkpoint;
    assert!(resume.is_some());
    Options { resume, ..writing(case, steps, folder) }
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_run_goes_on_bit_for_bit_with_the_same_plan_and_with_another() {
    let case = Case::default();
    let whole = train(&case, &case.options(Backend::Ndarray, 7)).unwrap().losses;
    let folder = tempfile::tempdir().unwrap();
    let first = train(&case, &writing(&case, 5, folder.path())).unwrap().losses;
    assert_eq!(bits(&first), bits(&whole[..5]), "checkpoints change nothing");
    assert_eq!(names(folder.path()), [name(4), name(5)], "the last two are kept");
    let three = [("gpu0", "0..1", 0), ("gpu1", "2..3", 2), ("cpu0", "4..4", 0)];
    let other = Case { stages: &three, ..Case::default() };
    let report = train(&other, &going_on(&other, 6, folder.path())).unwrap();
    assert_eq!(bits(&report.losses), bits(&whole[5..6]));
    assert!(report.warnings.iter().any(|warning| warning.contains("another plan")), "{:?}", report.warnings);
    let report = train(&case, &going_on(&case, 7, folder.path())).unwrap();
    assert_eq!(bits(&report.losses), bits(&whole[6..]));
    assert_eq!(names(folder.path()), [name(6), name(7)]);
}

#[test]
fn other_learning_rates_are_told() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    let decays = |options: Options| {
        let schedule = crate::optimizer::Schedule {
            decay: crate::optimizer::Decay::Linear,
            ..crate::optimizer::Schedule::default()
        };
        Options { schedule, ..options }
    };
    train(&case, &decays(writing(&case, 3, folder.path()))).unwrap();
    let tells = |options: Options| {
        let warnings = train(&case, &options).unwrap().warnings;
        warnings.iter().any(|warning| warning.contains("other settings"))
    };
    assert!(tells(decays(going_on(&case, 5, folder.path()))), "it would have ended after three steps");
    assert!(tells(going_on(&case, 6, folder.path())));
    assert!(!tells(going_on(&case, 7, folder.path())));
}

#[test]
fn steps_keep_their_numbers_and_a_finished_run_says_so() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 3, folder.path())).unwrap();
    let (plan, program) = case.build();
    let mut seen = Vec::new();
    run(&plan, &program, &text(), &going_on(&case, 5, folder.path()), &mut |step| {
        seen.push(step.index);
        GO_ON
    })
    .unwrap();
    assert_eq!(seen, [3, 4]);
    let error = train(&case, &going_on(&case, 5, folder.path())).unwrap_err();
    assert!(matches!(error, RunError::Checkpoint(CheckpointError::Done { done: 5, asked: 5, .. })), "{error}");
}

#[test]
fn a_stopped_run_leaves_a_checkpoint_of_all_its_steps() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    let (plan, program) = case.build();
    let options = Options {
        checkpoints: Some(Checkpoints { folder: folder.path().into(), every: 1000 }),
        ..case.options(Backend::Ndarray, 1000)
    };
    let stopped = run(&plan, &program, &text(), &options, &mut |_| ControlFlow::Break(())).unwrap();
    let done = stopped.losses.len() as u32;
    assert_eq!(names(folder.path()), [name(done)]);
    let report = train(&case, &going_on(&case, done + 1, folder.path())).unwrap();
    let whole = train(&case, &case.options(Backend::Ndarray, done + 1)).unwrap();
    assert_eq!(bits(&report.losses), bits(&whole.losses[done as usize..]));
}

/// Otherwise nobody could tell which of two runs a checkpoint belongs to.
#[test]
fn a_folder_is_of_one_run() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    let options = writing(&case, 2, folder.path());
    let (plan, program) = case.build();
    let mut second = None;
    run(&plan, &program, &text(), &options, &mut |_| {
        second = Some(train(&case, &options).map(|_| ()));
        GO_ON
    })
    .unwrap();
    let in_use = second.unwrap().unwrap_err();
    assert!(matches!(in_use, RunError::Checkpoint(CheckpointError::InUse { .. })), "{in_use}");
    let taken = train(&case, &options).map(|_| ()).unwrap_err();
    assert!(matches!(taken, RunError::Checkpoint(CheckpointError::Taken { step: 2, .. })), "{taken}");
    assert_eq!(names(folder.path()), [name(2)], "nothing was touched");
}

#[test]
fn damaged_checkpoints_are_passed_over() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 4, folder.path())).unwrap();
    let (older, newer) = (folder.path().join(name(2)), folder.path().join(name(4)));
    let weights = fs::read(newer.join(WEIGHTS)).unwrap();
    let said = |damage: &dyn Fn()| {
        damage();
        let newest = Checkpoint::newest(folder.path()).unwrap();
        assert_eq!(newest.checkpoint.map(|checkpoint| checkpoint.step()), Some(2));
        newest.passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let cut = said(&|| fs::write(newer.join(WEIGHTS), &weights[..weights.len() / 2]).unwrap());
    assert!(cut.contains(&format!("has {} bytes instead of {}", weights.len() / 2, weights.len())), "{cut}");
    let mut flipped = weights.clone();
    flipped[weights.len() - 3] ^= 1;
    let garbled = said(&|| fs::write(newer.join(WEIGHTS), &flipped).unwrap());
    assert!(garbled.contains("`weights.safetensors` is not what was written"), "{garbled}");
    fs::write(newer.join(WEIGHTS), &weights).unwrap();
    let manifest = fs::read(newer.join("checkpoint.json")).unwrap();
    let cut = said(&|| fs::write(newer.join("checkpoint.json"), &manifest[..40]).unwrap());
    assert!(cut.contains("`checkpoint.json` is not valid"), "{cut}");
    let other = String::from_utf8(manifest.clone()).unwrap().replace("\"seed\": 7", "\"seed\": 9");
    assert_ne!(other.as_bytes(), manifest);
    let changed = said(&|| fs::write(newer.join("checkpoint.json"), &other).unwrap());
    assert!(changed.contains("`checkpoint.json` is not what was written"), "{changed}");
    fs::write(newer.join("checkpoint.json"), &manifest).unwrap();
    let odd = said(&|| {
        fs::remove_file(newer.join(OPTIMIZER)).unwrap();
        fs::create_dir(newer.join(OPTIMIZER)).unwrap();
    });
    assert!(odd.contains("`optimizer.safetensors` cannot be read: it is no ordinary file"), "{odd}");
    fs::remove_file(newer.join("checkpoint.json")).unwrap();
    fs::remove_file(older.join(OPTIMIZER)).unwrap();
    let error = Checkpoint::newest(folder.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::NoneWhole { faults, .. } if faults.len() == 2), "{error}");
    assert_eq!(Checkpoint::newest(&folder.path().join("none")).unwrap().checkpoint, None);
}

/// The last two undamaged ones are kept, whatever lies between them.
#[test]
fn a_damaged_checkpoint_is_none_of_those_that_are_kept() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 4, folder.path())).unwrap();
    fs::write(folder.path().join(name(4)).join(WEIGHTS), "").unwrap();
    train(&case, &going_on(&case, 3, folder.path())).unwrap();
    assert_eq!(names(folder.path()), [name(2), name(3), name(4)]);
    train(&case, &going_on(&case, 6, folder.path())).unwrap();
    assert_eq!(names(folder.path()), [name(4), name(6)]);
}

/// A number that must be read to the last bit to be itself again.
#[test]
fn every_learning_rate_can_be_resumed() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    let with_rate = |options: Options| {
        let optimizer = crate::optimizer::StepSettings { lr: 0.000_424_264_068_711_928_44, ..options.optimizer };
        Options { optimizer, ..options }
    };
    train(&case, &with_rate(writing(&case, 2, folder.path()))).unwrap();
    let report = train(&case, &with_rate(going_on(&case, 3, folder.path()))).unwrap();
    assert!(report.warnings.iter().all(|warning| !warning.contains("settings")), "{:?}", report.warnings);
}

#[test]
fn checkpoints_of_other_runs_are_refused_by_what_differs() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 2, folder.path())).unwrap();
    let seed = Options { seed: 8, ..going_on(&case, 4, folder.path()) };
    let error = train(&case, &seed).unwrap_err().to_string();
    assert!(error.ends_with("does not suit this run: its seed is 7, this one is 8"), "{error}");
    let wide = machine::LLAMA.replace("intermediate = 48", "intermediate = 64").replace("small", "wide");
    let other = Case { model: &wide, ..Case::default() };
    let error = train(&other, &going_on(&case, 4, folder.path())).unwrap_err().to_string();
    assert!(error.contains("its model is `small`, this one is `wide`"), "{error}");
    assert!(error.contains("its `block.0.mlp.down.weight` is 48 × 32, this one is 64 × 32"), "{error}");
    assert!(error.ends_with("and 5 more"), "{error}");
    let turned = format!("{}rotary-base = 500\n", machine::LLAMA);
    let other = Case { model: &turned, ..Case::default() };
    let error = train(&other, &going_on(&case, 4, folder.path())).unwrap_err().to_string();
    assert!(error.ends_with("`small` was another model with the same tensors"), "{error}");
    let deep = machine::LLAMA.replace("layers = 3", "layers = 2");
    let other = Case { model: &deep, stages: &[("cpu0", "0..3", 0)], ..Case::default() };
    let error = train(
        &other,
        &Options { bindings: other.options(Backend::Ndarray, 1).bindings, ..going_on(&case, 4, folder.path()) },
    );
    assert!(error.unwrap_err().to_string().contains("this model has no `block.2."));
}

/// A disk whose files hold at most this many bytes.
struct FullDisk(u64);

struct FullSink(Box<dyn Sink>, u64);

impl Disk for FullDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(FullSink(RealDisk.create(path)?, self.0)))
    }
}

impl Write for FullSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.1 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.1 -= bytes.len() as u64;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Sink for FullSink {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn a_full_disk_ends_the_run_and_spares_the_checkpoint_before() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 2, folder.path())).unwrap();
    let (plan, program) = case.build();
    for room in [0, 100, 60_000, 200_000] {
        let hooks = Hooks { disk: &FullDisk(room), ..Hooks::NONE };
        let result = run_with((&plan, &program), &text(), &going_on(&case, 9, folder.path()), &mut |_| GO_ON, &hooks);
        let error = result.map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("cannot write `"), "{error}");
        assert!(error.to_string().ends_with("step-00000004`: no storage space"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`option resume`")), "{error:?}");
        assert_eq!(names(folder.path()), [name(2)], "{room}");
    }
    let whole = train(&case, &case.options(Backend::Ndarray, 3)).unwrap();
    let report = train(&case, &going_on(&case, 3, folder.path())).unwrap();
    assert_eq!(bits(&report.losses), bits(&whole.losses[2..]));
}

#[test]
fn a_folder_that_cannot_be_is_refused_before_the_first_step() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (plan, program) = case.build();
    let error = run(&plan, &program, &text(), &writing(&case, 2, &file), &mut |_| panic!("it ran")).map(|_| ());
    assert!(matches!(error, Err(RunError::Checkpoint(CheckpointError::File { what: "write to", .. }))), "{error:?}");
    // Leftovers of a killed run are removed.
    fs::create_dir(folder.path().join(".step-00000002.tmp")).unwrap();
    fs::remove_file(&file).unwrap();
    // Other folders are not touched.
    fs::create_dir(folder.path().join(".step-mine")).unwrap();
    train(&case, &writing(&case, 2, folder.path())).unwrap();
    assert_eq!(names(folder.path()), [".step-mine".to_owned(), name(2)]);
}

#[test]
fn numbers_that_are_not_finite_end_the_run_and_reach_no_checkpoint() {
    let case = Case::default();
    let folder = tempfile::tempdir().unwrap();
    train(&case, &writing(&case, 2, folder.path())).unwrap();
    let mut wild = going_on(&case, 1000, folder.path());
    wild.optimizer.lr = 1e30;
    let error = train(&case, &wild).unwrap_err();
    assert!(matches!(error, RunError::NotFinite { .. }), "{error}");
    for (_, checkpoint) in steps(folder.path()).unwrap() {
        let weights = crate::persist::tensor_file::TensorFile::open(&checkpoint.join(WEIGHTS)).unwrap();
        let finite = |name: &String| weights.read(name).unwrap().iter().all(|number| number.is_finite());
        assert!(weights.names().iter().all(finite), "{}", checkpoint.display());
    }
    assert!(Checkpoint::newest(folder.path()).unwrap().passed_over.is_empty());
}
