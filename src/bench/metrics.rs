//! From runs to figures.

use super::drive::{Run, Served, Turn};
use super::gpu_state::Look;
use super::host::thread_time;
use super::{Kind, Point};
use crate::error::{Error, Result};
use crate::sys::abi;
use std::time::{Duration, Instant};

/// What one run came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    /// What a rate is counted over: of `decode` the steps that all sequences are in, with their tokens; of
    /// `prefill` the prompts' tokens until the last first token; of `score` until the last end; of `serve` the generated
    /// tokens until the last end.
    pub counted_tokens: f64,
    pub counted_ns: f64,
    /// The whole run by the host's clock.
    pub duration_s: f64,
    pub completed: usize,
    pub input_tokens: u64,
    /// Those of them that were shared; `None`: prompts had nothing in common.
    pub cached_tokens: Option<u64>,
    pub output_tokens: u64,
    /// Latencies of requests and of their tokens, from when to when [`super::row::Ttft`] and its neighbours say.
    pub ttft_ms: Vec<f64>,
    pub tpot_ms: Vec<f64>,
    pub itl_ms: Vec<f64>,
    pub e2el_ms: Vec<f64>,
    /// From the turn that composed a decode step of the whole batch to the turn that composed the next one.
    pub step_ms: Vec<f64>,
    /// The scheduler's turns between those.
    pub turn_us: Vec<f64>,
    pub processor_s: f64,
    pub launches: u64,
    pub energy_j: Option<f64>,
    /// What the GPU was seen at meanwhile.
    pub gpu: Vec<Look>,
    /// How far off times may be that begin by the host's clock (`ttft`, `e2el`).
    pub clock_uncertainty_us: f64,
    pub turns_lost: u64,
    /// SHA-256 of the generated tokens, request by request.
    pub outputs_sha256: String,
}

impl Figures {
    /// Tokens that costs are counted for: the generated ones, or the prompts' where nearly none are.
    pub fn tokens(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Prefill | Kind::Score => self.input_tokens as f64,
            Kind::Decode | Kind::Serve => self.output_tokens as f64,
        }
    }

    pub fn tokens_per_s(&self) -> f64 {
        self.counted_tokens / self.counted_ns * 1e9
    }

    pub fn requests_per_s(&self) -> f64 {
        self.completed as f64 / self.duration_s
    }

    pub fn output_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.duration_s
    }

    /// Tokens and ends that were noted as they came.
    pub fn noted(&self) -> usize {
        self.ttft_ms.len() + self.itl_ms.len() + self.e2el_ms.len()
    }

    /// Adds `launches` in a row of a step's graph of `batch` sequences, which `launch` does and waits for; it says how long they
    /// took. Nobody schedules them, so there are steps and no requests: each time is the mean of the launches in a row.
    ///
    /// # Errors
    /// What `launch` gives.
    pub fn time_bare(
        &mut self,
        batch: u32,
        launches: u32,
        launch: impl FnOnce() -> Result<Duration>,
    ) -> Result<()> {
        let (start, used) = (Instant::now(), thread_time());
        let took = launch()?;
        self.processor_s += thread_time().saturating_sub(used).as_secs_f64();
        self.duration_s += start.elapsed().as_secs_f64();
        self.launches += u64::from(launches);
        self.output_tokens += u64::from(launches) * u64::from(batch);
        let each_ms = took.as_secs_f64() * 1e3 / f64::from(launches);
        self.step_ms.push(each_ms);
        self.counted_tokens += f64::from(batch);
        self.counted_ns += each_ms * 1e6;
        Ok(())
    }
}

