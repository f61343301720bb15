//! The model files shipped with the program.

macro_rules! models {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../models/", $name, ".toml")))),+]
    };
}

/// Returns the name and text of each shipped model file, sorted by name.
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
        "llama3-405b",
        "llama3-70b",
        "llama3-8b",
        "mixtral-8x7b",
        "pipeoffload-10.5b",
        "pipeoffload-18.1b",
        "pipeoffload-42.9b",
        "pipeoffload-5.8b",
        "pipeoffload-66.6b",
        "pipeoffload-83.8b",
        "spipe-10b",
        "spipe-110b",
        "spipe-19b",
        "spipe-30b",
        "spipe-40b",
        "spipe-52b",
        "spipe-69b",
        "spipe-88b",
        "stable-diffusion-unet",
        "vit-b-16",
        "vit-bigG",
        "zero-bubble-1.5b",
        "zero-bubble-14.6b",
        "zero-bubble-28.3b",
        "zero-bubble-6.2b",
    ]
}
