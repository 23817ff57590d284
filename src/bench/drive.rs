//! One run: requests to an engine when they are due, and what the scheduler's clock said of each of their tokens.

use super::host::{Busy, process_time};
use super::workload::Arrival;
use crate::error::{Error, Result};
use crate::model::fingerprint;
use crate::runtime::{EndReason, Engine, Event, Request};
use crate::sys::abi;
use crate::telemetry::launches;
use crate::trace::offset::{Offset, host_ns};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an event is waited for with nothing to send; it comes sooner.
const WAIT: Duration = Duration::from_millis(20);
/// How long an event is waited for with something to send and no room for it in the rings.
const FULL_WAIT: Duration = Duration::from_micros(200);

/// What became of one request. Nanoseconds are the scheduler's clock where they are not said to be the host's.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    pub prompt_tokens: u32,
    /// Those of them that were computed for other requests.
    pub cached_tokens: u32,
    /// When it was due, or was sent where it had to wait for another one's end; from the start of the run, by the host's
    /// clock.
    pub due: Duration,
    /// First seen by the scheduler.
    pub seen_ns: u64,
    pub tokens: Vec<u32>,
    /// The time of the turn that collected each token.
    pub tokens_ns: Vec<u64>,
    pub end_ns: u64,
}

/// A turn of the scheduler that changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub start_ns: u64,
    pub end_ns: u64,
    /// The step that it composed, as `TG_KIND_*` and rows.
    pub step: Option<(u32, u32)>,
}

impl Run {
    /// SHA-256 of the generated tokens, request by request.
    pub fn outputs_sha256(&self) -> String {
        let of_request = |served: &Served| {
            let tokens = served.tokens.iter().flat_map(|token| token.to_le_bytes());
            let count = served.tokens.len() as u64;
            [count.to_le_bytes().to_vec(), tokens.collect()].concat()
        };
        fingerprint::of_parts(self.served.iter().map(of_request))
    }
}

impl From<&abi::tg_trace> for Turn {
    fn from(record: &abi::tg_trace) -> Self {
        let composed = record.outcome.action == abi::TG_ACTION_STEP;
        Self {
            start_ns: record.inputs.now_ns,
            end_ns: record.end_ns,
            step: composed.then_some((record.outcome.kind, record.outcome.rows)),
        }
    }
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// What was served, in the order of the requests.
    pub served: Vec<Served>,
    pub turns: Vec<Turn>,
    /// Turns that were written over before they were read.
    pub turns_lost: u64,
    /// From the first request that was sent to the last event, by the host's clock.
    pub duration: Duration,
    /// When it began, by the host's clock.
    pub start_ns: u64,
    pub offset: Offset,
    /// Processor time of this process without the threads that keep it busy.
    pub processor: Duration,
    /// Kernels and graphs that the host launched.
    pub launches: u64,
}

/// What holds for a run beside its requests.
pub struct Beside<'a> {
    /// The limit of [`super::Point`].
    pub most_in_flight: Option<u32>,
    /// What is known of the clocks already.
    pub offset: Offset,
    pub busy: Busy,
    pub interrupt: &'a AtomicBool,
}

impl<'a> Beside<'a> {
    /// Nothing but what may end the run.
    pub fn nothing(interrupt: &'a AtomicBool) -> Self {
        Self {
            most_in_flight: None,
            offset: Offset::default(),
            busy: Busy::default(),
            interrupt,
        }
    }
}

/// # Errors
/// [`Error::Interrupted`]
fn look(interrupt: &AtomicBool) -> Result<()> {
    if interrupt.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// Lets the device rest.
///
/// # Errors
/// [`Error::Interrupted`]
pub fn idle(mut left: Duration, interrupt: &AtomicBool) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(50);
    while !left.is_zero() {
        look(interrupt)?;
        let now = left.min(LOOK);
        std::thread::sleep(now);
        left -= now;
    }
    Ok(())
}

/// How many requests [`compare_clocks`] sends: the closest bounds of them all count, and together they take less than a millisecond.
pub const EXCHANGES: u64 = 16;

/// Compares the clocks of an engine where nothing is in flight, by requests that end at once.
///
/// # Errors
/// The engine's; [`Error::Interrupted`].
pub fn compare_clocks(engine: &mut dyn Engine, interrupt: &AtomicBool) -> Result<Offset> {
    let mut offset = Offset::default();
    let request = Request {
        timeout: Some(Duration::ZERO),
        ..super::workload::request(vec![0], 1, crate::runtime::Logits::None)
    };
    for _ in 0..EXCHANGES {
        let sent_ns = host_ns();
        engine.try_submit_all(&mut [&request].into_iter())?;
        loop {
            if let Some((time_ns, Event::End { timing, .. })) = engine.next_stamped(WAIT)? {
                offset.received(host_ns(), time_ns);
                offset.sent(sent_ns, time_ns - timing.total.as_nanos() as u64);
                break;
            }
            look(interrupt)?;
        }
    }
    Ok(offset)
}

/// Sends `arrivals` to an engine where nothing is in flight, and waits for all to end. `heard` gets all turns, those that an
/// earlier run has left included.
///
/// # Errors
/// The engine failed, or a request ended otherwise than by its length; [`Error::Interrupted`].
pub fn run(
    engine: &mut dyn Engine,
    arrivals: &[Arrival],
    beside: &Beside<'_>,
    heard: &mut dyn FnMut(&abi::tg_trace),
) -> Result<Run> {
    while let Some(record) = next_turn(engine) {
        heard(&record);
    }
    let lost_before = engine.traces_lost();
    let mut log = Log::new(arrivals, beside.most_in_flight);
    let used = || process_time().saturating_sub(beside.busy.time());
    let (processor, launches_before) = (used(), launches::count());
    let start = Instant::now();
    (log.run.start_ns, log.run.offset) = (host_ns(), beside.offset);
    while log.ended < arrivals.len() {
        look(beside.interrupt)?;
        let wait = send_due(engine, arrivals, &mut log, start)?;
        if let Some((time_ns, event)) = engine.next_stamped(wait)? {
            log.event(host_ns(), time_ns, &event)?;
        }
        while let Some(record) = next_turn(engine) {
            heard(&record);
            log.run.turns.push(Turn::from(&record));
        }
    }
    Ok(Run {
        duration: start.elapsed(),
        turns_lost: engine.traces_lost() - lost_before,
        processor: used().saturating_sub(processor),
        launches: launches::count() - launches_before,
        ..log.run
    })
}

