//! The discrete-event interpreter of programs.
