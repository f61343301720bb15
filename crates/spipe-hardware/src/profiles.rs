//! The hardware files shipped with the program.

/// Returns the name and text of each file in `hardware-profiles/`, sorted by name.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    PROFILES
}

macro_rules! profiles {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../hardware-profiles/", $name, ".toml")))),+]
    };
}

const PROFILES: &[(&str, &str)] = profiles! {
    "a100-80g"
    "a100-80g-x2"
    "a100-80g-x8-nvlink"
    "gh200"
    "h100"
    "h100-80g-x8-nvlink"
    "h20"
    "one-gpu"
    "quadro-rtx8000"
    "rtx3090-pcie3"
    "rtx3090-x4-two-sockets"
    "rtx4090-pcie4-128gb"
    "rtx4090-pcie4-256gb"
    "v100-32g-x16"
    "v100-32g-x32"
    "v100-32g-x4-nvlink"
    "v100-32g-x8"
};
