//! actors.c as this program calls it.

use std::path::Path;

/// What actors.c makes actors of.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Scenario {
    pub stages: u32,
    /// Places of each link but the last, and of that.
    pub depth: u32,
    pub return_depth: u32,
    pub in_flight: u32,
    pub steps: u32,
    /// More than 0: replicas on a queue, and no stages.
    pub replicas: u32,
    pub capacity: u32,
    pub requests: u32,
    pub most: u32,
    /// 1: stage 0 takes nothing back while it has steps to begin.
    pub greedy: u32,
    /// 1: one more actor sets the stop flag.
    pub stops: u32,
    /// 1: steps are announced, and what they are is read before they come.
    pub announces: u32,
    /// 1: a replica reads what it has claimed only after it has claimed again.
    pub run: u32,
    pub keeps: u32,
}

/// What an actor asks of memory: the struct access of actors.c.
#[repr(C)]
pub struct RawAccess {
    pub kind: u32,
    pub word: *const u64,
    pub to: u64,
    pub expected: u64,
}

/// actors.c, compiled.
pub struct Actors {
    pub bytes: usize,
    pub setup: unsafe extern "C" fn(*const Scenario, *mut u64) -> u32,
    pub call: unsafe extern "C" fn(*mut u64, u32, *const u64, u32, *mut RawAccess) -> u32,
    pub seen_by: unsafe extern "C" fn(*const Scenario, *const u64) -> u32,
    pub end: unsafe extern "C" fn(*const Scenario, *const u64) -> u32,
    _library: libloading::Library,
}

pub const FAULTS: [&str; 5] = [
    "a place held another step than the next, or requests came out of order",
    "what was read is not what was written",
    "a stage ended with an error",
    "a request was lost or taken twice",
    "credits or steps are missing at the end",
];

impl Actors {
    pub fn load(library: &Path) -> Self {
        // SAFETY: the library was compiled from actors.c, whose functions have these types.
        unsafe {
            let library = libloading::Library::new(library).expect("the actors' library loads");
            let bytes: libloading::Symbol<'_, unsafe extern "C" fn() -> u32> =
                library.get(b"explore_actor_bytes").unwrap();
            Self {
                bytes: bytes() as usize,
                setup: *library.get(b"explore_setup").unwrap(),
                call: *library.get(b"explore_call").unwrap(),
                seen_by: *library.get(b"explore_seen_by").unwrap(),
                end: *library.get(b"explore_end").unwrap(),
                _library: library,
            }
        }
    }
}
