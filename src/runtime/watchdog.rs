//! Finds the step that does not end. It looks at what the scheduler posted before it launched the step, so it works
//! for a device that the host cannot ask.

use crate::plan::StepKind;
use crate::sys::abi::tg_status;
use std::time::{Duration, Instant};

/// Compares what it sees with what it saw.
#[derive(Debug)]
pub(super) struct Watchdog {
    limit: Duration,
    /// Steps composed, the stage, and when both were first seen so.
    seen: Option<(u64, u64, Instant)>,
}

impl Watchdog {
    /// `limit`: how long one stage of one step may take.
    pub fn new(limit: Duration) -> Self {
        Self { limit, seen: None }
    }

    /// `step` is the one that runs at `now`, if one does. What is wrong, in one line, once the limit is past.
    pub fn look(&mut self, step: Option<tg_status>, now: Instant) -> Option<String> {
        let Some(step) = step else {
            self.seen = None;
            return None;
        };
        let since = match self.seen {
            Some((steps, stage, since)) if (steps, stage) == (step.steps, step.stage) => since,
            _ => now,
        };
        self.seen = Some((step.steps, step.stage, since));
        let running = now.saturating_duration_since(since);
        (running > self.limit).then(|| {
            format!(
                "{} has been running for {:.1} s, expected at most {:.1} s: a kernel is stuck, or the device is far \
                 slower than it should be; end other work on it and run again",
                describe(&step),
                running.as_secs_f64(),
                self.limit.as_secs_f64()
            )
        })
    }
}

/// The step that a status is about: number, stage, kind and bucket.
pub(super) fn describe(status: &tg_status) -> String {
    let kind = StepKind::ALL
        .into_iter()
        .find(|&kind| kind as u64 == status.kind)
        .map_or("unknown", StepKind::name);
    format!(
        "step {} (stage {}, {kind} bucket of {} rows, {} used)",
        status.steps.wrapping_sub(1),
        status.stage,
        status.bucket_rows,
        status.rows
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(steps: u64, stage: u64) -> Option<tg_status> {
        Some(tg_status {
            steps,
            stage,
            kind: 1,
            bucket_rows: 512,
            rows: 300,
            ..Default::default()
        })
    }

    #[test]
    fn only_a_step_that_stands_still_is_named() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut watchdog = Watchdog::new(Duration::from_millis(100));
        assert_eq!(watchdog.look(None, at(0)), None);
        assert_eq!(watchdog.look(step(1, 0), at(1000)), None);
        assert_eq!(watchdog.look(step(1, 0), at(1100)), None, "at the limit");
        // The next step, the next stage and a rest begin the time anew.
        assert_eq!(watchdog.look(step(2, 0), at(1150)), None);
        assert_eq!(watchdog.look(step(2, 1), at(1240)), None);
        assert_eq!(watchdog.look(step(2, 1), at(1340)), None);
        assert_eq!(watchdog.look(None, at(1341)), None);
        assert_eq!(watchdog.look(step(2, 1), at(1342)), None);
        let message = watchdog.look(step(2, 1), at(1443)).unwrap();
        assert!(
            message.contains("step 1 (stage 1, mixed bucket of 512 rows, 300 used)")
                && message.contains("0.1 s"),
            "{message}"
        );
    }
}