/// The figures of a run of `point`.
///
/// # Errors
/// [`Error::Usage`] where it was too short to show what is asked.
pub fn figures(point: &Point, run: &Run) -> Result<Figures> {
    let served = &run.served;
    let (offset_ns, uncertainty_ns) = run.offset.estimate_ns().ok_or_else(|| {
        Error::Runtime("a run without requests shows nothing: expected at least one".into())
    })?;
    let since_due_ms = |request: &Served, at_ns: u64| {
        let since_start_ns = at_ns
            .wrapping_sub(offset_ns as u64)
            .wrapping_sub(run.start_ns) as i64;
        (since_start_ns as f64 - request.due.as_nanos() as f64) / 1e6
    };
    let mut figures = Figures {
        duration_s: run.duration.as_secs_f64(),
        completed: served.len(),
        processor_s: run.processor.as_secs_f64(),
        launches: run.launches,
        clock_uncertainty_us: uncertainty_ns as f64 / 1e3,
        turns_lost: run.turns_lost,
        cached_tokens: point.shared.map(|_| {
            let cached = served.iter().map(|request| request.cached_tokens);
            cached.map(u64::from).sum()
        }),
        ..Figures::default()
    };
    for request in served {
        figures.input_tokens += u64::from(request.prompt_tokens);
        figures.output_tokens += request.tokens_ns.len() as u64;
        figures.e2el_ms.push(since_due_ms(request, request.end_ns));
        if let [first, .., last] = request.tokens_ns[..] {
            let after = (request.tokens_ns.len() - 1) as f64;
            figures.tpot_ms.push((last - first) as f64 / 1e6 / after);
        }
        let first = request.tokens_ns.first();
        figures
            .ttft_ms
            .extend(first.map(|&at_ns| since_due_ms(request, at_ns)));
        let pairs = request.tokens_ns.windows(2);
        let gaps_ms = pairs.map(|pair| (pair[1] - pair[0]) as f64 / 1e6);
        figures.itl_ms.extend(gaps_ms);
    }
    if point.kind == Kind::Decode {
        (figures.step_ms, figures.turn_us) = whole_steps(&run.turns, point.batch);
        if figures.step_ms.is_empty() {
            return Err(Error::Usage(format!(
                "{} sequences were never all in two decode steps, one right after the other: expected more than {} new tokens \
                 (--gen-len)",
                point.batch, point.new_tokens
            )));
        }
    }
    (figures.counted_tokens, figures.counted_ns) = counted(point.kind, served, &figures);
    Ok(figures)
}

/// Tokens and nanoseconds that the rate is made of.
fn counted(kind: Kind, served: &[Served], figures: &Figures) -> (f64, f64) {
    let begin = served.iter().map(|request| request.seen_ns).min();
    let ends = served.iter().map(|request| request.end_ns).max();
    let firsts = served.iter().filter_map(|r| r.tokens_ns.first().copied());
    let since_begin = |end: Option<u64>| (end.unwrap_or(0) - begin.unwrap_or(0)) as f64;
    match kind {
        Kind::Decode => {
            let steps = figures.step_ms.len() as f64;
            let rows = figures.completed as f64;
            (steps * rows, figures.step_ms.iter().sum::<f64>() * 1e6)
        }
        Kind::Prefill => (figures.input_tokens as f64, since_begin(firsts.max())),
        Kind::Score => (figures.input_tokens as f64, since_begin(ends)),
        Kind::Serve => (figures.output_tokens as f64, since_begin(ends)),
    }
}

