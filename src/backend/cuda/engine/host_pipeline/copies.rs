//! What goes from GPU to GPU between stages that the host launches, and over what.

use crate::backend::SharedRegion;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::nccl::{self, Nccl};
use crate::backend::cuda::engine::waiter::is_done;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::error::Result;
use cudarc::driver::{CudaContext, CudaStream, result};
use libloading::Library;
use std::sync::Arc;

/// What copies go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// From GPU to GPU.
    Peer,
    /// To pinned memory of the host, and from there.
    Host,
    /// By NCCL's send and receive, to compare with.
    Nccl,
}

impl Route {
    /// To be asked before anything is loaded.
    ///
    /// # Errors
    /// [`crate::Error::Usage`]: what it needs is not there.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Peer | Self::Host => Ok(()),
            Self::Nccl => library().map(|_| ()),
        }
    }
}

fn library() -> Result<Library> {
    nccl::found(
        "`handover` nccl",
        "hand steps on by `handover` peer, which needs none",
    )
}

/// A stage's rows in a place: the number of the stage that leaves them, and the place.
type Rows = (usize, usize);

/// The copies between stages.
pub(super) enum Copies {
    Peer,
    /// Rows go through the host's memory: a buffer for each stage but the last, by place.
    Host(Vec<Vec<Arc<Pinned>>>),
    Nccl(Nccl),
}

impl Copies {
    /// `bytes`: of a step's rows, at most.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the machine pins no more; [`Route::check`]'s; NCCL does not connect the GPUs.
    pub fn new(
        route: Route,
        contexts: &[&Arc<CudaContext>],
        places: usize,
        bytes: usize,
    ) -> Result<Self> {
        let of_stage = |context: &&Arc<CudaContext>| {
            let place = |_| Pinned::new(context, bytes);
            (0..places).map(place).collect::<Result<_>>()
        };
        Ok(match route {
            Route::Peer => Self::Peer,
            Route::Host => {
                let leave = contexts[..contexts.len() - 1].iter();
                Self::Host(leave.map(of_stage).collect::<Result<_>>()?)
            }
            Route::Nccl => Self::Nccl(Nccl::new(library()?, contexts)?),
        })
    }

    /// Keeps what GPUs may still use, for as long as the process.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::Peer));
    }

    /// Queues the copy of a stage's rows out of its GPU; to the next one where that can be. What the next one does for it goes on
    /// its stream, `there`.
    ///
    /// # Errors
    /// The driver, or NCCL, refuses it.
    ///
    /// # Safety
    /// There are so many bytes at both places, and nobody else uses them from when the stream comes by until it has.
    pub unsafe fn leave(
        &self,
        (stage, place): Rows,
        from: (&CudaContext, Address),
        to: (&CudaContext, Address),
        bytes: usize,
        (stream, there): (&CudaStream, &CudaStream),
    ) -> Result<()> {
        let refused = |error| failed("copying rows from the GPU", error);
        stream.context().bind_to_thread().map_err(refused)?;
        match self {
            Self::Peer => {
                // SAFETY: the caller's promise.
                let queued = unsafe { peer_copy(from, to, bytes, stream) };
                queued.map_err(refused)
            }
            // SAFETY: the caller's promise.
            Self::Nccl(nccl) => unsafe {
                nccl.exchange(stage, (from.1, stream), (to.1, there), bytes)
            },
            Self::Host(staging) => {
                let to = staging[stage][place].start().as_ptr();
                // SAFETY: the staging memory holds a whole step, and is this place's.
                let queued = unsafe {
                    let staged = std::slice::from_raw_parts_mut(to, bytes);
                    result::memcpy_dtoh_async(staged, from.1, stream.cu_stream())
                };
                queued.map_err(refused)
            }
        }
    }

    /// Queues what is left to do to have them there, for a stream that has waited for [`Self::leave`].
    ///
    /// # Errors
    /// The driver refuses it.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Self::leave`].
    pub unsafe fn arrive(
        &self,
        (stage, place): Rows,
        to: Address,
        bytes: usize,
        stream: &CudaStream,
    ) -> Result<()> {
        let Self::Host(staging) = self else {
            return Ok(());
        };
        let refused = |error| failed("copying rows to the GPU", error);
        stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the caller's promise; the staging memory holds a whole step.
        unsafe {
            let staged = staging[stage][place].start().as_ptr();
            let staged = std::slice::from_raw_parts(staged, bytes);
            result::memcpy_htod_async(to, staged, stream.cu_stream())
        }
        .map_err(refused)
    }

    /// Queues the copy of samples, which are at `from` and, where they go through the host, `staged`, to the GPU of `stream`. What
    /// their own GPU does for it goes on `by`.
    ///
    /// # Errors
    /// The driver, or NCCL, refuses it.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Self::leave`], with as many bytes as are staged.
    pub unsafe fn feed(
        &self,
        from: (&CudaContext, Address),
        staged: &[u8],
        to: Address,
        (by, stream): (&CudaStream, &CudaStream),
    ) -> Result<()> {
        let refused = |error| failed("copying samples to the GPU", error);
        let context = stream.context();
        context.bind_to_thread().map_err(refused)?;
        match self {
            Self::Peer => {
                // SAFETY: the caller's promise.
                let queued = unsafe { peer_copy(from, (context, to), staged.len(), stream) };
                queued.map_err(refused)
            }
            Self::Host(_) => {
                // SAFETY: the caller's promise.
                let queued = unsafe { result::memcpy_htod_async(to, staged, stream.cu_stream()) };
                queued.map_err(refused)
            }
            // SAFETY: the caller's promise.
            Self::Nccl(nccl) => unsafe {
                nccl.exchange(nccl.last(), (from.1, by), (to, stream), staged.len())
            },
        }
    }
}

/// # Safety
/// The caller keeps the promises of [`Copies::leave`].
unsafe fn peer_copy(
    from: (&CudaContext, Address),
    to: (&CudaContext, Address),
    bytes: usize,
    stream: &CudaStream,
) -> std::result::Result<(), result::DriverError> {
    let (source, target) = (from.0.cu_ctx(), to.0.cu_ctx());
    // SAFETY: the caller's promise; contexts and stream are alive.
    unsafe { result::memcpy_peer_async(target, to.1, source, from.1, bytes, stream.cu_stream()) }
}

/// Whether something is left to run on a stream. An error says that the GPU is lost: nothing runs there.
pub(super) fn runs(stream: &CudaStream) -> bool {
    is_done(stream) == Ok(false)
}
