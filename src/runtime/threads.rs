//! The scheduler on the host: one thread turns the core and runs stage 0; every other stage has a thread of its own,
//! fed by its link.

use super::claims::Claimer;
use super::core::{Action, Core};
use super::driver::Driver;
use super::links::{Asked, StageLink};
use super::rings::HostRings;
use super::signal::Signal;
use crate::backend::{RunsAhead, StageBackend, StepView};
use crate::error::{Error, Result, said_by_panic};
use crate::sys::abi::{tg_status, tg_step};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timeouts are noticed when a turn runs, so an idle scheduler looks at the clock at least this often.
const IDLE_POLL: Duration = Duration::from_millis(2);
/// A stage is woken by its link; this only bounds how long a missed end of the engine could go unseen.
const STAGE_POLL: Duration = Duration::from_millis(50);
/// The host is woken by events; this only bounds how long a stuck step goes unseen.
const HOST_POLL: Duration = Duration::from_millis(100);

/// What the threads share besides the scheduler's memory.
#[derive(Default)]
struct Shared {
    /// Something happened that a scheduler or stage thread may be waiting for.
    work: Signal,
    /// Something happened that the host may be waiting for.
    host: Arc<Signal>,
    failure: Mutex<Option<String>>,
    /// The step that the scheduler waits for while its backend finishes it: with another behind it, or with the core
    /// idle, the last turn's outcome does not tell.
    finishing: Mutex<Option<tg_status>>,
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

/// What runs once the engine is launched: the core, and a backend with its links per stage.
struct Ready {
    core: Core,
    /// Where requests come from, if the host does not push them.
    claimer: Option<Claimer>,
    stages: Vec<(Box<dyn StageBackend>, StageLink)>,
}

/// The threads of an engine whose scheduler runs on the host.
pub(super) struct Threads {
    shared: Arc<Shared>,
    /// Until the launch.
    ready: Option<Ready>,
    /// From then on: 0 of the scheduler's clock.
    start: Option<Instant>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// At least one stage, in order.
    pub fn new(core: Core, stages: Vec<(Box<dyn StageBackend>, StageLink)>) -> Self {
        Self {
            shared: Arc::default(),
            ready: Some(Ready {
                core,
                claimer: None,
                stages,
            }),
            start: None,
            running: vec![],
        }
    }

    /// A named thread whose error or panic becomes the engine's failure.
    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let thread =
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(
                    move || match catch_unwind(AssertUnwindSafe(|| body(&shared))) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => shared.fail(format!("{name}: {error}")),
                        Err(panic) => {
                            let what = said_by_panic(&*panic);
                            shared.fail(format!("{name} panicked: {what}"));
                        }
                    },
                );
        let thread = thread
            .map_err(|error| Error::thread(&error))
            // Those that run already would wait for this one.
            .inspect_err(|error| self.shared.fail(error.to_string()))?;
        self.running.push(thread);
        Ok(())
    }
}

impl Driver for Threads {
    fn claims(&mut self, claimer: Claimer, news: &Arc<Signal>) -> Option<Claimer> {
        self.shared = Arc::new(Shared {
            host: news.clone(),
            ..Shared::default()
        });
        if let Some(ready) = &mut self.ready {
            ready.claimer = Some(claimer);
        }
        None
    }

    fn launch(&mut self) -> Result<()> {
        let Some(Ready {
            core,
            claimer,
            stages,
        }) = self.ready.take()
        else {
            return Ok(());
        };
        let start = Instant::now();
        self.start = Some(start);
        let mut stages = stages.into_iter().enumerate();
        let (_, (first, first_link)) = stages
            .next()
            .ok_or_else(|| Error::Usage("a plan needs at least one stage".into()))?;
        for (index, (backend, link)) in stages {
            self.spawn(format!("stage-{index}"), move |shared| {
                run_stage(backend, link, shared)
            })?;
        }
        self.spawn("scheduler".into(), move |shared| {
            run_scheduler(core, claimer, (first, first_link), shared, start)
        })
    }

    fn notify(&mut self) {
        self.shared.work.notify();
    }

    fn epoch(&self) -> u64 {
        self.shared.host.epoch()
    }

    fn wait(&mut self, epoch: u64, limit: Duration) {
        self.shared.host.wait_past(epoch, limit.min(HOST_POLL));
    }

    fn news(&self) -> Arc<Signal> {
        self.shared.host.clone()
    }

    fn failure(&mut self, _rings: &HostRings) -> Option<String> {
        self.shared.failure.lock().clone()
    }

    fn clock_zero(&self) -> Option<Instant> {
        self.start
    }

    fn finishing(&self) -> Option<tg_status> {
        *self.shared.finishing.lock()
    }

