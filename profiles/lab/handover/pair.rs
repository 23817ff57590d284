//! A step over both GPUs, as it is queued: its kernels, and what takes rows and tokens between them.

use super::super::cuda::{
    Address, Argument, Buffer, Captured, Launch, Nccl, OpenGpu, failed, peer,
};
use super::super::memory::Memory;
use super::step::{BLOCKS, FLAG_BYTES, LAYOUT, ROW_BYTES, Shared, THREADS, TOKEN_AT};
use super::{Begun, Carrier, Way};
use cudarc::driver::{CudaEvent, result};
use tailgraph::error::{Error, Result};

/// One of the two GPUs.
pub struct End {
    pub memory: Memory<Shared>,
    rows: Buffer,
    /// Rows of the other GPU, at two places by turns.
    came: Buffer,
    /// What the other GPU releases: a flag for rows or a token, or one for each block.
    flags: Buffer,
    /// What this GPU has queued has run as far as the other one waits for.
    sent: CudaEvent,
}

impl End {
    fn new(gpu: &OpenGpu, index: u32, rows: u32, limit_ns: u64) -> Result<Self> {
        let memory = Memory::new(gpu, LAYOUT, |stamps, told| Shared {
            stamps,
            told,
            limit_ns,
            gpu: index,
            rows,
            ..Shared::default()
        })?;
        let sent = gpu.context.new_event(None);
        let end = Self {
            rows: memory.zeros(rows as usize * ROW_BYTES)?,
            came: memory.zeros(2 * rows as usize * ROW_BYTES)?,
            flags: memory.zeros(BLOCKS as usize * FLAG_BYTES)?,
            sent: sent.map_err(|error| failed("making an event", error))?,
            memory,
        };
        // It is all there before the other GPU writes.
        end.memory.write()?;
        Ok(end)
    }

    fn row_bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Queues a kernel of pair.cu or pair_again.cu, whose first argument is `tg_pair`. `wide`: over the rows; else one thread.
    ///
    /// # Safety
    /// The other arguments are the kernel's, and what they point to lives until it has run.
    unsafe fn launch(&self, kernel: &str, wide: bool, rest: &[Address]) -> Result<()> {
        let Memory {
            gpu,
            stream,
            shared,
            ..
        } = &self.memory;
        let launch = if wide {
            Launch::blocks(shared.rows.min(BLOCKS), THREADS)
        } else {
            Launch::blocks(1, 1)
        };
        let arguments = std::iter::once(self.memory.at(0)).chain(rest.iter().copied());
        let arguments: Vec<_> = arguments.map(Argument::Address).collect();
        // SAFETY: the caller's promise.
        unsafe {
            gpu.module
                .kernel(kernel)?
                .launch(stream, launch, &arguments)
        }
    }

    /// Makes the GPU the one that calls go to.
    fn bind(&self) -> Result<()> {
        let bound = self.memory.gpu.context.bind_to_thread();
        bound.map_err(|error| failed("turning to another GPU", error))
    }
}

/// Both GPUs, and what carries.
pub struct Pair {
    pub way: Way,
    pub ends: [End; 2],
    /// There in the ways that use it.
    pub nccl: Option<Nccl>,
}

/// What goes from one GPU to the other.
#[derive(Clone, Copy)]
enum Part {
    /// From the first to the second.
    Rows,
    /// From the second to the first.
    Token,
}

impl Pair {
    pub fn new(gpus: &[OpenGpu; 2], way: Way, rows: u32, limit_ns: u64) -> Result<Self> {
        let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
        let by_nccl = way.carrier == Carrier::Nccl;
        if !by_nccl {
            peer::open(a, b)?;
            peer::open(b, a)?;
        }
        let end = |index: u32| End::new(&gpus[index as usize], index, rows, limit_ns);
        let mut pair = Self {
            way,
            ends: [end(0)?, end(1)?],
            nccl: None,
        };
        if by_nccl {
            pair.nccl = Some(Nccl::new(super::nccl_for(way.name)?, &[a, b])?);
            // NCCL connects GPUs when it first has something to do there, which no capture takes.
            // SAFETY: the places are the ends', which are waited for below; what they hold is of no use yet.
            unsafe { pair.exchange() }?;
            for end in &pair.ends {
                let waited = end.memory.stream.synchronize();
                waited.map_err(|error| failed("connecting the GPUs by NCCL", error))?;
            }
        }
        Ok(pair)
    }

