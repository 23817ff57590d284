//! The phases of a start: an NVTX range each, and how long all ranges of a phase took together. Threads have phases of their
//! own at the same time, so phases can take longer together than the clock says.

use super::nvtx::{Category, Name, Range, range};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Weights to where they are computed with.
    Load,
    /// All graphs, until they are ready to launch. The phases below are in it, and overlap there.
    Graphs,
    /// Kernels into graphs.
    Capture,
    /// Graphs into executables.
    Instantiate,
    /// Executables to the device.
    Upload,
}

/// The phases' ranges, in their order.
static NAMES: LazyLock<[Name; 5]> = LazyLock::new(|| {
    ["load", "graphs", "capture", "instantiate", "upload"]
        .map(|text| Name::of(Category::Start, text))
});

/// Nanoseconds so far, by phase.
static TAKEN_NS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// A phase that goes on until this is dropped. None is within another of its own kind.
#[must_use = "a phase ends when it is dropped"]
#[derive(Debug)]
pub struct Going {
    phase: Phase,
    start: Instant,
    _range: Range,
}

/// Begins a phase.
pub fn phase(phase: Phase) -> Going {
    Going {
        phase,
        _range: range(NAMES[phase as usize]),
        start: Instant::now(),
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let taken_ns = self.start.elapsed().as_nanos() as u64;
        TAKEN_NS[self.phase as usize].fetch_add(taken_ns, Ordering::Relaxed);
    }
}

/// How long `phase` took in this process so far; zero where it never was.
pub fn taken(phase: Phase) -> Duration {
    Duration::from_nanos(TAKEN_NS[phase as usize].load(Ordering::Relaxed))
}
