//! Values of the library's own types, as flags spell them, and one that flags alone have.

use crate::backend::{Handover, LaunchWay, Parallel};
use crate::model::DType;
use crate::plan::StepKind;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

impl ValueEnum for DType {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::F32, Self::BF16, Self::F16]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl ValueEnum for Parallel {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Replicas, Self::Stages]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Replicas => "replicas",
            Self::Stages => "stages",
        }))
    }
}

impl ValueEnum for Handover {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Peer, Self::Host, Self::Nccl]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Peer => PossibleValue::new("peer").help("From GPU to GPU"),
            Self::Host => PossibleValue::new("host").help("Through memory of the host"),
            Self::Nccl => PossibleValue::new("nccl").help(
                "By NCCL's send and receive, for comparison: with --launch host-graph or host-kernels; needs libnccl.so.2",
            ),
        })
    }
}

/// The ways of `bench --launch`. Those that only profiles/launching.md compares are hidden.
impl ValueEnum for LaunchWay {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Bare,
            Self::HostKernels,
            Self::HostGraph,
            Self::HostGraphAhead,
            Self::DeviceGraph,
            Self::HostGraphEvent,
            Self::HostGraphBlock,
            Self::DeviceGraphTail,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.name());
        Some(match self {
            Self::Bare => value.help("A step's graph, launched again and again by the host: nobody schedules (`bench decode` only)"),
            Self::HostKernels => value.help("The host, kernel by kernel"),
            Self::HostGraph => value.help("The host, a captured graph a step"),
            Self::HostGraphAhead => value.help(
                "The host, the next decode step's graph before the last is through, where no sequence can end in between. Stages on several \
                 GPUs do not overlap steps of different sequences then",
            ),
            Self::DeviceGraph => value.help("The GPU, which schedules too"),
            Self::HostGraphEvent | Self::HostGraphBlock | Self::DeviceGraphTail => value.hide(true),
        })
    }
}

/// The ways of `--launch` in commands that serve.
pub fn of_a_run() -> impl TypedValueParser<Value = LaunchWay> {
    let ways = LaunchWay::value_variants().iter();
    let of_runs = ways.filter(|way| !way.is_of_bench());
    PossibleValuesParser::new(of_runs.filter_map(ValueEnum::to_possible_value))
        .try_map(|name| LaunchWay::from_str(&name, false))
}

/// Positions of a prompt that logits are given of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Positions {
    All,
    Last,
}

impl Positions {
    /// The kind of all steps of a run that scores: only one that gives all logits is of its own kind.
    pub fn step_kind(self) -> StepKind {
        match self {
            Self::All => StepKind::Score,
            Self::Last => StepKind::Mixed,
        }
    }
}
