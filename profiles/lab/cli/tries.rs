//! Ways that are tried beside each other on GPUs without a model: each of them under each load, again and again, in an order that turns
//! by one from repeat to repeat.

use super::{now, with};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::bench::drive;
use crate::bench::gpu_load::Beside;
use crate::bench::host::{self, Busy};
use crate::bench::techniques::Found;
use crate::cli::command_line;
use crate::error::{Error, Result};
use crate::telemetry::{say, warn};
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How things are tried.
pub(super) struct Trying<'a> {
    /// Threads that spin, and processes on each of the GPUs.
    pub loads: Vec<(u32, u32)>,
    pub gpus: &'a [&'a OpenGpu],
    pub repeats: u32,
    /// Before each.
    pub pause: Duration,
    pub quiet: bool,
    pub interrupt: &'a AtomicBool,
}

/// A thing under a load, and what it came to: one line of a table.
pub(super) struct Tried<T> {
    pub of: T,
    pub cpu_load: u32,
    pub gpu_load: u32,
    /// Those that were whole.
    pub repeats: u32,
    pub found: Found,
    failed: bool,
}

/// Of all things, as far as there was time for them.
pub(super) struct Tries<T> {
    tried: Vec<Tried<T>>,
    pub interrupted: bool,
    /// The first that was. Others were said.
    pub failed: Option<Error>,
}

impl Trying<'_> {
    /// Measures each of `things` by `one`, which says whether it came to its end. `foresee` works out what a thing must give, before
    /// the host is kept busy. One that fails is not tried again under that load; all others are.
    ///
    /// # Errors
    /// Processes on the GPUs do not start.
    pub fn all<T: Copy>(
        &self,
        things: &[T],
        foresee: impl Fn(T),
        mut one: impl FnMut(T, &Busy, &mut Found) -> Result<bool>,
    ) -> Result<Tries<T>> {
        let mut all = Tries {
            tried: vec![],
            interrupted: false,
            failed: None,
        };
        let mut beside: Vec<_> = self.gpus.iter().map(|_| Beside::default()).collect();
        for &(cpu_load, gpu_load) in &self.loads {
            for (beside, gpu) in beside.iter_mut().zip(self.gpus) {
                beside.have(gpu_load, gpu.info.ordinal)?;
            }
            let first = all.tried.len();
            all.tried.extend(things.iter().map(|&of| Tried {
                of,
                cpu_load,
                gpu_load,
                repeats: 0,
                found: Found::default(),
                failed: false,
            }));
            for repeat in 0..self.repeats as usize {
                self.say(repeat, (cpu_load, gpu_load));
                for turn in 0..things.len() {
                    let tried = &mut all.tried[first + (turn + repeat) % things.len()];
                    if tried.failed {
                        continue;
                    }
                    foresee(tried.of);
                    if !drive::idle(self.pause, self.interrupt) {
                        all.interrupted = true;
                        return Ok(all);
                    }
                    let busy = Busy::new(cpu_load, self.interrupt)?;
                    match one(tried.of, &busy, &mut tried.found) {
                        Ok(true) => tried.repeats += 1,
                        Ok(false) => {
                            all.interrupted = true;
                            return Ok(all);
                        }
                        Err(error) => {
                            tried.failed = true;
                            // The first is the command's.
                            match &all.failed {
                                None => all.failed = Some(error),
                                Some(_) => warn(&error.to_string()),
                            }
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    fn say(&self, repeat: usize, (cpu_load, gpu_load): (u32, u32)) {
        if !self.quiet {
            let each = match self.gpus {
                [_] => "the",
                _ => "each",
            };
            say(&format!(
                "repeat {} of {}, beside {cpu_load} busy threads and {gpu_load} processes on {each} GPU",
                repeat + 1,
                self.repeats
            ));
        }
    }
}

impl<T> Tries<T> {
    /// Of each thing that did not fail what `row` makes of it, if anything.
    pub fn rows(&self, row: impl Fn(&Tried<T>) -> Option<Value>) -> Vec<Value> {
        let whole = self.tried.iter().filter(|tried| !tried.failed);
        whole.filter_map(row).collect()
    }
}

/// What all lines of a table share, in JSON of this layout.
pub(super) fn subject((schema, version): (&str, u32), gpus: &[&OpenGpu]) -> Value {
    let mut subject = json!({ schema: version });
    let build = json!({
        "build_version": env!("CARGO_PKG_VERSION"),
        "build_profile": super::BUILD_PROFILE,
        "command": command_line(),
        "test_time": now(),
        "cpu_info": host::processor(),
    });
    subject = with(subject, build);
    for (name, gpu) in ["gpu_info", "other_gpu_info"].into_iter().zip(gpus) {
        subject = with(subject, json!({ name: gpu.info.to_string() }));
    }
    with(subject, json!({ "host_cores": host::processors() }))
}
