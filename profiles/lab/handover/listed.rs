//! How rows go from one GPU to another, and how both add up theirs, as `bench handover` compares it: names, and for each way what a
//! reader wants to know before taking it.

use super::techniques::{About, error_name};
use std::time::Duration;

/// What takes rows to the other GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Nccl,
    /// The GPUs' copy engines.
    Copies,
    /// Kernels.
    Stores,
}

/// Who begins a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The host, kernel by kernel, once it has seen the step before.
    Calls,
    /// The host, a graph for each GPU, once it has seen the step before.
    Graphs,
    /// The host, one graph of both GPUs.
    OneGraph,
    /// The host, which has queued all graphs beforehand.
    Queued,
    /// The GPUs.
    Device,
}

/// A way to run steps over two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoverWay {
    /// Both GPUs add up their rows; else the first hands its rows to the second, and gets a token back.
    pub reduces: bool,
    pub carrier: Carrier,
    pub begun: Begun,
}

const fn way(reduces: bool, carrier: Carrier, begun: Begun) -> HandoverWay {
    HandoverWay {
        reduces,
        carrier,
        begun,
    }
}

impl HandoverWay {
    pub const ALL: [Self; 12] = [
        way(false, Carrier::Nccl, Begun::Graphs),
        way(false, Carrier::Nccl, Begun::Queued),
        way(false, Carrier::Copies, Begun::Calls),
        way(false, Carrier::Copies, Begun::OneGraph),
        way(false, Carrier::Stores, Begun::Graphs),
        way(false, Carrier::Stores, Begun::Queued),
        way(false, Carrier::Stores, Begun::Device),
        way(true, Carrier::Nccl, Begun::Graphs),
        way(true, Carrier::Nccl, Begun::Queued),
        way(true, Carrier::Stores, Begun::Graphs),
        way(true, Carrier::Stores, Begun::Queued),
        way(true, Carrier::Stores, Begun::Device),
    ];

