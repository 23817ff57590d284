//! The scheduler's two memory blocks (kernels/abi.h) and the few unsafe moves that everyone makes on them.
//!
//! Both blocks are position-independent, so whose memory they lie in is the caller's choice: the host's for a
//! scheduler on the host; for one on a device, the rings in memory that both sides see, and the state laid out
//! here and copied there once.

use super::sizes::Sizes;
use crate::backend::{SharedRegion, StepView};
use crate::error::{Error, Result};
use crate::sys::abi;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Both blocks start on what the structs in them want: a pair of cache lines.
const ALIGN: usize = 128;

/// A zeroed allocation of the host that several threads read and write through raw pointers.
pub(super) struct HostRegion {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; all access goes through raw pointers under the rings' protocol.
unsafe impl Send for HostRegion {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    pub fn new(bytes: usize) -> Result<Self> {
        let refused = || {
            Error::Memory(format!(
                "the scheduler's blocks: the system refused {bytes} bytes; expected fewer sequences, pages or ring entries"
            ))
        };
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| refused())?;
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(refused)?;
        Ok(Self { start, layout })
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl SharedRegion for HostRegion {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

/// The ring block, laid out.
pub(super) struct RingBlock(Box<dyn SharedRegion>);

impl RingBlock {
    /// # Errors
    /// [`Error::Memory`] where the system has not so much.
    pub fn on_host(sizes: &Sizes) -> Result<Self> {
        let block = HostRegion::new(sizes.ring_bytes)?;
        Ok(Self::new(sizes, Box::new(block)))
    }

    /// Lays the rings out in `block`, which nobody else uses yet.
    pub fn new(sizes: &Sizes, block: Box<dyn SharedRegion>) -> Self {
        assert!(block.bytes() >= sizes.ring_bytes);
        assert!(block.start().as_ptr().addr().is_multiple_of(ALIGN));
        let rings = Self(block);
        // SAFETY: the block has the size of this shape and its alignment, and nobody else has it yet.
        unsafe { abi::tg_rings_init(rings.head(), &sizes.shape) };
        rings
    }

    pub fn head(&self) -> *mut abi::tg_rings {
        self.0.start().as_ptr().cast()
    }

    /// The first entry of a table.
    ///
    /// # Safety
    /// `offset` is that of a table of `T` in the ring block.
    pub unsafe fn table<T>(&self, offset: u64) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.start().as_ptr().add(offset as usize).cast() }
    }

    /// Entry `number` of a ring table, whose capacity is a power of two.
    ///
    /// # Safety
    /// `offset` and `capacity` are those of a table of `T` in the ring block.
    pub unsafe fn entry<T>(&self, offset: u64, capacity: u32, number: u64) -> *mut T {
        // SAFETY: the masked number is below the capacity, so the entry lies in the table.
        unsafe {
            self.table::<T>(offset)
                .add((number & u64::from(capacity - 1)) as usize)
        }
    }
}

/// A state block in the host's memory, laid out and cleared.
pub(super) struct StateBlock(HostRegion);

impl StateBlock {
    /// # Errors
    /// [`Error::Memory`] where the system has not so much.
    pub fn new(sizes: &Sizes) -> Result<Self> {
        let state = Self(HostRegion::new(sizes.state_bytes)?);
        // SAFETY: the block has the size of this configuration, and nobody else has it yet.
        let error = unsafe { abi::tg_state_init(state.head(), &sizes.config) };
        assert_eq!(
            error,
            abi::TG_ERROR_NONE,
            "tg_state_bytes accepted the configuration"
        );
        Ok(state)
    }

    pub fn head(&self) -> *mut abi::tg_state {
        self.0.start.as_ptr().cast()
    }

    /// The whole block, before anyone has taken a turn on it: what a device's copy starts from.
    pub fn image(&mut self) -> &[u8] {
        // SAFETY: the allocation is initialised (zeroed, then laid out), and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.layout.size()) }
    }
}

/// Both blocks of a scheduler on the host. Who may touch what, and when, is the protocol of kernels/abi.h; the
/// handles in [`super::core`] and [`super::rings`] keep to it.
pub(super) struct Memory {
    state: StateBlock,
    rings: Arc<RingBlock>,
}

impl Memory {
    /// # Errors
    /// [`Error::Memory`] where the system has not so much.
    pub fn new(sizes: &Sizes) -> Result<Self> {
        Ok(Self {
            state: StateBlock::new(sizes)?,
            rings: Arc::new(RingBlock::on_host(sizes)?),
        })
    }

    pub fn state(&self) -> *mut abi::tg_state {
        self.state.head()
    }

    pub fn rings(&self) -> &Arc<RingBlock> {
        &self.rings
    }

