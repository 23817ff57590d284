//! What lies between GPUs, as `doctor` shows it.

use serde::Serialize;

/// The way from one GPU to another, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// As in `--device cuda:N`.
    pub from: u32,
    pub to: u32,
    /// Kernels on each reach the other's memory.
    pub peer_access: bool,
    /// The rate of copies that the driver makes, one after the other.
    pub copy_bytes_per_s: Option<f64>,
    /// From a store on `from` until `to` sees it, as half of a round trip of one word: in the memory of whoever waits for it, or
    /// without peer access in pinned memory of the host. So steps go from stage to stage.
    pub store_us: Option<f64>,
    /// Why something was not measured.
    pub failures: Vec<String>,
}
