//! Text on its way in and out of a model.
//!
//! In: [`ChatTemplate`] turns a [`Chat`] into a prompt, [`Tokenizer`] turns text into ids: the `tokenizers` crate, with
//! the tokens that files beside tokenizer.json add (`special`); [`class`] says what their `tokenizer_class` may be.
//! Out: `decoder` says what each id writes, [`StopMatcher`] finds stop strings in it, and [`TextStream`] is the text of
//! one sequence as it becomes certain.
//!
//! [`Threads`] gives all of it a deadline. Nothing here knows requests, files of rows or models; only `error` and `json` are used from the rest of the crate.

mod byte;
pub mod chat;
pub mod class;
pub mod conversation;
mod decoder;
mod files;
mod jinja;
mod special;
pub mod stop;
pub mod stream;
pub mod threads;
pub mod tokenizer;

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

/// Why there is no text of a conversation, or no template of a source, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unrendered {
    /// What the template has against it, or what is against the template: another try gives the same.
    Refused(String),
    /// The system gave no thread to do it on: another try may succeed.
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

/// Runs code of the `tokenizers` and `minijinja` crates on files and text that nobody has checked. Both have
/// inputs they panic on (a post-processor whose ids and tokens differ in number): such an input is one row's or one file's error, not the end of the process.
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

/// Does this thread run what becomes an error where it panics? A panic hook need not say so then.
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
