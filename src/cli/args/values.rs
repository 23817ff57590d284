//! Values of the library's own types, as flags spell them.

use crate::backend::{Handover, LaunchWay, Parallel};
use crate::model::DType;
use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};

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

/// Those of `--launch`; the host that runs ahead is `--ahead`. Those of `bench` alone are known, so that they are refused by what
/// they are (`of_a_run`).
impl ValueEnum for LaunchWay {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::HostKernels,
            Self::HostGraph,
            Self::DeviceGraph,
            Self::HostGraphEvent,
            Self::HostGraphBlock,
            Self::DeviceGraphTail,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).hide(self.is_of_bench()))
    }
}

/// A `--launch` of what is no `bench`.
pub(super) fn of_a_run() -> impl TypedValueParser<Value = LaunchWay> {
    EnumValueParser::<LaunchWay>::new().try_map(|way| match way.is_of_bench() {
        true => Err("a way of `bench` alone, expected host-kernels, host-graph or device-graph"),
        false => Ok(way),
    })
}
