//! What the schedulers on GPUs do with memory that the host fills for them: the rings' block, and structs of kernels/abi.h.

use crate::backend::SharedRegion;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::sys::abi;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The head that a rings' block begins with.
///
/// # Safety
/// Its owner has laid it out, and nothing has been launched over it: nobody else writes it yet but for indices, which are not to be
/// read from these bytes.
pub(super) unsafe fn head_of(rings: &Arc<Pinned>) -> &[u8] {
    // SAFETY: the block has so many bytes; the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts(rings.start().as_ptr(), size_of::<abi::tg_rings>()) }
}

/// Whatever takes turns over these rings ends.
pub(super) fn tell_to_stop(rings: &Arc<Pinned>) {
    let rings: *mut abi::tg_rings = rings.start().as_ptr().cast();
    // SAFETY: the block is alive, and this word is only ever touched atomically.
    let flags = unsafe { AtomicU64::from_ptr(&raw mut (*rings).flags.value) };
    flags.fetch_or(abi::TG_INPUT_STOP.into(), Ordering::AcqRel);
}

/// Structs of kernels/abi.h whose fields leave no gap.
///
/// # Safety
/// No byte of the type is padding.
pub(super) unsafe trait WithoutPadding {}
// SAFETY: their fields are words of 8 bytes, or of 4 by twos.
unsafe impl WithoutPadding for abi::tg_graphs {}
// SAFETY: as above.
unsafe impl WithoutPadding for abi::tg_claimer {}
// SAFETY: as above.
unsafe impl WithoutPadding for abi::tg_links {}

pub(super) fn bytes_of<T: WithoutPadding>(value: &T) -> &[u8] {
    // SAFETY: all its bytes are set.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
