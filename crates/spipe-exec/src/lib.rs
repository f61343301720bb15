//! The Burn interpreter of programs, its optimizer kernels and calibration measurements.
