//! The `spipe` command; everything is in the library, where tests reach it.

fn main() -> std::process::ExitCode {
    spipe::main()
}
