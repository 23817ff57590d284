//! A recording's lines as tracks. The core is run again beside them, without a backend: it says which requests begin, are let
//! in and end when, and that the records are what this version of the scheduler does.

mod aligned;
mod passing;

pub use passing::Run;

use super::about::About;
use super::json::{DEVICE, Out, REQUESTS, Track};
use super::parts::Parts;
use super::requests::Requests;
use super::step::{Flying, StepArgs, rounded};
use crate::backend::StepView;
use crate::error::Result;
use crate::files;
use crate::io::record::{Header, Line, Turn};
use crate::plan::StepShape;
use crate::runtime::replay::Replayer;
use crate::sys::abi;
use passing::Passing;
use serde_json::json;
use std::collections::VecDeque;

const TURNS: Track = Track(DEVICE, 100);
/// Where several stages work side by side: a lane for each step that may be under way.
const FLIGHT: u32 = 4;

fn stage_track(stage: u32) -> Track {
    Track(DEVICE, 110 + stage)
}

fn lane(place: u32) -> Track {
    Track(FLIGHT, 400 + place)
}

/// Names and units of the counters: a counter is written where it changes.
const COUNTERS: [(&str, &str); 4] = [
    ("queue depth", "requests"),
    ("running", "sequences"),
    ("free pages", "pages"),
    ("padding tokens", "tokens"),
];

fn mean_context(step: &StepView<'_>) -> u32 {
    let sequences = step.sequences();
    let ends = sequences
        .iter()
        .map(|s| u64::from(s.first_position + s.rows));
    (ends.sum::<u64>() / sequences.len().max(1) as u64) as u32
}

/// A trace in the making.
pub struct Timeline {
    pub(super) out: Out,
    /// What the trace will say of itself.
    pub(super) about: About,
    replayer: Replayer,
    requests: Requests,
    flying: VecDeque<Flying>,
    /// The last turn's values of [`COUNTERS`].
    counters: Option<[u32; 4]>,
    /// The start of the last turn that collected a step, and the end of the last turn of all.
    collected_ns: u64,
    last_ns: u64,
    /// Where steps are timed part by part.
    pub(super) parts: Option<Parts>,
    /// Where stages are timed one by one; of no stages else.
    passing: Passing,
}

impl Timeline {
    /// `source`: where the lines come from.
    ///
    /// # Errors
    /// The header's sizes break a rule of the core, or the file cannot be written.
    pub fn new(mut out: Out, header: &Header, source: String) -> Result<Self> {
        let replayer = Replayer::new(&header.engine, vec![])?;
        let about = About::new(header, source);
        let launch = header.launch.as_deref();
        let launch = launch.map_or(String::new(), |way| format!("{way}, "));
        let device = format!("{} ({launch}by {})", header.device, about.clock);
        out.process(DEVICE, &device, 0)?;
        out.thread(TURNS, "scheduler turns")?;
        out.process(REQUESTS, "requests", 2)?;
        if header.engine.stages == 1 {
            out.thread(stage_track(0), "stage 0 (all stages)")?;
        } else {
            out.process(FLIGHT, "steps under way", 1)?;
            for place in 0..header.engine.options.steps_in_flight {
                out.thread(lane(place), &format!("place {place}"))?;
            }
        }
        Ok(Self {
            out,
            about,
            replayer,
            requests: Requests::default(),
            flying: VecDeque::new(),
            counters: None,
            collected_ns: 0,
            last_ns: 0,
            parts: None,
            passing: Passing::new(0),
        })
    }

    /// Stages are timed one by one ([`Timeline::stage_run`]), and have tracks of these names.
    pub(super) fn name_stages(&mut self, names: &[String]) -> Result<()> {
        for (stage, name) in (0..).zip(names) {
            self.out.thread(stage_track(stage), name)?;
        }
        self.passing = Passing::new(names.len());
        Ok(())
    }

    /// The recording's next line.
    ///
    /// # Errors
    /// The core comes to another outcome than a recorded one, or the file cannot be written.
    pub fn line(&mut self, line: Line) -> Result<()> {
        match line {
            Line::Header(_) => {}
            Line::Request(request) => {
                self.requests.request(&request);
                self.replayer.request(*request);
            }
            Line::Cancel(request) => self.replayer.cancel(request),
            Line::Turn(turn) => self.turn(&turn)?,
            Line::Token(_) => self.about.tokens += 1,
            Line::End(end) => {
                self.requests.told.push_back(end);
                self.requests.draw(&mut self.out)?;
            }
            Line::Done(_) => self.about.complete = true,
        }
        Ok(())
    }

