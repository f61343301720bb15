//! The words for the values of a type, in files and options.

/// Implements `Display` and `FromStr` by a table of words; an unknown word is refused with the known ones.
macro_rules! words {
    ($name:ident: $($word:literal => $value:expr),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if *self == $value { return f.pad($word); })+
                Ok(())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                $(if word == $word { return Ok($value); })+
                Err(format!("unknown word `{word}` (known: {})", [$($word),+].join(", ")))
            }
        }
    };
}

pub(crate) use words;
