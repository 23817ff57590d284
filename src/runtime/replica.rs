//! A replica before it takes part ([`Replica`]) and then, with what is known of its requests.

use super::claims::{Claimer, Numbers, Queue};
use super::device_queue::DeviceQueue;
use super::engine::Part;
use super::notices::Claimed;
use super::options::EngineOptions;
use super::request::Event;
use super::signal::Signal;
use super::single::SingleEngine;
use crate::backend::Device;
use crate::backend::device::{EngineSpec, Runs, Watch};
use crate::error::Result;
use crate::plan::{BucketSizes, RingCapacities};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// An engine that is to be one of several.
pub struct Replica {
    /// The name of its device.
    name: String,
    engine: SingleEngine,
    numbers: Arc<Numbers>,
}

/// A device that schedules itself has to know before it is prepared that it is one of several.
fn may_claim(mut runs: Runs) -> Result<Runs> {
    if let Runs::Scheduler(device) = &mut runs {
        device.may_claim()?;
    }
    Ok(runs)
}

impl Replica {
    /// Loads a model on `device`, by the name of that. Logits go to the sink of `spec` under the queue's numbers.
    ///
    /// # Errors
    /// Fails as [`SingleEngine::on`] does.
    pub fn on(device: &dyn Device, name: String, spec: &EngineSpec<'_>) -> Result<Self> {
        let numbers = Arc::new(Numbers::default());
        let sink = numbers.sink(spec.sink);
        let spec = EngineSpec {
            sink: &sink,
            ..*spec
        };
        let (engine, _) = SingleEngine::on_watched(device, &spec, Watch::Nothing, may_claim)?;
        Ok(Self {
            name,
            engine,
            numbers,
        })
    }

    /// Makes a replica of whatever runs its steps.
    ///
    /// # Errors
    /// Fails as [`SingleEngine::of`] does.
    pub fn of(
        name: String,
        runs: Runs,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
    ) -> Result<Self> {
        let runs = may_claim(runs)?;
        let engine = SingleEngine::of(runs, bucket_sizes, options, RingCapacities::new(options))?;
        Ok(Self {
            name,
            engine,
            numbers: Arc::default(),
        })
    }

    pub(super) fn slots(&self) -> u32 {
        self.engine.shape().options.max_seqs
    }

    pub(super) fn engine(&mut self) -> &mut SingleEngine {
        &mut self.engine
    }

    /// From the queue on.
    pub(super) fn takes(mut self, place: &Place<'_>) -> Member {
        let EngineOptions {
            max_seqs: slots,
            record: records,
            ..
        } = self.engine.shape().options;
        let (tell, claims) = channel();
        let numbers = self.numbers.clone();
        let claimer = |rings| Claimer {
            queue: place.queue.clone(),
            words: place.queue.words(place.number),
            replicas: place.count,
            slots,
            rings,
            tell,
            records,
            numbers,
            claims: 0,
            held: VecDeque::new(),
        };
        let claimer = self.engine.claim_from(claimer, place.news);
        self.member(claimer, claims)
    }

    /// From now on, as replica `number` of a queue that it claims from by itself.
    pub(super) fn claims(self, queue: &DeviceQueue, number: u32) -> Member {
        let (tell, claims) = channel();
        self.numbers.listen(queue.notices(number, tell));
        self.member(None, claims)
    }

    /// `claims`: what it has claimed comes from there.
    fn member(self, claimer: Option<Claimer>, claims: Receiver<Claimed>) -> Member {
        Member {
            slots: self.slots().into(),
            engine: self.engine,
            name: self.name,
            claimer,
            numbers: self.numbers,
            claims,
            claimed: vec![],
            ended: 0,
        }
    }
}

/// Where a replica comes to stand.
pub(super) struct Place<'a> {
    pub queue: &'a Arc<Queue>,
    /// Its number, below `count`.
    pub number: u32,
    pub count: u32,
    pub news: &'a Arc<Signal>,
}

/// One that takes part.
pub(super) struct Member {
    pub engine: SingleEngine,
    pub name: String,
    /// Where the host claims for it.
    pub claimer: Option<Claimer>,
    pub slots: u64,
    numbers: Arc<Numbers>,
    claims: Receiver<Claimed>,
    /// By its own number: the queue's number, and the time that the request has waited there.
    claimed: Vec<(u64, Duration)>,
    ended: u64,
}

impl Member {
    /// Requests that it has claimed and that have not ended.
    pub fn busy(&self) -> u64 {
        self.claimed.len() as u64 - self.ended
    }

    /// The next claim that has been told of: its own number of the request, and the queue's.
    pub fn hear(&mut self) -> Option<(u64, u64)> {
        self.numbers.hear();
        let Claimed {
            number,
            waited,
            recorded,
        } = self.claims.try_recv().ok()?;
        let own = self.claimed.len() as u64;
        self.claimed.push((number, waited));
        self.engine.parts.extend(recorded.map(Part::Request));
        Some((own, number))
    }

    /// An event of its engine with the queue's number of the request, and the time that that has waited there.
    pub fn named(&mut self, mut event: Event) -> Event {
        self.engine.keep(|| Part::Event(event.clone()));
        let (number, waited) = self.claimed[event.request() as usize];
        match &mut event {
            Event::Token { request, .. } => *request = number,
            Event::End {
                request, timing, ..
            } => {
                *request = number;
                self.ended += 1;
                timing.queue += waited;
                timing.total += waited;
                if !timing.first_token.is_zero() {
                    timing.first_token += waited;
                }
            }
        }
        event
    }
}
