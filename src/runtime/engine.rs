//! [`Engine`]: requests in, events out. One scheduler thread turns the core and runs stage 0; every other
//! stage has a thread of its own, fed by its mailbox.

use super::core::{Action, Core, StageLink};
use super::options::EngineStatus;
use super::request::{Event, Request};
use super::rings::HostRings;
use super::signal::Signal;
use crate::backend::StageBackend;
use crate::error::{Error, Result};
use crate::plan::{EngineOptions, Ladders, RingCapacities};
use crate::sys::abi::tg_trace;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timeouts are noticed when a turn runs, so an idle scheduler looks at the clock at least this often.
const IDLE_POLL: Duration = Duration::from_millis(2);
/// A stage is woken by its mailbox; this only bounds how long a missed end of the engine could go unseen.
const STAGE_POLL: Duration = Duration::from_millis(50);

/// What the threads share besides the scheduler's memory.
#[derive(Default)]
struct Shared {
    /// Something happened that a scheduler or stage thread may be waiting for.
    work: Signal,
    /// Something happened that the host may be waiting for.
    host: Signal,
    failure: Mutex<Option<String>>,
    status: Mutex<EngineStatus>,
}

impl Shared {
    /// Keeps the first failure and wakes everyone; later ones are its consequences.
    fn fail(&self, message: String) {
        self.failure.lock().get_or_insert(message);
        self.work.notify();
        self.host.notify();
    }

    fn failed(&self) -> bool {
        self.failure.lock().is_some()
    }
}

/// A running engine. Used from one thread; dropping it stops everything.
pub struct Engine {
    rings: HostRings,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts the scheduler with one backend per stage, in order. `options` must fit the ladders
    /// (see [`EngineOptions`]); all memory of the scheduler is allocated here.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options break one of the core's rules.
    pub fn start(
        stages: Vec<Box<dyn StageBackend>>,
        ladders: &Ladders,
        options: &EngineOptions,
    ) -> Result<Self> {
        let (core, rings, links) = Core::new(
            options,
            ladders,
            stages.len() as u32,
            RingCapacities::new(options),
            options.record,
        )?;
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::with_capacity(stages.len());
        let mut later = stages.into_iter().zip(links).enumerate();
        let (_, (first, first_link)) = later
            .next()
            .ok_or_else(|| Error::Usage("a plan needs at least one stage".into()))?;
        for (index, (backend, link)) in later {
            let shared_ = shared.clone();
            threads.push(spawn(
                format!("stage-{index}"),
                shared.clone(),
                move || run_stage(backend, link, &shared_),
            )?);
        }
        let shared_ = shared.clone();
        threads.push(spawn("scheduler".into(), shared.clone(), move || {
            run_scheduler(core, first, first_link, &shared_)
        })?);
        Ok(Self {
            rings,
            shared,
            threads,
        })
    }

    /// Queues a request and returns its number (0, 1, 2 ...), or `None` while the rings are full: take
    /// events, then try again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a request that no ring could ever hold; [`Error::Runtime`] once the engine failed.
    pub fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        self.check()?;
        let number = self.rings.try_push_request(request)?;
        if number.is_some() {
            self.shared.work.notify();
        }
        Ok(number)
    }

    /// Ends a request early wherever it is; one that has ended already is left alone. `false` while the
    /// control ring is full: try again.
    pub fn cancel(&mut self, request: u64) -> bool {
        let pushed = self.rings.push_cancel(request);
        self.shared.work.notify();
        pushed
    }

    /// The next event, waiting for it at most `wait`.
    ///
    /// # Errors
    /// [`Error::Runtime`] once a stage or the core failed and every event before that is out.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        let deadline = Instant::now() + wait;
        loop {
            let epoch = self.shared.host.epoch();
            if let Some(event) = self.rings.pop_event() {
                self.shared.work.notify();
                return Ok(Some(event));
            }
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.shared.host.wait_past(epoch, left);
        }
    }

    /// The oldest trace record that has not been read. With [`EngineOptions::record`] the scheduler waits for
    /// room in the trace ring, so read it as you read events; without, the oldest records are written over.
    pub fn next_trace(&mut self) -> Option<tg_trace> {
        let record = self.rings.pop_trace();
        if record.is_some() {
            self.shared.work.notify();
        }
        record
    }

    /// No more requests will come: the scheduler ends once all have ended.
    pub fn drain(&mut self) {
        self.rings.set_drain();
        self.shared.work.notify();
    }

    /// What is in flight, as of the last turn that changed something.
    pub fn status(&self) -> EngineStatus {
        *self.shared.status.lock()
    }

    fn check(&self) -> Result<()> {
        match &*self.shared.failure.lock() {
            Some(message) => Err(Error::Runtime(message.clone())),
            None => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.rings.set_stop();
        self.shared.work.notify();
        for thread in self.threads.drain(..) {
            // A panic in a thread has been kept as the failure; there is no one left to tell here.
            let _ = thread.join();
        }
    }
}

/// A named thread whose error or panic becomes the engine's failure.
fn spawn(
    name: String,
    shared: Arc<Shared>,
    body: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.clone());
    thread
        .spawn(move || match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.fail(format!("{name}: {error}")),
            Err(panic) => {
                let what = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                shared.fail(format!("{name} panicked: {what}"));
            }
        })
        .map_err(|error| Error::Runtime(format!("the system refused a thread: {error}")))
}

/// Turns the core and runs stage 0 until the core is done.
fn run_scheduler(
    mut core: Core,
    mut backend: Box<dyn StageBackend>,
    mut link: StageLink,
    shared: &Shared,
) -> Result<()> {
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    loop {
        let epoch = shared.work.epoch();
        let outcome = core.turn(now_ns(), now_ns);
        if outcome.changed {
            *shared.status.lock() = EngineStatus {
                running: outcome.running,
                waiting: outcome.queue_depth,
                free_pages: outcome.free_pages,
                steps: core.steps_composed(),
            };
            shared.host.notify();
        }
        match outcome.action {
            Action::Step(number) => {
                backend.run(&link.step(number))?;
                hand_over(number, &mut link, shared);
            }
            Action::Idle | Action::Blocked if outcome.changed => {}
            Action::Idle | Action::Blocked => shared.work.wait_past(epoch, IDLE_POLL),
            Action::Done => {
                shared.work.notify();
                return Ok(());
            }
            Action::Error(code) => {
                return Err(Error::Runtime(format!(
                    "the scheduler core stopped with error {code} after {} steps: this is a bug in tailgraph",
                    core.steps_composed()
                )));
            }
        }
        if shared.failed() {
            return Ok(());
        }
    }
}

/// Runs one later stage for every step that comes into its mailbox, until the scheduler is done.
fn run_stage(
    mut backend: Box<dyn StageBackend>,
    mut link: StageLink,
    shared: &Shared,
) -> Result<()> {
    loop {
        let epoch = shared.work.epoch();
        if let Some(number) = link.take() {
            shared.work.notify();
            backend.run(&link.step(number))?;
            hand_over(number, &mut link, shared);
        } else if link.done() || shared.failed() {
            return Ok(());
        } else {
            shared.work.wait_past(epoch, STAGE_POLL);
        }
    }
}

/// Posts a step to the next stage, waiting for a credit. Gives up only where the engine is ending anyway.
fn hand_over(number: u64, link: &mut StageLink, shared: &Shared) {
    loop {
        let epoch = shared.work.epoch();
        if link.post(number) || link.done() || shared.failed() {
            shared.work.notify();
            return;
        }
        shared.work.wait_past(epoch, STAGE_POLL);
    }
}
