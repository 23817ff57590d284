//! When each stage of a pipeline had each step, as its GPU tells the host (kernels/sched/stages.cu).

use crate::backend::SharedRegion;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::timing::{StageClock, StageTimes};
use crate::error::Result;
use crate::sys::abi;
use cudarc::driver::{CudaContext, CudaStream};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS: u64 = abi::TG_TIMES_STEPS as u64;
/// When a step came, and when it left.
const WORDS: u64 = 2;

/// When the steps of one stage came and left.
pub(super) struct Times {
    /// `tg_stage_times`
    device: Buffer,
    /// What the GPU tells.
    told: Arc<Pinned>,
}

impl Times {
    pub(super) fn new(context: &Arc<CudaContext>, stream: &CudaStream) -> Result<Self> {
        let told = Pinned::new(context, (STEPS * WORDS) as usize * size_of::<u64>())?;
        let bytes = size_of::<abi::tg_stage_times>();
        let device = Buffer::named(context, "when a stage had its steps", bytes)?;
        device.fill(stream, 0)?;
        let at = offset_of!(abi::tg_stage_times, told);
        device.write(stream, at, &told.device().to_le_bytes())?;
        Ok(Self { device, told })
    }

    pub(super) fn address(&self) -> Address {
        self.device.at(0)
    }
}

/// A time as it is told: of which step, modulo 2^16, and by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    step: u16,
    time: u64,
}

impl Told {
    /// `None`: nothing has been told yet.
    fn of(word: u64) -> Option<Self> {
        let time = word >> abi::TG_TIMES_STEP_BITS;
        let step = word as u16;
        (word != 0).then_some(Self { step, time })
    }

    /// Steps from `step` to this one, below 0 where it is an earlier one.
    fn since(self, step: u64) -> i16 {
        self.step.wrapping_sub(step as u16) as i16
    }
}

/// What a stage's words say of its step `step`.
enum Look {
    Nothing,
    There {
        came: Option<u64>,
        left: u64,
    },
    /// A later step has its place.
    Lost,
}

fn look(step: u64, came: Option<u64>, left: u64) -> Look {
    let left = match Told::of(left).map(|left| (left.since(step), left.time)) {
        None | Some((i16::MIN..=-1, _)) => return Look::Nothing,
        Some((0, time)) => time,
        Some(_) => return Look::Lost,
    };
    match came.map(Told::of) {
        None => Look::There { came: None, left },
        Some(Some(came)) if came.since(step) == 0 => Look::There {
            came: Some(came.time),
            left,
        },
        // On its way, or written over already: then `left` will be too.
        Some(_) => Look::Nothing,
    }
}

/// The host's end.
pub struct PipelineClock {
    /// By stage.
    told: Vec<Arc<Pinned>>,
    /// The step that is to be read next.
    next: Vec<u64>,
}

impl PipelineClock {
    pub(super) fn new(times: Vec<&Times>) -> Self {
        Self {
            next: vec![0; times.len()],
            told: times.iter().map(|times| times.told.clone()).collect(),
        }
    }

    /// Which the GPU may write at any time.
    fn word(&self, stage: usize, which: u64) -> u64 {
        let at = self.next[stage] % STEPS * WORDS + which;
        // SAFETY: inside the allocation, aligned, alive as long as `self`; only ever touched atomically.
        let word = unsafe {
            let start = self.told[stage].start().as_ptr().cast::<u64>();
            AtomicU64::from_ptr(start.add(at as usize))
        };
        word.load(Ordering::Acquire)
    }
}

impl StageClock for PipelineClock {
    fn next(&mut self) -> Option<StageTimes> {
        for stage in 0..self.told.len() {
            loop {
                let step = self.next[stage];
                let came = (stage > 0).then(|| self.word(stage, 0));
                match look(step, came, self.word(stage, 1)) {
                    Look::Nothing => break,
                    Look::Lost => self.next[stage] += 1,
                    Look::There { came, left } => {
                        self.next[stage] += 1;
                        let stage = stage as u32;
                        return Some(StageTimes {
                            stage,
                            step,
                            came,
                            left,
                        });
                    }
                }
            }
        }
        None
    }

    fn through(&self) -> u64 {
        self.next.iter().copied().min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(step: u64, time: u64) -> u64 {
        time << abi::TG_TIMES_STEP_BITS | step & 0xffff
    }

    #[test]
    fn a_place_is_read_when_its_step_is_there() {
        let there = |step, came: Option<u64>, left| match look(step, came, left) {
            Look::There { came, left } => Some((came, left)),
            _ => None,
        };
        assert_eq!(there(0, None, 0), None, "nothing was told yet");
        assert_eq!(there(0, None, word(0, 7)), Some((None, 7)));
        let both = Some(word(3, 5));
        assert_eq!(there(3, both, word(3, 9)), Some((Some(5), 9)));
        // One of the two is on its way.
        assert_eq!(there(3, Some(0), word(3, 9)), None);
        assert_eq!(there(3, both, 0), None);
        // What the place held a lap before.
        assert_eq!(there(3 + STEPS, both, word(3, 9)), None);
        let across = 0x1_0000 + 3;
        assert_eq!(there(across, None, word(across, 4)), Some((None, 4)));
        assert_eq!(there(across, None, word(across - STEPS, 4)), None);
        assert!(matches!(look(3, both, word(3 + STEPS, 20)), Look::Lost));
        assert!(
            matches!(look(0xffff, None, word(0xffff + STEPS, 1)), Look::Lost),
            "numbers go round"
        );
    }
}
