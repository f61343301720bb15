//! Model files in TOML, with one struct per kind. They are read in four steps, each of which
//! reports all its faults with their positions: syntax, keys and types (against the struct's
//! schema), options, sizes.

mod counted;
mod document;
mod encoder;
mod profiled;
mod rotary;
mod transformer;
mod unet;
mod vision;

pub(crate) use transformer::head_dim;
pub(crate) use unet::condition;
pub(crate) use vision::encoder_block;

use crate::{Architecture, Model, read::check::Check};
use counted::CountedFile;
use document::{Document, advice};
use encoder::EncoderFile;
use profiled::ProfiledFile;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use spipe_base::{Diagnostic, Faults, LayerRange, position_of};
use toml::de::DeValue;
use transformer::TransformerFile;
use unet::UnetFile;
use vision::{TowersFile, VisionFile};

/// The format version of model files.
const FORMAT_VERSION: u32 = 1;

const KINDS: [&str; 7] = ["transformer", "bert", "vit", "clip", "unet", "profiled", "counted"];

/// Returns the JSON schema of model files.
pub fn schema() -> schemars::Schema {
    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let kinds = [
        generator.subschema_for::<TransformerFile>(),
        generator.subschema_for::<EncoderFile>(),
        generator.subschema_for::<VisionFile>(),
        generator.subschema_for::<TowersFile>(),
        generator.subschema_for::<UnetFile>(),
        generator.subschema_for::<ProfiledFile>(),
        generator.subschema_for::<CountedFile>(),
    ];
    schemars::json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a spipe model",
        "oneOf": kinds,
        "$defs": generator.take_definitions(true),
    })
}

impl Model {
    /// Reads a model file; `file` is its name in messages.
    ///
    /// ```
    /// let text = r#"
    /// format-version = 1
    /// kind = "transformer"
    /// name = "tiny"
    /// vocabulary = 256
    /// seq-len = 128
    /// hidden = 64
    /// layers = 2
    /// heads = 5
    /// intermidiate = 192
    /// "#;
    /// let faults = spipe_model::Model::from_toml("tiny.toml", text).unwrap_err();
    /// assert_eq!(
    ///     faults.to_string(),
    ///     "error: unknown key `intermidiate`\n  --> tiny.toml:10:1\n\
    ///      hint: did you mean `intermediate`\n\
    ///      error: the key `intermediate` is missing\n  --> tiny.toml:1:1"
    /// );
    /// ```
    ///
    /// # Errors
    /// All faults of the first step that finds any: syntax, keys and types, options and sizes.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        let document = Document::parse(file, text)?;
        check_version(&document)?;
        match kind(&document)? {
            "transformer" => TransformerFile::read(&document, file, text),
            "bert" => EncoderFile::read(&document, file, text),
            "vit" => VisionFile::read(&document, file, text),
            "counted" => CountedFile::read(&document, file, text),
            "clip" => TowersFile::read(&document, file, text),
            "unet" => UnetFile::read(&document, file, text),
            _ => ProfiledFile::read(&document, file, text),
        }
    }

    /// Formats the model as a file that reads back as an equal model.
    pub fn to_toml(&self) -> String {
        let (name, source) = (self.name(), self.source());
        let frozen = self.frozen().iter().map(ToString::to_string).collect();
        match self.architecture() {
            Architecture::Transformer(transformer) => {
                write(&TransformerFile { frozen, ..TransformerFile::from_transformer(name, source, transformer) })
            }
            Architecture::Encoder(encoder) => {
                write(&EncoderFile { frozen, ..EncoderFile::from_encoder(name, source, encoder) })
            }
            Architecture::Vision(vision) => {
                write(&VisionFile { frozen, ..VisionFile::from_vision(name, source, vision) })
            }
            Architecture::TwoTowers(towers) => {
                write(&TowersFile { frozen, ..TowersFile::from_towers(name, source, towers) })
            }
            Architecture::Unet(unet) => write(&UnetFile { frozen, ..UnetFile::from_unet(name, source, unet) }),
            Architecture::Counted(counted) => write(&CountedFile::from_counted(name, source, counted)),
            Architecture::Profiled(profiled) => {
                write(&ProfiledFile { frozen, ..ProfiledFile::from_profiled(name, source, profiled) })
            }
        }
    }
}

