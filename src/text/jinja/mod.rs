//! Chat templates, rendered by minijinja. Their text is that of transformers, which renders them by Python's Jinja2.
//!
//! - `source`: what is done to a template's text before minijinja parses it
//! - `value`: values that behave otherwise in Python than in minijinja
//! - `print`: the texts of values, as Python's `str` and as JSON
//! - `python`: filters, tests and methods that minijinja has otherwise, or not at all
//! - `clock`: the time that a template shows
//! - `reads`: what a template reads of its variables
//!
//! A template is untrusted. Its size, its steps and the bytes that it makes are bounded (minijinja's fuel counts both), its
//! time by [`super::Threads`]; parsing and rendering run where the stack is as deep as these bounds allow. What a template
//! uses that is not as in Jinja2 is an error that quotes the expression.

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

/// What one rendering may take: a step takes one, and so do 64 bytes of what it makes. The longest conversations take
/// some hundred thousand.
const FUEL: u64 = 4 << 20;

/// Templates by name, with what they find beside their variables.
pub struct Templates {
    environment: Environment<'static>,
    /// By name, each template's words, and what it reads once somebody has asked.
    known: HashMap<String, (HashSet<String>, OnceLock<Reads>)>,
}

impl Templates {
    /// None yet. `clock` is what `strftime_now` shows.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn new(clock: Arc<Clock>) -> Self {
        let mut environment = Environment::new();
        if let Ok(syntax) = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
        {
            environment.set_syntax(syntax);
        }
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        // Errors tell the place in the template.
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

    /// What `strftime_now` shows from now on.
    pub fn set_clock(&mut self, clock: Arc<Clock>) {
        clock::add(&mut self.environment, clock);
    }

    /// Adds a template.
    ///
    /// # Errors
    /// The line of the template and what is wrong there; or there was no thread.
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

    /// What the template of this name reads. It is rendered for that: a row's work, which has a deadline, and not loading's.
    pub fn reads(&self, name: &str) -> Option<&Reads> {
        let (words, reads) = self.known.get(name)?;
        if let Some(reads) = reads.get() {
            return Some(reads);
        }
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL / 64));
        // The job's own clock notes whether a row's prompt shows it.
        let clock = Arc::new(Clock::at(DateTime::UNIX_EPOCH.naive_utc()));
        clock::add(&mut environment, clock);
        let found = on_a_deep_stack(|| {
            let template = environment.get_template(name);
            let template = template.map_err(|error| describe(&error, ""))?;
            Ok(Reads::of(&template, words.clone()))
        });
        // Nobody waits for another who may never end.
        found.ok().map(|found| reads.get_or_init(|| found))
    }

    /// # Errors
    /// The line of the template, the expression, and what it has against the variables; or there was no thread.
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

fn context(variables: &Map<String, serde_json::Value>) -> Result<Value, Error> {
    let variables = variables
        .iter()
        .map(|(name, value)| Ok((name.as_str(), value::from_json(value)?)));
    Ok(Value::from_pairs(
        variables.collect::<Result<Vec<_>, Error>>()?,
    ))
}

/// Runs `work` where the stack is deep enough for it.
fn on_a_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, Unrendered> {
    let ran = threads::on_a_deep_stack(|| super::guarded("minijinja", work));
    Ok(ran.map_err(Unrendered::NoThread)??)
}

/// A template's error on one line, with the template's line and the expression.
fn describe(error: &Error, source: &str) -> String {
    let message = match error.kind() {
        ErrorKind::OutOfFuel => format!(
            "the template takes more than {FUEL} steps or {} MiB of text and lists, expected at most that a rendering",
            (FUEL * 64) >> 20
        ),
        kind => quote::message(error.detail().unwrap_or(&kind.to_string())),
    };
    let Some(line) = error.line() else {
        return message;
    };
    let quoted = error.range().and_then(|range| source.get(range));
    let quoted = quoted.map(|text| match text {
        _ if text.starts_with(value::KEPT) => "set".to_owned(),
        _ if text.starts_with(value::LOOPED) => "for".to_owned(),
        _ => quote::text(
            text.replace(value::METHOD_MARK, "")
                .replace(&format!("|{}", value::JOINED), ""),
        ),
    });
    match quoted.filter(|quoted| !quoted.is_empty()) {
        Some(quoted) => format!("line {line}: `{quoted}`: {message}"),
        None => format!("line {line}: {message}"),
    }
}