/// A turn that has not been read. Those of several schedulers, whose clocks differ, are none that a run is told of.
fn next_turn(engine: &mut dyn Engine) -> Option<abi::tg_trace> {
    match engine.replicas() {
        1 => engine.next_turn(),
        _ => None,
    }
}

/// Sends all that is due and may be in flight, so that the scheduler sees it at once; how long until there is more to send.
fn send_due(
    engine: &mut dyn Engine,
    arrivals: &[Arrival],
    log: &mut Log,
    start: Instant,
) -> Result<Duration> {
    let (left, now) = (&arrivals[log.sent.len()..], start.elapsed());
    // They come in the order in which they are due.
    let due = left[..left.len().min(log.room())].partition_point(|next| next.due <= now);
    let numbers = engine.try_submit_all(&mut left[..due].iter().map(|next| &next.request))?;
    for number in numbers.clone() {
        log.sent(number, now);
    }
    if numbers.count() < due {
        return Ok(FULL_WAIT);
    }
    // One that waits for another one's end may have been due long ago; the event of that end comes first.
    let until = |next: &Arrival| WAIT.min(next.due.saturating_sub(now));
    let next = left.get(due).filter(|_| log.room() > 0);
    Ok(next.map_or(WAIT, until))
}

/// A run as far as it has come. Room for all of it is made before it starts.
struct Log {
    run: Run,
    /// When each request was sent, by the host's clock.
    sent: Vec<Duration>,
    /// Number of the first.
    first: u64,
    ended: usize,
    most_in_flight: Option<u32>,
}

impl Log {
    fn new(arrivals: &[Arrival], most_in_flight: Option<u32>) -> Self {
        let served = |arrival: &Arrival| Served {
            prompt_tokens: arrival.request.prompt.len() as u32,
            cached_tokens: 0,
            due: arrival.due,
            seen_ns: 0,
            tokens: Vec::with_capacity(arrival.request.max_new_tokens as usize),
            tokens_ns: Vec::with_capacity(arrival.request.max_new_tokens as usize),
            end_ns: 0,
        };
        let steps = arrivals.iter().map(|a| a.request.max_new_tokens).max();
        let turns = arrivals.len() * 2 + steps.unwrap_or(0) as usize * 2 + 64;
        Self {
            run: Run {
                served: arrivals.iter().map(served).collect(),
                turns: Vec::with_capacity(turns),
                ..Run::default()
            },
            sent: Vec::with_capacity(arrivals.len()),
            first: 0,
            ended: 0,
            most_in_flight,
        }
    }

    /// How many more may be sent now.
    fn room(&self) -> usize {
        let in_flight = self.sent.len() - self.ended;
        self.most_in_flight
            .map_or(usize::MAX, |most| (most as usize).saturating_sub(in_flight))
    }

    fn sent(&mut self, number: u64, at: Duration) {
        if self.sent.is_empty() {
            self.first = number;
        }
        if self.most_in_flight.is_some() {
            self.run.served[self.sent.len()].due = at;
        }
        self.sent.push(at);
    }

    fn event(&mut self, at_ns: u64, time_ns: u64, event: &Event) -> Result<()> {
        self.run.offset.received(at_ns, time_ns);
        let (Event::Token { request, .. } | Event::End { request, .. }) = event;
        let index = (request - self.first) as usize;
        let served = &mut self.run.served[index];
        match event {
            Event::Token { token, .. } => {
                served.tokens.push(*token);
                served.tokens_ns.push(time_ns);
            }
            Event::End { reason, timing, .. } => {
                if *reason != EndReason::Length {
                    return Err(Error::Runtime(format!(
                        "request {index} of {} prompt tokens ended with {reason:?} after {} tokens, expected its full length",
                        served.prompt_tokens,
                        served.tokens_ns.len()
                    )));
                }
                served.end_ns = time_ns;
                served.cached_tokens = timing.cached_tokens;
                served.seen_ns = time_ns - timing.total.as_nanos() as u64;
                let sent_ns = self.run.start_ns + self.sent[index].as_nanos() as u64;
                self.run.offset.sent(sent_ns, served.seen_ns);
                self.ended += 1;
            }
        }
        Ok(())
    }
}

/// Nanoseconds that taking one token down costs: what measuring adds to a run for each of them.
pub fn cost_ns() -> f64 {
    const TOKENS: u32 = 20_000;
    let arrival = Arrival {
        due: Duration::ZERO,
        request: super::workload::request(vec![0], TOKENS, crate::runtime::Logits::None),
    };
    let mut log = Log::new(&[arrival], None);
    log.sent(0, Duration::ZERO);
    let start = Instant::now();
    for index in 0..TOKENS {
        let event = std::hint::black_box(Event::Token {
            request: 0,
            token: 0,
            index,
            logprobs: None,
        });
        let noted = log.event(host_ns(), u64::from(index), &event);
        noted.expect("a token is always noted");
    }
    std::hint::black_box(&log.run);
    start.elapsed().as_nanos() as f64 / f64::from(TOKENS)
}
