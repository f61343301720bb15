//! The words of a front end for settings.

/// The spelling of settings in messages: a command line writes `--system auto`, a library `system = auto`.
#[derive(Clone, Copy, Debug)]
pub struct Spelling(fn(&str, &str) -> String);

impl Default for Spelling {
    fn default() -> Self {
        Self(|setting, value| if value.is_empty() { setting.to_owned() } else { format!("{setting} = {value}") })
    }
}

impl Spelling {
    /// The spelling by a function of a setting, such as `time-limit`, and its value, which is empty where a message
    /// speaks of the setting alone.
    pub const fn new(spell: fn(setting: &str, value: &str) -> String) -> Self {
        Self(spell)
    }

    /// A setting with its value, without quotes.
    pub fn bare(self, setting: &str, value: &str) -> String {
        (self.0)(setting, value)
    }

    /// A setting, in quotes.
    pub fn setting(self, setting: &str) -> String {
        format!("`{}`", self.bare(setting, ""))
    }

    /// A setting with its value, in quotes.
    pub fn value(self, setting: &str, value: impl std::fmt::Display) -> String {
        format!("`{}`", self.bare(setting, &value.to_string()))
    }

    /// A message with its settings in this spelling. The crates below, which have none, write `option seq-len 512` in
    /// backticks.
    pub fn spell(self, message: &str) -> String {
        let mut parts = message.split(MARK);
        let mut spelled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.split_once('`') {
                Some((words, rest)) => {
                    let (setting, value) = words.split_once(' ').unwrap_or((words, ""));
                    spelled.extend([&self.value(setting, value), rest]);
                }
                None => spelled.extend([MARK, part]),
            }
        }
        spelled
    }
}

/// The start of a setting in messages of crates that have no spelling.
const MARK: &str = "`option ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_messages_are_spelled() {
        let message = "use `option seq-len 512`, or leave `option lora` out of `a.toml`: `option";
        assert_eq!(Spelling::default().spell(message), "use `seq-len = 512`, or leave `lora` out of `a.toml`: `option");
        let reversed = Spelling::new(|setting, value| format!("{value}:{setting}"));
        assert_eq!(reversed.spell(message), "use `512:seq-len`, or leave `:lora` out of `a.toml`: `option");
    }
}