/// Milliseconds of the decode steps that `batch` sequences are in, each followed at once by another such, and
/// microseconds of the turns between.
fn whole_steps(turns: &[Turn], batch: u32) -> (Vec<f64>, Vec<f64>) {
    let whole = |turn: &Turn| turn.step == Some((abi::TG_KIND_DECODE, batch));
    let pairs = turns.windows(2).filter(|pair| pair.iter().all(whole));
    pairs
        .map(|pair| {
            let step_ms = (pair[1].start_ns - pair[0].start_ns) as f64 / 1e6;
            let turn_us = (pair[1].end_ns - pair[1].start_ns) as f64 / 1e3;
            (step_ms, turn_us)
        })
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::offset::Offset;

    const MS: u64 = 1_000_000;

    /// Two sequences: the second is due 1 ms after the first; the scheduler's clock is 500 ms ahead of the host's.
    fn run() -> Run {
        let mut offset = Offset::default();
        offset.sent(0, 500 * MS);
        offset.received(20 * MS, 520 * MS);
        let decode = |start_ns: u64, rows| Turn {
            start_ns,
            end_ns: start_ns + 5000,
            step: Some((abi::TG_KIND_DECODE, rows)),
        };
        Run {
            served: vec![
                Served {
                    prompt_tokens: 4,
                    cached_tokens: 0,
                    due: Duration::ZERO,
                    seen_ns: 500 * MS,
                    tokens: vec![],
                    tokens_ns: vec![502 * MS, 504 * MS, 506 * MS, 509 * MS],
                    end_ns: 509 * MS,
                },
                Served {
                    prompt_tokens: 6,
                    cached_tokens: 0,
                    due: Duration::from_millis(1),
                    seen_ns: 502 * MS,
                    tokens: vec![],
                    tokens_ns: vec![504 * MS, 506 * MS, 509 * MS],
                    end_ns: 510 * MS,
                },
            ],
            turns: vec![
                decode(502 * MS, 1),
                decode(504 * MS, 2),
                decode(506 * MS, 2),
                decode(509 * MS, 2),
                Turn {
                    start_ns: 510 * MS,
                    end_ns: 510 * MS,
                    step: None,
                },
                decode(511 * MS, 2),
            ],
            turns_lost: 0,
            duration: Duration::from_millis(20),
            start_ns: 0,
            offset,
            processor: Duration::from_millis(3),
            launches: 14,
        }
    }

    fn point(kind: Kind) -> Point {
        Point::of(kind, 2, 4, 4)
    }

    #[test]
    fn latencies_of_known_tokens() {
        let figures = figures(&point(Kind::Serve), &run()).unwrap();
        assert_eq!(figures.ttft_ms, [2.0, 3.0]);
        assert_eq!(figures.e2el_ms, [9.0, 9.0]);
        assert_eq!(figures.itl_ms, [2.0, 2.0, 3.0, 2.0, 3.0]);
        assert_eq!(figures.tpot_ms, [7.0 / 3.0, 2.5]);
        assert_eq!((figures.input_tokens, figures.output_tokens), (10, 7));
        assert_eq!((figures.counted_tokens, figures.counted_ns), (7.0, 10e6));
        assert_eq!(figures.clock_uncertainty_us, 0.0);
        assert!(figures.step_ms.is_empty());
    }

    #[test]
    fn rates_of_each_kind() {
        let of = |kind| figures(&point(kind), &run()).unwrap();
        let decode = of(Kind::Decode);
        assert_eq!(decode.step_ms, [2.0, 3.0]);
        assert_eq!(decode.turn_us, [5.0, 5.0]);
        assert_eq!(decode.tokens_per_s(), 4.0 / 5e-3);
        let prefill = of(Kind::Prefill);
        assert_eq!(prefill.tokens_per_s(), 10.0 / 4e-3);
        assert_eq!(prefill.tokens(Kind::Prefill), 10.0);
        assert_eq!(of(Kind::Score).tokens_per_s(), 10.0 / 10e-3);
    }

    #[test]
    fn a_bare_step_is_the_mean_of_its_launches() {
        let mut figures = Figures::default();
        for _ in 0..2 {
            let sleep = || {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(20));
                Ok(start.elapsed())
            };
            figures.time_bare(4, 10, sleep).unwrap();
        }
        assert_eq!((figures.step_ms.len(), figures.launches), (2, 20));
        assert!(figures.step_ms.iter().all(|&ms| ms >= 2.0), "{figures:?}");
        assert_eq!((figures.output_tokens, figures.counted_tokens), (80, 8.0));
        let ms: f64 = figures.step_ms.iter().sum();
        assert!((figures.tokens_per_s() - 8.0 / ms * 1e3).abs() < 1e-6);
        assert!(
            (figures.duration_s - ms / 100.0).abs() < 1e-3,
            "{figures:?}"
        );
        assert!(figures.processor_s < 0.5 * figures.duration_s, "it slept");
        assert_eq!((figures.noted(), figures.completed), (0, 0));
    }

    #[test]
    fn a_batch_that_was_never_whole_is_said() {
        let three = Point {
            batch: 3,
            ..point(Kind::Decode)
        };
        let message = figures(&three, &run()).unwrap_err().to_string();
        assert!(message.contains("--gen-len"), "{message}");
    }
}
