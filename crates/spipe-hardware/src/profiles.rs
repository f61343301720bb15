//! The machines that come with the program.

/// Name and text of each file in `hardware-profiles/`, in the order of their names.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    PROFILES
}

macro_rules! profiles {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../hardware-profiles/", $name, ".toml")))),+]
    };
}

const PROFILES: &[(&str, &str)] = profiles! {
    "one-gpu"
};
