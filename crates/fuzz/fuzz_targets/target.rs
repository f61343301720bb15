//! All fuzz targets in one program; `SPIPE_FUZZ_TARGET` names the one to run.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("SPIPE_FUZZ_TARGET").unwrap_or_default();
    match spipe_fuzz::TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => panic!("`SPIPE_FUZZ_TARGET` is `{name}`, not one of the targets"),
    }
});

fuzz_target!(|data: &[u8]| TARGET(data));
