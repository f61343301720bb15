//! The job of the command line: a file, and flags that override it.

use crate::{Failure, args, args::Given, input, market};
use spipe_base::{Diagnostic, Text};
use spipe_cost::DataShape;
use spipe_hardware::Hardware;
use spipe_market::{Currency, RateFile};
use spipe_model::Operations;
use spipe_whatif::{JobFile, Setup, Shard, TrainFile, amount::Hours};

/// The setup of a sweep.
pub fn setup(what: &args::WhatifSweep, given: &Given) -> Result<Setup, Failure> {
    let mut job = match &what.job {
        Some(path) => JobFile::from_toml(path, &input::text(path)?)?,
        None => JobFile::empty(),
    };
    train(what, &mut job)?;
    limits(what, &mut job)?;
    let mut varied = Vec::new();
    for text in &what.vary {
        job.vary(text, &mut varied).map_err(|fault| Failure::Arguments(fault.into()))?;
    }
    job.skip.rules.extend(what.skip.iter().cloned());
    let checked = job.clone().check().map_err(if what.job.is_some() { Failure::Input } else { Failure::Arguments })?;
    let own = what.own.as_deref().map(parts).transpose()?.unwrap_or_default();
    if what.top == 0 && given.has("top") {
        return Err(Failure::argument("`--top` is zero", "show at least one machine"));
    }
    Ok(Setup {
        job,
        catalogues: what.source.catalogues.iter().map(|path| input::text(path)).collect::<Result<_, _>>()?,
        objective: what.objective.map_or_else(|| checked.objective(), Into::into),
        rows: what.top,
        as_of: market::day(what.source.as_of),
        own,
    })
}

/// The parts of a machine file.
fn parts(path: &str) -> Result<Vec<String>, Failure> {
    let hardware: Hardware = input::hardware(path)?;
    let parts = hardware.file().parts.clone();
    if parts.is_empty() {
        let fault = Diagnostic::error(format!("`{path}` does not say which parts it has"));
        return Err(Failure::input(
            fault.hint("add `parts = [\"2 x rtx3090\", \"1 x epyc-7713p\", …]`, as `spipe catalogue compose` does"),
        ));
    }
    Ok(parts)
}

/// Applies the flags of a training.
fn train(what: &args::WhatifSweep, job: &mut JobFile) -> Result<(), Failure> {
    match (&what.model, what.tokens) {
        (Some(model), Some(tokens)) => job.train.push(TrainFile {
            model: model.clone(),
            tokens: Text(tokens),
            seq_len: None,
            global_batch: None,
            precision: None,
            runtime: None,
            data: DataShape::PLAIN,
            recompute_ops: Operations::NONE,
            loss: None,
            jobs_per_year: None,
        }),
        (Some(_), None) => {
            return Err(Failure::argument(
                "the tokens to train on are not given",
                "add `--tokens`, such as --tokens 1G",
            ));
        }
        (None, tokens) => {
            if let Some(tokens) = tokens {
                job.train.iter_mut().for_each(|train| train.tokens = Text(tokens));
            }
        }
    }
    if job.train.is_empty() {
        return Err(Failure::argument("there is no job", "name a job file, or give `--model` and `--tokens`"));
    }
    for train in &mut job.train {
        train.seq_len = what.seq_len.or(train.seq_len);
        train.global_batch = what.global_batch.or(train.global_batch);
        train.precision = what.precision.or(train.precision);
        train.runtime = what.runtime.clone().or_else(|| train.runtime.take());
        train.data = what.data.over(train.data)?;
        train.recompute_ops = what.data.recompute_ops.unwrap_or(train.recompute_ops);
        train.loss = what.data.loss.map(Into::into).or(train.loss);
        train.jobs_per_year = what.jobs_per_year.or(train.jobs_per_year);
    }
    Ok(())
}

/// Applies the flags of limits and costs.
fn limits(what: &args::WhatifSweep, job: &mut JobFile) -> Result<(), Failure> {
    let (limits, cost) = (&mut job.limits, &mut job.cost);
    limits.deadline = what.deadline.map(Text).or(limits.deadline);
    limits.budget = what.budget.clone().map(Text).or_else(|| limits.budget.clone());
    limits.wall_power = what.wall_power.map(Text).or(limits.wall_power);
    cost.currency = what.currency.clone().or_else(|| cost.currency.clone());
    cost.electricity = what.electricity.clone().map(Text).or_else(|| cost.electricity.clone());
    cost.pue = what.pue.or(cost.pue);
    if let Some(years) = what.years {
        if !(years.is_finite() && years > 0.0) {
            return Err(Failure::argument(format!("the machine is owned for {years} years"), "use a number above 0"));
        }
        cost.ownership = Some(Text(Hours(years * spipe_market::HOURS_PER_YEAR)));
    }
    if let Some(text) = &what.utilisation {
        cost.utilisation = Some(input::fraction(text)?);
    }
    if let Some(text) = &what.tax {
        cost.tax = Some(input::fraction(text)?);
    }
    for text in &what.rates {
        cost.rates.push(rate(text, market::day(what.source.as_of))?);
    }
    Ok(())
}

/// Reads `USD=0.90`.
fn rate(text: &str, day: spipe_market::Date) -> Result<RateFile, Failure> {
    let fault = || Failure::argument(format!("`{text}` is not a rate"), "write it like --rate USD=0.90");
    let (from, rate) = text.split_once('=').ok_or_else(fault)?;
    let from: Currency = from.parse().map_err(|_| fault())?;
    let rate: f64 = rate.trim().parse().map_err(|_| fault())?;
    Ok(RateFile { from, rate, date: day, source: "stated on the command line".into() })
}

/// Reads `3/16`.
pub fn shard(text: &str) -> Result<Shard, Failure> {
    let read = text
        .split_once('/')
        .and_then(|(part, of)| Some(Shard { part: part.trim().parse().ok()?, of: of.trim().parse().ok()? }));
    let valid = read.filter(|shard| shard.part >= 1 && shard.part <= shard.of);
    valid.ok_or_else(|| {
        Failure::argument(
            format!("`{text}` is not a part of a sweep"),
            "write it like --shard 3/16, from 1/16 to 16/16",
        )
    })
}