    pub fn name(self) -> &'static str {
        self.about().name
    }

    pub fn about(self) -> About {
        use {Begun as B, Carrier as C};
        let [name, does, choose, cannot, since] = match (self.reduces, self.carrier, self.begun) {
            (false, C::Nccl, B::Queued) => [
                "nccl-queued",
                "as nccl-spin, all graphs queued beforehand: what NCCL costs without the host",
                "pipelines whose steps are known ahead",
                "react to what a step gave",
                "11.3",
            ],
            (false, C::Nccl, _) => [
                "nccl-spin",
                "NCCL's send and receive captured in a graph for each GPU; the host launches both and spins for the step's word",
                "hosts with a core to spare, and machines of any links",
                "end by itself where the other GPU does not come: the host has to abort it",
                "11.3",
            ],
            (false, C::Copies, B::OneGraph) => [
                "copies-graph",
                "one graph over both GPUs, copies from GPU to GPU among its nodes; the host launches it and spins",
                "steps of many kernels on both GPUs: one launch for all",
                "be launched by a GPU",
                "11.4",
            ],
            (false, C::Copies, _) => [
                "copies-spin",
                "kernels, copies from GPU to GPU and events between streams, all queued by the host, which spins",
                "large rows, which the copy engines move while kernels run",
                "be quick with few rows: the host queues each part",
                "4.0",
            ],
            (false, C::Stores, B::Graphs) => [
                "stores-spin",
                "kernels store rows into the other GPU's memory and release a flag that a kernel there waits for; graphs by the host",
                "few rows, between GPUs that reach each other's memory",
                "do without peer access",
                "11.0",
            ],
            (false, C::Stores, B::Queued) => [
                "stores-queued",
                "as stores-spin, all graphs queued beforehand: the floor",
                "pipelines whose steps are known ahead",
                "react to what a step gave",
                "11.0",
            ],
            (false, C::Stores, _) => [
                "stores-device",
                "as stores-spin, and each graph's last node launches the next one by a tail launch: no host",
                "pipelines that schedule themselves, beside a busy host",
                "do without peer access, or have nodes that no GPU launches",
                "12.3",
            ],
            (true, C::Nccl, B::Queued) => [
                "reduce-nccl-queued",
                "as reduce-nccl-spin, all graphs queued beforehand",
                "layers split over GPUs, steps known ahead",
                "react to what a step gave",
                "11.3",
            ],
            (true, C::Nccl, _) => [
                "reduce-nccl-spin",
                "NCCL's all-reduce captured in a graph for each GPU; the host launches both and spins",
                "large rows, many GPUs, any links",
                "end by itself where the other GPU does not come: the host has to abort it",
                "11.3",
            ],
            (true, C::Stores, B::Graphs) => [
                "reduce-stores-spin",
                "one kernel on each GPU stores its rows into the other's memory, waits for the other's and adds both; graphs by the host",
                "few rows, between two GPUs that reach each other's memory",
                "spare links: each GPU sends all its rows to every other",
                "11.0",
            ],
            (true, C::Stores, B::Queued) => [
                "reduce-stores-queued",
                "as reduce-stores-spin, all graphs queued beforehand: the floor",
                "few rows, steps known ahead",
                "react to what a step gave",
                "11.0",
            ],
            (true, ..) => [
                "reduce-stores-device",
                "as reduce-stores-spin, and each graph's last node launches the next one by a tail launch: no host",
                "split layers that schedule themselves, beside a busy host",
                "do without peer access, or have nodes that no GPU launches",
                "12.3",
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

/// What a GPU waited for in vain, or was refused; TG_PAIR_* of kernels/ways/pair.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoverFailure {
    pub what: u32,
    /// cudaError_t
    pub error: u32,
    /// Steps done by then.
    pub step: u64,
    pub block: u32,
}

impl HandoverFailure {
    /// One line that names the way, the GPU, what was waited for and for how long. `gpus`: which one says so, and the other.
    pub fn message(&self, way: &str, [gpu, other]: [u32; 2], limit: Duration) -> String {
        let Self {
            what,
            error,
            step,
            block,
        } = *self;
        let part = match what {
            1 => "the rows",
            2 => "the token",
            3 => &format!("the rows of block {block} for the sum"),
            4 => {
                return format!(
                    "{way}: step {step} on cuda:{gpu}: the tail launch of its own graph was refused with {} ({error}), expected a \
                     launch; the limit is one pending launch of itself",
                    error_name(error)
                );
            }
            _ => "what this build does not know",
        };
        format!(
            "{way}: step {step} on cuda:{gpu}: {part} of cuda:{other} did not come within {} s, expected microseconds: another process \
             may hold that GPU, or it failed",
            limit.as_secs()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_have_names_of_their_own_and_say_what_they_are() {
        let names: BTreeSet<_> = HandoverWay::ALL.map(HandoverWay::name).into();
        assert_eq!(names.len(), HandoverWay::ALL.len());
        for way in HandoverWay::ALL {
            let about = way.about();
            for text in [about.does, about.choose, about.cannot] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{about:?}");
            }
            assert_eq!(way.reduces, about.name.starts_with("reduce-"));
            let carrier = match way.carrier {
                Carrier::Nccl => "nccl",
                Carrier::Copies => "copies",
                Carrier::Stores => "stores",
            };
            assert!(about.name.contains(carrier), "{about:?}");
        }
    }

    #[test]
    fn a_failure_names_way_gpu_and_limit() {
        for (what, part) in [
            (1, "the rows of cuda:0"),
            (2, "the token of cuda:0"),
            (3, "the rows of block 7 for the sum of cuda:0"),
            (4, "cudaErrorNotPermitted (800)"),
        ] {
            let failure = HandoverFailure {
                what,
                error: 800,
                step: 41,
                block: 7,
            };
            let message = failure.message("stores-spin", [1, 0], Duration::from_secs(5));
            let limit = match what {
                4 => "one pending launch",
                _ => "within 5 s",
            };
            for word in [part, limit, "stores-spin: step 41 on cuda:1", "expected"] {
                assert!(message.contains(word), "{message}");
            }
        }
    }
}
