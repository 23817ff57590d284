//! Finds the step that does not end. It looks at what the scheduler posted before it launched the step, so it works
//! for a device that the host cannot ask.

use crate::plan::StepKind;
use crate::plan::memory::plural;
use crate::sys::abi::tg_status;
use std::time::{Duration, Instant};

/// What stands still while it is seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Standing {
    /// A step runs.
    Step(tg_status),
    /// Requests wait, nothing runs, and the scheduler takes none of them.
    Scheduler,
}

/// Compares what it sees with what it saw.
#[derive(Debug)]
pub(super) struct Watchdog {
    limit: Duration,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Steps composed and the stage, for a step.
    what: Option<(u64, u64)>,
    last: Instant,
    standing: Duration,
}

impl Watchdog {
    /// `limit`: how long one stage of one step may take.
    pub fn new(limit: Duration) -> Self {
        Self { limit, seen: None }
    }

    /// `standing` is what does so at `now`, if anything does. What is wrong, in one line, once the limit is past.
    ///
    /// Between two looks at most a quarter of the limit counts: a process that was stopped meanwhile, or busy
    /// elsewhere, has not watched.
    pub fn look(&mut self, standing: Option<Standing>, now: Instant) -> Option<String> {
        let Some(standing) = standing else {
            self.seen = None;
            return None;
        };
        let what = match standing {
            Standing::Step(step) => Some((step.steps, step.stage)),
            Standing::Scheduler => None,
        };
        let time = match &self.seen {
            Some(seen) if seen.what == what => {
                let since = now.saturating_duration_since(seen.last);
                seen.standing + since.min(self.limit / 4)
            }
            _ => Duration::ZERO,
        };
        self.seen = Some(Seen {
            what,
            last: now,
            standing: time,
        });
        let (seconds, limit) = (time.as_secs_f64(), self.limit.as_secs_f64());
        (time > self.limit).then(|| match standing {
            Standing::Step(step) => format!(
                "{} has been running for {seconds:.1} s, expected at most {limit:.1} s: a kernel is stuck, or the device \
                 is far slower than it should be; end other work on it and run again",
                describe(&step)
            ),
            Standing::Scheduler => format!(
                "the scheduler has taken no request for {seconds:.1} s although some wait, expected a turn within \
                 {limit:.1} s: the device accepted its launch and does nothing; end other work on it and run again"
            ),
        })
    }
}

/// The step that a status is about: number, stage, kind and bucket. Two in flight have the same rows.
pub(super) fn describe(status: &tg_status) -> String {
    let kind = StepKind::ALL
        .into_iter()
        .find(|&kind| kind as u64 == status.kind)
        .map_or("unknown", StepKind::name);
    let newest = status.steps.wrapping_sub(1);
    let number = match status.in_flight {
        0 | 1 => newest.to_string(),
        2 => format!("{} or {newest}", newest.wrapping_sub(1)),
        more => format!("{} to {newest}", newest.wrapping_sub(more - 1)),
    };
    format!(
        "step {number} (stage {}, {kind} bucket of {} {}, {} used)",
        status.stage,
        status.bucket_rows,
        plural(status.bucket_rows as usize, "token"),
        status.rows
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(steps: u64, stage: u64) -> Option<Standing> {
        Some(Standing::Step(tg_status {
            steps,
            stage,
            kind: 1,
            bucket_rows: 512,
            rows: 300,
            ..Default::default()
        }))
    }

    /// Looks every 20 ms from `first` to `last`, both in ms; only the last may find anything.
    fn looks(
        watchdog: &mut Watchdog,
        what: Option<Standing>,
        first: u64,
        last: u64,
    ) -> Option<String> {
        let start = *START;
        let at = |ms| start + Duration::from_millis(ms);
        for ms in (first..last).step_by(20) {
            assert_eq!(watchdog.look(what, at(ms)), None, "at {ms} ms");
        }
        watchdog.look(what, at(last))
    }

    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

    #[test]
    fn only_a_step_that_stands_still_is_named() {
        let mut watchdog = Watchdog::new(Duration::from_millis(100));
        assert_eq!(looks(&mut watchdog, None, 0, 1000), None);
        assert_eq!(
            looks(&mut watchdog, step(1, 0), 1000, 1100),
            None,
            "at the limit"
        );
        // The next step, the next stage and a rest begin the time anew.
        assert_eq!(looks(&mut watchdog, step(2, 0), 1120, 1200), None);
        assert_eq!(looks(&mut watchdog, step(2, 1), 1220, 1320), None);
        assert_eq!(looks(&mut watchdog, None, 1321, 1321), None);
        let message = looks(&mut watchdog, step(2, 1), 1340, 1460).unwrap();
        assert!(
            message.contains("step 1 (stage 1, mixed bucket of 512 tokens, 300 used)")
                && message.contains("0.1 s"),
            "{message}"
        );
    }
    #[test]
    fn a_scheduler_that_takes_nothing_is_told_from_one_with_nothing_to_do() {
        let mut watchdog = Watchdog::new(Duration::from_millis(100));
        assert_eq!(looks(&mut watchdog, step(1, 0), 0, 80), None);
        assert_eq!(
            looks(&mut watchdog, Some(Standing::Scheduler), 100, 200),
            None
        );
        let message = looks(&mut watchdog, Some(Standing::Scheduler), 220, 220).unwrap();
        assert!(message.contains("taken no request for 0.1 s"), "{message}");
    }

    /// A process that is stopped and goes on after a minute finds its step where it was: neither has moved.
    #[test]
    fn time_in_which_nobody_looked_hardly_counts() {
        let mut watchdog = Watchdog::new(Duration::from_millis(100));
        assert_eq!(looks(&mut watchdog, step(1, 0), 0, 0), None);
        assert_eq!(looks(&mut watchdog, step(1, 0), 60_000, 60_060), None);
        assert!(looks(&mut watchdog, step(1, 0), 60_080, 60_080).is_some());
    }
}
