//! What runs a session's requests: one engine, or replicas on several devices.

use super::any_engine::AnyEngine;
use super::recording::Recorded;
use super::replicated::RecordedReplicas;
use crate::error::Result;
use crate::runtime::{EngineStatus, Event, Request};
use crate::trace::About;
use std::time::Duration;

/// Started, with what is kept of the run.
pub enum Serving {
    One(Box<Recorded>),
    Several(Box<RecordedReplicas>),
}

impl Serving {
    fn engine(&mut self) -> &mut dyn AnyEngine {
        match self {
            Self::One(engine) => &mut **engine,
            Self::Several(replicas) => &mut **replicas,
        }
    }

    /// With every request ended: ends what runs, and what is kept of it. `whole`: the run did what it was asked to.
    ///
    /// # Errors
    /// As [`Recorded::finish`] and [`RecordedReplicas::finish`].
    pub fn finish(self, whole: bool) -> Result<Option<About>> {
        match self {
            Self::One(engine) => engine.finish(whole),
            Self::Several(replicas) => replicas.finish(whole).map(|()| None),
        }
    }
}

impl AnyEngine for Serving {
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        self.engine().try_submit(request)
    }

    fn cancel(&mut self, request: u64) -> bool {
        self.engine().cancel(request)
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        self.engine().next_event(wait)
    }

    fn status(&self) -> EngineStatus {
        match self {
            Self::One(engine) => engine.status(),
            Self::Several(replicas) => replicas.status(),
        }
    }
}
