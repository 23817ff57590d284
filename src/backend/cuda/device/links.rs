//! Links between GPUs: who reaches whose memory, how fast copies are, and how soon a store is seen (kernels/sched/links.cu).

use crate::backend::cuda::catalogue::Link;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::peer;
use crate::backend::cuda::driver::timed::time_in_a_row;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::error::{Error, Result};
use cudarc::driver::{CudaStream, result};
use std::sync::Arc;
use std::time::Duration;

/// The bytes of one copy: some hundred microseconds over NVLink.
const COPY_BYTES: usize = 64 << 20;
/// Copies that are timed together, behind one that is not.
const COPIES: u32 = 8;
/// The rounds of a word there and back.
const ROUNDS: u32 = 1000;
/// How long a kernel waits for the other GPU's at most; a round takes some microseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// A word on cache lines of its own.
const WORD_BYTES: usize = 128;

/// A GPU as one end of links.
struct End {
    gpu: OpenGpu,
    stream: Arc<CudaStream>,
    bounce: Kernel,
    /// What copies read, and what they write.
    room: Buffer,
}

impl End {
    fn new(gpu: &OpenGpu) -> Result<Self> {
        let stream = gpu.context.new_stream();
        let what = format!("copies from and to cuda:{}", gpu.info.ordinal);
        let room = Buffer::named(&gpu.context, &what, COPY_BYTES)?;
        let stream = stream.map_err(|error| failed("making a stream", error))?;
        room.fill(&stream, 0)?;
        Ok(Self {
            stream,
            bounce: gpu.module.kernel("tg_bounce")?,
            gpu: gpu.clone(),
            room,
        })
    }

    /// A word that is 0, in this GPU's memory.
    fn word(&self) -> Result<Buffer> {
        let word = Buffer::new(&self.gpu.context, WORD_BYTES)?;
        word.fill(&self.stream, 0)?;
        let cleared = self.stream.synchronize();
        cleared.map_err(|error| failed("clearing a word", error))?;
        Ok(word)
    }
}

/// Measures each link between two of `gpus`, both ways. What fails on one of them is said there.
///
/// # Errors
/// The driver does not say who reaches whom; [`Error::Memory`] where a GPU has no room for copies.
pub fn measure(gpus: &[OpenGpu]) -> Result<Vec<Link>> {
    let ends: Vec<End> = gpus.iter().map(End::new).collect::<Result<_>>()?;
    let pairs = ends
        .iter()
        .flat_map(|from| ends.iter().map(move |to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from.gpu.info.ordinal != to.gpu.info.ordinal);
    pairs.map(|(from, to)| link(from, to)).collect()
}

fn link(from: &End, to: &End) -> Result<Link> {
    let (a, b) = (&from.gpu.context, &to.gpu.context);
    let peer_access = peer::reaches(a, b)? && peer::reaches(b, a)?;
    let opened = if peer_access {
        peer::open(a, b).and_then(|()| peer::open(b, a))
    } else {
        Ok(())
    };
    let mut failures = vec![];
    let mut or_why = |found: Result<f64>| found.map_err(|why| failures.push(why.to_string())).ok();
    let (copy_bytes_per_s, store_us) = match opened {
        Ok(()) => (
            or_why(copies(from, to)),
            or_why(round_trips(from, to, peer_access)),
        ),
        Err(why) => (or_why(Err(why)), None),
    };
    Ok(Link {
        from: from.gpu.info.ordinal,
        to: to.gpu.info.ordinal,
        peer_access,
        copy_bytes_per_s,
        store_us,
        failures,
    })
}

/// Bytes a second.
fn copies(from: &End, to: &End) -> Result<f64> {
    let refused = |error| failed("copying from GPU to GPU", error);
    let (a, b) = (&from.gpu.context, &to.gpu.context);
    a.bind_to_thread().map_err(refused)?;
    let copy = || {
        let (source, target) = (from.room.at(0), to.room.at(0));
        let stream = from.stream.cu_stream();
        // SAFETY: both hold as many bytes, and live until the stream has been waited for.
        unsafe {
            result::memcpy_peer_async(b.cu_ctx(), target, a.cu_ctx(), source, COPY_BYTES, stream)
        }
        .map_err(refused)
    };
    copy()?;
    let took = time_in_a_row(&from.stream, COPIES, copy)?;
    Ok(f64::from(COPIES) * COPY_BYTES as f64 / took.as_secs_f64())
}

/// From a store until the other GPU sees it, in microseconds: half of a round trip.
fn round_trips(from: &End, to: &End, peer_access: bool) -> Result<f64> {
    let pinned = || Pinned::new(&from.gpu.context, 2 * WORD_BYTES);
    let shared = (!peer_access).then(pinned).transpose()?;
    let own = (from.word()?, to.word()?);
    // What each waits for: in its own memory where the other reaches that.
    let words = match &shared {
        None => (own.0.at(0), own.1.at(0)),
        Some(pinned) => (pinned.device(), pinned.device() + WORD_BYTES as Address),
    };
    let found = (from.word()?, to.word()?);
    let launch = |end: &End, mine, theirs, first: bool, found: &Buffer| {
        let arguments = [
            Argument::Address(mine),
            Argument::Address(theirs),
            Argument::U32(first.into()),
            Argument::U32(ROUNDS),
            Argument::U64(LIMIT.as_nanos() as u64),
            Argument::Address(found.at(0)),
        ];
        // SAFETY: the arguments are the kernel's; what they point to lives until both streams have been waited for.
        unsafe { (end.bounce).launch(&end.stream, Launch::blocks(1, 1), &arguments) }
    };
    let launched = launch(to, words.1, words.0, false, &found.1)
        .and_then(|()| launch(from, words.0, words.1, true, &found.0));
    let waited = [from, to].map(|end| end.stream.synchronize());
    launched?;
    for ended in waited {
        ended.map_err(|error| failed("waiting for a word to come back", error))?;
    }
    // How many were answered, and ns.
    let mut told = [0u64; 2];
    let bytes = bytemuck::cast_slice_mut(&mut told);
    found.0.read(&from.stream, 0, bytes)?;
    let [rounds, ns] = told;
    if rounds != u64::from(ROUNDS) {
        let (from, to) = (from.gpu.info.ordinal, to.gpu.info.ordinal);
        return Err(Error::Runtime(format!(
            "a word from cuda:{from} to cuda:{to} and back: {rounds} of {ROUNDS} were answered within {LIMIT:?}"
        )));
    }
    Ok(ns as f64 / 1e3 / (2.0 * f64::from(ROUNDS)))
}
