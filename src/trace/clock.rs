//! How far a device's clock and the host's are apart, from what each side is known to have seen of the other.
//!
//! A record that the host has read was ended before: the device's clock was past `end_ns` when the host's said `after`.
//! A turn that saw a request, or saw that a record had been read, ended after the host began to hand it over: the
//! device's `end_ns` is past what its clock said when the host's said `before`. Every such pair bounds the difference,
//! from below or from above, with no assumption on how long anything takes. The difference is the middle of the first
//! second's bounds; since clocks drift, later bounds move it, no further than they ask for.

use super::about::HostClock;
use super::offset::Offset;
use crate::io::record::Turn;
use std::collections::VecDeque;
use std::time::Instant;

/// For how long bounds are gathered before the difference is told.
const GATHERED_NS: i64 = 1_000_000_000;

/// When the host handed over what no turn is known to have seen yet, and how much turns have seen before.
#[derive(Default)]
struct Handed {
    seen: u64,
    waiting: VecDeque<i64>,
}

impl Handed {
    /// Turns have seen all below `head`: when the last of these was handed over, where that is new.
    fn seen(&mut self, head: u64) -> Option<i64> {
        let new = head.saturating_sub(self.seen) as usize;
        let mut new = self.waiting.drain(..new.min(self.waiting.len()));
        self.seen += new.len() as u64;
        new.next_back()
    }
}

/// The scheduler's clock minus the host's. Host times are ns since a moment of the user's choice.
#[derive(Default)]
pub struct Difference {
    requests: Handed,
    records: Handed,
    /// Bounds so far; once the difference is known, they are no longer kept.
    bounds: Offset,
    began_ns: Option<i64>,
    first: Option<i64>,
    now: Option<i64>,
    uncertainty_ns: u64,
}

impl Difference {
    /// The scheduler's clock is the host's, so that every bound holds.
    pub fn know(&mut self, difference_ns: i64) {
        self.now = Some(difference_ns);
    }

    /// The host began at `before_ns` to hand the next request over.
    pub fn request(&mut self, before_ns: i64) {
        self.requests.waiting.push_back(before_ns);
    }

    /// The host began at `before_ns` to read the next record, and had it at `after_ns`.
    pub fn record(&mut self, turn: &Turn, before_ns: i64, after_ns: i64) {
        let end_ns = turn.end_ns as i64;
        let seen = [
            self.requests.seen(turn.request_head),
            self.records.seen(turn.trace_tail),
        ];
        let seen = seen.into_iter().flatten();
        if let Some(old) = self.now {
            let most = seen.map(|before| end_ns - before).fold(old, i64::min);
            self.now = Some(most.max(end_ns - after_ns));
        } else {
            self.bounds.received(after_ns as u64, turn.end_ns);
            seen.for_each(|before| self.bounds.sent(before as u64, turn.end_ns));
        }
        self.records.waiting.push_back(before_ns);
    }

    /// What to add to host times: known once there have been bounds for a second, or with `last` at once.
    pub fn offset(&mut self, now_ns: i64, last: bool) -> Option<i64> {
        if self.now.is_none()
            && let Some((middle, uncertainty_ns)) = self.bounds.estimate_ns()
        {
            let began = *self.began_ns.get_or_insert(now_ns);
            if last || now_ns - began >= GATHERED_NS {
                self.uncertainty_ns = uncertainty_ns;
                self.first = Some(middle);
                self.now = Some(middle);
            }
        }
        self.now
    }

    /// What was measured.
    pub fn about(&self) -> Option<HostClock> {
        self.first.map(|offset_ns| HostClock::Measured {
            offset_ns,
            uncertainty_ns: self.uncertainty_ns,
        })
    }
}

/// From `from` to `to`; below 0 where `to` is the earlier.
pub fn ns_between(from: Instant, to: Instant) -> i64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_nanos() as i64,
        None => -(from.duration_since(to).as_nanos() as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(end_ns: u64, request_head: u64, trace_tail: u64) -> Turn {
        let mut record = crate::sys::abi::tg_trace {
            end_ns,
            ..Default::default()
        };
        record.inputs.request_head = request_head;
        record.inputs.trace_tail = trace_tail;
        Turn::from(&record)
    }

    /// A device whose clock is 1,000,000 ahead and drifts; handing over takes 2 us one way and 5 us the other.
    #[test]
    fn the_bounds_close_on_the_truth_and_follow_its_drift() {
        let mut clocks = Difference::default();
        clocks.request(1_000);
        assert_eq!(clocks.offset(0, true), None, "there are no bounds");
        clocks.record(&turn(1_003_000, 1, 0), 7_500, 8_000);
        // Between 995,000 and 1,002,000.
        assert_eq!(clocks.bounds.estimate_ns(), Some((998_500, 3_500)));
        // The next record is seen to have been read before; its own reading is quicker than the first's.
        clocks.record(&turn(1_008_000, 1, 1), 8_500, 9_000);
        assert_eq!(clocks.offset(9_000, false), None, "a second is not over");
        let second = GATHERED_NS + 9_000;
        assert_eq!(clocks.offset(second, false), Some(999_750));
        // Later the clocks are between 1,000,300 and 1,000,800 apart, then at most 1,000,100.
        for (head, ahead, after, expected) in [
            (2, 1_000_800, 500, 1_000_300),
            (3, 1_000_100, 700, 1_000_100),
        ] {
            clocks.request(second);
            let record = turn(second as u64 + ahead, head, 1);
            clocks.record(&record, second + after, second + after);
            assert_eq!(clocks.offset(second, false), Some(expected));
        }
        let expected = HostClock::Measured {
            offset_ns: 999_750,
            uncertainty_ns: 750,
        };
        assert_eq!(clocks.about(), Some(expected));
    }
}
