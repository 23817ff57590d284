//! What the scheduler tests share. Each test binary includes this folder and uses its part of it.
//!
//! - `api`: the core's functions, linked in or from a shared library (mutants, sanitizer builds)
//! - `machine`: a core with its two memory blocks, driven lane by lane
//! - `spec`: what a turn sees and must do, as plain data
//! - `model`, `model_compose`, `model_pages`, `model_prefix`: the scheduling rules written again, sequentially and in Rust
//! - `contents`: what pages and slots would hold, if each step ran as it was composed
//! - `world`: random configurations, requests, hosts and stages
//! - `history`: one random history, every turn of it held to the model; `host`: its host and stages
//! - `check`: what must hold in the core's memory whatever the model says
//! - `replay`: a recorded history through a fresh core
//! - `script`: a core driven by hand, for exact scenarios
//! - `claims`, `claim_queue`: several cores on one queue
//! - `coverage`: how often the rare branches were taken
#![allow(dead_code)]

pub mod api;
pub mod check;
mod claim_queue;
pub mod claims;
pub mod contents;
pub mod coverage;
pub mod history;
mod host;
pub mod machine;
pub mod model;
mod model_compose;
mod model_pages;
pub mod model_prefix;
pub mod replay;
pub mod script;
pub mod spec;
pub mod world;

/// Runs `work(seed)` for seeds `0 .. count` on every processor and gives the first failure, if any. Which
/// seeds run does not depend on the number of processors.
pub fn for_seeds<T: Send>(
    count: u64,
    work: impl Fn(u64) -> Result<T, String> + Sync,
    mut keep: impl FnMut(T) + Send,
) -> Result<(), String> {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    let next = AtomicU64::new(0);
    let failure = Mutex::new(None);
    let keep = Mutex::new(&mut keep);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    match work(seed) {
                        Ok(value) => (keep.lock().unwrap())(value),
                        Err(message) => {
                            next.store(count, Ordering::Relaxed);
                            failure.lock().unwrap().get_or_insert(message);
                        }
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap().map_or(Ok(()), Err)
}
