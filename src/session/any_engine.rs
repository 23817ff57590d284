//! What the loops of `generate` and `score` ask of an engine.

use crate::error::Result;
use crate::runtime::{EngineStatus, Event, Request};
use std::time::Duration;

/// An engine as a job loop sees it; the meaning is `runtime::Engine`'s.
pub trait AnyEngine {
    /// `None`: the rings are full, take events first. Numbers count from 0.
    ///
    /// # Errors
    /// A request that the rings could never hold; the engine has failed; what is kept of the run cannot be written.
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>>;
    /// Ends a request wherever it is. `false`: there is no room to say so now, try again.
    fn cancel(&mut self, request: u64) -> bool;
    /// `None`: nothing came within `wait`.
    ///
    /// # Errors
    /// The device failed and gives no more events; what is kept of the run cannot be written.
    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>>;
    /// As of the scheduler's last turn that changed something.
    fn status(&self) -> EngineStatus;
}
