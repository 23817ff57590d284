//! [`Replicas`]: one model several times over, each with an engine of its own, on one queue of requests. To its user it is
//! one engine: numbers of requests are the queue's.
//!
//! Schedulers claim from the queue by themselves: those on the host always, those on devices where all of them reach the word
//! that they swap (kernels/sched/claim.h). For devices that do not, the host claims whenever it looks for an event, request by
//! request for whoever has the least to do: then a host that is busy elsewhere leaves them without work.

use super::claims::{Claimer, Pusher, Queue};
use super::device_queue::DeviceQueue;
use super::engine::{Engine, Part};
use super::options::{EngineShape, EngineStatus};
use super::replica::{Member, Place, Replica};
use super::request::{Event, Request};
use super::signal::Waker;
use super::signal::{Signal, Until};
use crate::error::{Error, Result};
use crate::sys::abi::TG_MAX_REPLICAS;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Replicas that one queue can have.
pub const MAX_REPLICAS: usize = TG_MAX_REPLICAS as usize;

/// Engines on one queue. Used from one thread at a time; dropping it stops all of them.
pub struct Replicas {
    members: Vec<Member>,
    source: Source,
    /// By the queue's number: which replica runs it, under which number of its own.
    owners: HashMap<u64, (usize, u64)>,
    /// Submitted, and not ended.
    live: HashSet<u64>,
    /// Cancelled, and claimed by nobody yet.
    cancelled: HashSet<u64>,
    /// Whose turn it is to be asked for an event.
    next: usize,
    zero: Instant,
    failure: Option<String>,
}

/// The host's end of the queue.
enum Source {
    /// In memory of the host's own.
    Host(Pusher),
    /// In memory that devices see.
    Devices(DeviceQueue),
}

impl Source {
    fn push(&mut self, request: &Request) -> Result<Option<u64>> {
        match self {
            Self::Host(pusher) => Ok(pusher.push(request)),
            Self::Devices(queue) => queue.push(request),
        }
    }

    fn unclaimed(&self) -> u64 {
        match self {
            Self::Host(pusher) => pusher.queue.unclaimed(),
            Self::Devices(queue) => queue.unclaimed(),
        }
    }
}

impl Replicas {
    /// Replicas that are not launched yet.
    ///
    /// # Errors
    /// [`Error::Usage`] for none, or more than there can be; [`Error::Memory`] where the system has no room for the queue;
    /// [`Error::Runtime`] for what a device refuses.
    pub fn new(mut replicas: Vec<Replica>) -> Result<Self> {
        let count = replicas.len();
        if !(1..=MAX_REPLICAS).contains(&count) {
            return Err(Error::Usage(format!(
                "found {count} replicas, expected 1 to {MAX_REPLICAS}"
            )));
        }
        let mut engines: Vec<_> = replicas.iter_mut().map(Replica::engine).collect();
        let (members, source) = match DeviceQueue::of(&mut engines)? {
            Some(queue) => {
                let replicas = (0..).zip(replicas);
                let members = replicas.map(|(number, replica)| replica.claims(&queue, number));
                (members.collect(), Source::Devices(queue))
            }
            None => {
                let slots = replicas.iter().map(Replica::slots).sum();
                let queue = Queue::new(count as u32, slots)?;
                let news = Arc::new(Signal::default());
                let member = |(number, replica): (u32, Replica)| {
                    replica.takes(&Place {
                        queue: &queue,
                        number,
                        count: count as u32,
                        news: &news,
                    })
                };
                let members = (0..).zip(replicas).map(member).collect();
                (members, Source::Host(Pusher::new(queue)))
            }
        };
        Ok(Self {
            members,
            source,
            owners: HashMap::new(),
            live: HashSet::new(),
            cancelled: HashSet::new(),
            next: 0,
            zero: Instant::now(),
            failure: None,
        })
    }

    /// Launches all of them.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the system or a device refuses, with its name.
    pub fn launch(&mut self) -> Result<()> {
        let named = |name: &str, error| Error::Runtime(format!("{name}: {error}"));
        self.members.iter_mut().try_for_each(|member| {
            let launched = member.engine.launch();
            launched.map_err(|error| named(&member.name, error))
        })
    }

    fn check(&self) -> Result<()> {
        match &self.failure {
            Some(failure) => Err(Error::Runtime(failure.clone())),
            None => Ok(()),
        }
    }

    fn notify(&mut self) {
        for member in &mut self.members {
            member.engine.notify();
        }
    }

