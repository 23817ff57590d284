//! [`Replicas`]: one model several times over, each with an engine of its own, all claiming requests from one queue. To its
//! user it is one engine: numbers of requests are the queue's.

use super::claims::{Claimed, Claimer, Pusher, Queue};
use super::engine::Engine;
use super::options::{EngineOptions, EngineStatus};
use super::request::{Event, Request};
use super::signal::Signal;
use crate::backend::device::Stages;
use crate::error::{Error, Result};
use crate::plan::{Ladders, RingCapacities};
use crate::sys::abi::tg_trace;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What one replica's run is made of, in its own numbers of requests, in an order that a replay takes.
#[derive(Debug, Clone)]
pub enum Part {
    /// The next request that it has claimed.
    Request(Request),
    Cancel(u64),
    Turn(Box<tg_trace>),
}

struct Replica {
    engine: Engine,
    name: String,
    claims: Receiver<Claimed>,
    /// By its own number: the queue's number, and the time that the request has waited there.
    claimed: Vec<(u64, Duration)>,
    parts: VecDeque<Part>,
    records: bool,
}

/// Engines on one queue. Used from one thread at a time; dropping it stops all of them.
pub struct Replicas {
    replicas: Vec<Replica>,
    pusher: Pusher,
    news: Arc<Signal>,
    /// By the queue's number: which replica runs it, under which number of its own.
    owners: HashMap<u64, (usize, u64)>,
    /// Submitted, and not ended.
    live: HashSet<u64>,
    /// Cancelled, and claimed by nobody yet.
    cancelled: HashSet<u64>,
    /// Whose turn it is to be asked for an event.
    next: usize,
    failure: Option<String>,
}

