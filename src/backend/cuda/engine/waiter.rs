//! How the host waits for what it has queued in a stream.

use crate::backend::LaunchWay;
use cudarc::driver::sys::{self, CUevent_flags};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// By what the host learns that a stream's work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The driver waits for the stream as it likes (cuStreamSynchronize).
    Stream,
    /// The host asks an event again and again.
    Event,
    /// The host sleeps until an event (CU_EVENT_BLOCKING_SYNC).
    Block,
}

impl Wait {
    /// That of a host which launches so.
    pub fn of(way: LaunchWay) -> Self {
        match way {
            LaunchWay::HostGraphEvent => Self::Event,
            LaunchWay::HostGraphBlock => Self::Block,
            _ => Self::Stream,
        }
    }
}

/// Whether all that is queued in `stream` has run.
///
/// # Errors
/// What ran there failed, or the device is lost.
pub fn is_done(stream: &CudaStream) -> Result<bool, DriverError> {
    stream.context().bind_to_thread()?;
    // SAFETY: the stream is alive.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        sys::CUresult::CUDA_SUCCESS => Ok(true),
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        other => Err(DriverError(other)),
    }
}

/// A way to wait, made ready. Events are recorded behind what is waited for.
pub enum Waiter {
    Stream,
    Event(CudaEvent),
    Block(CudaEvent),
}

impl Waiter {
    /// # Errors
    /// The driver refuses an event.
    pub fn new(context: &Arc<CudaContext>, wait: Wait) -> Result<Self, DriverError> {
        let event = |flags| context.new_event(Some(flags));
        Ok(match wait {
            Wait::Stream => Self::Stream,
            Wait::Event => Self::Event(event(CUevent_flags::CU_EVENT_DEFAULT)?),
            Wait::Block => Self::Block(event(CUevent_flags::CU_EVENT_BLOCKING_SYNC)?),
        })
    }

    /// Waits until all that is queued in `stream` has run. False: it had not within `limit`, which only a host that asks can tell.
    ///
    /// # Errors
    /// What ran there failed, or the device is lost.
    pub fn within(&self, limit: Duration, stream: &CudaStream) -> Result<bool, DriverError> {
        match self {
            Self::Stream => stream.synchronize()?,
            Self::Block(event) => {
                event.record(stream)?;
                event.synchronize()?;
            }
            Self::Event(event) => {
                event.record(stream)?;
                let start = Instant::now();
                while !event.try_is_complete()? {
                    if start.elapsed() > limit {
                        return Ok(false);
                    }
                    std::hint::spin_loop();
                }
            }
        }
        Ok(true)
    }

    /// Waits as [`Self::within`] does, without a limit: whoever watches the steps has one.
    ///
    /// # Errors
    /// What ran there failed, or the device is lost.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.within(Duration::MAX, stream).map(drop)
    }
}