    /// Gives the schedulers that cannot claim themselves what they have room for.
    fn hand_out(&mut self) {
        self.hear();
        if let Source::Host(pusher) = &self.source
            && pusher.queue.unclaimed() > 0
        {
            self.claim();
        }
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            match member.claimer.as_mut().map(Claimer::pass) {
                Some(Ok(true)) => member.engine.notify(),
                Some(Err(error)) => self.fail(index, &error),
                Some(Ok(false)) | None => {}
            }
        }
    }

    /// Claims for whoever has the least to do, as many as it has free slots. While more wait than all could run, each also
    /// gets as many ahead, so that it finds the next ones there when its sequences end, all of them at once if need be.
    /// Requests that begin alike stay together.
    fn claim(&mut self) {
        let all: u64 = self.members.iter().map(|member| member.slots).sum();
        let mut unclaimed = self.source.unclaimed();
        let mut busy: Vec<u64> = self.members.iter().map(Member::busy).collect();
        while unclaimed > 0 {
            let room = |slots: u64| if unclaimed > all { 2 * slots } else { slots };
            let members = self.members.iter_mut().zip(&mut busy);
            let least = members
                .filter_map(|(member, busy)| {
                    let has_room = *busy < room(member.slots);
                    has_room.then_some((member.claimer.as_mut()?, busy))
                })
                .min_by_key(|(claimer, busy)| (**busy, claimer.claims));
            let Some((claimer, busy)) = least else {
                break;
            };
            let run_most = room(u64::from(claimer.slots)) - *busy;
            let claimed = u64::from(claimer.take(1, run_most as u32));
            if claimed == 0 {
                break;
            }
            *busy += claimed;
            unclaimed -= claimed;
        }
        self.hear();
    }

    /// Keeps the first failure, and stops all.
    fn fail(&mut self, index: usize, error: &Error) {
        if self.failure.is_none() {
            self.failure = Some(format!("{}: {error}", self.members[index].name));
            for member in &mut self.members {
                member.engine.stop();
            }
        }
    }

    /// Takes what has been said of claims, and passes on the cancels that waited for that.
    fn hear(&mut self) {
        for (index, member) in self.members.iter_mut().enumerate() {
            while let Some((own, number)) = member.hear() {
                self.owners.insert(number, (index, own));
            }
        }
        let (owners, members) = (&self.owners, &mut self.members);
        self.cancelled.retain(|request| match owners.get(request) {
            Some(&(member, number)) => !members[member].engine.cancel(number),
            None => true,
        });
    }

    /// One event of the replica whose turn it is, or of the first after it that has one.
    fn poll(&mut self) -> Option<Event> {
        self.hand_out();
        for _ in 0..self.members.len() {
            let index = self.next % self.members.len();
            self.next = index + 1;
            match self.members[index].engine.next_unrecorded(Duration::ZERO) {
                Ok(None) => {}
                Ok(Some((_, event))) => {
                    // It may be of a claim that was made since.
                    self.hear();
                    if index != 0 {
                        // Whose eagerness to look again is that of all.
                        self.members[0].engine.notify();
                    }
                    return Some(self.named(index, event));
                }
                Err(error) => self.fail(index, &error),
            }
        }
        None
    }

    fn named(&mut self, index: usize, event: Event) -> Event {
        let event = self.members[index].named(event);
        if let Event::End { request, .. } = &event {
            self.owners.remove(request);
            self.live.remove(request);
            self.cancelled.remove(request);
        }
        event
    }

    /// What each was started with, which a replay wants.
    pub fn shapes(&self) -> impl Iterator<Item = &EngineShape> {
        self.members.iter().map(|member| member.engine.shape())
    }
}

impl Engine for Replicas {
    /// Some of the requests may be queued where this fails.
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        self.check()?;
        let mut numbers = 0..0;
        for request in requests {
            self.members[0].engine.check_request(request)?;
            let Some(number) = self.source.push(request)? else {
                break;
            };
            self.live.insert(number);
            if numbers.is_empty() {
                numbers.start = number;
            }
            numbers.end = number + 1;
        }
        if !numbers.is_empty() {
            self.hand_out();
            self.notify();
        }
        Ok(numbers)
    }

    /// One that nobody has claimed is cancelled by whoever does.
    fn cancel(&mut self, request: u64) -> bool {
        self.hear();
        match self.owners.get(&request) {
            Some(&(member, number)) => self.members[member].engine.cancel(number),
            None => {
                if self.live.contains(&request) {
                    self.cancelled.insert(request);
                }
                true
            }
        }
    }

    /// The error names the replica that has failed; the others are stopped.
    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        let until = Until::after(wait);
        loop {
            let epoch = self.members[0].engine.epoch();
            if let Some(event) = self.poll() {
                return Ok(Some((self.zero.elapsed().as_nanos() as u64, event)));
            }
            self.check()?;
            let left = until.left();
            if left.is_zero() || self.members[0].engine.woken() {
                return Ok(None);
            }
            // All are of one kind: those on the host tell `news`, which is what each waits for, and devices tell nobody.
            self.members[0].engine.wait(epoch, left.min(LOOK_AGAIN));
        }
    }

    fn drain(&mut self) {
        match &self.source {
            Source::Host(pusher) => pusher.queue.drain(),
            // A device looks at the flag before it looks whether something is left to claim.
            Source::Devices(_) => {
                let members = self.members.iter_mut();
                members.for_each(|member| member.engine.drain());
            }
        }
        self.hand_out();
        self.notify();
    }

    /// All of them together; `waiting` counts the queue too.
    fn status(&self) -> EngineStatus {
        let mut all = EngineStatus::default();
        for member in &self.members {
            let one = member.engine.status();
            all.running += one.running;
            all.waiting += one.waiting;
            all.free_pages += one.free_pages;
            all.steps += one.steps;
        }
        all.waiting += self.source.unclaimed() as u32;
        all
    }

    fn waker(&self) -> Waker {
        self.members[0].engine.waker()
    }

    fn replicas(&self) -> usize {
        self.members.len()
    }

    /// Claims are told before a turn sees them, so they stand before it.
    fn next_part(&mut self, replica: usize) -> Option<Part> {
        let turn = self.members[replica].engine.next_trace();
        self.hear();
        let parts = &mut self.members[replica].engine.parts;
        parts.extend(turn);
        parts.pop_front()
    }
}

impl Drop for Replicas {
    /// All end at once: memory that several devices use goes with the last of them.
    fn drop(&mut self) {
        self.members
            .iter_mut()
            .for_each(|member| member.engine.stop());
    }
}

/// Schedulers tell of their events; this only bounds how long a failure goes unseen.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
