//! The memory that steps go from stage to stage in (kernels/sched/handover.h): each side's words, and the places of a link,
//! lie on the GPU that reads them.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::{Address, peer};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::device::CoreBytes;
use crate::error::{Error, Result};
use crate::plan::EngineOptions;
use crate::sys::abi;
use cudarc::driver::CudaContext;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the words of both sides of a link.
const WORDS_BYTES: usize = 2 * size_of::<abi::tg_link_words>();

/// Bytes of device memory that a pipeline takes on each GPU beside its part of the model. `hidden`: f32 of a row's residual stream.
pub fn stage_bytes(core: CoreBytes, options: &EngineOptions, hidden: usize) -> usize {
    let activations = options.step_tokens as usize * hidden * size_of::<f32>();
    let places = (core.step + activations).saturating_mul(options.steps_in_flight as usize);
    core.state
        + size_of::<abi::tg_rings>()
        + size_of::<abi::tg_graphs>()
        + size_of::<abi::tg_stage>()
        + WORDS_BYTES
        + places
}

/// Words and number of places, of a link between stages and of the one back to the first.
#[derive(Debug, Clone, Copy)]
pub struct LinkShape {
    between: (u64, u32),
    back: (u64, u32),
}

impl LinkShape {
    /// Reads the shape from a state block that has been laid out. `hidden`: f32 of a row's residual stream.
    ///
    /// # Errors
    /// There is no whole head.
    pub fn new(state: &[u8], hidden: usize) -> Result<Self> {
        let config = &config_of(state)?;
        // SAFETY: both only read the configuration, which the core has accepted.
        let (between, back) = unsafe {
            (
                abi::tg_step_place_words(config, hidden.div_ceil(2) as u64),
                abi::tg_result_place_words(config),
            )
        };
        Ok(Self {
            between: (between, config.mailbox_depth),
            // One for every step in flight: handover.h says why.
            back: (back, config.steps_in_flight),
        })
    }
}

/// The configuration of a state block that has been laid out.
fn config_of(state: &[u8]) -> Result<abi::tg_config> {
    let bytes = state.get(offset_of!(abi::tg_state, config)..);
    match bytes {
        Some(bytes) if bytes.len() >= size_of::<abi::tg_config>() => {
            // SAFETY: as many bytes are there, and any bytes are a configuration.
            Ok(unsafe { bytes.as_ptr().cast::<abi::tg_config>().read_unaligned() })
        }
        _ => Err(Error::Runtime(
            "a state block without its head: this is a bug in tailgraph".into(),
        )),
    }
}

/// Memory that two GPUs reach.
enum Shared {
    /// One's own.
    Device(Buffer),
    Host(Arc<Pinned>),
}

impl Shared {
    fn new(owner: &Arc<CudaContext>, bytes: usize, peers: bool) -> Result<Self> {
        if !peers {
            return Pinned::new(owner, bytes).map(Self::Host);
        }
        let buffer = Buffer::named(owner, "steps between GPUs", bytes)?;
        let refused = |error| failed("clearing links between GPUs", error);
        let stream = owner.new_stream().map_err(refused)?;
        buffer.fill(&stream, 0)?;
        stream.synchronize().map_err(refused)?;
        Ok(Self::Device(buffer))
    }

    /// The address of byte `offset`, the same on both GPUs.
    fn at(&self, offset: usize) -> Address {
        match self {
            Self::Device(buffer) => buffer.at(offset),
            Self::Host(pinned) => pinned.device() + offset as u64,
        }
    }
}

/// A link: what its taker reads, the poster's words and the places behind them; and what its poster reads, the taker's words.
struct Link {
    taker: Shared,
    poster: Shared,
    shape: (u64, u32),
}

/// The links of all stages: link s goes from stage s to the next one, the last one's to the first.
pub struct Links(Vec<Link>);

impl Links {
    /// `gpus`: of the stages, in order. `peers`: they store into each other's memory.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where there is not enough; [`crate::Error::Runtime`] where the driver does not let them.
    pub fn new(gpus: &[&Arc<CudaContext>], shape: &LinkShape, peers: bool) -> Result<Self> {
        let count = gpus.len();
        let link = |index: usize| {
            let (from, to) = (gpus[index], gpus[(index + 1) % count]);
            if peers {
                peer::open(from, to)?;
                peer::open(to, from)?;
            }
            let shape = if index + 1 == count {
                shape.back
            } else {
                shape.between
            };
            let (words, places) = shape;
            let bytes = words as usize * places as usize * size_of::<u64>();
            Ok(Link {
                taker: Shared::new(to, WORDS_BYTES + bytes, peers)?,
                poster: Shared::new(from, WORDS_BYTES, peers)?,
                shape,
            })
        };
        (0..count).map(link).collect::<Result<_>>().map(Self)
    }

    /// A stage's two. `stop`: the host's flags. `limit`: of a wait that another stage owes an answer to.
    pub fn of(&self, stage: usize, stop: Address, limit: Option<Duration>) -> abi::tg_links {
        let before = (stage + self.0.len() - 1) % self.0.len();
        abi::tg_links {
            in_: self.end(before, false),
            out: self.end(stage, true),
            stop: stop as *const u64,
            limit_ns: limit.map_or(abi::TG_NO_TIMEOUT, |limit| limit.as_nanos() as u64),
            stage: stage as u32,
            ..Default::default()
        }
    }

    fn end(&self, index: usize, posts: bool) -> abi::tg_link_end {
        let link = &self.0[index];
        let (of_poster, of_taker) = (link.taker.at(0), link.poster.at(0));
        let (mine, theirs) = if posts {
            (of_poster, of_taker)
        } else {
            (of_taker, of_poster)
        };
        let (place_words, depth) = link.shape;
        abi::tg_link_end {
            mine: mine as *mut abi::tg_link_words,
            theirs: theirs as *const abi::tg_link_words,
            places: link.taker.at(WORDS_BYTES) as *mut u64,
            place_words,
            depth,
            link: index as u32,
            ..Default::default()
        }
    }
}
