//! Chat templates, rendered by minijinja to the text that transformers renders by Python's Jinja2.
//!
//! - `source`: what is done to a template's text before minijinja parses it
//! - `value`: values that behave differently in Python and in minijinja
//! - `print`: the texts of values, as Python's `str` and as JSON
//! - `python`: filters, tests and methods that differ in minijinja, or are missing there
//! - `clock`: the time that a template shows
//! - `reads`: what a template reads of its variables
//!
//! A template is untrusted. Its size, its steps and the bytes that it makes are bounded (minijinja's fuel counts the last
//! two), and [`super::Threads`] bounds its time. Parsing and rendering run on a stack that is deep enough for what these
//! bounds allow. Where a template uses what differs from Jinja2, the error quotes the expression.

mod clock;
mod print;
mod python;
mod reads;
mod source;
mod value;

use super::{Unrendered, threads};
use crate::quote;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use chrono::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

pub use clock::{Clock, parse_time};
pub use python::is_space;
pub use reads::{Reads, Takes};
pub use source::MAX_SOURCE_BYTES;

/// Fuel of one rendering: a step takes one, and so do 64 bytes of what it makes. The longest conversations take some
/// hundred thousand.
const FUEL: u64 = 4 << 20;

/// Templates by name, in an environment with Python's filters, tests and methods.
pub struct Templates {
    environment: Environment<'static>,
    /// Each template's words by its name, and what it reads once somebody has asked.
    known: HashMap<String, (HashSet<String>, OnceLock<Reads>)>,
}

impl Templates {
    /// An environment without templates, whose `strftime_now` shows the time of `clock`.
    pub fn new(clock: Arc<Clock>) -> Self {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().expect("the usual delimiters are valid"));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        // Errors then have the line and the place in the template.
        environment.set_debug(true);
        python::add(&mut environment);
        environment.add_function("raise_exception", python::raise_exception);
        let mut templates = Self {
            environment,
            known: HashMap::new(),
        };
        templates.set_clock(clock);
        templates
    }

    /// Makes `strftime_now` show the time of `clock` from now on.
    pub fn set_clock(&mut self, clock: Arc<Clock>) {
        clock::add(&mut self.environment, clock);
    }

    /// Adds a template.
    ///
    /// # Errors
    /// The message has the template's line and what is wrong there; or there was no thread.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Unrendered> {
        let source = source::prepare(text)?;
        on_a_deep_stack(|| {
            let text = source.text.clone();
            let added = self.environment.add_template_owned(name.to_owned(), text);
            added.map_err(|error| describe(&error, &source.text))?;
            let words = (source.words, OnceLock::new());
            self.known.insert(name.to_owned(), words);
            Ok(())
        })
    }

    /// What the template of this name reads, found by rendering it. That is done for the first row that asks, under the
    /// row's deadline.
    pub fn reads(&self, name: &str) -> Option<&Reads> {
        let (words, reads) = self.known.get(name)?;
        if let Some(reads) = reads.get() {
            return Some(reads);
        }
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL / 64));
        // The job's clock notes whether a row's prompt shows the time; this rendering is no prompt.
        let clock = Arc::new(Clock::at(DateTime::UNIX_EPOCH.naive_utc()));
        clock::add(&mut environment, clock);
        let found = on_a_deep_stack(|| {
            let template = environment.get_template(name);
            let template = template.map_err(|error| describe(&error, ""))?;
            Ok(Reads::of(&template, words.clone()))
        });
        // Rows that ask at the same time each render it: none waits for a rendering that may never end.
        found.ok().map(|found| reads.get_or_init(|| found))
    }

    /// The text that the template of this name makes of the variables.
    ///
    /// # Errors
    /// The message has the template's line, the expression and what is wrong there; or there was no thread.
    pub fn render(
        &self,
        name: &str,
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, Unrendered> {
        on_a_deep_stack(|| {
            let template = self.environment.get_template(name);
            let template = template.map_err(|error| describe(&error, ""))?;
            let rendered = context(variables).and_then(|variables| template.render(variables));
            rendered.map_err(|error| describe(&error, template.source()))
        })
    }
}

/// A row's variables as those of a template.
fn context(variables: &Map<String, serde_json::Value>) -> Result<Value, Error> {
    let variables = variables
        .iter()
        .map(|(name, value)| Ok((name.as_str(), value::from_json(value)?)));
    Ok(Value::from_pairs(
        variables.collect::<Result<Vec<_>, Error>>()?,
    ))
}

/// Runs `work` on a deep stack; where it panics, that is an error.
fn on_a_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, Unrendered> {
    let ran = threads::on_a_deep_stack(|| super::guarded("minijinja", work));
    Ok(ran.map_err(Unrendered::NoThread)??)
}

/// The message of a template's error, with the template's line and the expression.
fn describe(error: &Error, source: &str) -> String {
    let message = match error.kind() {
        ErrorKind::OutOfFuel => format!(
            "rendering takes more than {FUEL} steps or {} MiB of text and lists, expected at most that",
            (FUEL * 64) >> 20
        ),
        kind => quote::message(error.detail().unwrap_or(&kind.to_string())),
    };
    let Some(line) = error.line() else {
        return message;
    };
    let quoted = error.range().and_then(|range| source.get(range));
    let quoted = quoted.map(|text| {
        for (filter, tag) in [(value::KEPT, "set"), (value::LOOPED, "for")] {
            if text.starts_with(filter) {
                return tag.to_owned();
            }
        }
        let text = text.replace(value::METHOD_MARK, "");
        quote::text(text.replace(&format!("|{}", value::JOINED), ""))
    });
    match quoted.filter(|quoted| !quoted.is_empty()) {
        Some(quoted) => format!("line {line}: `{quoted}`: {message}"),
        None => format!("line {line}: {message}"),
    }
}
