//! Names as people write them: the shipped models, machines and parts that they mean.

use spipe_base::similar_word;
use spipe_market::{Catalogue, Choice, Kind, compose};
use spipe_model::{Architecture, Model};

/// A name in lower case, with neither vendor nor separators: `RTX 4090` and `rtx-4090` are `rtx4090`, and
/// `80GB` is `80g`.
pub fn plain(word: &str) -> String {
    let name = word.rsplit('/').next().unwrap_or(word).to_ascii_lowercase();
    let name = name.strip_suffix('b').filter(|name| name.ends_with('g')).unwrap_or(&name);
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect()
}

/// The shipped model that `word` names, however it is spelled (`meta-llama/Meta-Llama-3-8B`).
pub fn model(word: &str) -> Option<&'static str> {
    let all = spipe_model::shipped();
    if let Some((name, _)) = all.iter().find(|(name, _)| *name == word) {
        return Some(name);
    }
    let wanted = plain(word);
    let wanted = ["hf", "base", "instruct", "chat"].iter().fold(wanted, |name, end| name.trim_end_matches(end).into());
    let same = |name: &str| wanted.trim_start_matches("meta") == plain(name);
    let spelled = all.iter().find(|(name, _)| same(name)).map(|(name, _)| *name);
    // A version or a size is no slip of the pen: `llama3-70b` is not `llama2-70b`.
    let numbers = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let near = || {
        let same_numbers = all.iter().map(|(name, _)| *name).filter(|name| numbers(name) == numbers(word));
        similar_word(word, same_numbers).filter(|_| word.len() > 3)
    };
    spelled.or_else(near)
}

/// The shipped language model whose size is the nearest to the one in a name (`Qwen2.5-14B`), if it has one.
pub fn model_of_size(word: &str) -> Option<&'static str> {
    let wanted = parameters(word)?;
    let far = |(name, toml): &(&'static str, &str)| {
        let model = Model::from_toml(name, toml).ok()?;
        let language = matches!(model.architecture(), Architecture::Transformer(_));
        language.then(|| (((model.parameters() as f64 / wanted).ln().abs() * 1e3) as u64, *name))
    };
    // Of nearly equal sizes the one that people know.
    let known = |name: &str| !name.starts_with("llama") && !name.starts_with("gpt");
    let all = spipe_model::shipped().iter().filter_map(far);
    all.min_by_key(|(far, name)| (far / 250, known(name), *far)).map(|(_, name)| name)
}

/// The parameters that a name states: `7b`, `1.5B`, `350m`.
fn parameters(word: &str) -> Option<f64> {
    let lower = word.to_ascii_lowercase();
    let mut sizes = lower.split(['-', '_', '/', ' ', ':']).filter_map(|piece| {
        let (number, unit) = piece.split_at_checked(piece.len().checked_sub(1)?)?;
        let unit = match unit {
            "b" => 1e9,
            "m" => 1e6,
            _ => return None,
        };
        number.parse::<f64>().ok().filter(|number| *number > 0.0).map(|number| number * unit)
    });
    sizes.next_back()
}

/// The shipped machines whose names contain `word`.
pub fn machines(word: &str) -> impl Iterator<Item = &'static str> {
    let wanted = plain(word);
    spipe_hardware::shipped().iter().map(|(name, _)| *name).filter(move |name| names_part(name, &wanted))
}

/// Whether `wanted`, a [`plain`] name, is a part of `name` that begins and ends as a word does: `a100` is
/// one of `a100-80g`, but `h200` none of `gh200`, and `a4` none of `a40`.
fn names_part(name: &str, wanted: &str) -> bool {
    // Each letter or digit, and whether a word begins with it.
    let mut letters: Vec<(char, bool)> = Vec::new();
    let mut before = None;
    for letter in name.chars() {
        let begins = before.is_none_or(|before: char| {
            !before.is_ascii_alphanumeric() || before.is_ascii_digit() != letter.is_ascii_digit()
        });
        before = Some(letter);
        if letter.is_ascii_alphanumeric() || letter == '.' {
            letters.push((letter, begins));
        }
    }
    let wanted: Vec<char> = wanted.chars().collect();
    let same = |window: &[(char, bool)]| window.iter().map(|(letter, _)| *letter).eq(wanted.iter().copied());
    let whole = |at: usize| letters[at].1 && letters.get(at + wanted.len()).is_none_or(|(_, begins)| *begins);
    !wanted.is_empty() && letters.windows(wanted.len()).enumerate().any(|(at, window)| same(window) && whole(at))
}

