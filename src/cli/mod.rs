//! The commands: flags in, results on standard output, everything else on standard error.
//!
//! - [`args`]: the one clap definition, which completions and the man page come from too
//! - [`settings`]: flags that several commands share, checked
//! - [`generate`], [`score`]: the two commands that run a model; [`job`] and [`scoring`] are their loops
//! - [`device`]: what those loops ask of an engine, so that they can be tested without one
//!
//! Top of the arrows: may use everything, nothing uses it but `main`.

pub mod args;
pub mod device;
pub mod interrupt;
pub mod job;

/// How a command ended, if not by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything asked for was done.
    Done,
    /// Some rows failed; the others were served.
    RowsFailed,
    /// `--expect` disagreed.
    Disagreed,
    /// Interrupted; what was done is written.
    Interrupted,
}

impl Exit {
    /// The process's exit code; fatal errors (1) and wrong usage (2) are [`crate::Error`]s.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::RowsFailed => 3,
            Self::Disagreed => 4,
            Self::Interrupted => 130,
        }
    }
}