    /// All that NCCL does in a step.
    ///
    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn exchange(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            if self.way.reduces {
                return self.reduce();
            }
            self.hand_on(Part::Rows)?;
            self.hand_on(Part::Token)
        }
    }

    fn nccl(&self) -> Result<&Nccl> {
        let nccl = self.nccl.as_ref();
        nccl.ok_or_else(|| Error::Runtime("NCCL was not opened: a bug in the laboratory".into()))
    }

    /// Queues a whole step on both GPUs, or captures it where their streams are captured.
    ///
    /// # Safety
    /// `self` lives until it has run, however often.
    pub unsafe fn queue(&self) -> Result<()> {
        let [first, second] = &self.ends;
        let over = match self.way.begun {
            Begun::Device => "tg_pair_end_again",
            _ => "tg_pair_end",
        };
        // SAFETY: the kernels' arguments; the memory is the ends'.
        unsafe {
            if self.way.reduces {
                for end in &self.ends {
                    end.launch("tg_pair_rows", true, &[end.rows.at(0)])?;
                }
                self.reduce()?;
                for end in &self.ends {
                    end.launch("tg_pair_digest", true, &[end.rows.at(0)])?;
                    end.launch(over, false, &[])?;
                }
                return Ok(());
            }
            first.launch("tg_pair_rows", true, &[first.rows.at(0)])?;
            self.hand_on(Part::Rows)?;
            self.take(Part::Rows)?;
            second.launch("tg_pair_digest", true, &[second.came.at(0)])?;
            self.hand_on(Part::Token)?;
            second.launch(over, false, &[])?;
            self.take(Part::Token)?;
            first.launch(over, false, &[])
        }
    }

    /// Who sends a part, and who receives it.
    fn ends(&self, part: Part) -> (&End, &End) {
        let [first, second] = &self.ends;
        match part {
            Part::Rows => (first, second),
            Part::Token => (second, first),
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn hand_on(&self, part: Part) -> Result<()> {
        let (from, to) = self.ends(part);
        let (source, target, bytes) = match part {
            Part::Rows => (from.rows.at(0), to.came.at(0), from.row_bytes()),
            Part::Token => (
                from.memory.at(TOKEN_AT),
                to.memory.at(TOKEN_AT),
                size_of::<u64>(),
            ),
        };
        let streams = [&from.memory.stream, &to.memory.stream];
        // SAFETY: the caller's promise; there are so many bytes at both places.
        unsafe {
            match (self.way.carrier, part) {
                (Carrier::Nccl, _) => {
                    let (by, there) = ((source, &**streams[0]), (target, &**streams[1]));
                    self.nccl()?.exchange(part as usize, by, there, bytes)
                }
                (Carrier::Copies, _) => {
                    from.bind()?;
                    // Addresses are of one space, and the GPUs reach each other: it goes by a copy engine, also out of a graph.
                    let stream = streams[0].cu_stream();
                    let queued = result::memcpy_dtod_async(target, source, bytes, stream);
                    queued.map_err(|error| failed("copying to the other GPU", error))
                }
                (Carrier::Stores, Part::Rows) => {
                    from.launch("tg_pair_put", true, &[target, source, to.flags.at(0)])
                }
                (Carrier::Stores, Part::Token) => {
                    let to = [to.memory.at(0), to.flags.at(0)];
                    from.launch("tg_pair_put_token", false, &to)
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn take(&self, part: Part) -> Result<()> {
        let (from, to) = self.ends(part);
        match (self.way.carrier, part) {
            // It has been queued with the send.
            (Carrier::Nccl, _) => Ok(()),
            (Carrier::Copies, _) => {
                let ordered = from.sent.record(&from.memory.stream);
                let ordered = ordered.and_then(|()| to.memory.stream.wait(&from.sent));
                ordered.map_err(|error| failed("waiting for the other GPU", error))
            }
            (Carrier::Stores, Part::Rows) => {
                // SAFETY: the caller's promise.
                unsafe { to.launch("tg_pair_take_rows", false, &[to.flags.at(0)]) }
            }
            (Carrier::Stores, Part::Token) => {
                // SAFETY: the caller's promise.
                unsafe { to.launch("tg_pair_take_token", false, &[to.flags.at(0)]) }
            }
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn reduce(&self) -> Result<()> {
        let [first, second] = &self.ends;
        if self.way.carrier == Carrier::Nccl {
            let at = |end: &End| end.rows.at(0);
            let ends = [
                (at(first), &*first.memory.stream),
                (at(second), &*second.memory.stream),
            ];
            // SAFETY: the caller's promise; both ends have so many bf16.
            return unsafe { self.nccl()?.reduce(0, ends, first.row_bytes() / 2) };
        }
        for (own, other) in [(first, second), (second, first)] {
            let places = [&own.rows, &own.came, &other.came, &own.flags, &other.flags];
            // SAFETY: the caller's promise.
            unsafe { own.launch("tg_pair_reduce", true, &places.map(|place| place.at(0))) }?;
        }
        Ok(())
    }

    /// A step as a graph for each GPU.
    ///
    /// # Safety
    /// As for [`Self::queue`], for as long as anything made of the graphs may run.
    pub unsafe fn capture_each(&self) -> Result<[Captured; 2]> {
        let [first, second] = &self.ends;
        let name = |index| format!("{}, GPU {index}", self.way.name);
        let mut other = None;
        let own = Captured::capture(&first.memory.stream, name(0), |_| {
            let captured = Captured::capture(&second.memory.stream, name(1), |_| {
                // SAFETY: the caller's promise.
                unsafe { self.queue() }?;
                second.bind()
            });
            // The outer capture ends on its own GPU whatever came of the inner one.
            first.bind()?;
            other = Some(captured?);
            Ok(())
        })?;
        let other = other.ok_or_else(|| Error::Runtime(format!("{} has no graph", name(1))))?;
        Ok([own, other])
    }

    /// A step as one graph over both GPUs: the second's stream comes into the first's capture by the event that it waits for, and
    /// goes back by another.
    ///
    /// # Safety
    /// As for [`Self::capture_each`].
    pub unsafe fn capture_both(&self) -> Result<Captured> {
        let first = &self.ends[0];
        let name = format!("{}, both GPUs", self.way.name);
        Captured::capture(&first.memory.stream, name, |_| {
            // SAFETY: the caller's promise.
            unsafe { self.queue() }?;
            first.bind()
        })
    }
}
