//! Stages that time their operations, and the channel that the times come out of.

use crate::backend::timing::{Part, PartTime, StepClock, StepTimes, is_timed};
use crate::error::Result;
use crate::plan::Op;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// A stage's own clock.
pub struct Timer {
    zero: Instant,
    send: Sender<StepTimes>,
    stage: u32,
    parts: Arc<[Part]>,
    at: Vec<PartTime>,
    timed: bool,
}

/// Where the times of all stages come out, those of a stage in the order of its steps.
pub struct CpuClock {
    zero: Instant,
    receive: Receiver<StepTimes>,
}

/// A timer for each stage's operations, by stage.
pub fn timers<'a>(stages: impl Iterator<Item = &'a [Op]>) -> (Vec<Timer>, CpuClock) {
    let zero = Instant::now();
    let (send, receive) = channel();
    let part = |&op: &Op| Part {
        ops: vec![op],
        index: 0,
        count: 1,
        kernel: None,
    };
    let timer = |(stage, ops): (u32, &[Op])| Timer {
        zero,
        send: send.clone(),
        stage,
        parts: ops.iter().map(part).collect(),
        at: Vec::with_capacity(ops.len()),
        timed: false,
    };
    let timers = (0..).zip(stages).map(timer).collect();
    (timers, CpuClock { zero, receive })
}

impl Timer {
    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    pub fn begin(&mut self, step: u64) {
        self.timed = is_timed(step);
        self.at.clear();
    }

    /// The next operation begins.
    pub fn operation(&mut self) {
        if self.timed {
            let now = self.now_ns();
            self.at.push(PartTime {
                waits_ns: now,
                ready_ns: now,
            });
        }
    }

    /// All operations of the step are done.
    pub fn end(&mut self, step: u64) {
        let times = StepTimes {
            stage: self.stage,
            step,
            parts: self.parts.clone(),
            at: self.at.clone(),
            end_ns: self.now_ns(),
        };
        // Nobody listens once the trace has failed; its own error says so.
        let _ = self.send.send(times);
    }
}

impl StepClock for CpuClock {
    fn next(&mut self) -> Result<Option<StepTimes>> {
        Ok(self.receive.try_recv().ok())
    }

    fn zero(&self) -> Option<Instant> {
        Some(self.zero)
    }

    fn lost(&self) -> u64 {
        0
    }
}
