//! The core's functions as a table, so that the same tests drive the core that is linked in and any other
//! build of it.

use std::path::Path;
use tailgraph::sys::abi;

#[derive(Clone, Copy)]
pub struct Api {
    pub state_bytes: unsafe extern "C" fn(*const abi::tg_config) -> u64,
    pub state_init: unsafe extern "C" fn(*mut abi::tg_state, *const abi::tg_config) -> u32,
    pub rings_bytes: unsafe extern "C" fn(*const abi::tg_rings) -> u64,
    pub rings_init: unsafe extern "C" fn(*mut abi::tg_rings, *const abi::tg_rings),
    pub phase: unsafe extern "C" fn(*mut abi::tg_state, *mut abi::tg_rings, u64, u32, u32, u32),
    pub trace_write: unsafe extern "C" fn(*mut abi::tg_state, *mut abi::tg_rings, u64, u32),
    pub queue_bytes: unsafe extern "C" fn(*const abi::tg_queue) -> u64,
    pub queue_init: unsafe extern "C" fn(*mut abi::tg_queue, *const abi::tg_queue),
    pub queue_tail: unsafe extern "C" fn(*const abi::tg_queue, u64) -> u64,
    pub claimer_init: unsafe extern "C" fn(*mut abi::tg_claimer, *mut abi::tg_queue, *mut u64, u32),
    pub mailbox_post: unsafe extern "C" fn(*mut abi::tg_mailbox, u64) -> u32,
    pub mailbox_take: unsafe extern "C" fn(*mut abi::tg_mailbox, *mut u64) -> u32,
}

impl Api {
    /// The core as cargo built it.
    pub fn linked() -> Self {
        Self {
            state_bytes: abi::tg_state_bytes,
            state_init: abi::tg_state_init,
            rings_bytes: abi::tg_rings_bytes,
            rings_init: abi::tg_rings_init,
            phase: abi::tg_phase,
            trace_write: abi::tg_trace_write,
            queue_bytes: abi::tg_queue_bytes,
            queue_init: abi::tg_queue_init,
            queue_tail: abi::tg_queue_tail,
            claimer_init: abi::tg_claimer_init,
            mailbox_post: abi::tg_mailbox_post,
            mailbox_take: abi::tg_mailbox_take,
        }
    }

    /// The core in a shared library, which stays loaded.
    pub fn load(path: &Path) -> Self {
        // SAFETY: the library was compiled from kernels/sched/sched.c, whose functions have the types of abi.h.
        unsafe {
            let library = Box::leak(Box::new(
                libloading::Library::new(path).expect("the core's library loads"),
            ));
            macro_rules! symbol {
                ($name:literal) => {
                    *library.get($name).expect("the core's function is there")
                };
            }
            Self {
                state_bytes: symbol!(b"tg_state_bytes"),
                state_init: symbol!(b"tg_state_init"),
                rings_bytes: symbol!(b"tg_rings_bytes"),
                rings_init: symbol!(b"tg_rings_init"),
                phase: symbol!(b"tg_phase"),
                trace_write: symbol!(b"tg_trace_write"),
                queue_bytes: symbol!(b"tg_queue_bytes"),
                queue_init: symbol!(b"tg_queue_init"),
                queue_tail: symbol!(b"tg_queue_tail"),
                claimer_init: symbol!(b"tg_claimer_init"),
                mailbox_post: symbol!(b"tg_mailbox_post"),
                mailbox_take: symbol!(b"tg_mailbox_take"),
            }
        }
    }
}
