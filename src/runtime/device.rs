//! The scheduler on a device: the host launches it once, then only fills and reads rings.

use super::claims::Claimer;
use super::driver::Driver;
use super::links::link_failure;
use super::pauses::{Pauses, sleep_precisely};
use super::rings::HostRings;
use super::signal::Signal;
use super::watchdog::describe;
use crate::backend::DeviceScheduler;
use crate::error::Result;
use crate::sys::abi;
use crate::telemetry::warn;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the driver is asked whether the device still runs.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// Between two looks whether it has ended.
const STOP_PAUSE: Duration = Duration::from_micros(10);
/// After the stop flag the device ends with its next turn; a step that takes longer than this is given up.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// A step that has been found stuck already is given up after this.
const STUCK_LIMIT: Duration = Duration::from_secs(2);

/// A device that schedules itself.
pub(super) struct Device {
    /// `None` once it was given up: see [`Driver::stop`].
    device: Option<Box<dyn DeviceScheduler>>,
    launched: bool,
    pauses: Pauses,
    asked: Instant,
    failure: Option<String>,
}

impl Device {
    /// `device` is prepared and not launched.
    pub fn new(device: Box<dyn DeviceScheduler>) -> Self {
        Self {
            device: Some(device),
            launched: false,
            pauses: Pauses::new(Instant::now()),
            asked: Instant::now(),
            failure: None,
        }
    }

    /// Whether it still runs; `None` where it was never launched.
    fn running(&mut self) -> Result<bool> {
        match &mut self.device {
            Some(device) if self.launched => device.running(),
            _ => Ok(false),
        }
    }

    /// What ended the scheduler, by what it left in the rings.
    fn end(device: &dyn DeviceScheduler, rings: &HostRings) -> Option<String> {
        let (action, error) = rings.action();
        match action {
            abi::TG_ACTION_DONE => None,
            abi::TG_ACTION_ERROR => Some(match error {
                abi::TG_ERROR_LINK => {
                    link_failure(rings.posted().ended, device.stages(), |stage| {
                        device.stage_name(stage)
                    })
                }
                abi::TG_ERROR_LAUNCH => format!(
                    "the GPU refused to launch the graph of {}, expected a launch: a turn makes one a stage and one of itself, and 120 in a \
                     graph's run and 255 pending behind it are the limits, so this is a bug in tailgraph or its driver",
                    describe(&rings.posted())
                ),
                _ => format!(
                    "the scheduler core stopped with error {error} after {} steps: this is a bug in tailgraph",
                    rings.status().steps
                ),
            }),
            _ => Some(format!(
                "the scheduler ended on the GPU without saying why, last seen with {}: this is a bug in tailgraph",
                describe(&rings.posted())
            )),
        }
    }
}

/// For a device whose failure nobody has been told of: without, it would be seen by the wait alone.
fn given_up(name: &str) -> String {
    format!(
        "{name}: the scheduler there has not ended {} s after it was told to, so it was left to the end of this process: the \
         device accepted its launch and did nothing, or a step is stuck; end other work on it before the next run",
        STOP_LIMIT.as_secs()
    )
}

impl Driver for Device {
    fn claims(&mut self, claimer: Claimer, _news: &Arc<Signal>) -> Option<Claimer> {
        Some(claimer)
    }

    fn device(&mut self) -> Option<&mut dyn DeviceScheduler> {
        match &mut self.device {
            Some(device) => Some(&mut **device),
            None => None,
        }
    }

    fn launch(&mut self) -> Result<()> {
        if let Some(device) = &mut self.device
            && !self.launched
        {
            device.launch()?;
            self.launched = true;
        }
        Ok(())
    }

    fn notify(&mut self) {
        self.pauses.given();
    }

    fn heard(&mut self) {
        self.pauses.found(Instant::now);
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn wait(&mut self, _epoch: u64, limit: Duration) {
        match self.pauses.pause(Instant::now) {
            None => std::hint::spin_loop(),
            Some(pause) => sleep_precisely(pause.min(limit)),
        }
    }

    fn failure(&mut self, rings: &HostRings) -> Option<String> {
        if self.failure.is_none() && self.launched && self.asked.elapsed() >= ASK_EVERY {
            let running = self.running();
            let end = || Self::end(self.device.as_deref()?, rings);
            self.failure = match running {
                // Others of several devices may run on, or be what it waited for.
                Ok(true) if rings.action().0 == abi::TG_ACTION_ERROR => end(),
                Ok(true) => None,
                Ok(false) => end(),
                Err(error) => Some(format!(
                    "{error}; last launched: {}",
                    describe(&rings.posted())
                )),
            };
            self.asked = Instant::now();
        }
        self.failure.clone()
    }

    fn clock_zero(&self) -> Option<Instant> {
        None
    }

    fn stop(&mut self, stuck: bool) {
        let start = Instant::now();
        let limit = if stuck || self.failure.is_some() {
            STUCK_LIMIT
        } else {
            STOP_LIMIT
        };
        while let Ok(true) = self.running() {
            if start.elapsed() >= limit {
                // Its kernels still use the memory, and freeing any would wait for them: all of it is left to the
                // end of the process.
                let device = self.device.take();
                if let Some(device) = device.as_ref().filter(|_| limit == STOP_LIMIT) {
                    warn(&given_up(&device.name()));
                }
                std::mem::forget(device);
                return;
            }
            std::thread::sleep(STOP_PAUSE);
        }
    }
}
