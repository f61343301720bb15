//! The job: what is trained, within which limits, at which costs, and what varies.

use crate::amount::{EnergyPrice, Hours, Tokens};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, Diagnostic, Faults, Text, position_of};
use spipe_cost::DataShape;
use spipe_hardware::{LossKernel, MOST_NODES};
use spipe_market::{Condition, Currency, Money, Ownership, Range, RateFile, Rates, Watts};
use spipe_model::{Operations, Precision};

/// The version of the file format.
pub const FORMAT_VERSION: u32 = 1;

/// The sequences of an iteration where the job does not say.
pub const GLOBAL_BATCH: u64 = 64;

/// A job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct JobFile {
    /// The version of the file format: 1.
    pub format_version: u32,
    /// A name.
    #[serde(default)]
    pub name: Option<String>,
    /// The trainings; machines rank by one job, or by the sum over a year where there are several.
    #[serde(default)]
    pub train: Vec<TrainFile>,
    /// The limits.
    #[serde(default)]
    pub limits: LimitsFile,
    /// The costs.
    #[serde(default)]
    pub cost: CostFile,
    /// The parts that vary.
    #[serde(default)]
    pub vary: VaryFile,
    /// The combinations that are not wanted.
    #[serde(default)]
    pub skip: SkipFile,
}

/// A training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrainFile {
    /// A model file, or the name of a shipped one.
    pub model: String,
    /// The tokens to train on, such as "2 G".
    pub tokens: Text<Tokens>,
    /// Tokens per sequence; the model's own if absent.
    pub seq_len: Option<u64>,
    /// Sequences per iteration; 64 if absent.
    pub global_batch: Option<u64>,
    /// The data type of parameters and activations; bf16 if absent.
    pub precision: Option<Precision>,
    /// The engine that executes it: a runtime file, or the name of a shipped one; if absent, for each system the one that
    /// trains it there.
    pub runtime: Option<String>,
    /// Padding, packing and lengths of its sequences. `tokens` are those that count.
    #[serde(default, skip_serializing_if = "DataShape::is_plain")]
    pub data: DataShape,
    /// The operations of blocks whose outputs the backward recomputes.
    #[serde(default, skip_serializing_if = "Operations::is_empty")]
    pub recompute_ops: Operations,
    /// The kernels of the loss, in place of the runtime's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossKernel>,
    /// How often it is trained in a year; once if absent. It weighs several trainings.
    pub jobs_per_year: Option<f64>,
}

/// The limits of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitsFile {
    /// The longest time of a job, such as "14 d".
    pub deadline: Option<Text<Hours>>,
    /// The most that a machine may cost, tax included, such as "12000 EUR".
    pub budget: Option<Text<Money>>,
    /// The most power that it may draw, such as "3.0 kW".
    pub wall_power: Option<Text<Watts>>,
}

/// The costs of owning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CostFile {
    /// The currency of results; that of the budget, or USD, if absent.
    pub currency: Option<Currency>,
    /// Rates into it.
    #[serde(default)]
    pub rates: Vec<RateFile>,
    /// The tax on prices; 0 if absent.
    pub tax: Option<f64>,
    /// The years until the machine is sold; "3 years" if absent.
    pub ownership: Option<Text<Hours>>,
    /// The share of the hours in which it computes; 0.5 if absent.
    #[serde(rename = "use")]
    pub utilisation: Option<f64>,
    /// The share of its price that it is sold for; 0.1, 0.3 and 0.5 if absent.
    pub residual: Option<Range>,
    /// The price of energy, such as "0.30 EUR/kWh"; 0.20 if absent.
    pub electricity: Option<Text<EnergyPrice>>,
    /// The power of the building over that of its machines; 1.0 if absent.
    pub pue: Option<f64>,
}

/// The parts that vary; a list that is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct VaryFile {
    /// GPUs by name.
    pub gpu: Option<Vec<String>>,
    /// Numbers of GPUs.
    pub gpus: Option<Vec<u32>>,
    /// CPUs by name.
    pub platform: Option<Vec<String>>,
    /// Memory of the machine, such as "256 GiB".
    pub dram: Option<Vec<Text<Bytes>>>,
    /// Numbers of drives.
    pub nvme: Option<Vec<u32>>,
    /// The drive.
    pub drive: Option<String>,
    /// Whether bridges join the cards.
    pub bridge: Option<Vec<bool>>,
    /// Numbers of equal computers; 1 if absent. Those of several have a network, and all other numbers are of one.
    pub nodes: Option<Vec<u32>>,
    /// Network cards by name, one for each GPU or as many as fit; if absent, one card that suits the mounting of the GPUs.
    pub network: Option<Vec<String>>,
    /// The conditions of parts.
    pub condition: Option<Vec<Condition>>,
}

