//! The `spipe` command; everything is in the library, where tests reach it.

/// Counts the large allocations of a run's threads.
#[global_allocator]
static ALLOCATOR: spipe_exec::Allocator = spipe_exec::Allocator;

fn main() -> std::process::ExitCode {
    spipe::main()
}
