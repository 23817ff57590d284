//! What the threads of a run hand to the one that writes its trace.

use super::json::Track;
use super::parts::Costs;
use crate::backend::timing::{StageTimes, StepTimes};
use crate::io::record::{Header, Line};
use serde_json::Value;
use std::time::Instant;

/// From and to, on the host's clock.
pub type During = (Instant, Instant);

pub(super) enum Item {
    Begin(Box<Begin>),
    /// A line, and when the host began and ended to hand it over or to take it.
    Line(Line, During),
    Host(HostSlice),
    Stage(StageRun),
    /// By the stage's own clock.
    StageTimes(StageTimes),
    /// A step's parts, and how many steps have been lost so far.
    Times(Box<StepTimes>, u64),
}

pub(super) struct Begin {
    pub header: Header,
    /// 0 of the scheduler's clock, where that is the host's.
    pub clock_zero: Option<Instant>,
    /// Where steps are timed part by part: what against, and 0 of their clock, where that is the host's.
    pub parts: Option<(Costs, Option<Instant>)>,
    /// Names of stages that are timed one by one.
    pub stages: Vec<String>,
}

pub(super) struct HostSlice {
    pub track: Track,
    pub name: &'static str,
    pub during: During,
    pub args: Value,
}

/// One run of a stage.
pub struct StageRun {
    pub stage: u32,
    pub step: u64,
    pub from: Instant,
    pub to: Instant,
}
