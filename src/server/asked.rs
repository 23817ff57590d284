//! A request's body as a question: the same checks, errors and defaults as for a row of a batch file.

use super::refusal::Refusal;
use super::{READ_LIMIT, State};
use crate::io::line::{object, shown};
use crate::io::once::strict;
use crate::io::openai::{self, Carrier};
use crate::io::prepare::Waiting;
use crate::io::row::{Endpoint, OpenAi, Prompt};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// The most bytes of a body that is no file.
const BODY_BYTES: usize = 16 << 20;

/// A question that has its place, and its tokens.
pub struct Asked {
    pub repeated: OpenAi,
    pub number: u64,
    pub waiting: Waiting,
    pub place: OwnedSemaphorePermit,
}

/// All of a body, which must come in time and not be too long.
pub async fn read(body: Body) -> Result<Bytes, Refusal> {
    let too_large = || {
        let message = format!("body: found more than {BODY_BYTES} bytes, expected fewer");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    match timeout(READ_LIMIT, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if error.to_string().contains("length limit") => Err(too_large()),
        Ok(Err(error)) => {
            let message = format!("body: {error}");
            Err(Refusal::new(StatusCode::BAD_REQUEST, "unread", message))
        }
        Err(_) => Err(late()),
    }
}

/// A body did not come in time.
pub fn late() -> Refusal {
    let message = format!("body: nothing came for {} s", READ_LIMIT.as_secs());
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "unread", message)
}

/// Does work that may take its time on a thread of its own.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        let message = "a thread of the server has panicked: this is a bug in tailgraph";
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "bug",
            message,
        ))
    })
}

/// The object that a body is.
pub fn fields(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    Ok(object(body, "body", false)?)
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
