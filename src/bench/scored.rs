//! Where the logits of `bench score` go: into a comparison where one is asked for.

use super::row::Verdict;
use crate::backend::LogitsSink;
use crate::error::Result;
use crate::io::expect::Comparison;
use crate::io::logits::ScoreSink;
use crate::io::target::LogitsTarget;
use crate::io::tensors::TensorFile;
use parking_lot::Mutex;
use std::path::PathBuf;

/// What runs are compared with.
pub struct Expected {
    pub file: PathBuf,
    pub targets: Vec<LogitsTarget>,
    pub vocab_size: usize,
    pub tolerance: f64,
    pub last_only: bool,
}

/// Takes the logits of one run after the other.
#[derive(Default)]
pub struct Scored {
    /// The comparison of the run that goes on, and the number of its first request. None: logits are dropped.
    current: Mutex<Option<(u64, ScoreSink)>>,
}

impl Scored {
    /// Compares the run that begins with request number `first`.
    ///
    /// # Errors
    /// The file cannot be read, or has not what is compared.
    pub fn expect(&self, first: u64, expected: &Expected) -> Result<()> {
        let comparison = Comparison::new(
            TensorFile::open(&expected.file)?,
            &expected.targets,
            expected.vocab_size,
            expected.tolerance,
            expected.last_only,
        )?;
        let targets = expected.targets.clone();
        let sink = ScoreSink::new(targets, expected.vocab_size, None, Some(comparison), None);
        *self.current.lock() = Some((first, sink));
        Ok(())
    }

    /// That of the run that has ended.
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
