//! Values of the library's own types, as flags spell them.

use crate::backend::{Handover, LaunchWay, Parallel};
use crate::model::DType;
use clap::ValueEnum;
use clap::builder::PossibleValue;

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

/// Those of `--launch`; the host that runs ahead is `--ahead`.
impl ValueEnum for LaunchWay {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::HostKernels, Self::HostGraph, Self::DeviceGraph]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}
