//! A queue of requests that several GPUs claim from (kernels/sched/claim.h): the block that they and the host see is pinned
//! memory of the host, the word that they swap is in the memory of the first of them.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::peer;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::{Claimer, QueueMemory};
use crate::error::{Error, Result};
use crate::sys::abi;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// The GPU that the word is on.
struct Owner {
    context: Arc<CudaContext>,
    _word: Buffer,
}

/// A queue's memory, with the word on this GPU.
///
/// # Errors
/// [`Error::Memory`] where there is not enough; [`Error::Runtime`] for what the driver refuses.
pub fn on_gpu(
    context: &Arc<CudaContext>,
    stream: &CudaStream,
    bytes: usize,
) -> Result<QueueMemory> {
    let block = Pinned::new(context, bytes)?;
    let word = Buffer::named(context, "the count of claims", size_of::<u64>())?;
    word.write(stream, 0, &[0; size_of::<u64>()])?;
    Ok(QueueMemory {
        address: block.device(),
        claimed: word.at(0),
        region: Box::new(block),
        owner: Box::new(Owner {
            context: context.clone(),
            _word: word,
        }),
    })
}

fn owner(queue: &QueueMemory) -> Option<&Owner> {
    queue.owner.downcast_ref()
}

/// Whether a GPU reaches the word, and can do atomics there.
///
/// # Errors
/// The driver does not say.
pub fn reaches(context: &CudaContext, queue: &QueueMemory) -> Result<bool> {
    match owner(queue) {
        Some(owner) => peer::does_atomics(context, &owner.context),
        None => Ok(false),
    }
}

/// A GPU's place at a queue: what of it is in its own memory.
pub struct Seat {
    /// Lives as long as anything runs that uses it.
    _queue: Arc<QueueMemory>,
    _own: Buffer,
}

/// Lets a GPU claim from a queue that it reaches: completes `claimer`, for its state block.
///
/// # Errors
/// Fails as [`on_gpu`] does.
pub fn seat(
    context: &Arc<CudaContext>,
    queue: &Arc<QueueMemory>,
    claimer: Claimer,
) -> Result<(Seat, abi::tg_claimer)> {
    let Some(owner) = owner(queue) else {
        return Err(Error::Runtime(
            "a queue that is not on a GPU: this is a bug in tailgraph".into(),
        ));
    };
    peer::open(context, &owner.context)?;
    let Claimer { mut words, numbers } = claimer;
    let numbers = numbers as usize * size_of::<u64>();
    let seen = words.capacity as usize * size_of::<u64>();
    let own = Buffer::named(context, "what is known of the queue", numbers + seen)?;
    words.numbers = own.at(0) as *mut u64;
    words.seen = own.at(numbers) as *mut u64;
    let refused = |error| failed("clearing what is known of the queue", error);
    let stream = context.new_stream().map_err(refused)?;
    own.fill(&stream, 0)?;
    stream.synchronize().map_err(refused)?;
    let seat = Seat {
        _queue: queue.clone(),
        _own: own,
    };
    Ok((seat, words))
}
