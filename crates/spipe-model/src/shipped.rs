//! The models that come with the program.

macro_rules! models {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../models/", $name, ".toml")))),+]
    };
}

/// Each shipped model file: its name and its text, sorted by name.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    models![
        "bloom-176b",
        "demo",
        "gpt2",
        "gpt2-xl",
        "gpt3-175b",
        "llama2-13b",
        "llama2-70b",
        "llama2-7b",
        "llama3-8b",
        "stable-diffusion-unet",
        "vit-b-16",
        "vit-bigG",
    ]
}