impl Replicas {
    /// Starts a scheduler for each of `models`, which are the stages of a whole model each, by the name of its device.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start(
        models: Vec<(String, Stages)>,
        ladders: &Ladders,
        options: &EngineOptions,
    ) -> Result<Self> {
        let queue = Queue::new(models.len() as u32)?;
        let news = Arc::new(Signal::default());
        let mut replicas = Vec::new();
        for (replica, (name, stages)) in (0..).zip(models) {
            let (tell, claims) = channel();
            let claimer = |rings| Claimer {
                queue: queue.clone(),
                replica,
                slots: options.max_seqs,
                rings,
                tell,
                held: VecDeque::new(),
            };
            let capacities = RingCapacities::new(options);
            let mut engine =
                Engine::claiming(stages, ladders, options, capacities, news.clone(), claimer)?;
            engine.launch()?;
            replicas.push(Replica {
                engine,
                name,
                claims,
                claimed: vec![],
                parts: VecDeque::new(),
                records: options.record,
            });
        }
        Ok(Self {
            replicas,
            pusher: Pusher::new(queue),
            news,
            owners: HashMap::new(),
            live: HashSet::new(),
            cancelled: HashSet::new(),
            next: 0,
            failure: None,
        })
    }

    /// As [`Engine::try_submit`].
    ///
    /// # Errors
    /// As there.
    pub fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        if let Some(failure) = &self.failure {
            return Err(Error::Runtime(failure.clone()));
        }
        if let Some(replica) = self.replicas.first() {
            replica.engine.check_request(request)?;
        }
        let number = self.pusher.push(request);
        if let Some(number) = number {
            self.live.insert(number);
            self.replicas
                .iter_mut()
                .for_each(|replica| replica.engine.notify());
        }
        Ok(number)
    }

    /// As [`Engine::cancel`]. One that nobody has claimed is cancelled by whoever does.
    pub fn cancel(&mut self, request: u64) -> bool {
        self.hear();
        match self.owners.get(&request) {
            Some(&(replica, number)) => self.replicas[replica].cancel(number),
            None => {
                if self.live.contains(&request) {
                    self.cancelled.insert(request);
                }
                true
            }
        }
    }

    /// Takes what the schedulers have said of their claims, and passes on the cancels that waited for that.
    fn hear(&mut self) {
        for index in 0..self.replicas.len() {
            let replica = &mut self.replicas[index];
            while let Ok(claimed) = replica.claims.try_recv() {
                let own = replica.claimed.len() as u64;
                replica.claimed.push((claimed.number, claimed.waited));
                self.owners.insert(claimed.number, (index, own));
                if replica.records {
                    replica.parts.push_back(Part::Request(claimed.request));
                }
            }
        }
        let owners = &self.owners;
        let replicas = &mut self.replicas;
        self.cancelled.retain(|request| match owners.get(request) {
            Some(&(replica, number)) => !replicas[replica].cancel(number),
            None => true,
        });
    }

    /// As [`Engine::next_event`].
    ///
    /// # Errors
    /// A replica has failed, which the message names, and every event that was out is taken. The others are stopped.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        let deadline = Instant::now() + wait;
        loop {
            let epoch = self.news.epoch();
            if let ControlFlow::Break(event) = self.poll() {
                return Ok(Some(event));
            }
            if let Some(failure) = &self.failure {
                return Err(Error::Runtime(failure.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.news.wait_past(epoch, left.min(LOOK_AGAIN));
        }
    }

    /// One event of the replica whose turn it is, or of the first after it that has one.
    fn poll(&mut self) -> ControlFlow<Event> {
        self.hear();
        for _ in 0..self.replicas.len() {
            let index = self.next % self.replicas.len();
            self.next = index + 1;
            match self.replicas[index].engine.next_event(Duration::ZERO) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    // It may be of a claim that was made since.
                    self.hear();
                    return ControlFlow::Break(self.named(index, event));
                }
                Err(error) if self.failure.is_none() => {
                    self.failure = Some(format!("{}: {error}", self.replicas[index].name));
                    self.replicas
                        .iter_mut()
                        .for_each(|replica| replica.engine.stop());
                }
                Err(_) => {}
            }
        }
        ControlFlow::Continue(())
    }

    /// An event with the queue's number of its request, and the time that that has waited there.
    fn named(&mut self, replica: usize, event: Event) -> Event {
        let claimed = |own: u64| self.replicas[replica].claimed[own as usize];
        match event {
            Event::Token {
                request,
                token,
                index,
                logprobs,
            } => Event::Token {
                request: claimed(request).0,
                token,
                index,
                logprobs,
            },
            Event::End {
                request,
                reason,
                tokens,
                mut timing,
            } => {
                let (number, waited) = claimed(request);
                self.owners.remove(&number);
                self.live.remove(&number);
                self.cancelled.remove(&number);
                timing.queue += waited;
                timing.total += waited;
                if !timing.first_token.is_zero() {
                    timing.first_token += waited;
                }
                Event::End {
                    request: number,
                    reason,
                    tokens,
                    timing,
                }
            }
        }
    }

    /// What has been recorded of a replica's run and not been read; with [`EngineOptions::record`] it waits for that.
    pub fn next_part(&mut self, replica: usize) -> Option<Part> {
        let turn = self.replicas[replica].engine.next_trace();
        // Claims are told before a turn sees them, so they stand before its record.
        self.hear();
        let parts = &mut self.replicas[replica].parts;
        parts.extend(turn.map(|turn| Part::Turn(Box::new(turn))));
        parts.pop_front()
    }

    /// An engine of them: what it was started with is what a replay wants.
    pub fn engine(&self, replica: usize) -> &Engine {
        &self.replicas[replica].engine
    }

    /// As [`Engine::drain`].
    pub fn drain(&mut self) {
        self.pusher.queue.drain();
        self.replicas
            .iter_mut()
            .for_each(|replica| replica.engine.notify());
    }

    /// Of all of them together, in the order that [`EngineStatus`] has; `waiting` counts the queue too.
    pub fn status(&self) -> EngineStatus {
        let mut all = EngineStatus::default();
        for replica in &self.replicas {
            let one = replica.engine.status();
            all.running += one.running;
            all.waiting += one.waiting;
            all.free_pages += one.free_pages;
            all.steps += one.steps;
        }
        all.waiting += self.pusher.unclaimed() as u32;
        all
    }
}

/// Schedulers tell of their events; this only bounds how long a failure goes unseen.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Replica {
    fn cancel(&mut self, own: u64) -> bool {
        let taken = self.engine.cancel(own);
        if taken && self.records {
            self.parts.push_back(Part::Cancel(own));
        }
        taken
    }
}
