//! A recording's lines as tracks. The core is run again beside them, without a backend: it says which requests begin and
//! end when, and that the records are what this version of the scheduler does.

mod aligned;
mod passing;

pub use passing::Run;

use super::about::{About, HostClock, VERSION, clock_of, notes};
use super::json::{DEVICE, Out, Track};
use super::parts::Parts;
use super::requests::{self, Requests};
use super::step::{Flying, StepArgs};
use crate::backend::StepView;
use crate::error::Result;
use crate::files;
use crate::io::record::{Header, Line, Turn};
use crate::plan::{Ladders, StepKind};
use crate::runtime::replay::Replayer;
use crate::sys::abi;
use passing::Passing;
use serde_json::json;
use std::collections::VecDeque;

const TURNS: Track = Track {
    process: DEVICE,
    thread: 100,
};
/// Where several stages work side by side: a lane for each step that may be under way.
const FLIGHT: u32 = 4;

fn stage_track(stage: u32) -> Track {
    Track {
        process: DEVICE,
        thread: 110 + stage,
    }
}

/// Names and units of the counters: a counter is written where it changes.
const COUNTERS: [(&str, &str); 4] = [
    ("queue depth", "requests"),
    ("running", "sequences"),
    ("free pages", "pages"),
    ("padding rows", "rows"),
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
    header: Header,
    source: String,
    pub(super) host_clock: HostClock,
    replayer: Replayer,
    requests: Requests,
    flying: VecDeque<Flying>,
    /// As of [`COUNTERS`], of the last turn.
    counters: Option<[u64; 4]>,
    /// The start of the last turn that collected a step, and the end of the last turn of all.
    collected_ns: u64,
    last_ns: u64,
    turns: u64,
    tokens: u64,
    complete: bool,
    zero_known: bool,
    /// Where steps are timed part by part.
    pub(super) parts: Option<Parts>,
    /// Where stages are timed one by one.
    passing: Option<Passing>,
}

fn kind_of(kind: u32) -> StepKind {
    match kind {
        abi::TG_KIND_DECODE => StepKind::Decode,
        abi::TG_KIND_MIXED => StepKind::Mixed,
        _ => StepKind::Score,
    }
}

fn bucket_rows(ladders: &Ladders, turn: &Turn) -> u32 {
    let ladder = ladders.of(kind_of(turn.kind));
    ladder
        .get(turn.bucket as usize)
        .copied()
        .unwrap_or(turn.rows)
}

impl Timeline {
    /// `source`: where the lines come from.
    ///
    /// # Errors
    /// The header's sizes break a rule of the core, or the file cannot be written.
    pub fn new(mut out: Out, header: &Header, source: String) -> Result<Self> {
        let replayer = Replayer::new(&header.engine, vec![])?;
        let launch = header.launch.as_deref();
        let launch = launch.map_or(String::new(), |way| format!("{way}, "));
        let device = format!("{} ({launch}by {})", header.device, clock_of(header));
        out.process(DEVICE, &device, 0)?;
        out.thread(TURNS, "scheduler turns")?;
        if header.engine.stages == 1 {
            out.thread(stage_track(0), "stage 0 (all stages)")?;
        }
        out.process(requests::PROCESS, "requests", 2)?;
        if header.engine.stages > 1 {
            out.process(FLIGHT, "steps under way", 1)?;
            for lane in 0..header.engine.options.steps_in_flight {
                out.thread(Self::lane(u64::from(lane)), &format!("place {lane}"))?;
            }
        }
        Ok(Self {
            out,
            header: header.clone(),
            source,
            host_clock: HostClock::Absent,
            replayer,
            requests: Requests::default(),
            flying: VecDeque::new(),
            counters: None,
            collected_ns: 0,
            last_ns: 0,
            turns: 0,
            tokens: 0,
            complete: false,
            zero_known: false,
            parts: None,
            passing: None,
        })
    }

    /// Stages are timed one by one ([`Timeline::stage_run`]), and have tracks of these names.
    pub(super) fn name_stages(&mut self, names: &[String]) -> Result<()> {
        for (stage, name) in (0..).zip(names) {
            self.out.thread(stage_track(stage), name)?;
        }
        self.passing = Some(Passing::new(names.len()));
        Ok(())
    }

