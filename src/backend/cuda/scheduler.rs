//! The GPU that schedules itself: every step captured with the dispatcher as its last node, all of them in a table in
//! device memory, and one launch by the host.
//!
//! While it runs, other threads may launch and copy on streams of their own, but not allocate or free device memory:
//! the driver waits for all running work then, and the dispatcher never ends by itself.

use super::buffer::Buffer;
use super::exec::{Exec, LaunchedBy};
use super::graph::Captured;
use super::launch::{Argument, Kernel, Launch};
use super::module::{Module, failed};
use super::pinned::Pinned;
use super::program::{StepAt, StepGraph, StepProgram, buckets, capture_step};
use crate::backend::{Block, DeviceScheduler};
use crate::error::{Error, Result};
use crate::plan::{Ladders, StepKind};
use crate::sys::abi;
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::result::DriverError;
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All stages of a plan on one GPU, and the scheduler core beside them.
pub struct GpuScheduler {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    dispatch: Kernel,
    begin_stage: Kernel,
    programs: Vec<Box<dyn StepProgram>>,
    early: bool,
    prepared: Option<Prepared>,
    launched: bool,
}

/// What the running graphs use.
struct Prepared {
    idle: Exec,
    /// In the table by their handles.
    _steps: Vec<Exec>,
    _table: Buffer,
    _state: Buffer,
    rings: Arc<Pinned>,
    /// A copy of the rings' head, for the layout in it.
    head: Buffer,
}

/// Bytes of device memory that a scheduler takes for a state block of `state_bytes`.
pub fn table_bytes(state_bytes: usize) -> usize {
    state_bytes + size_of::<abi::tg_rings>() + size_of::<abi::tg_graphs>()
}

impl GpuScheduler {
    /// `programs`: one per stage, in order. `early`: kernels were launched with programmatic dependent launch, so the
    /// dispatcher is too.
    ///
    /// # Errors
    /// [`Error::Usage`] for no stage or too many; [`Error::Runtime`] for what the driver refuses.
    pub fn new(
        context: &Arc<CudaContext>,
        module: &Arc<Module>,
        programs: Vec<Box<dyn StepProgram>>,
        early: bool,
    ) -> Result<Self> {
        let most = abi::TG_MAX_STAGES as usize;
        if programs.is_empty() || programs.len() > most {
            return Err(Error::Usage(format!(
                "{} stages on one GPU: expected 1 to {most}",
                programs.len()
            )));
        }
        Ok(Self {
            context: context.clone(),
            stream: context
                .new_stream()
                .map_err(|error| failed("making a stream", error))?,
            dispatch: module.kernel("tg_dispatch")?,
            begin_stage: module.kernel("tg_begin_stage")?,
            programs,
            early,
            prepared: None,
            launched: false,
        })
    }

    fn launch_of(&self, threads: u32) -> Launch {
        Launch {
            early: self.early,
            ..Launch::blocks(1, threads)
        }
    }

    /// Captures every stage's step of every bucket, for blocks and a table at these places.
    ///
    /// # Errors
    /// What a program or the capture gives.
    ///
    /// # Safety
    /// `at.state` is of a whole `tg_state`, `rings` of a `tg_rings` as the device sees it and `table` of a
    /// `tg_graphs`, all alive and nobody else's whenever a graph runs, and so is what the programs use.
    unsafe fn capture(
        &self,
        ladders: &Ladders,
        slots: u32,
        at: StepAt,
        dispatch: &[Argument; 5],
    ) -> Result<Vec<StepGraph>> {
        let [_, rings, ..] = *dispatch;
        let stages = self.programs.len();
        let mut graphs = vec![];
        for (stage, program) in self.programs.iter().enumerate() {
            for bucket in StepKind::ALL
                .into_iter()
                .flat_map(|k| buckets(ladders, k, slots))
            {
                let first = |stream: &CudaStream| match stage {
                    0 => Ok(()),
                    // SAFETY: the arguments are the kernel's, and the caller's promise.
                    _ => unsafe {
                        let arguments = [rings, Argument::U32(stage as u32)];
                        self.begin_stage
                            .launch(stream, self.launch_of(1), &arguments)
                    },
                };
                let last = |stream: &CudaStream| match stage + 1 == stages {
                    false => Ok(()),
                    // SAFETY: likewise.
                    true => unsafe {
                        let launch = self.launch_of(abi::TG_DISPATCH_THREADS);
                        self.dispatch.launch(stream, launch, dispatch)
                    },
                };
                // SAFETY: the caller's promise.
                graphs.push(unsafe {
                    let program = program.as_ref();
                    capture_step(&self.stream, program, stage, bucket, at, first, last)
                }?);
            }
        }
        Ok(graphs)
    }
}

