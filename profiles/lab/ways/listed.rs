//! What CUDA has for launching a step after the step before, as `bench launch --launch all` compares it: names, and for each what
//! a reader wants to know before taking it.

use std::fmt;

/// A way to launch steps of small kernels, of which each decides the next one's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Technique {
    GraphQueued,
    KernelsSpin,
    GraphSpin,
    GraphBlock,
    GraphEvent,
    GraphParams,
    GraphUpdate,
    GraphRecapture,
    DeviceSibling,
    DeviceTail,
    DeviceScheduler,
    DeviceForget,
    Conditional,
    Persistent,
    Cdp,
    CdpStream,
}

/// What there is to say about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// As on the command line.
    pub name: &'static str,
    pub does: &'static str,
    pub choose: &'static str,
    pub cannot: &'static str,
    /// The first CUDA that has all of it.
    pub since: &'static str,
}

/// In sentences.
impl fmt::Display for About {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            does,
            choose,
            cannot,
            since,
        } = self;
        write!(
            out,
            "{name}: {does}. For {choose}. It cannot {cannot}. CUDA {since}."
        )
    }
}

impl Technique {
    pub const ALL: [Self; 16] = [
        Self::GraphQueued,
        Self::KernelsSpin,
        Self::GraphSpin,
        Self::GraphBlock,
        Self::GraphEvent,
        Self::GraphParams,
        Self::GraphUpdate,
        Self::GraphRecapture,
        Self::DeviceSibling,
        Self::DeviceTail,
        Self::DeviceScheduler,
        Self::DeviceForget,
        Self::Conditional,
        Self::Persistent,
        Self::Cdp,
        Self::CdpStream,
    ];

    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// What `--help` says.
    pub fn does(self) -> &'static str {
        self.about().does
    }

    pub fn about(self) -> About {
        let [name, does, choose, cannot, since] = match self {
            Self::GraphQueued => [
                "graph-queued",
                "all graphs queued by a host that was told every step's shape beforehand: the floor",
                "steps whose shapes nobody has to decide",
                "react to what a step gave",
                "10.0",
            ],
            Self::KernelsSpin => [
                "kernels-spin",
                "each kernel launched by the host, which spins for the step's word in pinned memory",
                "few or long kernels, or shapes that never come again",
                "keep the GPU busy with short kernels: the host makes each launch",
                "1.0",
            ],
            Self::GraphSpin => [
                "graph-spin",
                "a graph a step, and the host spins for the step's word in pinned memory",
                "a host with a core to spare and a GPU to itself",
                "spare a core, or stay even beside a busy host or GPU",
                "10.0",
            ],
            Self::GraphBlock => [
                "graph-block",
                "a graph a step, and the host sleeps until an event (CU_EVENT_BLOCKING_SYNC)",
                "steps of milliseconds on a host that has other work",
                "wake up in less than an interrupt and the system's scheduler take",
                "10.0",
            ],
            Self::GraphEvent => [
                "graph-event",
                "a graph a step, and the host asks an event again and again",
                "steps whose kernels cannot be changed to write a word",
                "be as quick as a word in pinned memory",
                "10.0",
            ],
            Self::GraphParams => [
                "graph-params",
                "one graph, each of its kernels given the step's shape before each launch (cuGraphExecKernelNodeSetParams)",
                "many shapes and few kernels, where a graph a shape would take too much memory",
                "change the nodes themselves, or be launched by the device",
                "11.0",
            ],
            Self::GraphUpdate => [
                "graph-update",
                "one graph, updated as a whole from the captured one of the step's shape (cuGraphExecUpdate)",
                "as graph-params, where which kernel changes is not known",
                "change the nodes' order or kinds: that is an error that names the node",
                "10.2",
            ],
            Self::GraphRecapture => [
                "graph-recapture",
                "each step captured, instantiated and launched anew",
                "shapes that never come again and kernels by the hundred",
                "be cheap: it is here to show what an update saves",
                "10.0",
            ],
            Self::DeviceSibling => [
                "device-sibling",
                "the last node launches the next step's graph beside its own; a tail launch renews the chain",
                "one stage on a GPU: the next graph is there when the step ends",
                "launch more than 120 times in a chain, or a graph that has not left the GPU",
                "12.4",
            ],
            Self::DeviceTail => [
                "device-tail",
                "the last node launches the next step's graph behind its own (tail launch)",
                "several stages on a GPU, and chains without an end",
                "begin before its graph has ended; have more than 255 pending",
                "12.0",
            ],
            Self::DeviceScheduler => [
                "device-scheduler",
                "a graph that only schedules launches the step's graph and itself, both by tail launches",
                "steps whose graphs must not know of a scheduler",
                "save the second launch of each step; be pending twice",
                "12.0",
            ],
            Self::DeviceForget => [
                "device-forget",
                "a graph that only schedules launches the step's graph inside its own run (fire and forget), and itself behind",
                "steps that need not wait for one another",
                "order what it launches, or launch more than 120 in a run",
                "12.0",
            ],
            Self::Conditional => [
                "conditional",
                "one graph launched by the host: WHILE around a SWITCH over shapes and an IF for nothing to do",
                "loops whose steps are all known when the graph is made",
                "be launched by the device, or have a body replaced while it runs",
                "12.8",
            ],
            Self::Persistent => [
                "persistent",
                "one cooperative kernel that stays, with a barrier of the grid where others begin a kernel",
                "kernels that fit one launch: the same threads, registers and shared memory for all",
                "let blocks of a kernel differ from another's, or share the GPU with kernels behind it",
                "9.0",
            ],
            Self::Cdp => [
                "cdp",
                "a kernel launches the step's kernels and its own next turn (dynamic parallelism), in the block's own stream",
                "work whose kernels only the GPU can know",
                "launch a graph's worth for the price of one launch; wait for what it launched",
                "12.0",
            ],
            Self::CdpStream => [
                "cdp-stream",
                "as cdp, in a stream that each turn makes",
                "several such chains side by side",
                "make the stream for nothing",
                "12.0",
            ],
        };
        About {
            name,
            does,
            choose,
            cannot,
            since,
        }
    }
}

