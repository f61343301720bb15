//! Ctrl-C and SIGTERM: the first one asks the work to end, the second one ends the process.

use crate::output;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::{Arc, atomic::AtomicBool};

/// The exit code that a shell reports for a process ended by a signal, less the number of the
/// signal.
const SIGNALLED: i32 = 128;

/// A flag that the first signal raises.
pub fn flag() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = listen(signal, &interrupted) {
            output::talk(&format!("warning: Ctrl-C and `kill` will end the process at once: {error}"));
        }
    }
    interrupted
}

fn listen(signal: i32, interrupted: &Arc<AtomicBool>) -> std::io::Result<()> {
    // In this order, the handler that ends the process runs before the one that raises the flag.
    signal_hook::flag::register_conditional_shutdown(signal, SIGNALLED + signal, Arc::clone(interrupted))?;
    signal_hook::flag::register(signal, Arc::clone(interrupted)).map(drop)
}
