//! Where the logits of `bench score` go: into a comparison where one is asked for.

use super::work::Work;
use crate::backend::LogitsSink;
use crate::bench::row::Verdict;
use crate::command::values::Positions;
use crate::error::Result;
use crate::io::expect::{Comparison, default_tolerance};
use crate::io::logits::ScoreSink;
use crate::io::target::LogitsTarget;
use crate::io::tensors::TensorFile;
use crate::session::Opened;
use parking_lot::Mutex;
use std::path::PathBuf;

/// Takes the logits of one run after the other.
#[derive(Default)]
pub struct Scored {
    /// The comparison of the run that goes on, and the number of its first request. None: logits are dropped.
    current: Mutex<Option<(u64, ScoreSink)>>,
}

/// What runs are compared with.
pub struct Expected {
    pub file: PathBuf,
    pub targets: Vec<LogitsTarget>,
    pub vocab_size: usize,
    pub tolerance: f64,
    pub last_only: bool,
}

impl Work<'_> {
    /// What `--expect` names.
    pub fn expected(&self, opened: &Opened) -> Option<Expected> {
        let (file, samples) = (self.args.expect.as_ref()?, self.samples.as_ref()?);
        Some(Expected {
            file: file.clone(),
            targets: samples.iter().map(LogitsTarget::of).collect(),
            vocab_size: self.config.vocab_size,
            tolerance: default_tolerance(opened.spec.device.dtype()),
            last_only: self.args.logits == Positions::Last,
        })
    }
}

impl Scored {
    /// Compares the run that begins with request number `first`.
    pub fn expect(&self, first: u64, expected: &Expected) -> Result<()> {
        let comparison = Comparison::new(
            TensorFile::open(&expected.file)?,
            &expected.targets,
            expected.vocab_size,
            expected.tolerance,
            expected.last_only,
        )?;
        let sink = ScoreSink::new(
            expected.targets.clone(),
            expected.vocab_size,
            None,
            Some(comparison),
            None,
        );
        *self.current.lock() = Some((first, sink));
        Ok(())
    }

    /// Of the run that has ended.
    pub fn verdict(&self) -> Option<Verdict> {
        let (_, sink) = self.current.lock().take()?;
        let comparison = sink.comparison()?;
        let (top1_agreeing, top1_total) = comparison.agreement();
        Some(Verdict {
            valid: Some(comparison.is_valid()),
            top1_agreeing: Some(top1_agreeing),
            top1_total: Some(top1_total),
        })
    }
}

impl LogitsSink for Scored {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        match &*self.current.lock() {
            Some((first, sink)) => sink.rows(request - first, first_position, logits),
            None => Ok(()),
        }
    }
}
