//! Values of the library's own types, as flags spell them, and one that flags alone have.

use crate::backend::{Handover, LaunchWay, Parallel};
use crate::model::{DType, WeightsAs};
use crate::plan::{Activations, StepKind};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::ops::RangeInclusive;
use std::time::Duration;

impl ValueEnum for DType {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::F32, Self::BF16, Self::F16]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let other = match self {
            Self::F32 => "float32",
            Self::BF16 => "bfloat16",
            Self::F16 => "float16",
        };
        Some(PossibleValue::new(self.name()).alias(other))
    }
}

impl ValueEnum for Activations {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl ValueEnum for WeightsAs {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

/// A time within these seconds.
///
/// # Errors
/// It is something else; the message says what is expected.
pub fn parse_seconds(text: &str, within: RangeInclusive<f64>) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| within.contains(seconds));
    let time = seconds.map(Duration::from_secs_f64);
    time.ok_or_else(|| format!("expected seconds, {} to {}", within.start(), within.end()))
}

/// A number of tokens from 1 to `most`: 4096, 4K (times 1,024) or 4k (times 1,000).
///
/// # Errors
/// It is something else; the message says what.
pub fn parse_tokens(text: &str, most: u32) -> Result<u32, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1000),
        Some(b'K') => (&text[..text.len() - 1], 1024),
        _ => (text, 1),
    };
    let number: Option<u32> = digits.parse().ok();
    let tokens = number.and_then(|number| number.checked_mul(unit));
    tokens
        .filter(|tokens| (1..=most).contains(tokens))
        .ok_or_else(|| {
            let range = match most {
                u32::MAX => "at least 1".to_owned(),
                most => format!("from 1 to {most}"),
            };
            format!("expected a number of tokens {range}, such as 4096, 4K (4,096) or 4k (4,000)")
        })
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
            Self::Bare => value.help("The host launches one step's graph again and again, and nobody schedules (`bench decode` only)"),
            Self::HostKernels => value.help("The host schedules, and launches each kernel of a step"),
            Self::HostGraph => value.help("The host schedules, and launches one captured graph a step"),
            Self::HostGraphAhead => value.help(
                "As host-graph, but the host queues a decode step while the one before runs, unless a sequence could end in between. Stages \
                 do not overlap",
            ),
            Self::DeviceGraph => value.help("The GPU schedules, and launches each step's graph itself; the host only sends requests and reads tokens"),
            Self::HostGraphEvent | Self::HostGraphBlock | Self::DeviceGraphTail => value.hide(true),
        })
    }
}

/// The ways of `--launch` in commands that serve.
pub fn of_a_run() -> impl TypedValueParser<Value = LaunchWay> {
    ways(|way| !way.is_of_bench())
}

/// Those in which the host launches each step by itself, as a replay does.
pub fn of_a_replay() -> impl TypedValueParser<Value = LaunchWay> {
    ways(|way| matches!(way, LaunchWay::HostKernels | LaunchWay::HostGraph))
}

fn ways(wanted: impl Fn(&LaunchWay) -> bool) -> impl TypedValueParser<Value = LaunchWay> {
    let ways = LaunchWay::value_variants().iter();
    let wanted = ways.filter(|way| wanted(way));
    PossibleValuesParser::new(wanted.filter_map(ValueEnum::to_possible_value))
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
