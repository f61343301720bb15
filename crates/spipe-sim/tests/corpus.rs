//! The corpus of the fuzz targets, replayed without a fuzzer.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::{fs, path::Path};

/// The most bytes that the corpus may have.
const LARGEST: u64 = 2 << 20;

/// Every input of every target passes; every target has inputs.
#[test]
fn the_corpus_passes() {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    let mut size = 0;
    for (name, target) in targets::TARGETS {
        let inputs = fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut paths: Vec<_> = inputs.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "`{name}` has no inputs");
        for path in paths {
            let data = fs::read(&path).unwrap();
            size += data.len() as u64;
            let passed = std::panic::catch_unwind(|| target(&data));
            assert!(passed.is_ok(), "{} fails", path.display());
        }
    }
    assert!(size <= LARGEST, "the corpus has {size} bytes");
}
