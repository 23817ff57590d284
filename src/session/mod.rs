//! A model as a program uses it: from what a run is to be ([`RunSpec`]) to answers as they come ([`Session`]). The command
//! line is one such program.
//!
//! - [`spec`]: what is chosen about a run; [`target`]: its device, opened; [`sizes`]: what it wants of its memory
//! - [`opened`]: a model with its sizes, and engines for it; `score` and `bench` need no more
//! - [`texts`]: tokenizer, chat template and rules for questions (`eos`: what ends answers)
//! - [`answering`]: [`Session`], a handle to all of that with a running engine, which the thread of `serving` drives;
//!   [`sequences`]: tokens and texts of what runs there
//! - [`echoing`]: an engine whose requests may ask for their prompts' logprobs, which all of these have; [`guest`]: an engine for a job, that is a session's
//! - [`prefixes`]: which prompts begin alike, so that what they share is computed once
//! - [`job`]: the loop of `generate` over rows, whose [`failures`] it counts; [`scoring`]: that of `score` over prompts
//! - [`Progress`]: how far such a loop is, on standard error
//! - [`forecast`]: how long a job would take
//! - [`recording`]: an engine whose run is kept; [`identity`]: what the answers of a run depend on
//!
//! Uses `trace`, `io`, `text`, `runtime` and what stands below; knows no command line.

pub mod answering;
pub mod echoing;
mod eos;
pub mod failures;
pub mod forecast;
pub mod guest;
pub mod identity;
pub mod job;
pub mod opened;
pub mod prefixes;
pub mod progress;
pub mod recording;
pub mod scoring;
pub mod sequences;
mod serving;
pub mod sizes;
pub mod spec;
pub mod target;
pub mod texts;

pub use answering::{Answer, Question, Session, Unanswered};
pub use opened::Opened;
pub use progress::{Counts, Progress};
pub use serving::{Output, Told};
pub use spec::{DeviceSpec, GpuSpec, Parallel, RunSpec};
pub use target::Target;
pub use texts::Texts;
