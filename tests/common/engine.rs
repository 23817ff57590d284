//! Requests to an engine, and what comes of them.

use std::time::{Duration, Instant};
use tailgraph::runtime::{EndReason, Engine, Event, Logits, Request, Sampling, TokenLogprobs};
use tailgraph::sys::abi;

/// Longer than any event is waited for, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A greedy one.
pub fn request(prompt: impl IntoIterator<Item = u32>, max_new_tokens: u32) -> Request {
    Request {
        prompt: prompt.into_iter().collect(),
        max_new_tokens,
        unlimited: false,
        stop_ids: vec![],
        min_new_tokens: 0,
        biases: Vec::new(),
        borders: Vec::new(),
        followers: 0,
        sampling: Sampling::default(),
        timeout: None,
        logits: Logits::None,
    }
}

/// An event without its times.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// Request, token, how many of the request's went before.
    Token(u64, u32, u32, Option<TokenLogprobs>),
    /// Request, reason, tokens.
    End(u64, EndReason, u32),
}

pub fn seen(event: Event) -> Seen {
    match event {
        Event::Token {
            request,
            token,
            index,
            logprobs,
        } => Seen::Token(request, token, index, logprobs),
        Event::End {
            request,
            reason,
            tokens,
            timing,
        } => {
            assert!(
                timing.queue <= timing.total,
                "request {request}: {timing:?}"
            );
            Seen::End(request, reason, tokens)
        }
    }
}

/// The next event, which must come.
pub fn next(engine: &mut dyn Engine) -> Seen {
    let event = engine.next_event(PATIENCE).unwrap();
    seen(event.unwrap_or_else(|| panic!("no event for {PATIENCE:?}")))
}

pub fn submit(engine: &mut dyn Engine, request: &Request) -> u64 {
    let number = engine.try_submit(request).unwrap();
    number.expect("the rings have room")
}

/// Events until so many requests have ended; `beside` is called before each and after the last.
pub fn read_beside(
    engine: &mut dyn Engine,
    ends: usize,
    mut beside: impl FnMut(&mut dyn Engine),
) -> Vec<Seen> {
    let (mut events, mut ended) = (vec![], 0);
    loop {
        beside(engine);
        if ended == ends {
            return events;
        }
        events.push(next(engine));
        ended += usize::from(matches!(events.last(), Some(Seen::End(..))));
    }
}

/// Events until so many requests have ended.
pub fn read(engine: &mut dyn Engine, ends: usize) -> Vec<Seen> {
    read_beside(engine, ends, |_| {})
}

/// Submits as many as there is room for before each event, and reads until every request has ended.
pub fn serve(engine: &mut dyn Engine, requests: &[Request]) -> Vec<Seen> {
    let mut left = requests;
    read_beside(engine, requests.len(), |engine| {
        let queued = engine.try_submit_all(&mut left.iter()).unwrap();
        left = &left[queued.count()..];
    })
}

/// Every request's tokens and end, out of all events: tokens in order, then one end that counts them.
pub fn by_request(events: &[Seen], count: usize) -> Vec<(Vec<u32>, EndReason)> {
    let mut all = vec![(vec![], None); count];
    for event in events {
        let (Seen::Token(request, ..) | Seen::End(request, ..)) = *event;
        let (tokens, end): &mut (Vec<u32>, _) = &mut all[request as usize];
        let (Seen::Token(.., before, _) | Seen::End(.., before)) = *event;
        assert_eq!((tokens.len(), *end), (before as usize, None), "{event:?}");
        match *event {
            Seen::Token(_, token, ..) => tokens.push(token),
            Seen::End(_, reason, _) => *end = Some(reason),
        }
    }
    let ended = |(number, (tokens, end)): (usize, (Vec<u32>, Option<_>))| {
        let end = end.unwrap_or_else(|| panic!("request {number} has not ended"));
        (tokens, end)
    };
    all.into_iter().enumerate().map(ended).collect()
}

/// Reads events until the first `count` requests have ended: each one's tokens and reason.
pub fn collect(engine: &mut dyn Engine, count: usize) -> Vec<(Vec<u32>, EndReason)> {
    by_request(&read(engine, count), count)
}

/// Tokens until the error, and the error.
pub fn fail(engine: &mut dyn Engine) -> (Vec<u32>, String) {
    let mut tokens = vec![];
    loop {
        match engine.next_event(PATIENCE) {
            Ok(Some(Event::Token { token, .. })) => tokens.push(token),
            Ok(other) => panic!("expected tokens, then an error; found {other:?}"),
            Err(error) => return (tokens, error.to_string()),
        }
    }
}

/// All records up to the one of the end, which must come.
pub fn drain_trace(engine: &mut dyn Engine) -> Vec<abi::tg_trace> {
    engine.drain();
    let start = Instant::now();
    let mut records = vec![];
    loop {
        records.extend(std::iter::from_fn(|| engine.next_turn()));
        let last = records.last().map(|r: &abi::tg_trace| r.outcome.action);
        if last == Some(abi::TG_ACTION_DONE) {
            return records;
        }
        assert!(start.elapsed() < PATIENCE, "a drained engine did not end");
    }
}
