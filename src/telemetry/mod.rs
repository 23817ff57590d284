//! telemetry

pub mod nvtx;
