//! [`Engine`]: requests in, events out, wherever the scheduler runs: on threads of the host, or on a device that
//! schedules itself.

use super::claims::Claimer;
use super::core::{Between, Core};
use super::device::Device;
use super::driver::Driver;
use super::held_up::HeldUp;
use super::memory::{RingBlock, StateBlock};
use super::notices::View;
use super::options::{EngineShape, EngineStatus};
use super::request::{Event, Request};
use super::rings::HostRings;
use super::signal::{Signal, Until};
use super::sizes::Sizes;
use super::threads::Threads;
use super::watchdog::{Standing, Watchdog};
use crate::backend::device::Runs;
use crate::backend::{DeviceScheduler, Overlap, StageBackend};
use crate::error::{Error, Result};
use crate::plan::{EngineOptions, Ladders, RingCapacities};
use crate::sys::abi::tg_trace;
use crate::telemetry::nvtx::{Span, names};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running engine. Used from one thread at a time; dropping it stops everything.
pub struct Engine {
    rings: HostRings,
    driver: Box<dyn Driver>,
    shape: EngineShape,
    watchdog: Option<Watchdog>,
    /// The host holds up the device: a step waits for it, and is not stuck.
    pub(super) held_up: Option<HeldUp>,
    /// The step that the watchdog found.
    stuck: Option<String>,
    /// From launch to drain, then from drain to the end.
    span: Option<Span>,
}

impl Engine {
    /// Starts the scheduler on the host with one backend per stage, in order. `options` must fit the ladders
    /// (see [`EngineOptions`]); all memory of the scheduler is allocated here.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options break one of the core's rules.
    pub fn start(
        stages: Vec<Box<dyn StageBackend>>,
        ladders: &Ladders,
        options: &EngineOptions,
    ) -> Result<Self> {
        let capacities = RingCapacities::new(options);
        let mut engine = Self::on_host(stages, ladders, options, capacities)?;
        engine.launch()?;
        Ok(engine)
    }

    /// An engine whose steps `runs` runs, with rings of these sizes; not launched yet.
    ///
    /// # Errors
    /// As [`Engine::on_host`] and [`Engine::on_device`].
    pub fn of(
        runs: Runs,
        ladders: &Ladders,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        match runs {
            Runs::Stages(stages) => Self::on_host(stages, ladders, options, capacities),
            Runs::Scheduler(device) => Self::on_device(device, ladders, options, capacities),
        }
    }

    /// As [`Engine::start`], with rings of these sizes, and without the [`Engine::launch`]. A backend that is the whole model
    /// and takes steps in two halves gets as many as it says ([`Overlap`]), whatever the options say.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options or the capacities break one of the core's rules.
    pub fn on_host(
        mut stages: Vec<Box<dyn StageBackend>>,
        ladders: &Ladders,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        let mut shape = EngineShape {
            options: *options,
            ladders: ladders.clone(),
            stages: stages.len() as u32,
            rings: capacities,
            ahead: false,
        };
        if let [stage] = &mut stages[..]
            && let Some(overlap) = stage.ahead().map(|ahead| ahead.overlap())
        {
            shape.ahead = overlap == Overlap::Behind;
            shape.options.steps_in_flight = overlap.steps();
            if let Overlap::Beside { stages, .. } = overlap {
                shape.stages = stages;
            }
        }
        let between = Between {
            stages: stages.len() as u32,
            row_floats: row_floats(&stages),
        };
        let (core, rings, links) = Core::of(&shape, options.record, between)?;
        let stages = stages.into_iter().zip(links).collect();
        Ok(Self::new(
            rings,
            Box::new(Threads::new(core, stages)),
            shape,
        ))
    }