    /// Says which time of the scheduler's clock is the trace's 0; else it is the first turn's start.
    pub(super) fn set_zero(&mut self, zero_ns: i128) {
        self.out.set_zero(zero_ns);
        self.zero_known = true;
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
            Line::Token(_) => self.tokens += 1,
            Line::End(end) => {
                self.requests.told(end);
                self.requests.draw(&mut self.out)?;
            }
            Line::Done(_) => self.complete = true,
        }
        Ok(())
    }

    fn turn(&mut self, turn: &Turn) -> Result<()> {
        if !self.zero_known {
            self.set_zero(turn.now_ns.into());
        }
        let requests = &mut self.requests;
        requests.seen(turn.request_head, turn.now_ns);
        self.replayer
            .turn_timed(&turn.into(), &mut |event| requests.event(event))?;
        self.turns += 1;
        self.last_ns = turn.end_ns;
        if turn.returned_step.is_some()
            && let Some(step) = self.flying.pop_front()
        {
            self.step_slice(&step, turn.now_ns)?;
            self.collected_ns = turn.now_ns;
        }
        self.turn_slice(turn)?;
        if let (Some(passing), Some(number)) = (&mut self.passing, turn.returned_step) {
            let at_ns = Some(turn.now_ns.into());
            passing.learn(&mut self.out, number, |step| step.collected_ns = at_ns)?;
        }
        if let Some(number) = turn.step {
            self.compose(number, turn)?;
        }
        self.count(turn)?;
        self.requests.draw(&mut self.out)
    }

    fn compose(&mut self, number: u64, turn: &Turn) -> Result<()> {
        let bucket = bucket_rows(&self.header.engine.ladders, turn);
        let view = self.replayer.step(number);
        let decode_rows = view.header().decode_rows;
        let fill = f64::from(turn.rows) / f64::from(bucket.max(1));
        let step = Flying {
            kind: kind_of(turn.kind),
            composed_ns: turn.end_ns,
            context: mean_context(&view),
            args: StepArgs {
                step: number,
                bucket,
                rows: turn.rows,
                // Three digits are what anyone reads.
                fill: (fill * 1e3).round() / 1e3,
                sequences: turn.sequences,
                sampled: turn.sample_rows,
                prompt_rows: Some(turn.rows.saturating_sub(decode_rows)),
                unfinished: false,
            },
        };
        self.flying.push_back(step);
        match &mut self.passing {
            Some(passing) => passing.learn(&mut self.out, number, |of| of.composed = Some(step)),
            None => Ok(()),
        }
    }

    /// From the end of the turn that composed the step to `to_ns`, the start of the turn that collected it. One that was
    /// composed ahead begins when the one before it is through: a device runs one at a time.
    fn step_slice(&mut self, step: &Flying, to_ns: u64) -> Result<()> {
        let (track, from_ns) = if self.header.engine.stages == 1 {
            (stage_track(0), step.composed_ns.max(self.collected_ns))
        } else {
            let places = u64::from(self.header.engine.options.steps_in_flight);
            (Self::lane(step.args.step % places), step.composed_ns)
        };
        let times: (i128, i128) = (from_ns.into(), to_ns.max(from_ns).into());
        self.out.slice(track, &step.name(), times, step.args)?;
        match &mut self.parts {
            Some(parts) => parts.collected(&mut self.out, step, times),
            None => Ok(()),
        }
    }

    fn lane(place: u64) -> Track {
        Track {
            process: FLIGHT,
            thread: 400 + place as u32,
        }
    }

    /// A stage that is timed by itself had a step.
    pub(super) fn stage_run(&mut self, stage: u32, step: u64, run: Run) -> Result<()> {
        match &mut self.passing {
            Some(passing) => passing.learn(&mut self.out, step, |of| {
                if let Some(place) = of.runs.get_mut(stage as usize) {
                    *place = Some(run);
                }
            }),
            None => Ok(()),
        }
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
        let padding_rows = match (turn.step, turn.steps_in_flight) {
            (Some(_), _) => {
                bucket_rows(&self.header.engine.ladders, turn).saturating_sub(turn.rows)
            }
            (None, 0) => 0,
            (None, _) => self.counters.map_or(0, |[.., last]| last as u32),
        };
        let new = [
            turn.queue_depth,
            turn.running,
            turn.free_pages,
            padding_rows,
        ]
        .map(u64::from);
        let old = self.counters.replace(new);
        for (n, (name, unit)) in COUNTERS.into_iter().enumerate() {
            if old.is_none_or(|old| old[n] != new[n]) {
                let at = turn.end_ns.into();
                self.out.counter(DEVICE, name, unit, at, new[n])?;
            }
        }
        Ok(())
    }

    /// Draws what is still open and ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<About> {
        let (about, out) = self.end()?;
        out.finish()?;
        Ok(about)
    }

    /// Ends the timeline, but leaves the file to be given its name.
    pub(super) fn end(mut self) -> Result<(About, files::Out)> {
        for mut step in std::mem::take(&mut self.flying) {
            step.args.unfinished = true;
            self.step_slice(&step, self.last_ns)?;
            self.collected_ns = self.last_ns;
        }
        self.requests.finish(&mut self.out, self.last_ns)?;
        let gpu_clocks = match &mut self.passing {
            Some(passing) => passing.finish(&mut self.out)?,
            None => None,
        };
        let header = &self.header;
        let about = About {
            format: "tailgraph trace".to_owned(),
            version: VERSION,
            source: self.source.clone(),
            model: header.model.clone(),
            device: header.device.clone(),
            dtype: header.dtype.clone(),
            launch: header.launch.clone(),
            engine: header.engine.clone(),
            clock: clock_of(header),
            zero_ns: self.out.zero_ns() as i64,
            host_clock: self.host_clock.clone(),
            notes: notes(
                header.engine.stages,
                self.parts.is_some(),
                self.passing.is_some(),
                self.host_clock == HostClock::Absent,
            ),
            turns: self.turns,
            steps: self.replayer.steps(),
            requests: self.requests.asked,
            ended: self.requests.ended,
            tokens: self.tokens,
            complete: self.complete,
            kernels: self.parts.map(Parts::finish),
            gpu_clocks,
        };
        let out = self.out.end(&about)?;
        Ok((about, out))
    }
}
