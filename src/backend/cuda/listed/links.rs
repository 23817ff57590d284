//! What lies between GPUs, as `doctor` shows it.

use serde::Serialize;

/// From one GPU to another, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// As in `--device cuda:N`.
    pub from: u32,
    pub to: u32,
    /// Kernels on each reach the other's memory.
    pub peer_access: bool,
    /// Of copies that the driver makes, one after the other.
    pub copy_bytes_per_s: Option<f64>,
    /// From a store on `from` until `to` sees it, as half of a round trip of one word: in the memory of whoever waits for it, or
    /// without peer access in pinned memory of the host. So steps go from stage to stage.
    pub store_us: Option<f64>,
    /// Of what was not measured: why.
    pub failures: Vec<String>,
}

impl Link {
    /// Where the words lie that GPUs wait for.
    pub fn words_in(&self) -> &'static str {
        match self.peer_access {
            true => "memory of the GPU",
            false => "memory of the host",
        }
    }
}
