//! [`Guest`]: a session's engine for one more job, beside the questions of others.

use super::answering::Session;
use super::serving::Command;
use crate::error::{Error, Result};
use crate::runtime::{Engine, EngineStatus, Event, Request, Waker};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// An engine whose requests run in a session. It has so many at most at once, so that others find room.
pub struct Guest {
    session: Session,
    room: usize,
    /// Requests so far.
    next: u64,
    /// The session's numbers of those that have not ended.
    live: HashMap<u64, u64>,
    tell: Sender<std::result::Result<Event, Arc<Error>>>,
    events: Receiver<std::result::Result<Event, Arc<Error>>>,
    start: Instant,
}

impl Guest {
    /// `room`: requests at once, of which there is at least one.
    pub fn new(session: Session, room: usize) -> Self {
        let (tell, events) = channel();
        Self {
            session,
            room: room.max(1),
            next: 0,
            live: HashMap::new(),
            tell,
            events,
            start: Instant::now(),
        }
    }
}

impl Engine for Guest {
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        let first = self.next;
        let room = self.room.saturating_sub(self.live.len());
        for request in requests.take(room) {
            let number = self
                .session
                .pass(self.next, request.clone(), self.tell.clone());
            self.live.insert(self.next, number);
            self.next += 1;
        }
        Ok(first..self.next)
    }

    fn cancel(&mut self, request: u64) -> bool {
        if let Some(&number) = self.live.get(&request) {
            self.session.send(Command::Cancel(number));
        }
        true
    }

    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        let event = match self.events.recv_timeout(wait) {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => return Err(Error::Runtime(error.to_string())),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        };
        if let Event::End { request, .. } = &event {
            self.live.remove(request);
        }
        Ok(Some((self.start.elapsed().as_nanos() as u64, event)))
    }

    fn drain(&mut self) {}

    fn status(&self) -> EngineStatus {
        EngineStatus {
            running: self.live.len() as u32,
            ..EngineStatus::default()
        }
    }

    /// A job has none: it waits for a moment at most.
    fn waker(&self) -> Waker {
        Waker::default()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        for &number in self.live.values() {
            self.session.send(Command::Cancel(number));
        }
    }
}