/// Combinations that are not wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SkipFile {
    /// Conditions such as "gpus = 4 and platform = ryzen-9950x".
    #[serde(default)]
    pub rules: Vec<String>,
}

/// The order of machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The typical cost of the job.
    #[default]
    Cost,
    /// The time of the job.
    Time,
    /// The energy of the job.
    Energy,
    /// Tokens per unit of money; the same order as the cost.
    TokensPerEuro,
}

/// A skipped combination: all of its conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The text of the rule.
    pub text: String,
    /// Keys and the values that they must have.
    pub wants: Vec<(String, String)>,
}

/// A checked job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The file.
    pub file: JobFile,
    /// Rates into the currency of results.
    pub rates: Rates,
    /// How machines are owned.
    pub own: Ownership,
    /// The tax on prices.
    pub tax: f64,
    /// The most that a machine may cost, in the currency of results.
    pub budget: Option<f64>,
    /// The skipped combinations.
    pub skip: Vec<Rule>,
}

/// The keys of rules and of `--vary`.
pub const KEYS: [&str; 9] = ["gpu", "gpus", "platform", "dram", "nvme", "bridge", "nodes", "network", "condition"];

impl JobFile {
    /// Reads a job file. `file` is its name in messages.
    ///
    /// # Errors
    /// The first fault of the text, with its position.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Faults> {
        toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let fault = Diagnostic::error(error.message().trim_end()).at(position_of(file, text, offset));
            fault.hint("`command schema job` prints what a job may hold").into()
        })
    }

    /// A job without trainings.
    pub fn empty() -> Self {
        Self {
            format_version: FORMAT_VERSION,
            name: None,
            train: Vec::new(),
            limits: LimitsFile::default(),
            cost: CostFile::default(),
            vary: VaryFile::default(),
            skip: SkipFile::default(),
        }
    }

    /// Adds the values of `KEY=VALUE,VALUE`, such as `gpu=rtx3090,rtx4090`.
    ///
    /// # Errors
    /// An unknown key, an unreadable value, or a key that is there already with `given` true.
    pub fn vary(&mut self, text: &str, given: &mut Vec<String>) -> Result<(), Diagnostic> {
        let fault = |what: String| Diagnostic::error(what).hint("write it like `option vary gpus=1,2,4`");
        let (key, values) = text.split_once('=').ok_or_else(|| fault(format!("`{text}` has no `=`")))?;
        let (key, values): (&str, Vec<&str>) = (key.trim(), values.split(',').map(str::trim).collect());
        if given.iter().any(|one| one == key) {
            return Err(
                fault(format!("`option vary {key}` is there twice")).hint("name all values in one `option vary`")
            );
        }
        if values.iter().any(|value| value.is_empty()) {
            return Err(fault(format!("`{text}` has an empty value")));
        }
        let words = || values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let numbers = || {
            let read = |value: &&str| value.parse::<u32>().map_err(|_| fault(format!("`{value}` is not a number")));
            values.iter().map(read).collect::<Result<Vec<_>, _>>()
        };
        match key {
            "gpu" => self.vary.gpu = Some(words()),
            "gpus" => self.vary.gpus = Some(numbers()?),
            "platform" => self.vary.platform = Some(words()),
            "nvme" => self.vary.nvme = Some(numbers()?),
            "nodes" => self.vary.nodes = Some(numbers()?),
            "network" => self.vary.network = Some(words()),
            "dram" => {
                let read = |value: &&str| {
                    value.parse().map(Text).map_err(|error: spipe_base::ParseQuantityError| fault(error.to_string()))
                };
                self.vary.dram = Some(values.iter().map(read).collect::<Result<_, _>>()?);
            }
            "bridge" => {
                let read = |value: &&str| match *value {
                    "true" | "yes" => Ok(true),
                    "false" | "none" | "no" => Ok(false),
                    other => Err(fault(format!("`{other}` is not yes or no"))),
                };
                self.vary.bridge = Some(values.iter().map(read).collect::<Result<_, _>>()?);
            }
            "condition" => {
                let read = |value: &&str| value.parse().map_err(fault);
                self.vary.condition = Some(values.iter().map(read).collect::<Result<_, _>>()?);
            }
            other => {
                return Err(fault(format!("nothing varies by `{other}`")).hint(format!("known: {}", KEYS.join(", "))));
            }
        }
        given.push(key.to_owned());
        Ok(())
    }

    /// Checks the job.
    ///
    /// # Errors
    /// All faults: no training, amounts out of range, currencies without a rate, contradictory values.
    pub fn check(self) -> Result<Job, Faults> {
        let mut faults = Faults::new();
        let mut fault = |message: String, hint: &str| faults.push(Diagnostic::error(message).hint(hint));
        if self.format_version != FORMAT_VERSION {
            fault(format!("unknown format version {}", self.format_version), "this program reads `format-version = 1`");
        }
        if self.train.is_empty() {
            fault(
                "the job trains nothing".into(),
                "add a `[[train]]` with `model` and `tokens`, or `option model` and `option tokens`",
            );
        }
        for train in &self.train {
            if train.global_batch == Some(0) || train.seq_len == Some(0) {
                fault(format!("`{}` has an empty batch", train.model), "use at least one sequence of one token");
            }
            if train.jobs_per_year.is_some_and(|jobs| !(jobs.is_finite() && jobs > 0.0)) {
                fault(format!("`{}` has no jobs in a year", train.model), "use a number above 0");
            }
        }
        let budget = self.limits.budget.as_ref().map(|budget| budget.0.clone());
        let implied = budget.as_ref().map(|budget| budget.currency.clone());
        let currency = self.cost.currency.clone().or(implied).unwrap_or_else(Currency::usd);
        let rates = Rates::new(currency.clone(), &self.cost.rates);
        for rate in self.cost.rates.iter().filter(|rate| !(rate.rate.is_finite() && rate.rate > 0.0)) {
            fault(format!("the rate of {} is {}", rate.from, rate.rate), "use a number above 0");
        }
        let rate_hint = format!(
            "add `rates = [{{ from = \"…\", rate = …, date = …, source = \"…\" }}]` into {currency}, or `option rate`"
        );
        let mut converted = |amount: f64, from: &Currency| match rates.rate(from) {
            Ok(rate) => amount * rate,
            Err(error) => {
                faults.push(Diagnostic::error(error.to_string()).hint(rate_hint.clone()));
                amount
            }
        };
        let budget = budget.map(|budget| converted(budget.amount, &budget.currency));
        let electricity = self.cost.electricity.as_ref().map(|price| converted(price.0.amount, &price.0.currency));
        let residual = self.cost.residual.unwrap_or(Range { low: 0.1, typical: 0.3, high: 0.5 });
        let (tax, pue) = (self.cost.tax.unwrap_or(0.0), self.cost.pue.unwrap_or(1.0));
        let utilisation = self.cost.utilisation.unwrap_or(0.5);
        let mut fault = |holds: bool, message: &str, hint: &str| {
            if !holds {
                faults.push(Diagnostic::error(message).hint(hint));
            }
        };
        fault(
            residual.is_ordered() && residual.high < 1.0,
            "the residual value is out of range",
            "use ascending shares from 0 to below 1",
        );
        fault(utilisation > 0.0 && utilisation <= 1.0, "the use is out of range", "use a share above 0 and at most 1");
        fault((0.0..=1.0).contains(&tax), "the tax is out of range", "use a share from 0 to 1, such as 0.21");
        fault((1.0..=10.0).contains(&pue), "the PUE is out of range", "use a ratio of at least 1, such as 1.2");
        let mut skip = Vec::new();
        for text in &self.skip.rules {
            match rule(text) {
                Ok(rule) => skip.push(rule),
                Err(diagnostic) => faults.push(diagnostic),
            }
        }
        contradictions(&self, &mut faults);
        let years = self.cost.ownership.map_or(3.0, |hours| hours.0.0 / spipe_market::HOURS_PER_YEAR);
        let own = Ownership { currency, years, utilisation, residual, kilowatt_hour: electricity.unwrap_or(0.2), pue };
        faults.or(Job { rates, own, tax, budget, skip, file: self })
    }
}

