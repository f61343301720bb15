//! `spipe export`: refusals name plans and engines that are not refused, and write nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use std::{fs, path::Path};

/// A plan of the demo's model with these options.
fn plan(folder: &Path, name: &str, options: &str) {
    let command = format!(
        "plan --effort low --model demo --seq-len 32 --global-batch 8 --hardware rtx3090-x4-two-sockets {options} -o {name}"
    );
    let output = spipe(folder, &command);
    assert_eq!(output.code, Some(0), "{command}: {}", output.err);
}

/// The word between these two in a text.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = &text[text.find(before)? + before.len()..];
    Some(&rest[..rest.find(after)?])
}

#[test]
fn hints_of_refusals_can_be_followed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plans = [
        ("superpipeline", "--system superpipeline --devices gpu0,cpu0"),
        ("mobius", "--system mobius"),
        ("fsdp", "--system fsdp"),
        ("zero-infinity", "--system zero-infinity"),
        ("1f1b", "--system 1f1b --devices gpu0..gpu3"),
    ];
    let mut followed = [0, 0];
    for (name, options) in plans {
        plan(folder, name, options);
        for engine in ["torch", "fsdp", "deepspeed"] {
            let output = spipe(folder, &format!("export {engine} {name} -o out"));
            if output.code == Some(0) {
                fs::remove_dir_all(folder.join("out")).unwrap();
                continue;
            }
            assert_eq!(output.code, Some(3), "{engine} {name}: {}", output.err);
            assert!(!folder.join("out").exists(), "nothing is written");
            let hint = output.err.lines().find(|line| line.starts_with("hint: ")).unwrap();
            if let Some(other) = between(hint, "`spipe export ", "` takes this plan") {
                let first = other.split('`').next().unwrap();
                let output = spipe(folder, &format!("export {first} {name} -o other"));
                assert_eq!(output.code, Some(0), "{hint}: {}", output.err);
                fs::remove_dir_all(folder.join("other")).unwrap();
                followed[0] += 1;
            }
            let system =
                between(hint, "with `--system ", "`").unwrap_or_else(|| panic!("{engine} {name}: {}", output.err));
            assert!(hint.ends_with(" per step"), "{hint}");
            let devices =
                options.split_once("--devices").map_or(String::new(), |(_, names)| format!("--devices{names}"));
            plan(folder, "next", &format!("--system {system} {devices}"));
            let output = spipe(folder, &format!("export {engine} next -o next-out"));
            assert_eq!(output.code, Some(0), "{engine} {name}: {hint}: {}", output.err);
            fs::remove_dir_all(folder.join("next-out")).unwrap();
            followed[1] += 1;
        }
    }
    assert!(followed[0] >= 2 && followed[1] >= 5, "{followed:?}");
}

#[test]
fn a_text_without_a_tokenizer_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = "format-version = 1\nkind = \"transformer\"\nname = \"m\"\nvocabulary = 300\nseq-len = 16\nhidden = 32\nlayers = 2\n\
                 heads = 4\nintermediate = 48\n";
    fs::write(folder.join("m.toml"), model).unwrap();
    fs::write(folder.join("text"), "the quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let command = "plan --effort low --model m.toml --global-batch 4 --hardware one-gpu --system gpu-only -o plan";
    let output = spipe(folder, command);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let output = spipe(folder, "export torch plan --data text --steps 3 -o out");
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("`text` is read byte by byte, and the model has 300 tokens"), "{}", output.err);
    let readme = fs::read_to_string(folder.join("out/README.md")).unwrap();
    assert!(readme.contains("train.py --steps 3") && !readme.contains("--data text.txt"), "{readme}");
    let batch = fs::read_to_string(folder.join("out/train.sbatch")).unwrap();
    assert!(batch.contains("train.py --steps 3 --checkpoint-dir"), "{batch}");
}
