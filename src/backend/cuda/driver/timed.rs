//! Work on a stream, timed by the GPU's clock.

use super::errors::failed;
use crate::error::Result;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaEvent, CudaStream};
use std::time::Duration;

/// What `times` runs of `enqueue` in a row take. With something enqueued before them, the first waits for no host. Returns when all
/// has ended.
///
/// # Errors
/// What `enqueue` gives; the driver refuses, or what ran failed.
pub fn time_in_a_row(
    stream: &CudaStream,
    times: u32,
    enqueue: impl Fn() -> Result<()>,
) -> Result<Duration> {
    let refused = |error| failed("timing work on the GPU", error);
    let now = || stream.record_event(Some(CU_EVENT_DEFAULT)).map_err(refused);
    let all = || -> Result<(CudaEvent, CudaEvent)> {
        let begin = now()?;
        (0..times).try_for_each(|_| enqueue())?;
        Ok((begin, now()?))
    };
    let queued = all();
    stream.synchronize().map_err(refused)?;
    let (begin, end) = queued?;
    let ms = begin.elapsed_ms(&end).map_err(refused)?;
    Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
}
