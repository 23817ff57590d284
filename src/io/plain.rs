//! Prompts that are texts alone: arguments of the command line, or lines of plain text.

use super::hash::Fnv64;
use super::row::{Ask, Code, Options, Prompt, Row, RowError};
use crate::text::Chat;
use serde_json::json;

/// What a text asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plain {
    /// To be continued.
    Completion,
    /// To be answered, as a user's message.
    Chat {
        /// What a system message before it says.
        system: Option<String>,
    },
}

impl Plain {
    /// The row that line `number` makes, and the hash of what it asks.
    pub fn row(&self, text: String, number: u64) -> (Row, Fnv64) {
        let input = self.hash(text.as_bytes());
        (row(number, Ok(self.prompt(text))), input)
    }

    /// [`Self::row`] of the bytes of a line.
    pub fn row_of_bytes(&self, bytes: &[u8], number: u64) -> (Row, Fnv64) {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.row(text.to_owned(), number),
            Err(error) => {
                let message = format!(
                    "line {number}: found a byte that is no UTF-8 at byte {}, expected a prompt as text",
                    error.valid_up_to() + 1
                );
                let error = Code::InvalidRequest.error(message);
                (row(number, Err(error)), self.hash(bytes))
            }
        }
    }

    fn prompt(&self, text: String) -> Prompt {
        let Self::Chat { system } = self else {
            return Prompt::Text(text);
        };
        let message = |role, content: &str| json!({"role": role, "content": content});
        let system = system.iter().map(|text| message("system", text));
        let messages = system.chain([message("user", &text)]).collect();
        Prompt::Messages(Box::new(Chat::new(messages, None)))
    }

    fn hash(&self, text: &[u8]) -> Fnv64 {
        let text = Fnv64::default().with(text);
        match self {
            Self::Completion => text,
            Self::Chat { system: None } => text.with(b"\0chat"),
            Self::Chat {
                system: Some(system),
            } => text.with(b"\0system").with(system.as_bytes()),
        }
    }
}

/// A row that has nothing but a prompt, or not even that.
pub(super) fn row(number: u64, prompt: Result<Prompt, RowError>) -> Row {
    let ask = prompt.map(|prompt| Ask::new(prompt, Options::default()));
    Row {
        tells_format: true,
        ..Row::new(number, ask)
    }
}