/// Reports lists that vary nothing, and values that exclude each other.
fn contradictions(file: &JobFile, faults: &mut Faults) {
    let vary = &file.vary;
    let empty = [
        ("gpu", vary.gpu.as_ref().is_some_and(Vec::is_empty)),
        ("gpus", vary.gpus.as_ref().is_some_and(Vec::is_empty)),
        ("platform", vary.platform.as_ref().is_some_and(Vec::is_empty)),
        ("dram", vary.dram.as_ref().is_some_and(Vec::is_empty)),
        ("nvme", vary.nvme.as_ref().is_some_and(Vec::is_empty)),
        ("bridge", vary.bridge.as_ref().is_some_and(Vec::is_empty)),
        ("nodes", vary.nodes.as_ref().is_some_and(Vec::is_empty)),
        ("network", vary.network.as_ref().is_some_and(Vec::is_empty)),
        ("condition", vary.condition.as_ref().is_some_and(Vec::is_empty)),
    ];
    for (key, _) in empty.into_iter().filter(|(_, empty)| *empty) {
        faults.push(
            Diagnostic::error(format!("`{key}` varies over nothing")).hint("name a value, or leave the list out"),
        );
    }
    if vary.gpus.as_ref().is_some_and(|gpus| gpus.iter().all(|count| *count == 0)) && vary.gpu.is_some() {
        let fault = Diagnostic::error("GPUs are named, and their number is 0");
        faults.push(fault.hint("use `gpus = [1]`, or leave `gpu` out"));
    }
    if vary.bridge.as_ref().is_some_and(|bridge| bridge.iter().all(|one| *one))
        && vary.gpus.as_ref().is_some_and(|gpus| gpus.iter().all(|count| *count < 2))
    {
        let fault = Diagnostic::error("bridges join cards, and there is one card");
        faults.push(fault.hint("add `gpus = [2]`, or leave `bridge` out"));
    }
    if vary.drive.is_some() && vary.nvme.as_ref().is_none_or(|nvme| nvme.iter().all(|count| *count == 0)) {
        let fault = Diagnostic::error("a drive is named, and there is none");
        faults.push(fault.hint("add `nvme = [1]`, or leave `drive` out"));
    }
    if let Some(nodes) = vary.nodes.iter().flatten().find(|nodes| !(1..=MOST_NODES).contains(*nodes)) {
        let fault = Diagnostic::error(format!("a machine of {nodes} nodes"));
        faults.push(fault.hint(format!("use 1 to {MOST_NODES}, such as `nodes = [1, 2, 4]`")));
    }
    if vary.network.is_some() && vary.nodes.as_ref().is_none_or(|nodes| nodes.iter().all(|count| *count < 2)) {
        let fault = Diagnostic::error("a network card is named, and there is one node");
        faults.push(fault.hint("add `nodes = [2]`, or leave `network` out"));
    }
}

