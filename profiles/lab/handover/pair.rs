//! A step over both GPUs, as it is queued: its kernels, and what takes rows and tokens between them.

use super::end::End;
use super::{Begun, Carrier, HandoverWay};
use cudarc::driver::result;
use tailgraph::backend::cuda::driver::errors::failed;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::graph::Captured;
use tailgraph::backend::cuda::driver::nccl::Nccl;
use tailgraph::backend::cuda::driver::{Address, peer};
use tailgraph::error::{Error, Result};

/// The bf16 in a word.
const HALVES: usize = 2;

/// Both GPUs, and what carries.
pub struct Pair {
    pub way: &'static HandoverWay,
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

impl Part {
    /// Who sends, and who receives.
    fn ends(self, ends: &[End; 2]) -> [&End; 2] {
        let [first, second] = ends;
        match self {
            Self::Rows => [first, second],
            Self::Token => [second, first],
        }
    }

    /// Where it is taken from, where it comes to, and its bytes.
    fn places(self, ends: &[End; 2]) -> (Address, Address, usize) {
        let [from, to] = self.ends(ends);
        match self {
            Self::Rows => (from.rows(), to.came(), from.row_bytes()),
            Self::Token => (from.token(), to.token(), size_of::<u64>()),
        }
    }
}

impl Pair {
    /// # Errors
    /// [`Error::Memory`] where there is not enough; what the driver or NCCL refuses.
    pub fn new(gpus: &[OpenGpu; 2], way: &'static HandoverWay, rows: u32, limit_ns: u64) -> Result<Self> {
        let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
        if way.carrier != Carrier::Nccl {
            peer::open(a, b)?;
            peer::open(b, a)?;
        }
        let end = |index: u32| End::new(&gpus[index as usize], index, rows, limit_ns);
        let mut pair = Self {
            way,
            ends: [end(0)?, end(1)?],
            nccl: None,
        };
        if way.carrier == Carrier::Nccl {
            pair.nccl = Some(Nccl::new(super::nccl_for(way.name)?, &[a, b])?);
            pair.connect()?;
        }
        Ok(pair)
    }

    fn named(&self, what: &str) -> String {
        format!("{}, {what}", self.way.name)
    }

    fn nccl(&self) -> Result<&Nccl> {
        self.nccl
            .as_ref()
            .ok_or_else(|| Error::Runtime(self.named("NCCL was not opened: a bug in tailgraph")))
    }

    /// NCCL connects GPUs when it first has something to do there, which no capture takes.
    fn connect(&self) -> Result<()> {
        // SAFETY: the places are the ends', which are waited for below; what they hold is of no use yet.
        unsafe {
            if self.way.reduces {
                self.reduce()?;
            } else {
                self.send(Part::Rows)?;
                self.send(Part::Token)?;
            }
        }
        for end in &self.ends {
            let waited = end.stream.synchronize();
            waited.map_err(|error| failed(&self.named("connecting the GPUs"), error))?;
        }
        Ok(())
    }

