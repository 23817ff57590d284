//! Runs a recording again and compares what comes out.

use super::record::{Line, Reader};
use crate::backend::StageBackend;
use crate::error::Result;
use crate::runtime::Event;
use crate::runtime::replay::Replayer;
use std::collections::VecDeque;
use std::fmt;

/// How a replay went.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replayed {
    pub turns: u64,
    pub steps: u64,
    /// Compared, with their log-probabilities where the recording has any.
    pub tokens: u64,
    /// Requests whose ends were compared.
    pub ends: u64,
    pub difference: Option<Difference>,
    /// The recorded run came to its end.
    pub complete: bool,
}

/// The first event that is not what was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// `None`: the other has an event more.
    pub recorded: Option<Line>,
    pub replayed: Option<Line>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |line: &Option<Line>| {
            let line = line.as_ref().map(serde_json::to_string);
            line.map_or("nothing".into(), |line| line.unwrap_or_default())
        };
        let (recorded, replayed) = (text(&self.recorded), text(&self.replayed));
        write!(f, "recorded {recorded}, replayed {replayed}")
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            turns,
            steps,
            tokens,
            ends,
            ..
        } = self;
        write!(
            f,
            "{turns} turns, {steps} steps, {tokens} tokens, {ends} requests: "
        )?;
        match &self.difference {
            None => write!(f, "equal"),
            Some(difference) => write!(f, "the first difference: {difference}"),
        }
    }
}

/// Takes every turn of `recording` again on `stages`, which are as [`Replayer::new`] wants them, until the end or the
/// first difference. A prompt must fit the model of the stages.
///
/// # Errors
/// The file is none that was recorded, or what [`Replayer::turn`] gives.
pub fn replay(recording: &mut Reader, stages: Vec<Box<dyn StageBackend>>) -> Result<Replayed> {
    let mut replayer = Replayer::new(&recording.header.engine, stages)?;
    let mut result = Replayed::default();
    // One of these is empty: the other holds what its counterpart has not come to yet.
    let mut recorded = VecDeque::new();
    let mut replayed = VecDeque::new();
    while let Some(line) = recording.next_line()? {
        match line {
            Line::Header(_) => return Err(recording.wrong("found a second header")),
            Line::Request(request) => replayer.request(*request),
            Line::Cancel(request) => replayer.cancel(request),
            Line::Turn(turn) => {
                let mut heard = |event: Event| replayed.push_back(Line::from(&event));
                replayer.turn(&(&*turn).into(), &mut heard)?;
                result.turns += 1;
            }
            Line::Token(_) | Line::End(_) => recorded.push_back(line),
            Line::Done(_) => {
                result.complete = true;
                break;
            }
        }
        result.steps = replayer.steps();
        while let (Some(old), Some(new)) = (recorded.front(), replayed.front()) {
            if old != new {
                result.difference = Some(Difference {
                    recorded: recorded.pop_front(),
                    replayed: replayed.pop_front(),
                });
                return Ok(result);
            }
            match old {
                Line::Token(_) => result.tokens += 1,
                _ => result.ends += 1,
            }
            recorded.pop_front();
            replayed.pop_front();
        }
    }
    // A run that was broken off may have lost the end of either.
    let (recorded, replayed) = (recorded.pop_front(), replayed.pop_front());
    if result.complete && (recorded.is_some() || replayed.is_some()) {
        result.difference = Some(Difference { recorded, replayed });
    }
    Ok(result)
}
