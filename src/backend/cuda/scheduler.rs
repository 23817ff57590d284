//! The GPU that schedules itself: every step captured with the dispatcher as its last node, all of them in a table in
//! device memory, and one launch by the host.
//!
//! While it runs, other threads may launch and copy on streams of their own, but not allocate or free device memory:
//! the driver waits for all running work then, and the dispatcher never ends by itself.

use super::buffer::Buffer;
use super::exec::{Exec, LaunchedBy};
use super::graph::Captured;
use super::launch::{Address, Argument, Kernel, Launch};
use super::module::{Module, failed};
use super::ops::Bucket;
use super::pinned::Pinned;
use super::program::{StepAt, StepGraph, StepProgram, buckets, capture_step};
use crate::backend::{Block, DeviceScheduler};
use crate::error::{Error, Result};
use crate::plan::{Ladders, StepKind};
use crate::sys::abi;
use crate::telemetry::nvtx::{names, range};
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

    fn places(&self) -> usize {
        match self.runs_ahead() {
            true => abi::TG_PLACES as usize,
            false => 1,
        }
    }

    /// Captures every stage's step of every bucket, for each place that a step may be in.
    ///
    /// # Errors
    /// What a program or the capture gives.
    ///
    /// # Safety
    /// The blocks in `at` are a whole `tg_state`, a `tg_rings` as the device sees it, the head of one and a `tg_graphs`,
    /// all alive and nobody else's whenever a graph runs, and so is what the programs use.
    unsafe fn capture(&self, ladders: &Ladders, slots: u32, at: &Blocks) -> Result<Vec<Placed>> {
        let mut graphs = vec![];
        for place in 0..self.places() {
            for stage in 0..self.programs.len() {
                for kind in StepKind::ALL {
                    for (column, bucket) in buckets(ladders, kind, slots).enumerate() {
                        // SAFETY: the caller's promise.
                        let graph = unsafe { self.capture_behind(stage, bucket, place, at) }?;
                        graphs.push(Placed {
                            place,
                            column,
                            beside: false,
                            graph,
                        });
                    }
                }
            }
            if !self.runs_ahead() {
                continue;
            }
            for (column, bucket) in buckets(ladders, StepKind::Decode, slots).enumerate() {
                // SAFETY: the caller's promise.
                let graph = unsafe { self.capture_beside(bucket, place, at) }?;
                graphs.push(Placed {
                    place,
                    column,
                    beside: true,
                    graph,
                });
            }
        }
        Ok(graphs)
    }

    /// One stage's step, with a dispatcher behind it where it is the last.
    ///
    /// # Safety
    /// As for [`GpuScheduler::capture`].
    unsafe fn capture_behind(
        &self,
        stage: usize,
        bucket: Bucket,
        place: usize,
        at: &Blocks,
    ) -> Result<StepGraph> {
        let first = |stream: &CudaStream| match stage {
            0 => Ok(()),
            // SAFETY: the arguments are the kernel's, and the caller's promise.
            _ => unsafe {
                let arguments = [at.rings, Argument::U32(stage as u32)];
                self.begin_stage
                    .launch(stream, self.launch_of(1), &arguments)
            },
        };
        let last = |stream: &CudaStream| match stage + 1 == self.programs.len() {
            false => Ok(()),
            // SAFETY: likewise.
            true => unsafe {
                let launch = self.launch_of(abi::TG_DISPATCH_THREADS);
                let arguments = at.dispatch(abi::TG_DISPATCH_BEHIND);
                self.dispatch.launch(stream, launch, &arguments)
            },
        };
        let (stream, program) = (&self.stream, self.programs[stage].as_ref());
        // SAFETY: the caller's promise.
        unsafe { capture_step(stream, program, stage, bucket, at.step(place), first, last) }
    }

    /// A whole decode step, with a dispatcher beside it.
    ///
    /// # Safety
    /// As for [`GpuScheduler::capture`].
    unsafe fn capture_beside(
        &self,
        bucket: Bucket,
        place: usize,
        at: &Blocks,
    ) -> Result<StepGraph> {
        let refused = |error| failed("capturing a branch of a graph", error);
        let side = self.context.new_stream().map_err(refused)?;
        let event = || self.context.new_event(None).map_err(refused);
        let (fork, join) = (event()?, event()?);
        let first = |stream: &CudaStream| {
            fork.record(stream).map_err(refused)?;
            side.wait(&fork).map_err(refused)?;
            let arguments = at.dispatch(abi::TG_DISPATCH_BESIDE);
            // SAFETY: the arguments are the kernel's, and the caller's promise.
            unsafe {
                let launch = Launch::blocks(1, abi::TG_DISPATCH_THREADS);
                self.dispatch.launch(&side, launch, &arguments)
            }?;
            join.record(&side).map_err(refused)
        };
        let last = |stream: &CudaStream| stream.wait(&join).map_err(refused);
        let (stream, program) = (&self.stream, self.programs[0].as_ref());
        // SAFETY: the caller's promise.
        unsafe { capture_step(stream, program, 0, bucket, at.step(place), first, last) }
    }
}