/// Refuses files of another version first, because their other keys may mean something else.
fn check_version(document: &Document<'_>) -> Result<(), Faults> {
    let fault = match document.get("format-version") {
        Some(DeValue::Integer(version)) if version.as_str() == "1" => return Ok(()),
        Some(DeValue::Integer(version)) => {
            let message = format!("the file has format version {version}, this program reads version {FORMAT_VERSION}");
            Diagnostic::error(message)
        }
        Some(_) => Diagnostic::error("`format-version` is not an integer"),
        None => Diagnostic::error("the key `format-version` is missing").hint("write `format-version = 1`"),
    };
    Err(fault.at(document.locate("format-version")).into())
}

/// Returns the value of `kind`.
fn kind<'a>(document: &'a Document<'_>) -> Result<&'a str, Faults> {
    let known = KINDS.into_iter();
    let fault = match document.get("kind").map(|value| value.as_str().unwrap_or("")) {
        Some(word) if KINDS.contains(&word) => return Ok(word),
        Some(word) => Diagnostic::error(format!("unknown kind of model `{word}`")).hint(advice(word, known)),
        None => {
            let hint = format!("one of {}", KINDS.map(|kind| format!("`kind = \"{kind}\"`")).join(", "));
            Diagnostic::error("the key `kind` is missing").hint(hint)
        }
    };
    Err(fault.at(document.locate("kind")).into())
}

/// A struct into which a kind of file is deserialized.
trait Kind: DeserializeOwned + JsonSchema {
    /// Returns the network, and reports its faults to `check`.
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture;

    /// Returns the model's name and the source of its numbers.
    fn title(&self) -> (&str, Option<&str>);

    /// Returns the layers that are not trained.
    fn frozen(&self) -> &[String];

    /// Reads a document of this kind.
    fn read(document: &Document<'_>, file: &str, text: &str) -> Result<Model, Faults> {
        let schema = SchemaGenerator::new(SchemaSettings::draft2020_12()).into_root_schema_for::<Self>();
        document.check(schema.as_value()).or(())?;
        let read: Self = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            Diagnostic::error(error.message()).at(position_of(file, text, offset))
        })?;
        let locate = |path: &str| Some(document.locate(path));
        let mut check = Check::new(&locate);
        let architecture = read.resolve_and_check(&mut check);
        let (name, source) = read.title();
        if name.trim().is_empty() {
            check.error("name", "`name` is empty".into());
        }
        std::mem::take(&mut check.faults).or(())?;
        let model = Model::freeze(name.into(), source.map(str::to_owned), architecture);
        let ranges = frozen(&model, read.frozen(), &mut check);
        check.faults.or(())?;
        model.with_frozen(&ranges)
    }
}

/// Parses ranges of layers, with a fault for each of `texts` that is none.
fn frozen(model: &Model, texts: &[String], check: &mut Check<'_>) -> Vec<LayerRange> {
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match model.layer_range(text) {
            Some(range) => ranges.push(range),
            None => {
                let last = model.layers().len().saturating_sub(1);
                let fault = Diagnostic::error(format!("this model has no layer or range of layers `{text}`"));
                let hint = format!("layers are counted from 0 to {last}; `0..{last}` and their names work too");
                check.add(&format!("frozen.{index}"), fault.hint(hint));
            }
        }
    }
    ranges
}

impl Kind for UnetFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        let unet = self.resolve(check);
        check.unet(&unet);
        Architecture::Unet(unet)
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

impl Kind for TransformerFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        let transformer = self.resolve(check);
        check.transformer(&transformer);
        Architecture::Transformer(transformer)
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

impl Kind for EncoderFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        let encoder = self.resolve(check);
        check.encoder(&encoder);
        Architecture::Encoder(encoder)
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

impl Kind for VisionFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        let vision = self.resolve(check);
        check.vision(&vision);
        Architecture::Vision(vision)
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

impl Kind for TowersFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        let towers = self.resolve(check);
        check.two_towers(&towers);
        Architecture::TwoTowers(Box::new(towers))
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

impl Kind for CountedFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        Architecture::Counted(self.resolve(check))
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &[]
    }
}

impl Kind for ProfiledFile {
    fn resolve_and_check(&self, check: &mut Check<'_>) -> Architecture {
        Architecture::Profiled(self.resolve(check))
    }

    fn title(&self) -> (&str, Option<&str>) {
        (&self.name, self.source.as_deref())
    }

    fn frozen(&self) -> &[String] {
        &self.frozen
    }
}

fn write(file: &impl Serialize) -> String {
    match toml::to_string(file) {
        Ok(text) => text,
        Err(error) => unreachable!("a model file has string keys and sizes below 2^63: {error}"),
    }
}
