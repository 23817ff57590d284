//! Stages that run on threads of the host side by side: each is timed where it runs, since the scheduler's records only
//! say when a step set out and when it came back.

use super::writer::Item;
use crate::backend::{StageBackend, StepView};
use crate::error::Result;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

struct Timed {
    inner: Box<dyn StageBackend>,
    stage: u32,
    send: SyncSender<Item>,
}

impl StageBackend for Timed {
    fn row_floats(&self) -> usize {
        self.inner.row_floats()
    }

    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        let number = step.header().number;
        let from = Instant::now();
        self.inner.run(step)?;
        // Nobody listens once the trace has failed; its own error says so.
        let during = (from, Instant::now());
        let _ = self.send.send(Item::Stage(self.stage, number, during));
        Ok(())
    }
}

/// `stages` with a clock around each. A single stage needs none.
pub(super) fn timed(
    stages: Vec<Box<dyn StageBackend>>,
    send: &SyncSender<Item>,
) -> Vec<Box<dyn StageBackend>> {
    if stages.len() < 2 {
        return stages;
    }
    let timed = |(stage, inner)| {
        Box::new(Timed {
            inner,
            stage,
            send: send.clone(),
        }) as Box<dyn StageBackend>
    };
    (0..).zip(stages).map(timed).collect()
}
