//! The clocks of GPUs that have a stage each, beside the first one's, which the scheduler uses.
//!
//! A step comes to a stage after it left the one before, and is collected after it left the last one: each hand-over bounds the
//! difference of two clocks, with no assumption on how long anything takes. What all hand-overs of a step took together is
//! known whatever the differences are, since it begins and ends on one clock. The first step's is shared out evenly; from then on
//! differences move no further than the bounds ask for.

use crate::backend::timing::{STAGE_TIME_BITS, StageTimes};
use crate::trace::about::GpuClocks;

/// Bits that a time of a stage's clock lacks.
const LACKING: u32 = u64::BITS - STAGE_TIME_BITS;

/// `later` less `earlier`, in ns, by [`STAGE_TIME_BITS`] of both: the one that is nearest to 0.
fn apart(later: u64, earlier: u64) -> i64 {
    (later.wrapping_sub(earlier) << LACKING) as i64 >> LACKING
}

impl GpuClocks {
    /// Learns from a whole step: of each stage, and when it was collected by the scheduler's clock.
    pub(super) fn step(&mut self, stages: &[StageTimes], collected_ns: i128) {
        // By hand-over, what the difference of two neighbours is at most.
        let mut most = vec![];
        for pair in stages.windows(2) {
            let Some(came) = pair[1].came else {
                return;
            };
            most.push(apart(came, pair[0].left));
        }
        // The difference of the last and the first is at least this.
        let Some(last) = stages.last() else {
            return;
        };
        let mut least = apart(last.left, collected_ns as u64);
        let all = most.iter().sum::<i64>() - least;
        let known = all.max(0).unsigned_abs();
        if self.offsets_ns.is_empty() {
            let each = all / stages.len() as i64;
            let mut offset = 0;
            self.offsets_ns = vec![0];
            for most in most {
                offset += most - each;
                self.offsets_ns.push(offset);
            }
            self.uncertainty_ns = known;
            return;
        }
        self.uncertainty_ns = self.uncertainty_ns.min(known);
        let offsets = &mut self.offsets_ns;
        for stage in 1..offsets.len() {
            offsets[stage] = offsets[stage].min(offsets[stage - 1] + most[stage - 1]);
        }
        for stage in (1..offsets.len()).rev() {
            offsets[stage] = offsets[stage].max(least);
            least = offsets[stage] - most[stage - 1];
        }
    }

    /// A time of a stage's clock by the scheduler's, where that is known: the one that is nearest to `near_ns`.
    pub(super) fn at(&self, stage: usize, time: u64, near_ns: i128) -> Option<i128> {
        let offset = *self.offsets_ns.get(stage)?;
        let time = time.wrapping_sub(offset as u64);
        Some(near_ns + i128::from(apart(time, near_ns as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: i128 = 1_763_000_000_000_000_000;
    const OFFSETS: [i64; 3] = [0, 5_000_000_000, -40_000];

    /// A step that begins at `at` and takes 1000 ns in each stage, with the times of its hand-overs, by clocks that are `OFFSETS`
    /// ahead.
    fn step(at: i128, hops: [i128; 3]) -> (Vec<StageTimes>, i128) {
        let mask = u64::MAX >> LACKING;
        let mut now = at;
        let mut stages = vec![];
        for (stage, offset) in OFFSETS.iter().enumerate() {
            let by_own = |now: i128| (now + i128::from(*offset)) as u64 & mask;
            stages.push(StageTimes {
                stage: stage as u32,
                step: 0,
                came: (stage > 0).then_some(by_own(now)),
                left: by_own(now + 1000),
            });
            now += 1000 + hops[stage];
        }
        (stages, now)
    }

    #[test]
    fn differences_are_within_what_hand_overs_took() {
        let mut clocks = GpuClocks::default();
        assert_eq!(clocks.at(1, 5, 0), None);
        let (stages, collected) = step(ZERO, [6, 6, 6]);
        clocks.step(&stages, collected);
        assert_eq!(clocks.offsets_ns, OFFSETS, "all took as long");
        assert_eq!(clocks.uncertainty_ns, 18);
        // 48 bits are enough of a time that is near.
        let came = stages[1].came.unwrap();
        assert_eq!(clocks.at(1, came, ZERO), Some(ZERO + 1006));
        assert_eq!(clocks.at(0, stages[0].left, ZERO + 9), Some(ZERO + 1000));
    }

    #[test]
    fn differences_move_no_further_than_they_must() {
        let mut clocks = GpuClocks::default();
        for (hops, wrong) in [
            // The first hand-over takes 30 ns of 36: by an even share the second clock is 18 too far ahead.
            ([30, 3, 3], [0, 18, 9]),
            // Room everywhere: nothing moves.
            ([50, 50, 50], [0, 18, 9]),
            // The step is at the second stage 5 ns after it left the first.
            ([5, 60, 60], [0, 5, 9]),
            // It is back 2 ns after it left the last, whose clock was behind by 9 for all that is known.
            ([5, 2, 2], [0, 5, 7]),
        ] {
            let (stages, collected) = step(ZERO, hops);
            clocks.step(&stages, collected);
            let found = clocks.offsets_ns.iter().zip(OFFSETS);
            let found: Vec<i64> = found.map(|(found, truth)| found - truth).collect();
            assert_eq!(found, wrong, "{hops:?}");
            // By these no step arrives before it left.
            for stage in 1..3 {
                let left = clocks.at(stage - 1, stages[stage - 1].left, collected);
                assert!(clocks.at(stage, stages[stage].came.unwrap(), collected) >= left);
            }
        }
        assert_eq!(clocks.uncertainty_ns, 9);
    }

    #[test]
    fn a_last_clock_that_is_behind_takes_the_others_with_it() {
        let mut clocks = GpuClocks {
            offsets_ns: vec![0, OFFSETS[1] - 100, OFFSETS[2] - 100],
            ..GpuClocks::default()
        };
        let (stages, collected) = step(ZERO, [10, 20, 30]);
        clocks.step(&stages, collected);
        assert_eq!(clocks.offsets_ns, [0, OFFSETS[1] - 50, OFFSETS[2] - 30]);
    }
}
