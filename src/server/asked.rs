//! A request's body as a question: the same checks, errors and defaults as for a row of a batch file.

use super::State;
use super::bodies::fields;
use super::refusal::Refusal;
use crate::io::line::shown;
use crate::io::once::strict;
use crate::io::openai::{self, Carrier};
use crate::io::prepare::Waiting;
use crate::io::row::{Endpoint, OpenAi, Prompt};
use axum::http::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// A question that has its place, and its tokens.
pub struct Asked {
    pub repeated: OpenAi,
    pub number: u64,
    pub waiting: Waiting,
    pub place: OwnedSemaphorePermit,
}

impl State {
    /// What a body asks of `endpoint`.
    pub fn ask(self: &Arc<Self>, endpoint: Endpoint, body: &[u8]) -> Result<Asked, Refusal> {
        let fields = fields(body)?;
        let ignored = shown(openai::unknown(&fields));
        if self.options.strict {
            strict(&ignored).map_or(Ok(()), Err)?;
        } else {
            self.once.lock().ignored("a request", &ignored);
        }
        let (ask, repeated) = openai::ask(endpoint, Carrier::Request, &Value::Object(fields))?;
        let place = self.place(ask.choices.count())?;
        let (number, waiting) = self.session.prepare_all(&ask)?;
        if let Prompt::Messages(chat) = &ask.prompt {
            let doubts = self.session.texts().codec.doubts(chat);
            self.once.lock().doubts("a request", doubts);
        }
        Ok(Asked {
            repeated,
            number,
            waiting,
            place,
        })
    }

    /// Places for so many sequences, or for as many as there could ever be.
    fn place(&self, sequences: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let most = self.slots() + self.options.max_queue;
        let wanted = sequences.min(most) as u32;
        let place = self.places.clone().try_acquire_many_owned(wanted);
        place.map_err(|_| {
            let free = self.places.available_permits();
            Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                format!(
                    "found room for {free} sequences of the {most} that run or wait, expected {wanted}: try again later; --max-queue lets more wait"
                ),
            )
        })
    }
}
