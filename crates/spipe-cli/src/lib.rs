//! The command line of spipe.
