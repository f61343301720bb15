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
}
