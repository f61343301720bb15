//! The runtime files shipped with the program.

/// Returns the name and text of each file in `hardware-profiles/runtimes/`, sorted by name.
pub fn shipped_runtimes() -> &'static [(&'static str, &'static str)] {
    RUNTIMES
}

macro_rules! runtimes {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../../hardware-profiles/runtimes/", $name, ".toml")))),+]
    };
}

const RUNTIMES: &[(&str, &str)] = runtimes! {
    "deepspeed"
    "megatron"
    "pytorch"
    "pytorch-compiled"
    "spipe"
};