/// Reads a rule such as `gpus = 4 and platform = ryzen-9950x`.
fn rule(text: &str) -> Result<Rule, Diagnostic> {
    let mut wants = Vec::new();
    for part in text.split(" and ") {
        let pair = part.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
        let Some((key, value)) = pair.filter(|(key, value)| KEYS.contains(&key.as_str()) && !value.is_empty()) else {
            let fault = Diagnostic::error(format!("`{part}` in the rule `{text}` is not a condition"));
            return Err(
                fault.hint(format!("write it like \"gpus = 4 and platform = ryzen-9950x\", with {}", KEYS.join(", ")))
            );
        };
        wants.push((key, value));
    }
    Ok(Rule { text: text.into(), wants })
}

impl Job {
    /// Returns the objective where none is given: cost where there is a deadline or no budget, otherwise time.
    pub const fn objective(&self) -> Objective {
        if self.file.limits.deadline.is_none() && self.budget.is_some() { Objective::Time } else { Objective::Cost }
    }

    /// Returns how often a training counts in the figures: once if it is alone, so that they are those of one job,
    /// and as often as in a year among several.
    pub fn times(&self, train: &TrainFile) -> f64 {
        if self.file.train.len() == 1 { 1.0 } else { train.jobs_per_year.unwrap_or(1.0) }
    }

    /// Returns the longest time of a job in hours.
    pub fn deadline(&self) -> Option<f64> {
        self.file.limits.deadline.map(|deadline| deadline.0.0)
    }
}

/// Returns the JSON schema of job files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(JobFile)
}
