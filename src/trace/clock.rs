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

/// Of a window, at least.
const WINDOW_NS: i64 = 1_000_000_000;

/// Bounds of scheduler's clock minus host's, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: Option<i128>,
    pub most: Option<i128>,
}

impl Bounds {
    fn at_least(&mut self, value: i128) {
        self.least = Some(self.least.map_or(value, |least| least.max(value)));
    }

    fn at_most(&mut self, value: i128) {
        self.most = Some(self.most.map_or(value, |most| most.min(value)));
    }

    fn allow(self, offset: i128) -> bool {
        self.least.is_none_or(|least| offset >= least)
            && self.most.is_none_or(|most| offset <= most)
    }

    /// Both, where they leave room for a difference.
    pub fn both(self) -> Option<(i128, i128)> {
        let (least, most) = (self.least?, self.most?);
        (least <= most).then_some((least, most))
    }
}

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

/// Gathers bounds. Host times are ns since a moment of the user's choice.
#[derive(Default)]
pub struct Exchanges {
    requests: Handed,
    records: Handed,
    bounds: Bounds,
}

impl Exchanges {
    /// The host began at `before_ns` to hand the next request over.
    pub fn request(&mut self, before_ns: i64) {
        self.requests.over(before_ns);
    }

    /// The host began at `before_ns` to read the next record, and had it at `after_ns`.
    pub fn record(&mut self, turn: &Turn, before_ns: i64, after_ns: i64) {
        let end_ns = i128::from(turn.end_ns);
        self.bounds.at_least(end_ns - i128::from(after_ns));
        let seen = [
            self.requests.seen(turn.request_head),
            self.records.seen(turn.trace_tail),
        ];
        for before in seen.into_iter().flatten() {
            self.bounds.at_most(end_ns - i128::from(before));
        }
        self.records.over(before_ns);
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Begins anew.
    fn take(&mut self) -> Bounds {
        std::mem::take(&mut self.bounds)
    }
}

/// The offset to use, window by window.
#[derive(Default)]
pub struct Windows {
    pub exchanges: Exchanges,
    began_ns: Option<i64>,
    first: Option<i128>,
    offset: Option<i128>,
    uncertainty_ns: i128,
    moved_ns: i128,
    count: u64,
}

impl Windows {
    /// What to add to host times that came in since the last answer: known once a window is over, or with `last` at
    /// once. `Some(None)`: the window has no bounds, so nobody knows.
    pub fn offset(&mut self, now_ns: i64, last: bool) -> Option<Option<i128>> {
        let began = *self.began_ns.get_or_insert(now_ns);
        let bounds = self.exchanges.bounds();
        let found = bounds.both();
        if !last && (found.is_none() || now_ns - began < WINDOW_NS) {
            return None;
        }
        self.exchanges.take();
        self.began_ns = None;
        let Some((least, most)) = found else {
            // Half a window at the end: what the one before it knew holds where this one has nothing against it.
            let kept = self.offset.filter(|&old| bounds.allow(old));
            return Some(kept);
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
        let mut exchanges = Exchanges::default();
        assert_eq!(exchanges.bounds().both(), None);
        exchanges.request(1_000);
        exchanges.record(&turn(device(3_000), 1, 0), 7_500, 8_000);
        let (least, most) = exchanges.bounds().both().unwrap();
        assert_eq!((least - OFFSET, most - OFFSET), (-5_000, 2_000));
        // The next record is seen to have been read before; its own reading is quicker than the first's.
        exchanges.record(&turn(device(8_000), 1, 1), 8_500, 9_000);
        let (least, most) = exchanges.bounds().both().unwrap();
        assert_eq!((least - OFFSET, most - OFFSET), (-1_000, 500));
    }

    #[test]
    fn windows_follow_a_drift_no_further_than_they_must() {
        let mut windows = Windows::default();
        assert_eq!(windows.offset(0, false), None);
        windows.exchanges.request(0);
        windows.exchanges.record(&turn(1_000_100, 1, 0), 200, 300);
        assert_eq!(windows.offset(10, false), None, "the window is not over");
        // Between 999_800 and 1_000_100.
        assert_eq!(windows.offset(WINDOW_NS, false), Some(Some(999_950)));
        // Later the clocks are at least 1_000_000 apart.
        assert_eq!(windows.offset(WINDOW_NS, false), None);
        let late = 3 * WINDOW_NS;
        windows.exchanges.request(late);
        let device = late as u64 + 1_000_300;
        windows
            .exchanges
            .record(&turn(device, 2, 0), late + 200, late + 300);
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
        windows.exchanges.record(&turn(5_000_000_000, 2, 0), 0, 10);
        assert_eq!(windows.offset(late, true), Some(None));
        assert_eq!(Windows::default().offset(0, true), Some(None));
    }
}
