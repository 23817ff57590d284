//! A device that fails when it is handed work, with events of earlier rows still in its rings: those rows are done.

use crate::job::generate;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailgraph::runtime::{EndReason, Engine, EngineStatus, Event, Logits, Request, Timing, Waker};
use tailgraph::session::Progress;
use tailgraph::session::prefixes::Prefixes;
use tailgraph::session::scoring;
use tailgraph::{Error, Result};

/// Takes `room` requests, ends all but the last of them, and fails.
struct Lost {
    room: u64,
    taken: u64,
    events: VecDeque<Event>,
}

impl Lost {
    fn after(room: u64) -> Self {
        Self {
            room,
            taken: 0,
            events: VecDeque::new(),
        }
    }

    fn failure<T>() -> Result<T> {
        Err(Error::Runtime("stage 0 caught fire".into()))
    }
}

impl Engine for Lost {
    /// One at a time.
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        let request = self.taken;
        let Some(asked) = requests.next() else {
            return Ok(request..request);
        };
        if self.taken == self.room {
            return Self::failure();
        }
        self.taken += 1;
        let tokens = asked.max_new_tokens;
        for index in 0..tokens {
            self.events.push_back(Event::Token {
                request,
                token: asked.prompt[0],
                index,
                logprobs: None,
            });
        }
        if self.taken < self.room {
            self.events.push_back(Event::End {
                request,
                reason: EndReason::Length,
                tokens,
                timing: Timing::default(),
            });
        }
        Ok(request..request + 1)
    }

    fn cancel(&mut self, _: u64) -> bool {
        true
    }

    fn next_stamped(&mut self, _: Duration) -> Result<Option<(u64, Event)>> {
        match self.events.pop_front() {
            Some(event) => Ok(Some((0, event))),
            None => Self::failure(),
        }
    }

    fn drain(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::default()
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::default()
    }
}

#[test]
fn generated_rows_that_were_done_are_served() {
    let rows = r#"{"input_ids":[65],"max_new_tokens":2}"#;
    let (answers, summary) = generate(&format!("{rows}\n").repeat(5), &mut Lost::after(3));
    assert!(summary.failure.unwrap().to_string().contains("caught fire"));
    for answer in &answers[..2] {
        assert_eq!(answer["text"], "AA", "{answer}");
    }
    // The third had tokens and no end, the fourth was refused where it was read by then, the fifth never handed over.
    assert!((3..=4).contains(&answers.len()), "{answers:?}");
    for answer in &answers[2..] {
        assert_eq!(answer["error"]["code"], "device", "{answer}");
    }
    let rows = answers.len() as u64;
    assert_eq!(
        (summary.counts.rows, summary.counts.failed),
        (rows, rows - 2)
    );
}

#[test]
fn scored_prompts_that_were_done_are_told() {
    let mut told = Vec::new();
    let done = scoring::run(
        &mut Lost::after(3),
        &[&[65u32][..]; 5],
        Logits::All,
        Prefixes::none(),
        &AtomicBool::new(false),
        &mut Progress::new(true, None),
        &mut |request| {
            told.push(request);
            Ok(())
        },
    );
    assert!(done.unwrap_err().to_string().contains("caught fire"));
    assert_eq!(told, [0, 1]);
}
