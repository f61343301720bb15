//! Messages of libraries, which leave the spelling of options and commands to their front end.

use crate::answers::found_in;

/// The crates whose messages a front end prints.
const CRATES: [&str; 16] = [
    "base", "cost", "exec", "export", "fit", "hardware", "market", "model", "plan", "planner", "schedule", "search",
    "sim", "timeline", "trace", "whatif",
];

/// The starts of options and commands as the command line has them. Features belong to the build.
const SPELLED: [&str; 2] = ["`--", "`spipe "];

/// The lines of code in which a text names an option or a command of the command line.
fn spelled(text: &str) -> Vec<&str> {
    let code = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    code.filter(|line| SPELLED.iter().any(|start| line.replace("`--features", "").contains(start))).collect()
}

#[test]
fn libraries_name_no_option_of_the_command_line() {
    assert_eq!(found_in(&CRATES, |text| spelled(text).into_iter().map(str::to_owned).collect()), [""; 0]);
}

#[test]
fn options_are_found_in_code_alone() {
    assert_eq!(spelled("// `--lora`\nhint(\"add `--lora`\")"), ["hint(\"add `--lora`\")"]);
    assert_eq!(spelled("hint(\"add `option lora`, or build with `--features cuda`\")"), [""; 0]);
}
