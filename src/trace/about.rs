//! What a trace says of itself: `otherData` of the file.

use super::kernels::Kernels;
use crate::io::record::Header;
use crate::runtime::EngineShape;
use serde::{Deserialize, Serialize};

/// The version of what is in a file: another number is another layout.
pub const VERSION: u32 = 1;

/// What was traced, by which clocks, and how much of it there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// `tailgraph trace`
    pub format: String,
    pub version: u32,
    /// `run`, or `recording FILE`
    pub source: String,
    /// As in `--model`.
    pub model: String,
    /// `cpu` or `cuda`
    pub device: String,
    pub dtype: String,
    /// As in `--launch`; `None` on the CPU.
    pub launch: Option<String>,
    pub engine: EngineShape,
    /// The clock that steps, turns and requests are timed by.
    pub clock: String,
    /// What that clock said at the trace's 0, in ns; below 0: the trace begins before the clock does.
    pub zero_ns: i64,
    pub host_clock: HostClock,
    /// What a slice is.
    pub notes: Vec<String>,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClocks {
    /// By stage, its clock less the first one's, which the scheduler uses: at the end.
    pub offsets_ns: Vec<i64>,
    /// The last offsets are off by at most this, but for the clocks' drift: the least time that all hand-overs of one step took
    /// together. Slices that were drawn before may be off by up to `moved_ns` more.
    pub uncertainty_ns: u64,
    /// How far offsets were moved after the first step, so that no step arrives before it left: the clocks' drift.
    pub moved_ns: u64,
    /// Steps that lack a stage's times, which were not read soon enough.
    pub left_out: u64,
}

/// How the host's track comes to stand beside the scheduler's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "relation", rename_all = "snake_case")]
pub enum HostClock {
    /// There is no host track: a recording does not hold the host's times.
    Absent,
    /// The scheduler runs on the host and uses its clock.
    Same,
    /// Two clocks, and nothing bounds the difference: this many host slices were left out.
    Unknown { left_out: u64 },
    /// Two clocks. What each side is known to have seen of the other bounds the difference.
    Measured {
        /// Scheduler's minus host's, as ns since the load began: the middle of the first second's bounds.
        offset_ns: i64,
        /// Half the distance of these bounds.
        uncertainty_ns: u64,
        /// How far the offset was moved after the first second, so as to stay within bounds: the clocks' drift.
        moved_ns: u64,
    },
}

/// The clock of a device, by its name in a recording's header.
pub fn clock_of(header: &Header) -> String {
    match header.launch.as_deref() {
        Some("device-graph" | "device-graph-tail") => "GPU %globaltimer",
        _ => "engine age on the host (monotonic)",
    }
    .to_owned()
}

/// What a trace says of its slices, for who looks at it. `parts`: steps have slices for their kernels, or operations; `stages_timed`:
/// stages have tracks of their own; `recording`: all of it is from one.
pub(super) fn notes(stages: u32, parts: bool, stages_timed: bool, recording: bool) -> Vec<String> {
    let step = if stages == 1 {
        "a step's slice: from the end of the turn that composed it, or from when the step before it was collected if that is later, to the start of the turn that collected it"
    } else {
        "a slice under 'steps under way': from the end of the turn that composed the step to the start of the turn that collected it, waiting between stages included"
    };
    let mut notes = vec![
        step,
        "a request's track begins when a turn first saw the request; queued until it got a slot, prefill until its first token was collected, decode until its end",
        "turns that found nothing new are not recorded",
    ];
    if parts {
        notes.push("a kernel's slice: from when all kernels before it had ended to when it had itself, as the next one saw it; it stood ready on an SM for early_us before; bytes and floor_us are its operation's, where that has several kernels of all of them");
    }
    if stages_timed {
        notes.push("an arrow: a hand-over of a step to the next stage, or from the last one to the turn that collected it. Stages on GPUs: a slice is from when the step's rows had come, on the first stage from the end of the turn that composed it, to just before it was handed on; gpu_clocks says how the GPUs' clocks were brought together");
    } else if stages > 1 {
        notes.push(if recording {
            "a recording does not hold when each stage worked, so stages have no tracks of their own"
        } else {
            "a host that launches stages of several GPUs ahead does not see when each worked, so they have no tracks of their own; Nsight Systems shows them by name"
        });
    }
    notes.into_iter().map(str::to_owned).collect()
}
