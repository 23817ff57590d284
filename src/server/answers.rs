//! What comes of a question: the sequences' outputs in one channel, from which an answer is made.

use super::State;
use super::asked::Asked;
use super::refusal::Refusal;
use crate::io::answer::{Origin, Outcome};
use crate::io::echo::Echo;
use crate::io::openai_answer;
use crate::io::openai_stream::{Chunks, DONE, event};
use crate::io::partial::now;
use crate::io::row::{Code, TIMED_OUT};
use crate::session::answering::panicked;
use crate::session::{Output, Question, Told, Unanswered};
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Outputs that are written in one go.
const AT_ONCE: usize = 256;

/// Dropping it cancels what has not ended.
struct Answers {
    state: Arc<State>,
    outputs: UnboundedReceiver<(usize, Told)>,
    questions: Vec<Question>,
    /// Sequences that have not ended.
    left: usize,
}

/// The answer to a question that came at `came`.
pub async fn answer(state: Arc<State>, asked: Asked, came: Instant) -> Result<Response, Refusal> {
    let origin = Origin {
        model: state.session.opened().spec.model.short_name(),
        created: now(),
    };
    let (repeated, number) = (asked.repeated.clone(), asked.number);
    let answers = Answers::new(&state, asked, came);
    if repeated.stream.is_none() {
        let outcomes = answers.whole().await?;
        let codec = &state.session.texts().codec;
        let body = openai_answer::body(&repeated, number, &outcomes, codec, &origin);
        let body = serde_json::to_vec(&body).expect("strings, numbers and lists always serialise");
        return Ok(([(CONTENT_TYPE, "application/json")], body).into_response());
    }
    let codec = state.session.texts().codec.clone();
    let chunks = Chunks::new(repeated, number, answers.left, origin, codec);
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, answers.stream(chunks)).into_response())
}

impl Answers {
    fn new(state: &Arc<State>, asked: Asked, came: Instant) -> Self {
        let (send, outputs) = unbounded_channel();
        let (mut waiting, mut questions) = (asked.waiting, Vec::new());
        // Each sequence has it to its end.
        let place = Arc::new(asked.place);
        while let Some(prepared) = waiting.peek() {
            let (index, send, place) = (questions.len(), send.clone(), place.clone());
            let mut meter = state.metrics.sequence(came);
            let streams = asked.repeated.stream.is_some();
            let tell = move |told: Told| {
                let _ = &place;
                meter.told(&told);
                // A whole answer has all of its tokens at its end.
                if streams || !matches!(told, Ok(Output::Token { .. })) {
                    drop(send.send((index, told)));
                }
            };
            questions.push(state.session.submit_to(prepared.clone(), tell));
            waiting.take();
        }
        Self {
            state: state.clone(),
            outputs,
            left: questions.len(),
            questions,
        }
    }

    /// An output as what it means for the request. One that ends the request as a whole is an error.
    fn take(&mut self, index: usize, told: Told) -> Result<Came, Refusal> {
        let outcome = match told {
            Ok(Output::Prompt(echo)) => return Ok(Came::Prompt(echo)),
            Ok(Output::Token { id, logprobs, text }) => {
                return Ok(Came::Token(id, logprobs, text));
            }
            Ok(Output::End { outcome, .. }) => outcome.map_err(Unanswered::Question),
            Err(error) => Err(Unanswered::Engine(error)),
        };
        self.questions[index].is_over = true;
        self.left -= 1;
        let outcome = outcome.map_err(|why| Refusal::unanswered(&self.state, why))?;
        if !outcome.finish.is_final() {
            return Err(Code::Timeout.error(TIMED_OUT).into());
        }
        Ok(Came::End(outcome))
    }

    async fn whole(mut self) -> Result<Vec<Outcome>, Refusal> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; self.left];
        while self.left > 0 {
            let (index, told) = self.outputs.recv().await.ok_or_else(|| self.lost())?;
            if let Came::End(outcome) = self.take(index, told)? {
                outcomes[index] = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// The session's thread is gone.
    fn lost(&self) -> Refusal {
        Refusal::unanswered(&self.state, Unanswered::Engine(Arc::new(panicked())))
    }

    fn stream(self, chunks: Chunks) -> Body {
        let begin = (Some(self), chunks, true);
        Body::from_stream(unfold(begin, async |(answers, mut chunks, begins)| {
            let mut answers = answers?;
            let mut told = Vec::new();
            let mut out = Vec::new();
            let came = answers.outputs.recv_many(&mut told, AT_ONCE).await;
            let written = match came {
                0 => Err(answers.lost()),
                _ => answers.write(told, begins, &mut chunks, &mut out),
            };
            if let Err(refusal) = written {
                event(&mut out, &refusal.body());
                out.extend(DONE);
                answers.left = 0;
            }
            let rest = (answers.left > 0).then_some(answers);
            Some((Ok::<_, Infallible>(Bytes::from(out)), (rest, chunks, false)))
        }))
    }

    fn write(
        &mut self,
        told: Vec<(usize, Told)>,
        begins: bool,
        chunks: &mut Chunks,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if begins {
            chunks.begin(out);
        }
        for (index, told) in told {
            match self.take(index, told)? {
                Came::Prompt(echo) => chunks.prompt(out, index, &echo),
                Came::Token(id, logprobs, text) => chunks.token(out, index, (id, logprobs, &text)),
                Came::End(outcome) => chunks.end(out, index, &outcome),
            }
        }
        if self.left == 0 {
            chunks.finish(out);
        }
        Ok(())
    }
}

/// What an output is to its request.
enum Came {
    Prompt(Box<Echo>),
    Token(u32, Option<crate::runtime::TokenLogprobs>, String),
    End(Outcome),
}
