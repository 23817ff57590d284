//! [`Engine`]: requests in, events out, whatever runs the steps and however many devices that is.

use super::options::EngineStatus;
use super::request::{Event, Request};
use super::signal::Waker;
use crate::error::Result;
use crate::sys::abi::tg_trace;
use std::ops::Range;
use std::time::Duration;

/// What a scheduler's run is made of, by its own numbers of requests, in an order that a replay takes.
#[derive(Debug, Clone)]
pub enum Part {
    /// The next request that it has claimed.
    Request(Request),
    Cancel(u64),
    Turn(Box<tg_trace>),
    Event(Event),
}

/// An engine. Used from one thread at a time; dropping it stops everything.
pub trait Engine: Send {
    /// Queues as many of the first requests as there is room for, and returns their numbers, which count from 0. A scheduler
    /// sees all of them in the same turn. Where there is no room, take events and try again.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] for a request that there could never be room for; [`crate::Error::Runtime`] once the engine
    /// failed.
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>>;

    /// [`Engine::try_submit_all`] with one request: its number, or `None` where there is no room.
    ///
    /// # Errors
    /// Fails as [`Engine::try_submit_all`] does.
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        Ok(self.try_submit_all(&mut std::iter::once(request))?.next())
    }

    /// Ends a request early wherever it is; one that has ended already is left alone. `false` while there is no room to
    /// say so: try again.
    fn cancel(&mut self, request: u64) -> bool;

    /// The next event, waiting for it at most `wait`; `None` also where a [`Waker`] ended the wait. With it comes the time
    /// (ns) of the turn that published the event, by the scheduler's clock, which is that of trace records and starts
    /// anywhere. Schedulers of several devices have no clock in common: there it is the host's, when the event was read.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] once a stage, a device or the core failed, or a step got stuck, and every event before
    /// that is out.
    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>>;

    /// [`Engine::next_stamped`] without the time.
    ///
    /// # Errors
    /// Fails as [`Engine::next_stamped`] does.
    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        Ok(self.next_stamped(wait)?.map(|(_, event)| event))
    }

    /// No more requests will come: schedulers end once all have ended.
    fn drain(&mut self);

    /// What is in flight, as of the last turn that changed something.
    fn status(&self) -> EngineStatus;

    /// What ends a wait of [`Engine::next_event`] from another thread.
    fn waker(&self) -> Waker;

    /// How many schedulers it has, each of which runs the whole model.
    fn replicas(&self) -> usize {
        1
    }

    /// The next part of what a replica's run is made of. With [`crate::plan::EngineOptions::record`] it has all of them, and
    /// the scheduler waits for room in the trace ring, so read parts as you read events. Without, it has turns alone, of
    /// which the oldest are written over.
    fn next_part(&mut self, replica: usize) -> Option<Part> {
        let _ = replica;
        None
    }

    /// The next turn among the parts of a single scheduler's run.
    fn next_turn(&mut self) -> Option<tg_trace> {
        loop {
            if let Part::Turn(turn) = self.next_part(0)? {
                return Some(*turn);
            }
        }
    }

    /// Turns written over before they were read.
    fn traces_lost(&self) -> u64 {
        0
    }
}
