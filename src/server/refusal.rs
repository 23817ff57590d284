//! Why a request is not served: a status, and an error as the OpenAI format has it.

use super::State;
use super::Stop;
use crate::io::openai_answer::error_of;
use crate::io::row::{Code, RowError};
use crate::session::Unanswered;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};

/// Seconds after which a request may be tried again that found no room.
const RETRY_SECONDS: &str = "1";

pub struct Refusal {
    status: StatusCode,
    code: String,
    message: String,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
        }
    }

    pub fn not_found(what: &str) -> Self {
        let message = format!("{what}: there is no such thing here");
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn body(&self) -> serde_json::Value {
        let kind = match self.status.as_u16() {
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        error_of(kind, &self.code, &self.message)
    }

    /// Why a question was not answered. The server ends with its engine.
    pub fn unanswered(state: &State, why: Unanswered) -> Self {
        match why {
            Unanswered::Question(error) => error.into(),
            Unanswered::Engine(error) => {
                drop(state.stop.send(Stop::Failed(error.clone())));
                Code::Device.error(error.to_string()).into()
            }
        }
    }
}

impl From<RowError> for Refusal {
    fn from(error: RowError) -> Self {
        let status = match error.code {
            Code::Timeout => StatusCode::REQUEST_TIMEOUT,
            Code::TextTimeout | Code::NoThread | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            Code::Device | Code::NonFiniteLogits => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.code.as_str(), error.message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let text = self.body().to_string();
        let mut response =
            (self.status, [(CONTENT_TYPE, "application/json")], text).into_response();
        let headers = response.headers_mut();
        match self.status.as_u16() {
            429 | 503 => drop(headers.insert(RETRY_AFTER, RETRY_SECONDS.parse().expect("digits"))),
            401 => drop(headers.insert(WWW_AUTHENTICATE, "Bearer".parse().expect("a word"))),
            _ => {}
        }
        response
    }
}
