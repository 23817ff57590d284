//! What a trace says of itself: `otherData` of the file.

use super::kernels::Kernels;
use crate::io::record::Header;
use crate::runtime::EngineShape;
use serde::{Deserialize, Serialize};

/// What was traced, by which clocks, and how much of it there is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// `tailgraph trace`
    pub format: String,
    /// Another number is another layout.
    pub version: u32,
    /// `run`, or `recording FILE`
    pub source: String,
    /// The model's name in `--model`.
    pub model: String,
    /// `cpu` or `cuda`
    pub device: String,
    pub dtype: String,
    /// The name in `--weights`; `None` where the weights are as they are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The name in `--launch`; `None` on the CPU.
    pub launch: Option<String>,
    pub engine: EngineShape,
    /// The clock that steps, turns and requests are timed by.
    pub clock: String,
    /// What that clock said at the trace's 0, in ns; below 0: the trace begins before the clock does.
    pub zero_ns: i64,
    pub host_clock: HostClock,
    pub turns: u64,
    /// Composed; each has one slice.
    pub steps: u64,
    pub requests: u64,
    /// Requests that came to their end.
    pub ended: u64,
    /// Tokens that the host was told.
    pub tokens: u64,
    /// The run came to its end, and all of it is here.
    pub complete: bool,
    /// What is known of a run whose steps were timed kernel by kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
    /// What is known of a run whose stages have a GPU each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_clocks: Option<GpuClocks>,
}

/// How the clocks of GPUs that have a stage each were brought together. Every hand-over bounds the difference of two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClocks {
    /// By stage, its clock less the first one's, which the scheduler uses: at the end.
    pub offsets_ns: Vec<i64>,
    /// Offsets are off by at most this, but for the clocks' drift: the least time that all hand-overs of one step took together.
    pub uncertainty_ns: u64,
    /// Steps that lack a stage's times, which were not read soon enough.
    pub left_out: u64,
}

/// How the host's track comes to stand beside the scheduler's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "relation", rename_all = "snake_case")]
pub enum HostClock {
    /// There is no host track: a recording does not hold the host's times.
    #[default]
    Absent,
    /// The scheduler runs on the host and uses its clock.
    Same,
    /// Two clocks, and nothing bounds the difference: host slices were left out.
    Unknown,
    /// Two clocks. What each side is known to have seen of the other bounds the difference.
    Measured {
        /// Scheduler's minus host's, as ns since the load began: the middle of the first second's bounds.
        offset_ns: i64,
        /// Half the distance of these bounds.
        uncertainty_ns: u64,
    },
}

impl About {
    /// What is known at the beginning.
    pub(super) fn new(header: &Header, source: String) -> Self {
        let clock = match header.launch.as_deref() {
            Some("device-graph" | "device-graph-tail") => "GPU %globaltimer",
            _ => "engine age on the host (monotonic)",
        };
        Self {
            format: "tailgraph trace".to_owned(),
            version: 1,
            source,
            model: header.model.clone(),
            device: header.device.clone(),
            dtype: header.dtype.clone(),
            weights: header.weights.clone(),
            launch: header.launch.clone(),
            engine: header.engine.clone(),
            clock: clock.to_owned(),
            ..Self::default()
        }
    }
}