    /// The descriptor of step `number`, which must be in flight.
    pub fn step(&self, number: u64) -> StepView<'_> {
        // SAFETY: the block is initialised and outlives the view; that the step is in flight is checked below
        // as far as it can be: its place holds this very step.
        let view = unsafe { StepView::new(self.state(), number) };
        assert_eq!(view.header().number, number, "the step is not in flight");
        view
    }
}

/// A word that both sides read and write at any time.
///
/// # Safety
/// `word` points into a living block, 8-byte aligned, and everyone else reads and writes it atomically too.
pub(super) unsafe fn word<'a>(word: *mut u64) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }
}

/// A ring index as both sides see it.
///
/// # Safety
/// `index` points into a living ring block, and everyone else reads and writes it atomically too.
pub(super) unsafe fn index<'a>(index: *mut abi::tg_index) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; the value is 8-byte aligned inside its struct.
    unsafe { word(&raw mut (*index).value) }
}

/// Loads an index that the other side releases.
///
/// # Safety
/// The caller keeps the promises of [`index`].
pub(super) unsafe fn acquire(at: *mut abi::tg_index) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { index(at) }.load(Ordering::Acquire)
}

/// Stores an index after everything it covers has been written.
///
/// # Safety
/// The caller keeps the promises of [`index`]; only one thread stores this index.
pub(super) unsafe fn release(at: *mut abi::tg_index, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { index(at) }.store(value, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::super::rings::HostRings;
    use super::*;
    use crate::plan::{BucketSizes, EngineOptions, RingCapacities};

    fn sizes() -> Sizes {
        let options = EngineOptions {
            max_seqs: 4,
            max_context: 64,
            page_tokens: 16,
            pages: 16,
            step_tokens: 16,
            chunk_tokens: 16,
            chunk_share: 0,
            chunk_align: 4,
            steps_in_flight: 1,
            prefixes: 0,
            record: false,
        };
        let bucket_sizes = BucketSizes {
            decode: vec![4],
            mixed: vec![16],
            score: vec![16],
        };
        let capacities = RingCapacities {
            requests: 4,
            tokens: 64,
            controls: 4,
            events: 8,
            sampled: 4,
            trace: 4,
            biases: 2,
        };
        Sizes::new(&options, &bucket_sizes, 1, capacities, false).unwrap()
    }

    /// Someone else's memory, larger than asked for and full of what was there before.
    struct Borrowed(HostRegion);

    impl SharedRegion for Borrowed {
        fn start(&self) -> NonNull<u8> {
            self.0.start()
        }

        fn bytes(&self) -> usize {
            self.0.bytes()
        }
    }

    #[test]
    fn rings_lie_in_whoevers_memory_they_are_given() {
        let sizes = sizes();
        let block = HostRegion::new(sizes.ring_bytes + 4096).unwrap();
        // SAFETY: inside the allocation that was just made.
        unsafe { block.start.as_ptr().write_bytes(0xaa, sizes.ring_bytes) };
        let mut rings = HostRings::new(Arc::new(RingBlock::new(&sizes, Box::new(Borrowed(block)))));
        let status = rings.status();
        assert_eq!((status.steps, status.running), (0, 0));
        assert_eq!(rings.pop_event(), None);
        assert!(rings.pop_trace().is_none());
        assert!(rings.push_cancel(7));
    }

    /// What a damaged recording's header may ask for.
    #[test]
    fn more_memory_than_there_is_is_an_error() {
        for bytes in [1 << 60, usize::MAX] {
            let refused = HostRegion::new(bytes).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Memory(_)), "{refused}");
            assert!(refused.to_string().contains(&bytes.to_string()));
        }
    }

    #[test]
    fn the_state_block_works_at_another_address() {
        let sizes = sizes();
        let mut original = StateBlock::new(&sizes).unwrap();
        let copy = HostRegion::new(sizes.state_bytes).unwrap();
        let image = original.image();
        assert_eq!(image.len(), sizes.state_bytes);
        // SAFETY: both are of this size, and the copy is nobody else's.
        unsafe {
            copy.start
                .as_ptr()
                .copy_from_nonoverlapping(image.as_ptr(), image.len());
        }
        drop(original);
        let rings = RingBlock::on_host(&sizes).unwrap();
        let state: *mut abi::tg_state = copy.start.as_ptr().cast();
        // SAFETY: both blocks are initialised and this thread is alone with them.
        let outcome = unsafe {
            for phase in 0..abi::TG_PHASES {
                abi::tg_phase(state, rings.head(), 1, phase, 0, 1);
            }
            (*state).outcome
        };
        assert_eq!(
            (outcome.action, outcome.error, outcome.free_pages),
            (abi::TG_ACTION_IDLE, abi::TG_ERROR_NONE, 16)
        );
    }
}