    fn stop(&mut self, stuck: bool) {
        self.shared.work.notify();
        for thread in self.running.drain(..) {
            // A stuck thread would never end; it is left to the end of the process. A panic in a thread has
            // been kept as the failure; there is no one left to tell here.
            if !stuck {
                let _ = thread.join();
            }
        }
    }
}

/// Turns the core and runs stage 0 until the core is done. Where the backend takes steps in two halves, one that it has started
/// is waited for only once the core has no other to start, and no longer than until there is news for the core.
fn run_scheduler(
    mut core: Core,
    mut claimer: Option<Claimer>,
    (mut backend, mut link): (Box<dyn StageBackend>, StageLink),
    shared: &Shared,
    start: Instant,
) -> Result<()> {
    let now_ns = || start.elapsed().as_nanos() as u64;
    let mut started = VecDeque::new();
    let mut busy = 0;
    loop {
        let epoch = shared.work.epoch();
        if link.collect() {
            shared.work.notify();
        }
        if let Some(claimer) = &mut claimer {
            claimer.claim(busy)?;
        }
        let outcome = core.turn(now_ns(), now_ns);
        busy = outcome.running + outcome.queue_depth;
        if outcome.changed {
            shared.host.notify();
        }
        let waits = matches!(outcome.action, Action::Idle | Action::Blocked);
        match outcome.action {
            Action::Step(number) => match backend.ahead() {
                Some(ahead) => {
                    ahead.start(&link.step(number))?;
                    started.push_back(number);
                }
                None => run_step(&mut *backend, number, &mut link, shared)?,
            },
            Action::Idle | Action::Blocked if !started.is_empty() => {}
            Action::Idle | Action::Blocked if outcome.changed => {}
            Action::Idle | Action::Blocked => shared.work.wait_past(epoch, IDLE_POLL),
            Action::Done => {
                link.drained();
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
        if let Some(ahead) = backend.ahead()
            && let Some(&number) = started.front()
            && let full = started.len() as u32 == ahead.overlap().steps()
            && (waits || full)
            && finishes(ahead, &link.step(number), shared, (!full).then_some(epoch))?
        {
            started.pop_front();
            link.post(number);
        }
        if let Some(failure) = link.failure() {
            return Err(failure);
        }
        if shared.failed() {
            return Ok(());
        }
    }
}

/// Waits for the oldest step that is started, and leaves its results. `false`: before that there is news past `epoch`, where that is
/// given since the core could compose another step.
fn finishes(
    ahead: &mut dyn RunsAhead,
    step: &StepView<'_>,
    shared: &Shared,
    epoch: Option<u64>,
) -> Result<bool> {
    let first = || status(step.header(), 0);
    shared.finishing.lock().get_or_insert_with(first);
    let mut seen = 0;
    while let Some(stage) = ahead.stage_of(step)? {
        if stage != seen {
            *shared.finishing.lock() = Some(status(step.header(), stage));
            seen = stage;
        }
        if epoch.is_some_and(|epoch| shared.work.epoch() != epoch) {
            return Ok(false);
        }
        std::hint::spin_loop();
    }
    ahead.finish(step)?;
    *shared.finishing.lock() = None;
    Ok(true)
}

/// What the core would post of a step that a stage runs.
fn status(step: &tg_step, stage: u32) -> tg_status {
    tg_status {
        steps: step.number + 1,
        stage: stage.into(),
        kind: step.kind.into(),
        bucket_rows: step.bucket_rows.into(),
        rows: step.rows.into(),
        ..Default::default()
    }
}

/// Runs one later stage for every step that comes over its link, until that ends.
fn run_stage(
    mut backend: Box<dyn StageBackend>,
    mut link: StageLink,
    shared: &Shared,
) -> Result<()> {
    loop {
        let epoch = shared.work.epoch();
        if let Some(number) = link.take() {
            run_step(&mut *backend, number, &mut link, shared)?;
        } else if let Some(failure) = link.failure() {
            return Err(failure);
        } else if link.done() || shared.failed() {
            return Ok(());
        } else {
            shared.work.wait_past(epoch, STAGE_POLL);
        }
    }
}

/// Runs a step and hands it on. Waits first for the place that it leaves its activations in, and gives up only where the
/// engine is ending anyway.
fn run_step(
    backend: &mut dyn StageBackend,
    number: u64,
    link: &mut StageLink,
    shared: &Shared,
) -> Result<()> {
    loop {
        let epoch = shared.work.epoch();
        match link.room() {
            Asked::Ready => break,
            Asked::Wait if !shared.failed() => shared.work.wait_past(epoch, STAGE_POLL),
            _ => return Ok(()),
        }
    }
    backend.run(&link.step(number))?;
    link.post(number);
    shared.work.notify();
    Ok(())
}