/// Where the dispatcher finds everything.
struct Blocks {
    state: Address,
    rings: Argument,
    head: Argument,
    table: Argument,
}

impl Blocks {
    fn step(&self, place: usize) -> StepAt {
        let steps = offset_of!(abi::tg_state, steps) + place * size_of::<abi::tg_step>();
        StepAt {
            state: self.state,
            step: self.state + steps as Address,
        }
    }

    /// The dispatcher's arguments; `place` is a `TG_DISPATCH_*`.
    fn dispatch(&self, place: u32) -> [Argument; 5] {
        let state = Argument::Address(self.state);
        [
            state,
            self.rings,
            self.head,
            self.table,
            Argument::U32(place),
        ]
    }
}

/// A graph and where it stands in the table.
struct Placed {
    place: usize,
    /// Of its kind's ladder.
    column: usize,
    beside: bool,
    graph: StepGraph,
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
        let at = Blocks {
            state: state_block.at(0),
            rings: Argument::Address(rings.device()),
            head: Argument::Address(head.at(0)),
            table: Argument::Address(table_block.at(0)),
        };
        // SAFETY: all blocks, and the programs, live as long as the graphs made here: in `self`, which ends
        // what runs before it goes.
        let graphs = unsafe { self.capture(ladders, slots, &at) }?;
        let idle = {
            let _range = range(names().capture);
            Captured::capture(&self.stream, "the idle dispatcher", |stream| {
                let launch = Launch::blocks(1, abi::TG_DISPATCH_THREADS);
                let arguments = at.dispatch(abi::TG_DISPATCH_IDLE);
                // SAFETY: the arguments are the kernel's; the blocks live as above.
                unsafe { self.dispatch.launch(stream, launch, &arguments) }
            })?
        };
        let idle = Exec::new(&idle, LaunchedBy::Device)?;
        let mut table = abi::tg_graphs {
            idle: idle.device_handle(),
            stages: self.programs.len() as u64,
            ..Default::default()
        };
        let mut steps = Vec::with_capacity(graphs.len());
        for placed in graphs {
            let Placed { place, column, .. } = placed;
            let StepGraph {
                stage,
                bucket,
                graph,
                ..
            } = placed.graph;
            let exec = Exec::new(&graph, LaunchedBy::Device)?;
            match placed.beside {
                true => table.beside[place][column] = exec.device_handle(),
                false => {
                    table.step[place][stage][bucket.kind as usize][column] = exec.device_handle();
                }
            }
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

    /// Where one graph is a whole step: the dispatcher beside it stands for all of it.
    fn runs_ahead(&self) -> bool {
        self.programs.len() == 1
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
