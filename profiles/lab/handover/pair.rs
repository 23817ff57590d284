//! A step over both GPUs, as it is queued: its kernels, and what takes rows and tokens between them.

use super::super::cuda::{
    Address, Argument, Buffer, Captured, Launch, Nccl, OpenGpu, failed, peer,
};
use super::super::memory::Memory;
use super::super::ways::step;
use super::step::{BLOCKS, FLAG_BYTES, LAYOUT, ROW_BYTES, Shared, THREADS, TOKEN_AT};
use super::{Begun, Carrier, Way};
use cudarc::driver::{CudaEvent, result};
use tailgraph::error::Result;

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
            ways: step::Shared {
                stamps,
                told,
                ..Default::default()
            },
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

    /// Queues a kernel whose first argument is `tg_pair` and whose others are places of either end. `wide`: over the rows; else one
    /// thread.
    fn launch(&self, kernel: &str, wide: bool, rest: &[Address]) -> Result<()> {
        let (gpu, stream) = (&self.memory.gpu, &self.memory.stream);
        let launch = if wide {
            Launch::blocks(self.memory.shared.rows.min(BLOCKS), THREADS)
        } else {
            Launch::blocks(1, 1)
        };
        let places = [&[self.memory.at(0)], rest].concat();
        let arguments: Vec<_> = places.into_iter().map(Argument::Address).collect();
        let kernel = gpu.module.kernel(kernel)?;
        // SAFETY: the arguments are the kernel's; the places are a pair's, which a run keeps until nothing runs any more.
        unsafe { kernel.launch(stream, launch, &arguments) }
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

/// What goes from one GPU to the other, by the number of the one that sends it.
#[derive(Clone, Copy)]
enum Part {
    Rows,
    Token,
}

impl Pair {
    pub fn new(gpus: &[OpenGpu; 2], way: Way, rows: u32, limit_ns: u64) -> Result<Self> {
        let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
        let end = |index: u32| End::new(&gpus[index as usize], index, rows, limit_ns);
        let mut pair = Self {
            way,
            ends: [end(0)?, end(1)?],
            nccl: None,
        };
        if way.carrier != Carrier::Nccl {
            peer::open(a, b)?;
            peer::open(b, a)?;
            return Ok(pair);
        }
        pair.nccl = Some(Nccl::new(super::nccl_for(way.name)?, &[a, b])?);
        // NCCL connects GPUs when it first has something to do there, which no capture takes. What the places hold is of no use yet.
        if way.reduces {
            pair.reduce()?;
        } else {
            pair.hand_on(Part::Rows)?;
            pair.hand_on(Part::Token)?;
        }
        for end in &pair.ends {
            let waited = end.memory.stream.synchronize();
            waited.map_err(|error| failed("connecting the GPUs by NCCL", error))?;
        }
        Ok(pair)
    }

    /// Queues a whole step on both GPUs, or captures it where their streams are captured.
    pub fn queue(&self) -> Result<()> {
        let [first, second] = &self.ends;
        let over = match self.way.begun {
            Begun::Device => "tg_pair_end_again",
            _ => "tg_pair_end",
        };
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

    /// Who sends a part, and who receives it.
    fn ends(&self, part: Part) -> [&End; 2] {
        [part as usize, 1 - part as usize].map(|index| &self.ends[index])
    }

    fn hand_on(&self, part: Part) -> Result<()> {
        let [from, to] = self.ends(part);
        let (source, target, bytes) = match part {
            Part::Rows => (from.rows.at(0), to.came.at(0), from.rows.bytes()),
            Part::Token => {
                let [source, target] = [from, to].map(|end| end.memory.at(TOKEN_AT));
                (source, target, size_of::<u64>())
            }
        };
        let stream = &*from.memory.stream;
        if let Some(nccl) = &self.nccl {
            let (by, there) = ((source, stream), (target, &*to.memory.stream));
            // SAFETY: there are so many bytes at both places, which a run keeps until nothing runs any more.
            return unsafe { nccl.exchange(part as usize, by, there, bytes) };
        }
        match part {
            _ if self.way.carrier == Carrier::Copies => {
                from.bind()?;
                // Addresses are of one space, and the GPUs reach each other: it goes by a copy engine, also out of a graph.
                // SAFETY: as above.
                unsafe { result::memcpy_dtod_async(target, source, bytes, stream.cu_stream()) }
                    .map_err(|error| failed("copying to the other GPU", error))
            }
            Part::Rows => from.launch("tg_pair_put", true, &[target, source, to.flags.at(0)]),
            Part::Token => {
                let to = [to.memory.at(0), to.flags.at(0)];
                from.launch("tg_pair_put_token", false, &to)
            }
        }
    }

    fn take(&self, part: Part) -> Result<()> {
        let [from, to] = self.ends(part);
        match self.way.carrier {
            // It has been queued with the send.
            Carrier::Nccl => Ok(()),
            Carrier::Copies => {
                let ordered = from.sent.record(&from.memory.stream);
                let ordered = ordered.and_then(|()| to.memory.stream.wait(&from.sent));
                ordered.map_err(|error| failed("waiting for the other GPU", error))
            }
            Carrier::Stores => {
                let kernel = ["tg_pair_take_rows", "tg_pair_take_token"][part as usize];
                to.launch(kernel, false, &[to.flags.at(0)])
            }
        }
    }

    fn reduce(&self) -> Result<()> {
        let [first, second] = &self.ends;
        if let Some(nccl) = &self.nccl {
            let ends = [first, second].map(|end| (end.rows.at(0), &*end.memory.stream));
            // SAFETY: both ends have so many bf16, and a run keeps them until nothing runs any more.
            return unsafe { nccl.reduce(0, ends, first.rows.bytes() / 2) };
        }
        for (own, other) in [(first, second), (second, first)] {
            let places = [&own.rows, &own.came, &other.came, &own.flags, &other.flags];
            own.launch("tg_pair_reduce", true, &places.map(|place| place.at(0)))?;
        }
        Ok(())
    }

    /// A step as a graph for each GPU; or as one over both, into which the second's stream comes by the event that it waits for, and
    /// out of which it goes by another.
    pub fn capture(&self) -> Result<Vec<Captured>> {
        let [first, second] = &self.ends;
        let name = |index| format!("{}, GPU {index}", self.way.name);
        let mut other = None;
        let own = Captured::capture(&first.memory.stream, name(0), |_| {
            let captured = if self.way.begun == Begun::OneGraph {
                self.queue().map(|()| None)
            } else {
                let both = |_: &_| self.queue().and_then(|()| second.bind());
                Captured::capture(&second.memory.stream, name(1), both).map(Some)
            };
            // The outer capture ends on its own GPU whatever came of the inner one.
            first.bind()?;
            other = captured?;
            Ok(())
        })?;
        Ok(std::iter::once(own).chain(other).collect())
    }
}
