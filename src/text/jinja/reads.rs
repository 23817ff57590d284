//! What a template reads of messages, found by rendering it with marked ones.

use std::collections::HashSet;

use minijinja::Template;
use serde_json::{Map, json};

/// The form in which a template takes a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Takes {
    /// The template shows a text alone.
    Text,
    /// The template shows a list of parts alone.
    Parts,
    Both,
    /// The template shows neither, or shows messages with all their fields.
    #[default]
    Unknown,
}

/// The variables, attributes and string literals of a template, and how it takes contents.
#[derive(Debug, Default, Clone)]
pub struct Reads {
    variables: HashSet<String>,
    words: HashSet<String>,
    takes: Takes,
    /// Whether messages are shown with all their fields.
    whole_messages: bool,
}

/// The marks that stand in the contents, and in a field that no template knows.
const CONTENT: &str = "q8kcontent";
const FIELD: &str = "q8kfield";

/// The roles of the conversations that are rendered: a template that refuses one may take another.
const ROLES: [&[&str]; 4] = [
    &["system", "user", "assistant", "user"],
    &["user", "assistant", "user"],
    &["system", "user"],
    &["user"],
];

impl Reads {
    /// What `template` reads, whose attributes and string literals are `words`.
    pub(super) fn of(template: &Template<'_, '_>, words: HashSet<String>) -> Self {
        let variables = template.undeclared_variables(false);
        let (mut takes, mut whole_messages) = (Takes::Unknown, false);
        for roles in ROLES {
            let text = show(template, &variables, roles, &json!(CONTENT));
            if text.as_ref().is_some_and(|text| text.contains(FIELD)) {
                whole_messages = true;
                continue;
            }
            let parts = json!([{"type": "text", "text": CONTENT}]);
            // Where a part is shown with its braces, as JSON or as Python prints it, the template does not take parts.
            let parts = show(template, &variables, roles, &parts)
                .filter(|text| !text.contains("'type'") && !text.contains("\"type\""));
            let shows = |text: Option<String>| text.is_some_and(|text| text.contains(CONTENT));
            takes = match (takes, shows(text), shows(parts)) {
                (Takes::Unknown, true, true) => Takes::Both,
                (Takes::Unknown, true, false) => Takes::Text,
                (Takes::Unknown, false, true) => Takes::Parts,
                (known, _, _) => known,
            };
        }
        Self {
            variables,
            words,
            takes,
            whole_messages,
        }
    }

    /// Whether the template reads a variable of this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether the template may read a message's field of this name.
    pub fn has_field(&self, name: &str) -> bool {
        self.whole_messages || self.words.contains(name)
    }

    /// The form in which the template takes a message's content.
    pub fn takes(&self) -> Takes {
        self.takes
    }
}

/// The prompt of a conversation of these roles, with this content in every message; `None` where the template refuses it.
fn show(
    template: &Template<'_, '_>,
    read: &HashSet<String>,
    roles: &[&str],
    content: &serde_json::Value,
) -> Option<String> {
    let message = |role: &&str| json!({"role": role, "content": content, "q8k": FIELD});
    let messages: Vec<_> = roles.iter().map(message).collect();
    // Templates add special tokens to texts, which fails for undefined ones.
    let tokens = read.iter().filter(|name| name.ends_with("_token"));
    let mut variables: Map<String, serde_json::Value> =
        tokens.map(|name| (name.clone(), "".into())).collect();
    variables.insert("messages".to_owned(), messages.into());
    variables.insert("tools".to_owned(), serde_json::Value::Null);
    variables.insert("documents".to_owned(), serde_json::Value::Null);
    variables.insert("add_generation_prompt".to_owned(), true.into());
    template.render(super::context(&variables).ok()?).ok()
}