impl DeviceScheduler for GpuScheduler {
    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        ladders: &Ladders,
        slots: u32,
    ) -> Result<Box<dyn Block>> {
        let state_block = Buffer::named(&self.context, "the scheduler", state.len())?;
        state_block.write(&self.stream, 0, state)?;
        let rings = Pinned::new(&self.context, ring_bytes)?;
        let head = Buffer::named(
            &self.context,
            "the rings' layout",
            size_of::<abi::tg_rings>(),
        )?;
        let table_block = Buffer::named(
            &self.context,
            "the table of graphs",
            size_of::<abi::tg_graphs>(),
        )?;
        let at = StepAt {
            state: state_block.at(0),
            step: state_block.at(offset_of!(abi::tg_state, steps)),
        };
        let dispatch = |ran| {
            [
                Argument::Address(at.state),
                Argument::Address(rings.device()),
                Argument::Address(head.at(0)),
                Argument::Address(table_block.at(0)),
                Argument::U32(ran),
            ]
        };
        // SAFETY: all blocks, and the programs, live as long as the graphs made here: in `self`, which ends
        // what runs before it goes.
        let graphs = unsafe { self.capture(ladders, slots, at, &dispatch(1)) }?;
        let idle = {
            let _phase = phase(Phase::Capture);
            Captured::capture(&self.stream, "the idle dispatcher", |stream| {
                let launch = Launch::blocks(1, abi::TG_DISPATCH_THREADS);
                // SAFETY: the arguments are the kernel's; the blocks live as above.
                unsafe { self.dispatch.launch(stream, launch, &dispatch(0)) }
            })?
        };
        let idle = Exec::new(&idle, LaunchedBy::Device)?;
        let mut table = abi::tg_graphs {
            idle: idle.device_handle(),
            stages: self.programs.len() as u64,
            ..Default::default()
        };
        let mut steps = Vec::with_capacity(graphs.len());
        for step in graphs {
            let exec = Exec::new(&step.graph, LaunchedBy::Device)?;
            let row = &mut table.step[step.stage][step.bucket.kind as usize];
            let column = ladders
                .of(step.bucket.kind)
                .iter()
                .position(|&r| r == step.bucket.rows);
            row[column.expect("captured from this ladder")] = exec.device_handle();
            steps.push(exec);
        }
        table_block.write(&self.stream, 0, bytes_of(&table))?;
        self.prepared = Some(Prepared {
            idle,
            _steps: steps,
            _table: table_block,
            _state: state_block,
            rings: rings.clone(),
            head,
        });
        Ok(Box::new(rings))
    }

    fn launch(&mut self) -> Result<()> {
        let prepared = self.prepared.as_ref().ok_or_else(|| {
            Error::Runtime("the GPU's scheduler was launched before it was prepared".into())
        })?;
        // SAFETY: the block begins with the head, which its owner has laid out and nobody else writes yet but for
        // indices, which are not read from the copy.
        let head = unsafe {
            let start = prepared.rings.start().as_ptr();
            std::slice::from_raw_parts(start, size_of::<abi::tg_rings>())
        };
        prepared.head.write(&self.stream, 0, head)?;
        self.launched = true;
        // SAFETY: what the graphs use is in `self`, which ends what runs before it goes.
        unsafe { prepared.idle.launch() }
    }

    fn running(&mut self) -> Result<bool> {
        self.programs
            .iter()
            .try_for_each(|program| program.check())?;
        let refused = |error| failed("running on the GPU", error);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(false),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(true),
            other => Err(refused(DriverError(other))),
        }
    }
}

impl Drop for GpuScheduler {
    /// Ends what still runs: nothing of it may outlive the memory it uses.
    fn drop(&mut self) {
        let Some(prepared) = &self.prepared else {
            return;
        };
        if !self.launched {
            return;
        }
        let rings: *mut abi::tg_rings = prepared.rings.start().as_ptr().cast();
        // SAFETY: the block is alive, and this word is only ever touched atomically.
        let flags = unsafe { AtomicU64::from_ptr(&raw mut (*rings).flags.value) };
        flags.fetch_or(abi::TG_INPUT_STOP.into(), Ordering::AcqRel);
        for program in &self.programs {
            // Lets a step go on that a program holds up until its failure is known.
            let _ = program.check();
        }
        // A failure means that nothing runs any more; whoever asked has been told.
        let _ = self.stream.synchronize();
    }
}

fn bytes_of(table: &abi::tg_graphs) -> &[u8] {
    // SAFETY: a struct of u64 alone, without padding.
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(table).cast(),
            size_of::<abi::tg_graphs>(),
        )
    }
}
