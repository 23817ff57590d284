//! What a template reads of messages, told by rendering it with marked ones.

use std::collections::HashSet;

use minijinja::{Template, Value};
use serde_json::{Map, json};

use super::value;

/// The form in which a template takes a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Takes {
    /// A text alone.
    Text,
    /// A list of parts alone.
    Parts,
    Both,
    /// It shows neither, or messages with all their fields.
    #[default]
    Unknown,
}

/// The variables, attributes and string literals of a template, and how it takes contents.
#[derive(Debug, Default, Clone)]
pub struct Reads {
    variables: HashSet<String>,
    words: HashSet<String>,
    takes: Takes,
    /// Messages are shown with all their fields.
    whole_messages: bool,
}

/// What marks a content, and a field of no meaning.
const CONTENT: &str = "q8kcontent";
const FIELD: &str = "q8kfield";

/// The roles of conversations that are rendered: what a template has against one, it may not have against another.
const ROLES: [&[&str]; 4] = [
    &["system", "user", "assistant", "user"],
    &["user", "assistant", "user"],
    &["system", "user"],
    &["user"],
];

impl Reads {
    pub(super) fn of(template: &Template<'_, '_>, words: HashSet<String>) -> Self {
        let variables = template.undeclared_variables(false);
        let whole_messages = ROLES.iter().any(|roles| {
            let shown = show(template, roles, &json!(CONTENT));
            shown.is_some_and(|text| text.contains(FIELD))
        });
        let takes = ROLES
            .iter()
            .map(|roles| takes(template, roles))
            .find(|&takes| takes != Takes::Unknown);
        Self {
            variables,
            words,
            takes: takes.unwrap_or_default(),
            whole_messages,
        }
    }

    /// Whether the template reads a variable of this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether it may read a message's field of this name.
    pub fn has_field(&self, name: &str) -> bool {
        self.whole_messages || self.words.contains(name)
    }

    /// The form in which it takes a message's content.
    pub fn takes(&self) -> Takes {
        self.takes
    }
}

fn takes(template: &Template<'_, '_>, roles: &[&str]) -> Takes {
    let parts = json!([{"type": "text", "text": CONTENT}]);
    let text = show(template, roles, &json!(CONTENT));
    if text.as_ref().is_some_and(|text| text.contains(FIELD)) {
        return Takes::Unknown;
    }
    // A part that is shown as it is, as JSON or as Python prints it, is no text of a prompt.
    let parts = show(template, roles, &parts)
        .filter(|text| !text.contains("'type'") && !text.contains("\"type\""));
    let shows = |text: Option<String>| text.is_some_and(|text| text.contains(CONTENT));
    match (shows(text), shows(parts)) {
        (true, true) => Takes::Both,
        (true, false) => Takes::Text,
        (false, true) => Takes::Parts,
        (false, false) => Takes::Unknown,
    }
}

/// The prompt of a conversation of these roles, each with this content.
fn show(
    template: &Template<'_, '_>,
    roles: &[&str],
    content: &serde_json::Value,
) -> Option<String> {
    let message = |role: &&str| json!({"role": role, "content": content, "q8k": FIELD});
    let messages: Vec<_> = roles.iter().map(message).collect();
    // Special tokens are texts; a row gives what else a template may need.
    let read = template.undeclared_variables(false);
    let tokens = read.into_iter().filter(|name| name.ends_with("_token"));
    let mut variables: Map<_, _> = tokens.map(|name| (name, "".into())).collect();
    variables.insert("messages".to_owned(), messages.into());
    variables.insert("tools".to_owned(), serde_json::Value::Null);
    variables.insert("documents".to_owned(), serde_json::Value::Null);
    variables.insert("add_generation_prompt".to_owned(), true.into());
    let variables = variables
        .iter()
        .map(|(name, value)| Some((name.as_str(), value::from_json(value).ok()?)));
    let variables = Value::from_pairs(variables.collect::<Option<Vec<_>>>()?);
    template.render(variables).ok()
}
