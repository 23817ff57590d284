//! [`SingleEngine`]: one scheduler, on threads of the host or on a device that schedules itself, and the rings around it.

use super::claims::Claimer;
use super::core::{Between, Core};
use super::device::Device;
use super::driver::Driver;
use super::engine::{Engine, Part};
use super::held_up::HeldUp;
use super::memory::{RingBlock, StateBlock};
use super::notices::View;
use super::options::{EngineShape, EngineStatus};
use super::request::{Event, Request};
use super::rings::HostRings;
use super::signal::{Signal, Until, Waker};
use super::sizes::Sizes;
use super::threads::Threads;
use super::watchdog::{Standing, Watchdog};
use crate::backend::device::{Clocks, EngineSpec, Runs, Started, Watch};
use crate::backend::{DeviceScheduler, Overlap, StageBackend};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions, RingCapacities};
use crate::telemetry::nvtx::{Category, Name, Span};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An engine with one scheduler.
pub struct SingleEngine {
    rings: HostRings,
    driver: Box<dyn Driver>,
    shape: EngineShape,
    watchdog: Option<Watchdog>,
    /// The host holds up the device: a step waits for it, and is not stuck.
    held_up: Option<HeldUp>,
    /// The step that the watchdog found.
    stuck: Option<String>,
    /// From launch to drain, then from drain to the end.
    span: Option<Span>,
    /// What has been recorded besides turns, and not been read.
    pub(super) parts: VecDeque<Part>,
    /// A [`Waker`] has called since the last wait.
    woken: Arc<AtomicBool>,
}

impl SingleEngine {
    /// Starts the scheduler on the host with one backend per stage, in order. `options` must fit the bucket sizes
    /// (see [`EngineOptions`]); all memory of the scheduler is allocated here.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options break one of the core's rules.
    pub fn start(
        stages: Vec<Box<dyn StageBackend>>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
    ) -> Result<Self> {
        let capacities = RingCapacities::new(options);
        let mut engine = Self::of(Runs::Stages(stages), bucket_sizes, options, capacities)?;
        engine.launch()?;
        Ok(engine)
    }

    /// Loads a model on `device`; the engine is not launched yet.
    ///
    /// # Errors
    /// [`crate::backend::Device::start`]'s; [`Error::Usage`] where the options break one of the core's rules.
    pub fn on(device: &dyn crate::backend::Device, spec: &EngineSpec<'_>) -> Result<Self> {
        let (engine, _) = Self::on_watched(device, spec, Watch::Nothing, Ok)?;
        Ok(engine)
    }

    /// [`SingleEngine::on`] with what `watch` looks at, and the clocks that `watch` asks for. `wrap` gets what runs the steps
    /// before the engine has it.
    ///
    /// # Errors
    /// Fails as [`SingleEngine::on`] does, or as `wrap` does.
    pub fn on_watched(
        device: &dyn crate::backend::Device,
        spec: &EngineSpec<'_>,
        watch: Watch<'_>,
        wrap: impl FnOnce(Runs) -> Result<Runs>,
    ) -> Result<(Self, Clocks)> {
        let (held_up, sink) = HeldUp::told_by(spec.sink);
        let spec = EngineSpec {
            sink: &sink,
            ..*spec
        };
        let Started {
            runs,
            bucket_sizes,
            options,
            clocks,
            step_timeout,
        } = device.start(&spec, watch)?;
        let mut engine = Self::of(
            wrap(runs)?,
            &bucket_sizes,
            &options,
            RingCapacities::new(&options),
        )?;
        engine.held_up = Some(held_up);
        if let Some(limit) = step_timeout {
            engine.watch(limit);
        }
        Ok((engine, clocks))
    }

    /// An engine whose steps `runs` runs, with rings of these sizes; not launched yet.
    ///
    /// A backend that is the whole model and takes steps in two halves gets as many as it says ([`Overlap`]), whatever the
    /// options say. Steps of a device that schedules itself never overlap, so as many are in flight as it is devices, or more
    /// where the options say so and there are several.
    ///
    /// # Errors
    /// [`Error::Usage`] where the options or the capacities break one of the core's rules; what
    /// [`DeviceScheduler::prepare`] gives.
    pub fn of(
        runs: Runs,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        match runs {
            Runs::Stages(stages) => Self::on_host(stages, bucket_sizes, options, capacities),
            Runs::Scheduler(device) => Self::on_device(device, bucket_sizes, options, capacities),
        }
    }

