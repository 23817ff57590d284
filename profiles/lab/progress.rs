//! How the host follows steps that it has queued, or that a GPU launches by itself: how far they have told, and whether all are done.

use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// Nor do all steps of a run take so long.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks of a host that only waits for a run's end.
pub const LOOK: Duration = Duration::from_micros(200);

/// Steps that run, as the host sees them.
pub trait Progress {
    /// No step takes so long.
    const STEP_TIMEOUT: Duration;

    /// Whether all that was queued has run.
    ///
    /// # Errors
    /// The GPU failed.
    fn is_done(&self) -> Result<bool>;

    /// Steps that have told the host of their end.
    fn steps_told(&self) -> u64;

    /// They did not end within `limit`.
    fn late(&self, limit: Duration) -> Error;

    /// Nothing runs any more, and `until` steps are not done.
    fn ended_early(&self, until: u64) -> Error;

    /// Sleeps until all that was queued has run.
    ///
    /// # Errors
    /// That it takes too long; the GPU failed.
    fn wait_for_all(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_done()? {
            if start.elapsed() > RUN_TIMEOUT {
                return Err(self.late(RUN_TIMEOUT));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Spins until `steps` steps have told.
    ///
    /// # Errors
    /// That it takes too long, or that nothing runs any more; the GPU failed.
    fn spin_for(&self, steps: u64) -> Result<()> {
        let start = Instant::now();
        let mut spins = 0u32;
        while self.steps_told() < steps {
            spins = spins.wrapping_add(1);
            // A kernel that failed tells nothing.
            if spins.is_multiple_of(1 << 16) {
                if start.elapsed() > Self::STEP_TIMEOUT {
                    return Err(self.late(Self::STEP_TIMEOUT));
                }
                if self.is_done()? && self.steps_told() < steps {
                    return Err(self.ended_early(steps));
                }
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
