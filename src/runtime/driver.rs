//! What an engine asks of whatever turns its rings on the other side: threads of the host, or a device.

use super::claims::Claimer;
use super::rings::HostRings;
use super::signal::Signal;
use crate::backend::DeviceScheduler;
use crate::error::Result;
use crate::sys::abi::tg_status;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What turns the rings on the other side.
pub(super) trait Driver: Send {
    /// To be asked before the launch: the scheduler claims its requests itself, and tells `news` of what the host waits
    /// for. One that cannot gives `claimer` back, and the host claims for it.
    fn claims(&mut self, claimer: Claimer, news: &Arc<Signal>) -> Option<Claimer>;
    /// Starts the scheduler; a second call does nothing.
    fn launch(&mut self) -> Result<()>;
    /// The host has moved a ring index or a flag.
    fn notify(&mut self);
    /// The host has moved an index since it has found an event.
    fn heard(&mut self) {
        self.notify();
    }
    /// To be read before looking for an event and handed to [`Driver::wait`], so that no news is missed.
    fn epoch(&self) -> u64;
    /// Returns once there may be news past `epoch`, or after `limit`, or sooner.
    fn wait(&mut self, epoch: u64, limit: Duration);
    /// What the host waits on. A device tells nobody, and waits for it are short.
    fn news(&self) -> Arc<Signal> {
        Arc::default()
    }
    /// What ended the scheduler other than the end of its work.
    fn failure(&mut self, rings: &HostRings) -> Option<String>;
    /// When the scheduler's clock was 0, where that is a clock of the host.
    fn clock_zero(&self) -> Option<Instant>;
    /// The device that runs the scheduler, if one does.
    fn device(&mut self) -> Option<&mut dyn DeviceScheduler> {
        None
    }
    /// The step that is waited for, where it may be another than the newest, or the core idle meanwhile.
    fn finishing(&self) -> Option<tg_status> {
        None
    }
    /// Ends it, the stop flag being set. `stuck`: a step of it does not end.
    fn stop(&mut self, stuck: bool);
}
