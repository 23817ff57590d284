//! The scheduler's two memory blocks (kernels/abi.h) and the few unsafe moves that everyone makes on them.

use crate::backend::StepView;
use crate::sys::abi;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Both blocks start on what the structs in them want: a pair of cache lines.
const ALIGN: usize = 128;

/// A zeroed allocation that several threads read and write through raw pointers.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

impl Block {
    fn new(bytes: u64) -> Self {
        let layout = Layout::from_size_align(bytes as usize, ALIGN)
            .expect("a block's size comes from a checked configuration");
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The state block and the ring block, laid out and cleared. Who may touch what, and when, is the protocol
/// of kernels/abi.h; the handles in [`super::core`] and [`super::rings`] keep to it.
pub(super) struct Memory {
    state: Block,
    rings: Block,
}

// SAFETY: the blocks are plain memory; all access goes through raw pointers under the rings' protocol.
unsafe impl Send for Memory {}
// SAFETY: likewise.
unsafe impl Sync for Memory {}

impl Memory {
    /// `None` where the configuration or a capacity breaks a rule that stands beside its field in abi.h.
    pub fn new(config: &abi::tg_config, shape: &abi::tg_rings) -> Option<Self> {
        // SAFETY: both functions only read what they are given.
        let (state_bytes, ring_bytes) =
            unsafe { (abi::tg_state_bytes(config), abi::tg_rings_bytes(shape)) };
        if state_bytes == 0 || ring_bytes == 0 {
            return None;
        }
        let memory = Self {
            state: Block::new(state_bytes),
            rings: Block::new(ring_bytes),
        };
        // SAFETY: the blocks have the sizes just asked for, and nobody else has them yet.
        unsafe {
            abi::tg_rings_init(memory.rings(), shape);
            let error = abi::tg_state_init(memory.state(), config);
            assert_eq!(
                error,
                abi::TG_ERROR_NONE,
                "tg_state_bytes accepted the configuration"
            );
        }
        Some(memory)
    }

    pub fn state(&self) -> *mut abi::tg_state {
        self.state.start.as_ptr().cast()
    }

    pub fn rings(&self) -> *mut abi::tg_rings {
        self.rings.start.as_ptr().cast()
    }

    /// Entry `number` of a ring table, whose capacity is a power of two.
    ///
    /// # Safety
    /// `offset` and `capacity` are those of a table of `T` in the ring block.
    pub unsafe fn ring_entry<T>(&self, offset: u64, capacity: u32, number: u64) -> *mut T {
        // SAFETY: the masked number is below the capacity, so the entry lies in the table.
        unsafe {
            self.rings
                .start
                .as_ptr()
                .add(offset as usize)
                .cast::<T>()
                .add((number & u64::from(capacity - 1)) as usize)
        }
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

/// A ring index as both sides see it.
///
/// # Safety
/// `index` points into a living ring block, and everyone else reads and writes it atomically too.
pub(super) unsafe fn index<'a>(index: *mut abi::tg_index) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; the value is 8-byte aligned inside its struct.
    unsafe { AtomicU64::from_ptr(&raw mut (*index).value) }
}

/// Loads an index that the other side releases.
///
/// # Safety
/// As for [`index`].
pub(super) unsafe fn acquire(at: *mut abi::tg_index) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { index(at) }.load(Ordering::Acquire)
}

/// Stores an index after everything it covers has been written.
///
/// # Safety
/// As for [`index`]; only one thread stores this index.
pub(super) unsafe fn release(at: *mut abi::tg_index, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { index(at) }.store(value, Ordering::Release);
}
