//! The scheduler's clock beside the host's. On a GPU they start at different times and nobody reads both at once, so
//! what is known is a bracket: the scheduler saw a request after the host sent it, and the host saw an event after the
//! scheduler published it. Where nothing else is to be done each takes some microseconds; behind a long step the host looks
//! again only after a pause, and would see an event late. So a run begins with requests that end at once.

use std::sync::LazyLock;
use std::time::Instant;

/// Scheduler's clock minus host's, in nanoseconds, as far as a run has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset {
    at_least: Option<i64>,
    at_most: Option<i64>,
}

impl Offset {
    /// The host sent a request at `host_ns` that the scheduler first saw at `scheduler_ns`.
    pub fn sent(&mut self, host_ns: u64, scheduler_ns: u64) {
        let bound = scheduler_ns.wrapping_sub(host_ns) as i64;
        self.at_most = Some(self.at_most.map_or(bound, |least| least.min(bound)));
    }

    /// The host received an event at `host_ns` that the scheduler published at `scheduler_ns`.
    pub fn received(&mut self, host_ns: u64, scheduler_ns: u64) {
        let bound = scheduler_ns.wrapping_sub(host_ns) as i64;
        self.at_least = self.at_least.max(Some(bound));
    }

    /// The middle of the bracket, and how far off it may be (the clocks drifting, the bracket can turn over: then by
    /// how much). `None` until there is a bracket.
    pub fn estimate_ns(&self) -> Option<(i64, u64)> {
        let (least, most) = (self.at_least?, self.at_most?);
        let half = (most - least) / 2;
        Some((least + half, half.unsigned_abs()))
    }
}

/// The host's clock, in nanoseconds since it was first asked.
pub fn host_ns() -> u64 {
    static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);
    ZERO.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracket_closes_around_the_offset() {
        let mut offset = Offset::default();
        assert_eq!(offset.estimate_ns(), None);
        // The scheduler's clock is 1000 ahead; a request takes 30 and then 10 ns to be seen, events 20 and 40.
        offset.sent(0, 1030);
        assert_eq!(offset.estimate_ns(), None);
        offset.received(120, 1100);
        offset.sent(200, 1210);
        offset.received(340, 1300);
        assert_eq!(offset.estimate_ns(), Some((995, 15)));
        // A clock that is behind.
        let mut behind = Offset::default();
        behind.sent(5000, 110);
        behind.received(5200, 190);
        assert_eq!(behind.estimate_ns(), Some((-4950, 60)));
    }
}
