//! What the loops of `generate` and `score` ask of an engine.

use crate::error::Result;
use crate::runtime::{EngineStatus, Event, Request};
use std::time::Duration;

/// An engine as a job loop sees it; the meaning is `runtime::Engine`'s.
pub trait AnyEngine {
    /// `None`: the rings are full, take events first. Numbers count from 0.
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>>;
    /// Ends a request wherever it is. `false`: there is no room to say so now, try again.
    fn cancel(&mut self, request: u64) -> bool;
    /// `None`: nothing came within `wait`. An error: the device failed and gives no more events.
    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>>;
    fn status(&self) -> EngineStatus;
}