    /// Queues a whole step on both GPUs, or captures it where their streams are captured.
    ///
    /// # Errors
    /// The driver or NCCL refuses.
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
                    end.launch("tg_pair_rows", true, &[end.rows()])?;
                }
                self.reduce()?;
                for end in &self.ends {
                    end.launch("tg_pair_digest", true, &[end.rows()])?;
                    end.launch(over, false, &[])?;
                }
                return Ok(());
            }
            first.launch("tg_pair_rows", true, &[first.rows()])?;
            self.send(Part::Rows)?;
            self.receive(Part::Rows)?;
            second.launch("tg_pair_digest", true, &[second.came()])?;
            self.send(Part::Token)?;
            second.launch(over, false, &[])?;
            self.receive(Part::Token)?;
            first.launch(over, false, &[])
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn send(&self, part: Part) -> Result<()> {
        let [from, to] = part.ends(&self.ends);
        let (source, target, bytes) = part.places(&self.ends);
        // SAFETY: the caller's promise; there are so many bytes at both places.
        unsafe {
            match (self.way.carrier, part) {
                (Carrier::Nccl, _) => {
                    let link = part as usize;
                    let ends = ((source, &*from.stream), (target, &*to.stream));
                    self.nccl()?.exchange(link, ends.0, ends.1, bytes)
                }
                (Carrier::Copies, _) => {
                    from.bind()?;
                    // Addresses are of one space, and the GPUs reach each other: it goes by a copy engine, also out of a graph.
                    let stream = from.stream.cu_stream();
                    let queued = result::memcpy_dtod_async(target, source, bytes, stream);
                    queued.map_err(|error| failed(&self.named("copying to the other GPU"), error))
                }
                (Carrier::Stores, Part::Rows) => {
                    from.launch("tg_pair_put", true, &[target, source, to.flags()])
                }
                (Carrier::Stores, Part::Token) => {
                    from.launch("tg_pair_put_token", false, &[to.pair(), to.flags()])
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn receive(&self, part: Part) -> Result<()> {
        let [from, to] = part.ends(&self.ends);
        match self.way.carrier {
            // It has been queued with the send.
            Carrier::Nccl => Ok(()),
            Carrier::Copies => {
                let ordered = from.sent.record(&from.stream);
                let ordered = ordered.and_then(|()| to.stream.wait(&from.sent));
                ordered.map_err(|error| failed(&self.named("waiting for the other GPU"), error))
            }
            Carrier::Stores => {
                let kernel = match part {
                    Part::Rows => "tg_pair_take_rows",
                    Part::Token => "tg_pair_take_token",
                };
                // SAFETY: the caller's promise.
                unsafe { to.launch(kernel, false, &[to.flags()]) }
            }
        }
    }

    /// # Safety
    /// As for [`Self::queue`].
    unsafe fn reduce(&self) -> Result<()> {
        let [first, second] = &self.ends;
        if self.way.carrier == Carrier::Nccl {
            let at = self.ends.each_ref().map(|end| (end.rows(), &*end.stream));
            let count = first.row_bytes() / size_of::<u32>() * HALVES;
            // SAFETY: the caller's promise; both ends have so many.
            return unsafe { self.nccl()?.reduce(0, at, count) };
        }
        for (own, other) in [(first, second), (second, first)] {
            let places = [
                own.rows(),
                own.came(),
                other.came(),
                own.flags(),
                other.flags(),
            ];
            // SAFETY: the caller's promise.
            unsafe { own.launch("tg_pair_reduce", true, &places) }?;
        }
        Ok(())
    }

    /// A step as a graph for each GPU.
    ///
    /// # Errors
    /// What the capture gives.
    ///
    /// # Safety
    /// As for [`Self::queue`], for as long as anything made of the graphs may run.
    pub unsafe fn capture_each(&self) -> Result<[Captured; 2]> {
        let [first, second] = &self.ends;
        let name = |end: &End| self.named(&format!("cuda:{}", end.ordinal()));
        let mut other = None;
        let own = Captured::capture(&first.stream, name(first), |_| {
            let captured = Captured::capture(&second.stream, name(second), |_| {
                // SAFETY: the caller's promise.
                unsafe { self.queue() }?;
                second.bind()
            });
            // The outer capture ends on its own GPU whatever came of the inner one.
            first.bind()?;
            other = Some(captured?);
            Ok(())
        })?;
        let other = other.ok_or_else(|| {
            Error::Runtime(self.named("a capture without a graph: a bug in tailgraph"))
        })?;
        Ok([own, other])
    }

    /// A step as one graph over both GPUs: the second's stream comes into the first's capture by the event that it waits for, and
    /// goes back by another.
    ///
    /// # Errors
    /// As [`Self::capture_each`].
    ///
    /// # Safety
    /// As for [`Self::capture_each`].
    pub unsafe fn capture_both(&self) -> Result<Captured> {
        let first = &self.ends[0];
        Captured::capture(&first.stream, self.named("both GPUs"), |_| {
            // SAFETY: the caller's promise.
            unsafe { self.queue() }?;
            first.bind()
        })
    }
}
