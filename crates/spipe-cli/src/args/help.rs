//! The help: commands and options under headings, added to their definitions.

use super::Args;
use clap::{Arg, ArgAction, Command, CommandFactory, builder::styling::Styles};
use std::fmt::Write;

/// The commands, by purpose.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("Ask for a plan or a machine", &["plan", "whatif", "compare-systems", "baseline"]),
    ("See models, machines and schedules", &["model", "hardware", "catalogue", "schedule", "simulate", "timeline"]),
    ("Run on this machine", &["demo", "run"]),
    ("Hand over to other programs", &["export", "trace", "schema", "completions", "man"]),
    ("Measure and reproduce", &["calibrate", "compare", "fit", "prediction-error", "reproduce"]),
];

/// The heading of the options of all commands.
pub const GLOBAL: &str = "Every command";

/// A command with many options.
struct Page {
    /// Its name, after those of the commands that it is below.
    path: &'static [&'static str],
    /// Its options by topic, in the order of their definitions.
    headings: &'static [(&'static str, &'static [&'static str])],
    /// The options that the short help describes: those of a first question. It names the others.
    needed: &'static [&'static str],
    /// A first question.
    example: &'static str,
}

/// The options of a plan, of a comparison of systems and of tensor parallelism.
const PLAN: &[(&str, &[&str])] = &[
    (
        "Question",
        &["model", "component", "improve", "seq_len", "global_batch", "microbatch", "mode", "solve_for", "sensitivity"],
    ),
    (
        "Training",
        &[
            "optimizer",
            "precision",
            "clip_norm",
            "materialised_attention",
            "freeze",
            "lora",
            "adapter",
            "base",
            "state",
            "gradients",
            "master",
            "optimizer_in_backward",
            "packing",
            "bucketing",
            "padding",
            "lengths",
            "recompute_ops",
            "loss",
        ],
    ),
    ("Machine", &["hardware", "nodes", "network", "devices", "runtime", "head_room"]),
    (
        "Parallelism",
        &[
            "tensor_parallel",
            "sequence_parallel",
            "pipeline_parallel",
            "data_parallel",
            "context_parallel",
            "expert_parallel",
            "sharding",
            "shard_group",
        ],
    ),
    ("Choices", &["system", "layout", "pin", "group", "state_on", "parameters_on", "activations_on", "recompute"]),
    ("Search", &["planner", "time_limit", "effort", "no_hint", "gap", "threads"]),
    ("Output", &["plot", "output"]),
];

/// The commands whose options have headings.
const PAGES: [Page; 5] = [
    Page {
        path: &["plan"],
        headings: PLAN,
        needed: &[
            "model",
            "seq_len",
            "global_batch",
            "microbatch",
            "solve_for",
            "lora",
            "hardware",
            "devices",
            "system",
            "time_limit",
            "output",
        ],
        example: "spipe plan --model gpt2 --hardware one-gpu --global-batch 8 -o plan.json",
    },
    Page {
        path: &["compare-systems"],
        headings: PLAN,
        needed: &[
            "model",
            "seq_len",
            "global_batch",
            "microbatch",
            "hardware",
            "devices",
            "system",
            "time_limit",
            "output",
        ],
        example: "spipe compare-systems --model gpt2 --hardware one-gpu -o systems.html",
    },
    Page {
        path: &["baseline", "tensor-data"],
        headings: PLAN,
        needed: &[
            "model",
            "seq_len",
            "global_batch",
            "microbatch",
            "hardware",
            "nodes",
            "network",
            "devices",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "sharding",
            "recompute",
            "output",
        ],
        example: "spipe baseline tensor-data --model gpt2 --hardware rtx3090-x4-two-sockets --global-batch 8",
    },
    Page {
        path: &["whatif"],
        headings: &[
            (
                "Question",
                &[
                    "model",
                    "tokens",
                    "seq_len",
                    "global_batch",
                    "jobs_per_year",
                    "objective",
                    "deadline",
                    "budget",
                    "wall_power",
                ],
            ),
            ("Training", &["precision", "packing", "bucketing", "padding", "lengths", "recompute_ops", "loss"]),
            ("Machines", &["vary", "skip", "own", "rent", "catalogues", "as_of", "runtime"]),
            ("Money and energy", &["currency", "rates", "tax", "years", "utilisation", "electricity", "pue"]),
            ("Search", &["time_limit", "resume", "shard", "threads"]),
            ("Output", &["top", "output", "plots"]),
        ],
        needed: &[
            "model",
            "tokens",
            "seq_len",
            "objective",
            "deadline",
            "budget",
            "vary",
            "rent",
            "currency",
            "time_limit",
            "output",
        ],
        example: "spipe whatif --model gpt2 --tokens 2G --budget \"12000 EUR\" --vary gpu=rtx3090,rtx4090",
    },
    Page {
        path: &["run"],
        headings: &[
            ("Question", &["data", "tokenizer", "steps"]),
            ("Machine", &["bindings", "drives", "backend"]),
            ("Training", &["learning_rate", "warmup_steps", "decay", "weight_decay", "seed"]),
            ("Checkpoints and weights", &["checkpoint_dir", "checkpoint_every", "resume", "weights", "adapter"]),
            ("Output", &["save_weights", "save_adapter", "save_outputs", "output"]),
        ],
        needed: &["data", "tokenizer", "steps", "bindings", "learning_rate", "checkpoint_dir", "resume", "output"],
        example: "spipe run plan.json --data README.md --steps 20 -o measured.json",
    },
];

