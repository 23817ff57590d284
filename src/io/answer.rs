//! What is written for a row: one line of JSON, in the row's own format. [`openai_answer`] has what is in the lines of
//! OpenAI batch files, `{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}`: a row that is not a
//! valid request has status 400, and one that was interrupted, timed out or lost its device has no response at all.
//!
//! Our own format, served:
//! `{"id", "output_ids", "text", "finish_reason", "usage", "logprobs"?, "timing"}` where
//! - `output_ids` are all generated tokens, a stop id included; `text` leaves stop ids and, unless the
//!   row says otherwise, special tokens out, and ends before a stop string
//! - `usage` is `{"prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"?}`, the last where some of the prompt's
//!   tokens were computed for another row with the same beginning: how many, which hangs on what else ran
//! - `logprobs`, where asked for, has an entry a token: `{"token", "id", "logprob", "top"}`, `top` an array of
//!   `{"token", "id", "logprob"}`, best first: log-softmax of the raw logits. A token that is no whole character has
//!   `bytes` too, behind `token`, which shows U+FFFD in their place; an id without a token has an empty `token`
//! - `timing` is `{"queue_ms", "ttft_ms", "total_ms"}` by the scheduler's clock; `ttft_ms` is null if no token came
//!
//! and not served: `{"id", "error": {"code", "message"}}`.

use super::codec::Codec;
use super::openai_answer;
pub use super::outcome::{Finish, Label, Origin, Outcome};
use super::outcome::{List, TimingMs, TokenEntry, Usage};
use super::row::{Code, Format, Id, RowError, TIMED_OUT};
use serde::Serialize;

/// The line for a row that ran, without its newline. Rows of our own have one outcome.
pub fn served(label: &Label, outcomes: &[Outcome], codec: &Codec, origin: &Origin) -> String {
    match (&label.format, outcomes) {
        (Format::Own, [outcome]) => own(label, outcome, codec),
        (Format::Own, _) => unreachable!("rows of our own ask for one answer"),
        (Format::OpenAi(_), _) if outcomes.iter().any(|outcome| !outcome.finish.is_final()) => {
            failed(label, &Code::Timeout.error(TIMED_OUT))
        }
        (Format::OpenAi(repeated), _) => {
            let body = openai_answer::body(repeated, label.line, outcomes, codec, origin);
            batch_line(label, Some((200, body)), None)
        }
    }
}

/// The line for a row that did not run, or whose device failed.
pub fn failed(label: &Label, error: &RowError) -> String {
    #[derive(Serialize)]
    struct Failed<'a> {
        id: &'a Id,
        error: &'a RowError,
    }
    match label.format {
        Format::Own => to_json(&Failed {
            id: &label.id,
            error,
        }),
        Format::OpenAi(_) => {
            let is_wrong = !error.code.may_succeed_later();
            let response = is_wrong.then(|| (400, openai_answer::error(error)));
            batch_line(label, response, Some(error))
        }
    }
}

fn own(label: &Label, outcome: &Outcome, codec: &Codec) -> String {
    #[derive(Serialize)]
    struct Served<'a, L> {
        id: &'a Id,
        output_ids: &'a [u32],
        text: &'a str,
        finish_reason: Finish,
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<L>,
        timing: TimingMs,
    }
    let logprobs = || TokenEntry::all(outcome.tokens(), codec, false);
    to_json(&Served {
        id: &label.id,
        output_ids: &outcome.output_ids,
        text: &outcome.text,
        finish_reason: outcome.finish,
        usage: Usage::new(outcome.prompt_tokens, outcome.output_ids.len())
            .cached(outcome.timing.cached_tokens),
        logprobs: outcome.logprobs.as_ref().map(|_| List(logprobs)),
        timing: TimingMs::of(&outcome.timing, !outcome.output_ids.is_empty()),
    })
}

/// A line of a batch file's answers: `response` is its status and body.
fn batch_line<B: Serialize>(
    label: &Label,
    response: Option<(u16, B)>,
    error: Option<&RowError>,
) -> String {
    #[derive(Serialize)]
    struct Line<'a, B> {
        id: String,
        custom_id: &'a Id,
        response: Option<Response<B>>,
        error: Option<&'a RowError>,
    }
    #[derive(Serialize)]
    struct Response<B> {
        status_code: u16,
        request_id: String,
        body: B,
    }
    to_json(&Line {
        id: format!("batch_req_{}", label.line),
        custom_id: &label.id,
        response: response.map(|(status_code, body)| Response {
            status_code,
            request_id: format!("req_{}", label.line),
            body,
        }),
        error,
    })
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings, numbers and lists always serialise")
}