/// A number of GPUs and their name: `8xa100`, `a100x8`, `h200-x4`, `2*l40s`.
pub fn counted<'w>(word: &'w str) -> (u32, &'w str) {
    let digits = |text: &str| text.parse().ok().filter(|count: &u32| (1..=1024).contains(count));
    let is_sign = |sign: char| matches!(sign, 'x' | 'X' | '*');
    let front = word.split_once(is_sign).and_then(|(count, name)| Some((digits(count.trim())?, name.trim())));
    let back = || word.rsplit_once(is_sign).and_then(|(name, count)| Some((digits(count.trim())?, name.trim())));
    let trimmed = |(count, name): (u32, &'w str)| (count, name.trim_matches(['-', '_', ' ']));
    front.or_else(back).map(trimmed).filter(|(_, name)| !name.is_empty()).unwrap_or((1, word))
}

/// The command that composes a machine with the GPU of the catalogue that `word` names, in whole or in
/// part, if there is one.
pub fn composition(word: &str, gpus: u32) -> Option<String> {
    let catalogue = Catalogue::shipped().ok()?;
    let names = |kind| {
        let parts = catalogue.parts().filter(move |part| part.kind() == kind);
        parts.map(|part| part.name().to_owned()).collect::<Vec<_>>()
    };
    let wanted = plain(word);
    let all = names(Kind::Gpu);
    let whole = all.iter().find(|name| plain(name) == wanted);
    let gpu = whole.or_else(|| all.iter().find(|name| names_part(name, &wanted)))?;
    let modules: Vec<String> = names(Kind::Dram).into_iter().filter(|name| name.ends_with("-32g")).collect();
    // Modules for a board of several GPUs are not sold alone.
    let counts = [gpus.max(1), 4, 8];
    let mut pairs =
        counts.iter().flat_map(|count| names(Kind::Platform).into_iter().map(move |platform| (*count, platform)));
    pairs.find_map(|(gpus, platform)| {
        // Two modules a channel are slow on a desktop, and a server has eight channels or more.
        let legal = modules.iter().flat_map(|module| [(8, module), (12, module), (2, module)]).find(|(count, module)| {
            let choice = Choice {
                gpu: Some(gpu.clone()),
                gpus,
                platform: platform.clone(),
                dram: Some((*count, (*module).clone())),
                ..Choice::default()
            };
            compose(&catalogue, &choice).is_ok()
        });
        legal.map(|(count, module)| {
            let several = if gpus > 1 { format!(" --gpus {gpus}") } else { String::new() };
            format!(
                "spipe catalogue compose --gpu {gpu}{several} --platform {platform} --dram {count}x{module} -o machine.toml"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_spelling_and_size() {
        for (word, name) in [
            ("meta-llama/Meta-Llama-3-8B", Some("llama3-8b")),
            ("Llama-2-13b-chat-hf", Some("llama2-13b")),
            ("gpt2_xl", Some("gpt2-xl")),
            ("lama3-8b", Some("llama3-8b")),
            ("llama3-70b", Some("llama3-70b")),
            ("llama4-70b", None),
            ("qwen3", None),
        ] {
            assert_eq!(model(word), name, "{word}");
        }
        for (word, name) in [
            ("Qwen/Qwen2.5-14B-Instruct", Some("llama2-13b")),
            ("Qwen/Qwen2.5-72B", Some("llama3-70b")),
            ("mistral-7b", Some("llama2-7b")),
            ("opt-125m", Some("gpt2")),
            ("qwen3", None),
        ] {
            assert_eq!(model_of_size(word), name, "{word}");
        }
    }

    /// A GPU that is sold with its CPU alone is not composed, but shipped.
    #[test]
    fn every_gpu_has_a_machine() {
        let catalogue = Catalogue::shipped().unwrap_or_else(|faults| panic!("{faults}"));
        for part in catalogue.parts().filter(|part| part.kind() == Kind::Gpu) {
            let command = composition(part.name(), 1);
            let composed = command.is_some_and(|command| command.contains(part.name()));
            assert!(composed || machines(part.name()).next().is_some(), "{}", part.name());
        }
        assert_eq!(composition("no-such-gpu", 1), None);
    }

    #[test]
    fn gpus_are_named_in_part_and_in_number() {
        for (word, part) in [("h200", "h200-sxm"), ("b200", "b200-sxm"), ("A6000", "rtx-a6000"), ("5090", "rtx5090")] {
            let command = composition(word, 1).unwrap_or_else(|| panic!("{word}"));
            assert!(command.contains(&format!("--gpu {part} ")), "{word}: {command}");
        }
        for (word, counted_as) in [
            ("8xh200", (8, "h200")),
            ("h200x8", (8, "h200")),
            ("l40s-x4", (4, "l40s")),
            ("4 x l40s", (4, "l40s")),
            ("2*rtx5090", (2, "rtx5090")),
            ("rtx4090", (1, "rtx4090")),
            ("x8", (1, "x8")),
            ("0xff", (1, "0xff")),
        ] {
            assert_eq!(counted(word), counted_as, "{word}");
        }
        for (word, some) in [("h200", false), ("a100", true), ("3090", true), ("a100-80GB", true), ("v10", false)] {
            assert_eq!(machines(word).next().is_some(), some, "{word}");
        }
    }
}