    /// An engine whose scheduler runs on the device, with all its stages; not launched yet. Steps of one device never
    /// overlap, so as many are in flight as it is devices, or more where the options say so and there are several.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options or the capacities break one of the core's rules; what
    /// [`DeviceScheduler::prepare`] gives.
    pub fn on_device(
        mut device: Box<dyn DeviceScheduler>,
        ladders: &Ladders,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        let shape = EngineShape::on_device(ladders, options, capacities, device.stages());
        let sizes = Sizes::of(&shape, options.record)?;
        let mut state = StateBlock::new(&sizes)?;
        let block = device.prepare(state.image(), sizes.ring_bytes, ladders, options.max_seqs)?;
        let rings = HostRings::new(Arc::new(RingBlock::new(&sizes, block)));
        Ok(Self::new(rings, Box::new(Device::new(device)), shape))
    }

    fn new(rings: HostRings, driver: Box<dyn Driver>, shape: EngineShape) -> Self {
        Self {
            rings,
            driver,
            shape,
            watchdog: None,
            held_up: None,
            stuck: None,
            span: None,
        }
    }

    /// What a replay of its schedule must be started with.
    pub fn shape(&self) -> &EngineShape {
        &self.shape
    }

    /// Lets a step that takes longer than `limit` in one stage fail the engine, in [`Engine::next_event`], with a
    /// message that names it; so does a scheduler that leaves waiting requests alone for as long. Without, one that
    /// never ends is waited for.
    pub fn watch(&mut self, limit: Duration) {
        self.watchdog = Some(Watchdog::new(limit));
    }

    /// Starts an engine that was made without being started: what has been submitted before is there as a whole when
    /// the scheduler first looks. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the system or the device refuses.
    pub fn launch(&mut self) -> Result<()> {
        if self.span.is_none() {
            self.span = Some(Span::new(names().serve));
        }
        self.driver.launch()
    }

