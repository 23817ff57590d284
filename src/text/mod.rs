//! Text on its way in and out of a model.
//!
//! On the way in, [`ChatTemplate`] renders a [`Chat`] as a prompt by minijinja (`jinja`), and [`Tokenizer`] encodes text by
//! the `tokenizers` crate, with the tokens that files beside tokenizer.json add (`special`); [`class`] says what
//! `tokenizer_class` may be. On the way out, `decoder` says which bytes each id writes, [`StopMatcher`] finds stop strings
//! in them, and [`TextStream`] is the text of one sequence as it becomes certain.
//!
//! [`Threads`] gives this work a deadline. Nothing here knows requests, files of rows or models: of the rest of the crate
//! only `error`, `json`, `magic` and `quote` are used.

mod byte;
mod chat;
pub mod class;
mod conversation;
mod decoder;
mod files;
mod jinja;
mod special;
mod stop;
mod stream;
pub mod threads;
mod tokenizer;

pub use chat::ChatTemplate;
pub use conversation::{Chat, Doubt};
pub use jinja::{Clock, parse_time};
pub use stop::{StopMatcher, StopString};
pub use stream::{Progress, StreamEnd, TextStream};
pub use threads::{Late, Threads};
pub use tokenizer::Tokenizer;

use crate::error::said_by_panic;
use crate::quote;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a template could not be loaded or rendered, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unrendered {
    /// The template refuses the conversation, or is itself wrong: another try gives the same.
    Refused(String),
    /// The system gave no thread to work on: another try may succeed.
    NoThread(String),
}

impl From<String> for Unrendered {
    fn from(message: String) -> Self {
        Self::Refused(message)
    }
}

impl fmt::Display for Unrendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(message) | Self::NoThread(message)) = self;
        f.write_str(message)
    }
}

/// Runs code of the `tokenizers` and `minijinja` crates on files and text that nobody has checked. Both panic on some
/// inputs (a post-processor whose ids and tokens differ in number): a panic becomes an error of the row or file, and the
/// process goes on.
fn guarded<T>(what: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let before = GUARDED.replace(true);
    let ran = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(before);
    ran.unwrap_or_else(|panic| {
        let message = quote::message(said_by_panic(&*panic));
        Err(format!("{what} panicked: {message}"))
    })
}

thread_local!(static GUARDED: Cell<bool> = const { Cell::new(false) });

/// Whether a panic of this thread becomes an error, so that a panic hook need not print it.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_and_templates_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Tokenizer>();
        shared::<ChatTemplate>();
        shared::<TextStream>();
    }

    #[test]
    fn a_panic_becomes_an_error_on_one_line() {
        let error = guarded("it", || -> Result<(), String> { panic!("a\n b") });
        assert_eq!(error, Err("it panicked: a b".to_owned()));
    }
}