    fn on_host(
        mut stages: Vec<Box<dyn StageBackend>>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        let mut shape = EngineShape {
            options: *options,
            bucket_sizes: bucket_sizes.clone(),
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

    fn on_device(
        mut device: Box<dyn DeviceScheduler>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        capacities: RingCapacities,
    ) -> Result<Self> {
        let shape = EngineShape::on_device(bucket_sizes, options, capacities, device.stages());
        let sizes = Sizes::of(&shape, options.record)?;
        let mut state = StateBlock::new(&sizes)?;
        let block = device.prepare(
            state.image(),
            sizes.ring_bytes,
            bucket_sizes,
            options.max_seqs,
        )?;
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
            parts: VecDeque::new(),
            woken: Arc::default(),
        }
    }

    /// What a replay of its schedule must be started with.
    pub fn shape(&self) -> &EngineShape {
        &self.shape
    }

    /// Lets a step that takes longer than `limit` in one stage fail the engine, in [`Engine::next_stamped`], with a
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
            self.span = Some(Span::new(Name::new(Category::Run, c"serve")));
        }
        self.driver.launch()
    }

    /// When the scheduler's clock was 0, where the host keeps it: known once the engine is launched. A device's clock is
    /// its own.
    pub fn clock_zero(&self) -> Option<Instant> {
        self.driver.clock_zero()
    }

    /// [`Engine::next_stamped`] that records nothing.
    pub(super) fn next_unrecorded(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
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
            if left.is_zero() || self.woken() {
                return Ok(None);
            }
            self.driver.wait(epoch, left);
        }
    }

    /// Whether a [`Waker`] has called since this was last asked.
    pub(super) fn woken(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    fn pop_event(&mut self) -> Option<(u64, Event)> {
        let event = self.rings.pop_stamped();
        if event.is_some() {
            self.driver.heard();
        }
        event
    }

    /// The oldest turn that has not been read. What it has seen belongs before it.
    pub(super) fn next_trace(&mut self) -> Option<Part> {
        let turn = self.rings.pop_trace()?;
        self.driver.notify();
        Some(Part::Turn(Box::new(turn)))
    }

    /// Keeps a part of the run, where that is recorded.
    pub(super) fn keep(&mut self, part: impl FnOnce() -> Part) {
        if self.shape.options.record {
            self.parts.push_back(part());
        }
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

    /// To be read before events are looked for: see [`Self::wait`].
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
    /// [`Error::Usage`]: they could not.
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

impl Engine for SingleEngine {
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        self.check()?;
        let record = self.shape.options.record;
        let mut tried = vec![];
        let numbers = self.rings.try_push_requests(requests.inspect(|request| {
            if record {
                tried.push(*request);
            }
        }))?;
        // The last one tried may have found no room.
        for (_, request) in numbers.clone().zip(tried) {
            self.keep(|| Part::Request(request.clone()));
        }
        if !numbers.is_empty() {
            self.driver.notify();
        }
        Ok(numbers)
    }

    fn cancel(&mut self, request: u64) -> bool {
        let pushed = self.rings.push_cancel(request);
        if pushed {
            self.keep(|| Part::Cancel(request));
        }
        self.driver.notify();
        pushed
    }

    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        let next = self.next_unrecorded(wait)?;
        if let Some((_, event)) = &next {
            self.keep(|| Part::Event(event.clone()));
        }
        Ok(next)
    }

    fn drain(&mut self) {
        self.span = None;
        self.span = Some(Span::new(Name::new(Category::Run, c"drain")));
        self.rings.set_drain();
        self.driver.notify();
    }

    fn status(&self) -> EngineStatus {
        self.rings.status()
    }

    fn waker(&self) -> Waker {
        Waker::new(&self.woken, self.driver.news())
    }

    fn next_part(&mut self, _replica: usize) -> Option<Part> {
        let turn = self.next_trace();
        self.parts.extend(turn);
        self.parts.pop_front()
    }

    fn traces_lost(&self) -> u64 {
        self.rings.traces_lost()
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

impl Drop for SingleEngine {
    fn drop(&mut self) {
        self.rings.set_stop();
        self.driver.stop(self.stuck.is_some());
    }
}