/// The command line with its help.
pub fn command() -> Command {
    let command = Args::command();
    let header = Styles::default();
    let header = header.get_header();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{header}Options:{header:#}\n{{options}}{{after-help}}",
        commands(&command)
    );
    let command = PAGES.iter().fold(command.help_template(template), |command, page| below(command, page.path, page));
    command.mut_subcommand("baseline", |command| command.mut_subcommand("tensor-data", with_older_names))
}

/// The baseline under the names that its degrees had before those of `spipe plan`, in which files of measured runs have
/// them.
fn with_older_names(command: Command) -> Command {
    let older = [("tensor_parallel", "tensor"), ("data_parallel", "data")];
    older.into_iter().fold(command, |command, (id, name)| command.mut_arg(id, |arg| arg.alias(name)))
}

/// The list of commands under their headings.
fn commands(command: &Command) -> String {
    let styles = Styles::default();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = command.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or_default();
    let mut list = String::new();
    for (heading, names) in COMMANDS {
        // Writing to a string cannot fail.
        let _ = writeln!(list, "{header}{heading}:{header:#}");
        for found in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let (name, about) = (found.get_name(), found.get_about().map(ToString::to_string).unwrap_or_default());
            let _ = writeln!(list, "  {literal}{name:width$}{literal:#}  {about}");
        }
        list.push('\n');
    }
    list
}

/// A command, with the help of the one that `path` leads to.
fn below(command: Command, path: &[&'static str], page: &'static Page) -> Command {
    match path.split_first() {
        Some((name, rest)) => command.mut_subcommand(name, |command| below(command, rest, page)),
        None => short(headed(command, page), page),
    }
}

/// A command with the headings of its options. Its option `--help` is among those of every command.
fn headed(command: Command, page: &Page) -> Command {
    let heading = |arg: &Arg| page.headings.iter().find(|(_, ids)| ids.contains(&arg.get_id().as_str()));
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help).help_heading(GLOBAL);
    let help = help
        .help("Print the options of a first question (all with '--help')")
        .long_help("Print all options")
        .display_order(1000);
    let command = command.mut_args(|arg| match heading(&arg) {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    });
    command.disable_help_flag(true).arg(help)
}

/// A command whose short help describes the needed options, and names the others by heading.
fn short(command: Command, page: &Page) -> Command {
    let command = command.mut_args(|arg| {
        let shown = arg.is_positional() || arg.get_help_heading() == Some(GLOBAL);
        let needed = shown || page.needed.contains(&arg.get_id().as_str());
        arg.hide_short_help(!needed)
    });
    let styles = Styles::default();
    let header = styles.get_header();
    let example = format!("{header}Example:{header:#}\n  {}", page.example);
    let mut others = format!("{header}More options, described by --help:{header:#}\n");
    for (heading, _) in page.headings {
        let hidden = |arg: &&Arg| arg.is_hide_short_help_set() && arg.get_help_heading() == Some(heading);
        let names: Vec<String> =
            command.get_arguments().filter(hidden).filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        if !names.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(others, "  {heading}: {}", names.join(", "));
        }
    }
    command.after_help(format!("{others}\n{example}")).after_long_help(example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_listed_once() {
        let mut command = command();
        let mut listed: Vec<&str> = COMMANDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut defined: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        listed.sort_unstable();
        defined.sort_unstable();
        assert_eq!(listed, defined);
        let help = command.render_help().to_string();
        for name in defined {
            assert_eq!(
                help.lines().filter(|line| line.starts_with(&format!("  {name} "))).count(),
                1,
                "{name}\n{help}"
            );
        }
        for (heading, _) in COMMANDS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{heading}\n{help}");
        }
        assert!(help.contains("--format") && help.contains("Exit codes"), "{help}");
    }

    /// The command that `path` leads to.
    fn found<'a>(command: &'a mut Command, path: &[&str]) -> &'a mut Command {
        path.iter().fold(command, |command, name| command.find_subcommand_mut(name).unwrap())
    }

    #[test]
    fn the_short_help_is_a_screen_that_names_all_options() {
        let mut command = command();
        command.build();
        for page in &PAGES {
            let command = found(&mut command, page.path);
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            assert!(short.lines().count() <= 55, "{} lines\n{short}", short.lines().count());
            for arg in command.get_opts().filter(|arg| arg.get_help_heading() != Some(GLOBAL)) {
                let option = format!("--{}", arg.get_long().unwrap());
                assert!(arg.get_help_heading().is_some(), "{option} has a heading in {:?}", page.path);
                assert!(short.contains(&option) && long.contains(&option), "{option}\n{short}");
            }
            for needed in page.needed {
                assert!(command.get_arguments().any(|arg| arg.get_id() == needed), "{needed}");
            }
            let mut last = 0;
            for (heading, _) in page
                .headings
                .iter()
                .filter(|(_, ids)| command.get_opts().any(|arg| ids.contains(&arg.get_id().as_str())))
            {
                let at = long.find(&format!("\n{heading}:\n"));
                assert!(at > Some(last), "{heading} is in its place\n{long}");
                last = at.unwrap();
            }
        }
    }

    #[test]
    fn each_example_is_a_command_line() {
        for page in &PAGES {
            let words = page.example.replace("\"12000 EUR\"", "12000_EUR");
            let words = words.split(' ').map(|word| word.replace('_', " "));
            command().try_get_matches_from(words).unwrap();
        }
    }
}
