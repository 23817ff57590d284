//! How far a device's clock and the host's are apart, from what each side is known to have seen of the other.
//!
//! A record that the host has read was ended before: the device's clock was past `end_ns` when the host's said `after`.
//! A turn that saw a request, or saw that a record had been read, ended after the host began to hand it over: the
//! device's `end_ns` is past what its clock said when the host's said `before`. Every such pair bounds the difference,
//! from below or from above; the truth is between the largest of the one and the smallest of the other, with no
//! assumption on how long anything takes. Bounds are gathered anew in windows of a second, since clocks drift.

use super::about::HostClock;
use crate::io::record::Turn;
use std::collections::VecDeque;
use std::time::Instant;

/// Of a window, at least.
const WINDOW_NS: i64 = 1_000_000_000;

/// What the host has handed over and no turn is known to have seen yet: its number among its kind, and when.
#[derive(Default)]
struct Handed {
    count: u64,
    waiting: VecDeque<(u64, i64)>,
}

impl Handed {
    fn over(&mut self, before_ns: i64) {
        self.waiting.push_back((self.count, before_ns));
        self.count += 1;
    }

    /// The last of those below `head`, which have been seen.
    fn seen(&mut self, head: u64) -> Option<i64> {
        let mut last = None;
        while let Some(&(_, before)) = self.waiting.front().filter(|(number, _)| *number < head) {
            last = Some(before);
            self.waiting.pop_front();
        }
        last
    }
}

/// The offset to use, window by window. Host times are ns since a moment of the user's choice.
#[derive(Default)]
pub struct Windows {
    requests: Handed,
    records: Handed,
    /// Bounds of scheduler's clock minus host's in the window that is not over, in ns.
    least: Option<i128>,
    most: Option<i128>,
    began_ns: Option<i64>,
    first: Option<i128>,
    offset: Option<i128>,
    uncertainty_ns: i128,
    moved_ns: i128,
    count: u64,
}

impl Windows {
    /// The host began at `before_ns` to hand the next request over.
    pub fn request(&mut self, before_ns: i64) {
        self.requests.over(before_ns);
    }

    /// The host began at `before_ns` to read the next record, and had it at `after_ns`.
    pub fn record(&mut self, turn: &Turn, before_ns: i64, after_ns: i64) {
        let end_ns = i128::from(turn.end_ns);
        // Nothing is less than any bound.
        self.least = self.least.max(Some(end_ns - i128::from(after_ns)));
        let seen = [
            self.requests.seen(turn.request_head),
            self.records.seen(turn.trace_tail),
        ];
        for before in seen.into_iter().flatten() {
            let most = end_ns - i128::from(before);
            self.most = Some(self.most.map_or(most, |so_far| so_far.min(most)));
        }
        self.records.over(before_ns);
    }

    /// Both bounds, where they are known and leave room for a difference.
    fn bounds(&self) -> Option<(i128, i128)> {
        let (least, most) = (self.least?, self.most?);
        (least <= most).then_some((least, most))
    }

    /// What to add to host times that came in since the last answer: known once a window is over, or with `last` at
    /// once. `Some(None)`: the window has no bounds, so nobody knows.
    pub fn offset(&mut self, now_ns: i64, last: bool) -> Option<Option<i128>> {
        let began = *self.began_ns.get_or_insert(now_ns);
        let found = self.bounds();
        if !last && (found.is_none() || now_ns - began < WINDOW_NS) {
            return None;
        }
        let (least, most) = (self.least.take(), self.most.take());
        self.began_ns = None;
        let Some((least, most)) = found else {
            // Half a window at the end: what the one before it knew holds where this one has nothing against it.
            let allowed = |&old: &i128| least <= Some(old) && most.is_none_or(|most| old <= most);
            return Some(self.offset.filter(allowed));
        };
        // The middle at first; from then on no further than the bounds ask for, so that slices do not jump about.
        let offset = self
            .offset
            .map_or(least + (most - least) / 2, |old| old.clamp(least, most));
        if let Some(old) = self.offset {
            self.moved_ns += (offset - old).abs();
        }
        self.first.get_or_insert(offset);
        self.offset = Some(offset);
        self.uncertainty_ns = self.uncertainty_ns.max(offset - least).max(most - offset);
        self.count += 1;
        Some(Some(offset))
    }

    pub fn about(&self, left_out: u64) -> HostClock {
        let Some(first) = self.first else {
            return HostClock::Unknown { left_out };
        };
        HostClock::Measured {
            offset_ns: first as i64,
            uncertainty_ns: self.uncertainty_ns as u64,
            moved_ns: self.moved_ns as u64,
            windows: self.count,
            left_out,
        }
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

    /// A device whose clock is `OFFSET` ahead; handing over takes 2 us one way and 5 us the other.
    #[test]
    fn the_bounds_hold_the_truth_and_close_on_it() {
        const OFFSET: i128 = 1_763_000_000_000_000_000;
        let device = |host_ns: i64| (i128::from(host_ns) + OFFSET) as u64;
        let mut windows = Windows::default();
        assert_eq!(windows.bounds(), None);
        windows.request(1_000);
        windows.record(&turn(device(3_000), 1, 0), 7_500, 8_000);
        let (least, most) = windows.bounds().unwrap();
        assert_eq!((least - OFFSET, most - OFFSET), (-5_000, 2_000));
        // The next record is seen to have been read before; its own reading is quicker than the first's.
        windows.record(&turn(device(8_000), 1, 1), 8_500, 9_000);
        let (least, most) = windows.bounds().unwrap();
        assert_eq!((least - OFFSET, most - OFFSET), (-1_000, 500));
    }

    #[test]
    fn windows_follow_a_drift_no_further_than_they_must() {
        let mut windows = Windows::default();
        assert_eq!(windows.offset(0, false), None);
        windows.request(0);
        windows.record(&turn(1_000_100, 1, 0), 200, 300);
        assert_eq!(windows.offset(10, false), None, "the window is not over");
        // Between 999_800 and 1_000_100.
        assert_eq!(windows.offset(WINDOW_NS, false), Some(Some(999_950)));
        // Later the clocks are at least 1_000_000 apart.
        assert_eq!(windows.offset(WINDOW_NS, false), None);
        let late = 3 * WINDOW_NS;
        windows.request(late);
        let device = late as u64 + 1_000_300;
        windows.record(&turn(device, 2, 0), late + 200, late + 300);
        assert_eq!(windows.offset(late, false), Some(Some(1_000_000)));
        let HostClock::Measured {
            offset_ns,
            uncertainty_ns,
            moved_ns,
            windows: count,
            ..
        } = windows.about(0)
        else {
            panic!("measured")
        };
        assert_eq!(
            (offset_ns, uncertainty_ns, moved_ns, count),
            (999_950, 300, 50, 2)
        );
        // The last window had no exchange: nothing speaks against what the one before it knew.
        assert_eq!(windows.offset(late, true), Some(Some(1_000_000)));
        // One that contradicts it, or itself, knows nothing.
        windows.record(&turn(5_000_000_000, 2, 0), 0, 10);
        assert_eq!(windows.offset(late, true), Some(None));
        assert_eq!(Windows::default().offset(0, true), Some(None));
    }
}
