//! Memory over time: the process's resident set and what is free on the device.

use serde::Serialize;
use std::time::{Duration, Instant};
use tailgraph::{Error, Result};

/// The allocator keeps freed memory in its own way; what grows for good grows past this.
const RESIDENT_SLACK_BYTES: i64 = 4 << 20;

/// Taken every so often.
pub struct Samples {
    every: Duration,
    last: Option<Instant>,
    resident_bytes: Vec<u64>,
    device_free_bytes: Vec<u64>,
}

/// From the first fifth of the time on: medians of the first and the last quarter.
#[derive(Debug, Clone, Serialize)]
pub struct Growth {
    pub samples: usize,
    pub resident_bytes: [u64; 2],
    pub resident_growth_bytes: i64,
    /// `None`: not on a GPU.
    pub device_free_bytes: Option<[u64; 2]>,
    pub holds: bool,
}

impl Samples {
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            last: None,
            resident_bytes: Vec::with_capacity(1 << 12),
            device_free_bytes: Vec::with_capacity(1 << 12),
        }
    }

    /// Takes a sample if it is time for one.
    ///
    /// # Errors
    /// The system or `free_bytes` does not say.
    pub fn tick(&mut self, free_bytes: &dyn Fn() -> Result<Option<u64>>) -> Result<()> {
        if self.last.is_some_and(|last| last.elapsed() < self.every) {
            return Ok(());
        }
        self.last = Some(Instant::now());
        self.resident_bytes.push(resident_bytes()?);
        self.device_free_bytes.extend(free_bytes()?);
        Ok(())
    }

    /// # Errors
    /// Too few samples to say.
    pub fn growth(&self) -> Result<Growth> {
        let samples = self.resident_bytes.len();
        if samples < 10 {
            return Err(Error::Runtime(format!(
                "{samples} samples of memory, expected at least 10: let it run longer"
            )));
        }
        let ends = |values: &[u64]| {
            let settled = &values[values.len() / 5..];
            let quarter = settled.len() / 4;
            [&settled[..quarter], &settled[settled.len() - quarter..]].map(median)
        };
        let resident = ends(&self.resident_bytes);
        let growth = resident[1] as i64 - resident[0] as i64;
        let free = (self.device_free_bytes.len() == samples).then(|| ends(&self.device_free_bytes));
        Ok(Growth {
            samples,
            resident_bytes: resident,
            resident_growth_bytes: growth,
            device_free_bytes: free,
            holds: growth <= RESIDENT_SLACK_BYTES && free.is_none_or(|[first, last]| last >= first),
        })
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Memory of this process that is in RAM.
fn resident_bytes() -> Result<u64> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| Error::Runtime(format!("{path}: found no VmRSS in kB")))
}
