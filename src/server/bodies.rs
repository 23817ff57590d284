//! Bodies of requests, which must come in time and not be too long, and of responses in JSON.

use super::refusal::Refusal;
use super::{READ_LIMIT, State};
use crate::io::line::object;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::time::timeout;

/// The most bytes of a body that is no file.
const BODY_BYTES: usize = 16 << 20;

pub type Answered = Result<Response, Refusal>;

pub fn reply(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// What a body comes to by `work`, which may take its time.
pub fn by_body(work: fn(&State, &[u8]) -> Result<Value, Refusal>) -> MethodRouter<Arc<State>> {
    post(
        move |Shared(state): Shared<Arc<State>>, body: Body| async move {
            let body = read(body).await?;
            Answered::Ok(reply(&apart(move || work(&state, &body)).await?))
        },
    )
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
