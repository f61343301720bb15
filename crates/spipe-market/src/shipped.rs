//! The catalogue files shipped with the program.

/// Returns the name and text of each file in `hardware-profiles/catalogue/`, sorted by name.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    FILES
}

macro_rules! files {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../hardware-profiles/catalogue/", $name, ".toml")))),+]
    };
}

const FILES: &[(&str, &str)] = files! { "boards" "dram" "drives" "gpus" "network" "platforms" "rent" };
