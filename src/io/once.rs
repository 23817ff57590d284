//! Warnings of questions, each said once: of fields that nothing reads, and of what a chat template does not show.

use super::row::{Code, RowError};
use crate::quote;
use crate::text::Doubt;
use std::collections::HashSet;
use std::fmt::Display;

/// Names are warned of once, as long as they are few.
const NAMES_AT_MOST: usize = 32;

/// What was warned of.
pub struct Once {
    warn: Box<dyn FnMut(&str) + Send>,
    ignored: HashSet<String>,
    /// What a chat template does not show.
    doubted: HashSet<String>,
}

impl Once {
    pub fn new(warn: Box<dyn FnMut(&str) + Send>) -> Self {
        Self {
            warn,
            ignored: HashSet::new(),
            doubted: HashSet::new(),
        }
    }

    /// Warns of something that is not said once.
    pub fn warn(&mut self, message: &str) {
        (self.warn)(message);
    }

    /// Warns of fields that nothing reads. `place`: whose they are.
    pub fn ignored(&mut self, place: impl Display, names: &[String]) {
        for name in names {
            if self.ignored.len() < NAMES_AT_MOST && self.ignored.insert(name.clone()) {
                self.warn(&format!(
                    "{place}: field \"{name}\" is not known and is ignored (said once)"
                ));
            }
        }
    }

    /// Warns of what the chat template may not show.
    pub fn doubts(&mut self, place: impl Display, doubts: Vec<Doubt>) {
        for Doubt { name, why } in doubts {
            if self.doubted.len() < NAMES_AT_MOST && self.doubted.insert(name.clone()) {
                self.warn(&format!(
                    "{place}: {}: {why} (said once)",
                    quote::text(name)
                ));
            }
        }
    }
}

/// The error of a question with fields that nothing reads, where there are to be none.
pub fn strict(names: &[String]) -> Option<RowError> {
    let name = names.first()?;
    Some(Code::Unsupported.error(format!(
        "{}: found a field that is not known, expected none with --strict",
        quote::text(name)
    )))
}
