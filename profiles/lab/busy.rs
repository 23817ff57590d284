//! Kernels that keep a GPU busy, as the job of another user does.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::{Error, Result};
use cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags};
use std::sync::Arc;
use std::time::Duration;

/// More than any GPU here holds at once: it has no room for others meanwhile.
const BLOCKS: u32 = 2112;
const THREADS: u32 = 256;
/// Of a kernel that is timed to size the others.
const TRIAL_ROUNDS: u32 = 20_000;
const TRIALS: u32 = 10;

/// One kernel behind the other, each of about the same length.
pub struct KeepBusy {
    stream: Arc<CudaStream>,
    kernel: Kernel,
    out: Buffer,
    rounds: u32,
    events: [CudaEvent; 2],
}

impl KeepBusy {
    /// Kernels that take `length` on a GPU of their own: by the shortest of some that are timed now.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn new(gpu: &OpenGpu, length: Duration) -> Result<Self> {
        let refused = |error| failed("keeping the GPU busy", error);
        let stream = gpu.context.new_stream().map_err(refused)?;
        let event = |flags| gpu.context.new_event(Some(flags)).map_err(refused);
        let mut busy = Self {
            kernel: gpu.module.kernel("tg_ways_busy")?,
            out: Buffer::new(&gpu.context, size_of::<f32>())?,
            rounds: TRIAL_ROUNDS,
            events: [
                event(CUevent_flags::CU_EVENT_DEFAULT)?,
                event(CUevent_flags::CU_EVENT_DEFAULT)?,
            ],
            stream,
        };
        let mut shortest = f32::INFINITY;
        for _ in 0..TRIALS {
            busy.events[0].record(&busy.stream).map_err(refused)?;
            busy.launch()?;
            busy.events[1].record(&busy.stream).map_err(refused)?;
            let ms = busy.events[0]
                .elapsed_ms(&busy.events[1])
                .map_err(refused)?;
            shortest = shortest.min(ms);
        }
        if shortest <= 0.0 {
            return Err(Error::Runtime(format!(
                "keeping the GPU busy: {TRIAL_ROUNDS} rounds took {shortest} ms, expected more than 0"
            )));
        }
        let wanted = length.as_secs_f64() * 1e3 / f64::from(shortest);
        busy.rounds = ((f64::from(TRIAL_ROUNDS) * wanted) as u32).max(1);
        // As those who only wait for their kernels do.
        let blocking = CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        busy.events = [event(blocking)?, event(blocking)?];
        Ok(busy)
    }

    fn launch(&self) -> Result<()> {
        let arguments = [
            Argument::Address(self.out.at(0)),
            Argument::U32(self.rounds),
        ];
        let launch = Launch::blocks(BLOCKS, THREADS);
        // SAFETY: the arguments are the kernel's, and the buffer outlives what runs: a drop waits for it.
        unsafe { self.kernel.launch(&self.stream, launch, &arguments) }
    }

    /// Runs kernels for as long as `goes_on`, which is told how many were launched so far, with one always waiting behind the one
    /// that runs.
    ///
    /// # Errors
    /// What the driver refuses, and what `goes_on` gives.
    pub fn run(&self, mut goes_on: impl FnMut(u64) -> Result<bool>) -> Result<()> {
        let refused = |error| failed("keeping the GPU busy", error);
        let mut count = 0u64;
        while goes_on(count)? {
            let event = &self.events[(count % 2) as usize];
            if count >= 2 {
                event.synchronize().map_err(refused)?;
            }
            self.launch()?;
            event.record(&self.stream).map_err(refused)?;
            count += 1;
        }
        self.stream.synchronize().map_err(refused)
    }
}