    /// Queues a request and returns its number (0, 1, 2 ...), or `None` while the rings are full: take
    /// events, then try again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a request that no ring could ever hold; [`Error::Runtime`] once the engine failed.
    pub fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        let numbers = self.try_submit_all([request])?;
        Ok((!numbers.is_empty()).then_some(numbers.start))
    }

    /// As [`Engine::try_submit`], of several: the numbers of as many of the first ones as there is room for. The scheduler
    /// sees all of them in the same turn.
    ///
    /// # Errors
    /// As there; then none is queued.
    pub fn try_submit_all<'r>(
        &mut self,
        requests: impl IntoIterator<Item = &'r Request>,
    ) -> Result<Range<u64>> {
        self.check()?;
        let numbers = self.rings.try_push_requests(requests)?;
        if !numbers.is_empty() {
            self.driver.notify();
        }
        Ok(numbers)
    }

    /// Ends a request early wherever it is; one that has ended already is left alone. `false` while the
    /// control ring is full: try again.
    pub fn cancel(&mut self, request: u64) -> bool {
        let pushed = self.rings.push_cancel(request);
        self.driver.notify();
        pushed
    }

    /// The next event, waiting for it at most `wait`.
    ///
    /// # Errors
    /// [`Error::Runtime`] once a stage, the device or the core failed, or a step got stuck (see [`Engine::watch`]),
    /// and every event before that is out.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        Ok(self.next_stamped(wait)?.map(|(_, event)| event))
    }

    /// As [`Engine::next_event`], with the scheduler's clock (ns) in the turn that published the event: the clock of
    /// trace records. Where it starts is its own business.
    ///
    /// # Errors
    /// As [`Engine::next_event`].
    pub fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        let until = Until::after(wait);
        loop {
            let epoch = self.driver.epoch();
            if let Some(event) = self.pop_event() {
                return Ok(Some(event));
            }
            if let Err(error) = self.check() {
                // The last events may have come between the look at the ring and the look at the failure.
                return self.pop_event().map(Some).ok_or(error);
            }
            let left = until.left();
            if left.is_zero() {
                return Ok(None);
            }
            self.driver.wait(epoch, left);
        }
    }

    fn pop_event(&mut self) -> Option<(u64, Event)> {
        let event = self.rings.pop_stamped();
        if event.is_some() {
            self.driver.heard();
        }
        event
    }

    /// The oldest trace record that has not been read. With [`EngineOptions::record`] the scheduler waits for
    /// room in the trace ring, so read it as you read events; without, the oldest records are written over.
    pub fn next_trace(&mut self) -> Option<tg_trace> {
        let record = self.rings.pop_trace();
        if record.is_some() {
            self.driver.notify();
        }
        record
    }

    /// When the scheduler's clock was 0, where the host keeps it: known once the engine is launched. A device's clock is
    /// its own.
    pub fn clock_zero(&self) -> Option<Instant> {
        self.driver.clock_zero()
    }

    /// Trace records written over before they were read.
    pub fn traces_lost(&self) -> u64 {
        self.rings.traces_lost()
    }

    /// No more requests will come: the scheduler ends once all have ended.
    pub fn drain(&mut self) {
        self.span = None;
        self.span = Some(Span::new(names().drain));
        self.rings.set_drain();
        self.driver.notify();
    }

    /// What is in flight, as of the last turn that changed something.
    pub fn status(&self) -> EngineStatus {
        self.rings.status()
    }

    /// To be called before the launch: its requests come from a queue, by the claimer that `claimer` makes for its rings.
    /// Where its scheduler cannot claim, that comes back, and the host claims for it.
    pub(super) fn claim_from(
        &mut self,
        claimer: impl FnOnce(HostRings) -> Claimer,
        news: &Arc<Signal>,
    ) -> Option<Claimer> {
        let claimer = claimer(self.rings.for_requests());
        self.driver.claims(claimer, news)
    }

    /// The device that runs its scheduler, if one does.
    pub(super) fn device(&mut self) -> Option<&mut dyn DeviceScheduler> {
        self.driver.device()
    }

    /// Its scheduler claims its requests from a queue by itself.
    pub(super) fn claimed_from(&mut self, queue: View) {
        self.rings.claimed_from(queue);
    }

    /// A replay's rings have room for so many prompt tokens.
    pub(super) fn has_tokens(&mut self, tokens: u32) {
        self.shape.rings.tokens = tokens;
    }

    /// To be read before events are looked for: see [`Engine::wait`].
    pub(super) fn epoch(&self) -> u64 {
        self.driver.epoch()
    }

    /// Returns once there may be news past `epoch`, or after `limit`, or sooner.
    pub(super) fn wait(&mut self, epoch: u64, limit: Duration) {
        self.driver.wait(epoch, limit);
    }

    /// Could its rings ever hold this request?
    ///
    /// # Errors
    /// As [`Engine::try_submit`].
    pub(super) fn check_request(&self, request: &Request) -> Result<()> {
        self.rings.check(request)
    }

    /// There may be news for the scheduler.
    pub(super) fn notify(&mut self) {
        self.driver.notify();
    }

    /// Ends what runs, without waiting for that.
    pub(super) fn stop(&mut self) {
        self.rings.set_stop();
        self.driver.notify();
    }

    fn check(&mut self) -> Result<()> {
        if self.stuck.is_none()
            && let Some(watchdog) = &mut self.watchdog
        {
            let held_up = self.held_up.as_ref().is_some_and(HeldUp::now);
            let finishing = self.driver.finishing().map(Standing::Step);
            let standing = finishing.or_else(|| self.rings.standing());
            let standing = standing.filter(|_| !held_up);
            self.stuck = watchdog.look(standing, Instant::now());
        }
        let failure = self.driver.failure(&self.rings);
        match failure.or_else(|| self.stuck.clone()) {
            Some(message) => Err(Error::Runtime(message)),
            None => Ok(()),
        }
    }
}

/// f32 that a row's activations are between stages.
fn row_floats(stages: &[Box<dyn StageBackend>]) -> usize {
    stages
        .iter()
        .map(|stage| stage.row_floats())
        .max()
        .unwrap_or(0)
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.rings.set_stop();
        self.driver.stop(self.stuck.is_some());
    }
}
