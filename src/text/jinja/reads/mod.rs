//! What a template reads: whether it can show tools and calls, and whether it takes a message's content as a text or
//! as a list of parts. As vLLM does, this is told from the template's tree.
//!
//! - `content`: follows messages through the template and notes what is done with their contents
//! - `names`: what the template's names stand for
//! - `shape`: what a value may be

mod content;
mod names;
mod shape;

use std::collections::HashSet;

use minijinja::machinery::ast::Stmt;

/// The form in which a template takes a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Takes {
    /// It is only ever printed, joined or used as a text otherwise.
    Text,
    /// It is only ever gone through, or taken apart.
    Parts,
    /// The template tells them apart, or treats it as each in different places.
    Both,
    /// The template never reads it, prints whole messages, or does with it what cannot be followed.
    #[default]
    Unknown,
}

/// Names, attributes and texts of a template, and how it takes contents.
#[derive(Debug, Default, Clone)]
pub struct Reads {
    variables: HashSet<String>,
    texts: HashSet<String>,
    takes: Takes,
    whole_messages: bool,
}

impl Reads {
    pub(super) fn of(tree: &Stmt<'_>) -> Self {
        let (takes, whole_messages) = content::follow(tree);
        Self {
            takes,
            whole_messages,
            ..Self::default()
        }
    }

    /// Whether the template reads a variable of this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether it may read a message's field of this name.
    pub fn has_field(&self, name: &str) -> bool {
        self.whole_messages || self.texts.contains(name)
    }

    /// The form in which it takes a message's content.
    pub fn takes(&self) -> Takes {
        self.takes
    }

    pub(super) fn variable(&mut self, name: &str) {
        self.variables.insert(name.to_owned());
    }

    pub(super) fn text(&mut self, text: &str) {
        if text.len() <= 64 {
            self.texts.insert(text.to_owned());
        }
    }
}