    fn turn(&mut self, turn: &Turn) -> Result<()> {
        self.out.zero_ns.get_or_insert(turn.now_ns.into());
        let requests = &mut self.requests;
        requests.seen(turn.request_head, turn.now_ns);
        self.replayer
            .turn_timed(&turn.into(), &mut |event| requests.event(event))?;
        self.about.turns += 1;
        self.last_ns = turn.end_ns;
        if turn.returned_step.is_some()
            && let Some(step) = self.flying.pop_front()
        {
            self.step_slice(&step, turn.now_ns)?;
            self.collected_ns = turn.now_ns;
        }
        self.turn_slice(turn)?;
        if let Some(number) = turn.returned_step {
            let learnt = |step: &mut passing::Step| step.collected_ns = Some(turn.now_ns.into());
            self.passing.learn(&mut self.out, number, learnt)?;
        }
        if let Some(number) = turn.step {
            self.compose(number, turn)?;
        }
        self.count(turn)?;
        self.requests.draw(&mut self.out)
    }

    fn compose(&mut self, number: u64, turn: &Turn) -> Result<()> {
        let view = self.replayer.step(number);
        let sizes = self.about.engine.bucket_sizes.of(view.kind());
        let bucket = sizes.get(turn.bucket as usize);
        let bucket = bucket.copied().unwrap_or(turn.rows);
        let step = Flying {
            shape: StepShape {
                kind: view.kind(),
                rows: turn.rows,
                context: mean_context(&view),
            },
            composed_ns: turn.end_ns,
            args: StepArgs {
                step: number,
                bucket,
                rows: turn.rows,
                fill: rounded(f64::from(turn.rows) / f64::from(bucket.max(1))),
                sequences: turn.sequences,
                sampled: turn.sample_rows,
                prompt_rows: Some(turn.rows.saturating_sub(view.header().decode_rows)),
                shared_tokens: (turn.skipped > 0).then_some(turn.skipped),
                unfinished: false,
            },
        };
        self.flying.push_back(step);
        self.passing
            .learn(&mut self.out, number, |of| of.composed = Some(step))
    }

    /// From the end of the turn that composed the step to `to_ns`, the start of the turn that collected it. One that was
    /// composed ahead begins when the one before it is through: a device runs one at a time.
    fn step_slice(&mut self, step: &Flying, to_ns: u64) -> Result<()> {
        let engine = &self.about.engine;
        let (track, from_ns) = if engine.stages == 1 {
            (stage_track(0), step.composed_ns.max(self.collected_ns))
        } else {
            let place = step.args.step % u64::from(engine.options.steps_in_flight);
            (lane(place as u32), step.composed_ns)
        };
        let times: (i128, i128) = (from_ns.into(), to_ns.max(from_ns).into());
        self.out.slice(track, &step.name(), times, step.args)?;
        match &mut self.parts {
            Some(parts) => parts.collected(&mut self.out, step, times),
            None => Ok(()),
        }
    }

    /// A stage that is timed by itself had a step.
    pub(super) fn stage_run(&mut self, stage: u32, step: u64, run: Run) -> Result<()> {
        self.passing.learn(&mut self.out, step, |of| {
            if let Some(place) = of.runs.get_mut(stage as usize) {
                *place = Some(run);
            }
        })
    }

    fn turn_slice(&mut self, turn: &Turn) -> Result<()> {
        let name = match turn.action {
            abi::TG_ACTION_STEP => "turn",
            abi::TG_ACTION_IDLE => "turn, idle",
            abi::TG_ACTION_BLOCKED => "turn, blocked",
            abi::TG_ACTION_DONE => "turn, done",
            _ => "turn, error",
        };
        let mut args = json!({ "turn": turn.turn, "steps_in_flight": turn.steps_in_flight });
        for (name, step) in [("collected", turn.returned_step), ("composed", turn.step)] {
            if let Some(step) = step {
                args[name] = step.into();
            }
        }
        let times = (turn.now_ns.into(), turn.end_ns.into());
        self.out.slice(TURNS, name, times, args)
    }

    /// Counters as the turn leaves them.
    fn count(&mut self, turn: &Turn) -> Result<()> {
        let newest = self.flying.back().map(|step| &step.args);
        let new = [
            turn.queue_depth,
            turn.running,
            turn.free_pages,
            newest.map_or(0, |step| step.bucket.saturating_sub(step.rows)),
        ];
        let old = self.counters.replace(new);
        for (n, (name, unit)) in COUNTERS.into_iter().enumerate() {
            if old.is_none_or(|old| old[n] != new[n]) {
                self.out.counter(name, unit, turn.end_ns.into(), new[n])?;
            }
        }
        Ok(())
    }

    /// Draws what is still open and ends the file, which has yet to be given its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(mut self) -> Result<(About, files::Out)> {
        for mut step in std::mem::take(&mut self.flying) {
            step.args.unfinished = true;
            self.step_slice(&step, self.last_ns)?;
            self.collected_ns = self.last_ns;
        }
        self.requests.finish(&mut self.out, self.last_ns)?;
        let gpu_clocks = self.passing.finish(&mut self.out)?;
        let about = About {
            zero_ns: self.out.zero_ns.unwrap_or(0) as i64,
            steps: self.replayer.steps(),
            requests: self.requests.asked,
            ended: self.requests.ended,
            kernels: self.parts.map(|parts| parts.kernels.means()),
            gpu_clocks,
            ..self.about
        };
        let out = self.out.end(&about)?;
        Ok((about, out))
    }
}
