//! Texts that are read by a tokenizer: trained on, continued, gone on with, and refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/machine.rs"]
mod machine;
#[path = "common/run.rs"]
mod run;

use machine::Machine;
use run::{Run, spipe};
use serde_json::{Value, json};
use std::fs;

/// Words by their places: a sentence of these comes out of the model in words again.
const WORDS: [&str; 8] = ["?", "the", "quick", "brown", "fox", "jumps", "over", "dog"];

fn model(vocabulary: usize) -> String {
    format!(
        "format-version = 1\nkind = \"transformer\"\nname = \"small\"\nvocabulary = {vocabulary}\nseq-len = 8\n\
         hidden = 32\nlayers = 2\nheads = 4\nintermediate = 48\n"
    )
}

/// Words between spaces, with the first one for those that are not known. The words have numbers
/// behind those of bytes.
fn tokenizer(words: &[&str]) -> Value {
    let known: serde_json::Map<String, Value> =
        (1000..).zip(words).map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": known, "unk_token": "?" },
    })
}

/// A folder with plans that train and generate, a text of words, and its tokenizer.
fn folder(vocabulary: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("model.toml", &model(vocabulary));
    write("machine.toml", &Machine::default().text());
    write("text.txt", &"the quick brown fox jumps over the dog ".repeat(20));
    write("tokenizer.json", &tokenizer(&WORDS).to_string());
    for mode in ["train", "infer"] {
        let args = format!(
            "plan --model model.toml --hardware machine.toml --system gpipe --precision fp32 \
             --materialised-attention --global-batch 4 \
             --microbatch 2 --planner dp --mode {mode} -o {mode}.json"
        );
        let made = spipe(folder.path(), &args);
        assert_eq!(made.code, Some(0), "{}", made.err);
    }
    folder
}

fn losses(run: &Run) -> Vec<f64> {
    let lines = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn a_model_learns_words_and_continues_them_in_words() {
    let folder = folder(1008);
    let train = "run train.json --data text.txt --tokenizer tokenizer.json --learning-rate 0.01 --format json";
    let run = spipe(folder.path(), &format!("{train} --steps 60 --save-weights kept"));
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let losses = losses(&run);
    assert!((losses[0] - 1008f64.ln()).abs() < 1.0 && losses[59] < 0.5, "{losses:?}");
    // A folder is as good as the file in it.
    let infer = "run infer.json --data text.txt --tokenizer . --weights kept --steps 8";
    let run = spipe(folder.path(), &format!("{infer} --format json"));
    assert_eq!(run.code, Some(0), "{}", run.err);
    let end: Value = serde_json::from_str(run.out.lines().last().unwrap()).unwrap();
    let texts = end["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 4);
    for (text, tokens) in texts.iter().zip(end["tokens"].as_array().unwrap()) {
        let words = text.as_str().unwrap();
        assert_eq!(words.split(' ').count(), 8, "{words}");
        assert!(format!("{words} {words}").contains("the quick brown fox jumps over the dog"), "{words}");
        let named: Vec<String> = tokens.as_array().unwrap().iter().map(|token| word(token).to_owned()).collect();
        assert_eq!(named.join(" "), words);
    }
    let human = spipe(folder.path(), infer);
    assert!(human.out.contains(" goes on \"") && human.out.contains(" fox "), "{}", human.out);
}

fn word(token: &Value) -> &'static str {
    WORDS[token.as_u64().unwrap() as usize - 1000]
}

#[test]
fn other_words_behind_a_checkpoint_are_spoken_of() {
    let folder = folder(1008);
    let go_on = |steps: u32, more: &str| {
        let args = format!(
            "run train.json --data text.txt --checkpoint-dir kept --resume --format json --steps {steps} {more}"
        );
        let run = spipe(folder.path(), &args);
        assert_eq!(run.code, Some(0), "{}", run.err);
        run.err
    };
    let other = "read another text, other images or tokens of another tokenizer";
    assert!(!go_on(1, "--tokenizer tokenizer.json").contains(other));
    assert!(!go_on(2, "--tokenizer tokenizer.json").contains(other));
    let mut words = WORDS;
    words.swap(1, 2);
    fs::write(folder.path().join("other.json"), tokenizer(&words).to_string()).unwrap();
    assert!(go_on(3, "--tokenizer other.json").contains(other));
    assert!(go_on(4, "").contains(other));
}

#[test]
fn what_a_tokenizer_cannot_do_is_refused_with_its_place() {
    let folder = folder(1004);
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("broken.json", b"{\n  \"version\": \"1.0\",\n  \"model\": {\n");
    write("strange.json", b"{}");
    write("latin.txt", b"the quick\nbrown f\xf6x");
    write("short.txt", b"the quick brown");
    let refusal = |args: &str| {
        let run = spipe(folder.path(), &format!("run train.json --steps 1 {args}"));
        assert_eq!(run.out, "");
        format!("exit code {}\n{}", run.code.unwrap(), run.err)
    };
    insta::assert_snapshot!(refusal("--data text.txt --tokenizer missing.json"));
    insta::assert_snapshot!(refusal("--data text.txt --tokenizer broken.json"));
    let strange = refusal("--data text.txt --tokenizer strange.json");
    assert!(strange.starts_with("exit code 3\nerror: not a tokenizer: "), "{strange}");
    insta::assert_snapshot!(refusal("--data latin.txt --tokenizer tokenizer.json"));
    insta::assert_snapshot!(refusal("--data short.txt --tokenizer tokenizer.json"));
    insta::assert_snapshot!(refusal("--data text.txt --tokenizer tokenizer.json"));
}

#[test]
fn images_are_not_read_by_a_tokenizer() {
    let folder = folder(1008);
    let vit = "format-version = 1\nkind = \"vit\"\nname = \"eyes\"\nimage = 8\npatch = 4\nhidden = 32\n\
               layers = 2\nheads = 4\nintermediate = 64\nclasses = 4\n";
    fs::write(folder.path().join("model.toml"), vit).unwrap();
    let plan =
        "plan --model model.toml --hardware machine.toml --system gpipe --precision fp32 --global-batch 2 -o eyes.json";
    assert_eq!(spipe(folder.path(), plan).code, Some(0));
    let run = spipe(folder.path(), "run eyes.json --data synthetic --tokenizer tokenizer.json --steps 1");
    assert_eq!(run.code, Some(2));
    assert_eq!(run.err, "error: `--tokenizer` is for models that read text, `eyes` reads images\nhint: leave it out\n");
}
