//! When a host looks again for what a device has done, which tells nobody.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A host that finds nothing looks again at once this many times: an answer of the device is seen within a microsecond while it is
/// quick.
const EAGER_LOOKS: u32 = 2000;
/// A pause behind those, while an answer may be near, and once none has come for [`NEAR`]: a core is left alone, and an answer seen
/// late by half of it, and by what it takes to wake a thread.
const PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_micros(60);
const NEAR: Duration = Duration::from_millis(10);
/// How many waits are remembered. Steps of a run take about as long as those before them: until shortly before the shortest of these is
/// over the host looks seldom, and around its end at once. Shortly is a part of that wait, but no less than a thread may take to wake.
const REMEMBERED: usize = 4;
const SHORTLY_PART: u32 = 32;
const SHORTLY: Duration = Duration::from_micros(60);
/// A pause meanwhile: an answer that comes before its time, as a short step's behind long ones, is seen late by no more than this.
const FAR_PAUSE: Duration = Duration::from_micros(250);
/// What a pause may take longer than asked for, in nanoseconds.
const SLACK_NS: libc::c_ulong = 1000;

/// Linux lets a thread sleep some 50 us longer than it asked for, which is longer than a pause here: not this thread, from here on.
pub(super) fn sleep_precisely(duration: Duration) {
    thread_local!(static PRECISE: Cell<bool> = const { Cell::new(false) });
    #[cfg(target_os = "linux")]
    if !PRECISE.replace(true) {
        // SAFETY: the call reads no memory. Where it is refused, pauses are longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
    }
    std::thread::sleep(duration);
}

/// A host's waits for a device.
pub(super) struct Pauses {
    /// Looks in a row that found nothing.
    quiet: u32,
    /// When the first of them was.
    since: Instant,
    /// How long the last answers took to come, the oldest overwritten first.
    waits: [Duration; REMEMBERED],
    remembered: usize,
    /// Nothing was looked for since a pause that rests on `waits`.
    far: bool,
}

impl Pauses {
    pub fn new(now: Instant) -> Self {
        Self {
            quiet: 0,
            since: now,
            waits: [Duration::ZERO; REMEMBERED],
            remembered: 0,
            far: false,
        }
    }

    /// The device was given something: how long there was nothing before tells nothing.
    pub fn given(&mut self) {
        (self.quiet, self.far) = (0, false);
    }

    /// An answer was found.
    pub fn found(&mut self, now: impl FnOnce() -> Instant) {
        if self.far {
            // It came before its time.
            self.remembered = 0;
        } else if self.quiet > EAGER_LOOKS {
            self.waits[self.remembered % REMEMBERED] = now().saturating_duration_since(self.since);
            self.remembered += 1;
        }
        (self.quiet, self.far) = (0, false);
    }

    /// Nothing was found: how long to sleep before the next look, if at all.
    pub fn pause(&mut self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.far = false;
        if self.quiet == 0 {
            self.since = now();
            self.quiet = 1;
            return None;
        }
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet <= EAGER_LOOKS {
            return None;
        }
        let waited = now().saturating_duration_since(self.since);
        let usual = self.shortest_wait();
        let shortly = SHORTLY.max(usual / SHORTLY_PART);
        let far = usual.saturating_sub(shortly).saturating_sub(waited);
        self.far = far > PAUSE;
        match waited {
            _ if self.far => Some(far.min(FAR_PAUSE)),
            _ if !usual.is_zero() && waited < usual + shortly => None,
            _ if waited < NEAR => Some(PAUSE),
            _ => Some(LONG_PAUSE),
        }
    }

    /// Zero where too few are known.
    fn shortest_wait(&self) -> Duration {
        if self.remembered < REMEMBERED {
            Duration::ZERO
        } else {
            self.waits.iter().copied().min().unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose answers come at certain times, and a host whose looks take no time.
    struct Rig {
        pauses: Pauses,
        now: Instant,
    }

    impl Rig {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                pauses: Pauses::new(now),
                now,
            }
        }

        /// How many pauses were made for an answer that comes `after` the last one, the time spent on looks, and how late it was seen.
        fn wait(&mut self, after: Duration) -> (u32, Duration, Duration) {
            const LOOK: Duration = Duration::from_nanos(50);
            let there = self.now + after;
            let (mut pauses, mut looks) = (0, 0);
            while self.now < there {
                let now = self.now;
                match self.pauses.pause(|| now) {
                    Some(pause) => (self.now, pauses) = (now + pause, pauses + 1),
                    None => (self.now, looks) = (now + LOOK, looks + 1),
                }
            }
            let now = self.now;
            self.pauses.found(|| now);
            (pauses, LOOK * looks, now - there)
        }
    }

    #[test]
    fn quick_answers_are_seen_at_once() {
        let mut rig = Rig::new();
        for _ in 0..10 {
            let (pauses, _, late) = rig.wait(Duration::from_micros(80));
            assert_eq!(pauses, 0);
            assert!(late < Duration::from_micros(1), "{late:?}");
        }
    }

    #[test]
    fn steady_steps_are_looked_for_seldom_and_seen_at_once() {
        let mut rig = Rig::new();
        let step = Duration::from_millis(6);
        for _ in 0..REMEMBERED {
            let (pauses, _, late) = rig.wait(step);
            assert!((250..320).contains(&pauses), "{pauses}");
            assert!(late <= PAUSE, "{late:?}");
        }
        for _ in 0..10 {
            let (pauses, looking, late) = rig.wait(step);
            assert!((20..30).contains(&pauses), "{pauses}");
            assert!(looking < step / 16, "{looking:?}");
            assert!(late < Duration::from_micros(1), "{late:?}");
        }
    }

    #[test]
    fn steps_that_last_longer_than_others_cost_a_sixteenth_more() {
        let mut rig = Rig::new();
        let steps = [6000, 6100, 9000, 7000, 8000, 6050, 12_000, 6000, 9000, 7000];
        for (index, step) in steps.map(Duration::from_micros).into_iter().enumerate() {
            let (_, looking, late) = rig.wait(step);
            assert!(looking < Duration::from_micros(600), "{looking:?}");
            assert!(index < REMEMBERED || late <= LONG_PAUSE, "{late:?}");
        }
    }

    #[test]
    fn what_took_long_before_is_forgotten_with_the_first_answer_that_is_early() {
        let mut rig = Rig::new();
        for _ in 0..10 {
            rig.wait(Duration::from_millis(8));
        }
        let short = Duration::from_millis(1);
        let (.., late) = rig.wait(short);
        assert!(late <= FAR_PAUSE, "{late:?}");
        for _ in 0..10 {
            let (.., late) = rig.wait(short);
            assert!(late <= PAUSE, "{late:?}");
        }
    }

    #[test]
    fn what_the_host_did_between_is_no_wait() {
        let mut rig = Rig::new();
        let step = Duration::from_millis(6);
        for _ in 0..10 {
            // Idle with looks, then without.
            let until = rig.now + Duration::from_millis(50);
            while rig.now < until {
                let now = rig.now;
                rig.now += rig.pauses.pause(|| now).unwrap_or(Duration::from_nanos(50));
            }
            rig.now += Duration::from_millis(40);
            rig.pauses.given();
            let (.., late) = rig.wait(step);
            assert!(late <= PAUSE, "{late:?}");
        }
    }

    #[test]
    fn long_silence_costs_little() {
        let mut rig = Rig::new();
        let (pauses, _, late) = rig.wait(Duration::from_secs(1));
        assert!(pauses < 18_000, "{pauses}");
        assert!(late <= LONG_PAUSE, "{late:?}");
    }
}