/// What of a launch the GPU refused or waited for in vain; TG_WAYS_* of kernels/ways/ways.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub what: u32,
    /// cudaError_t
    pub error: u32,
    /// Steps done by then.
    pub step: u64,
    pub bucket: u32,
    /// Launches by the same graph or kernel before it; of a barrier, blocks that were missing.
    pub count: u32,
}

impl Failure {
    /// One line that names the way, the node, what was found and which limit there is.
    pub fn message(&self, way: &str) -> String {
        let Self {
            error,
            step,
            bucket,
            count,
            ..
        } = *self;
        let (node, limit) = match self.what {
            1 => (
                format!("the tail launch of the graph of bucket {bucket}"),
                "255 pending tail launches",
            ),
            2 => (
                format!("the fire-and-forget launch of the graph of bucket {bucket}"),
                "120 fire-and-forget launches in a run of a graph, and none of a graph that still runs",
            ),
            3 => (
                "the tail launch of the head by itself".to_owned(),
                "one pending launch of itself",
            ),
            4 => (
                format!("kernel {count} of bucket {bucket}"),
                "2,048 pending kernels (cudaLimitDevRuntimePendingLaunchCount)",
            ),
            5 => (
                "the scheduler kernel's next turn".to_owned(),
                "one tail launch behind another, 2,048 pending kernels (cudaLimitDevRuntimePendingLaunchCount)",
            ),
            6 => (
                "a stream made by the scheduler kernel".to_owned(),
                "the device runtime's memory",
            ),
            7 => {
                return format!(
                    "{way}: step {step}, bucket {bucket}: {count} blocks did not come to a grid barrier within 5 s, \
                     expected all of a cooperative launch: another process may hold the GPU"
                );
            }
            other => (
                format!("what {other} stands for"),
                "none that this build knows",
            ),
        };
        format!(
            "{way}: step {step}: {node} was refused with {} ({error}) after {count} launches, expected a launch; the limit is \
             {limit}",
            error_name(error)
        )
    }
}

/// Of the errors that launches on a device give.
pub fn error_name(error: u32) -> &'static str {
    match error {
        0 => "cudaSuccess",
        1 => "cudaErrorInvalidValue",
        2 => "cudaErrorMemoryAllocation",
        9 => "cudaErrorInvalidConfiguration",
        65 => "cudaErrorLaunchMaxDepthExceeded",
        68 => "cudaErrorSyncDepthExceeded",
        69 => "cudaErrorLaunchPendingCountExceeded",
        98 => "cudaErrorInvalidDeviceFunction",
        400 => "cudaErrorInvalidResourceHandle",
        701 => "cudaErrorLaunchOutOfResources",
        800 => "cudaErrorNotPermitted",
        801 => "cudaErrorNotSupported",
        999 => "cudaErrorUnknown",
        _ => "an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_have_names_of_their_own_and_say_what_they_are() {
        let names: BTreeSet<_> = Technique::ALL.into_iter().map(Technique::name).collect();
        assert_eq!(names.len(), Technique::ALL.len());
        for technique in Technique::ALL {
            let about = technique.about();
            for text in [about.does, about.choose, about.cannot] {
                assert!(
                    !text.is_empty() && !text.ends_with('.') && !text.contains('\n'),
                    "{about:?}"
                );
            }
            let (major, minor) = about.since.split_once('.').expect("a version");
            assert!(major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok());
        }
    }

    #[test]
    fn a_failure_names_way_node_and_limit() {
        let failure = |what| Failure {
            what,
            error: 69,
            step: 41,
            bucket: 2,
            count: 120,
        };
        for (what, words) in [
            (1, ["tail launch of the graph of bucket 2", "255 pending"]),
            (
                2,
                [
                    "fire-and-forget launch of the graph of bucket 2",
                    "120 fire-and-forget",
                ],
            ),
            (3, ["the head by itself", "one pending launch of itself"]),
            (4, ["kernel 120 of bucket 2", "2,048 pending kernels"]),
            (5, ["next turn", "2,048 pending kernels"]),
            (6, ["a stream", "device runtime's memory"]),
            (7, ["120 blocks did not come", "within 5 s"]),
        ] {
            let message = failure(what).message("cdp");
            for word in words.into_iter().chain(["cdp: step 41", "expected"]) {
                assert!(message.contains(word), "{message}");
            }
            assert!(!message.contains('\n'));
        }
        let message = failure(1).message("device-tail");
        assert!(
            message.contains("cudaErrorLaunchPendingCountExceeded (69)"),
            "{message}"
        );
    }
}
