//! The line that says how far a run is, in as many columns as there are.

use super::Counts;

pub struct State {
    pub counts: Counts,
    /// Rows in all, where that is known.
    pub total: Option<u64>,
    /// Since the start.
    pub seconds: f64,
    pub running: u32,
    pub waiting: u32,
}

impl State {
    /// All of it in short, down to 40 columns; below, its beginning.
    pub fn in_short(&self, width: usize) -> String {
        let short = self.short();
        let mut line = String::new();
        for part in short {
            let space = usize::from(!line.is_empty());
            if line.len() + space + part.len() > width {
                break;
            }
            if space == 1 {
                line.push(' ');
            }
            line.push_str(&part);
        }
        line
    }

    /// All of it in words.
    pub fn long(&self) -> String {
        let Counts { rows, failed, .. } = self.counts;
        let mut line = match self.total {
            Some(total) => format!("{rows} of {total} rows ({}%)", self.percent(total)),
            None if rows == 1 => "1 row".to_owned(),
            None => format!("{rows} rows"),
        };
        line.push_str(&format!(", {failed} failed; "));
        let (rate, what) = self.rate();
        line.push_str(&format!("{rate:.0} {what} tok/s"));
        if let Some(left) = self.seconds_left() {
            line.push_str(&format!("; {} left", clock(left)));
        }
        let (running, waiting) = (self.running, self.waiting);
        line.push_str(&format!("; {running} running, {waiting} waiting"));
        line
    }

    /// The most important first; ASCII, so that bytes are columns.
    fn short(&self) -> Vec<String> {
        let Counts { rows, failed, .. } = self.counts;
        let mut parts = Vec::new();
        match self.total {
            Some(total) => {
                parts.push(format!("{}/{}", brief(rows as f64), brief(total as f64)));
                parts.push(format!("{}%", self.percent(total)));
            }
            None => parts.push(format!("{} rows", brief(rows as f64))),
        }
        parts.push(format!("{} fail", brief(failed as f64)));
        parts.push(format!("{} t/s", brief(self.rate().0)));
        parts.extend(self.seconds_left().map(clock));
        parts
    }

    /// Not 100 before the last row.
    fn percent(&self, total: u64) -> u64 {
        match total {
            0 => 100,
            _ => (u128::from(self.counts.rows) * 100 / u128::from(total)).min(100) as u64,
        }
    }

    /// Tokens a second, and which: a run that makes none has prompts alone.
    fn rate(&self) -> (f64, &'static str) {
        let (tokens, what) = match self.counts.tokens {
            0 => (self.counts.prompt_tokens, "prompt"),
            tokens => (tokens, "new"),
        };
        (tokens as f64 / self.seconds.max(1e-9), what)
    }

    /// By the rows that this run has served itself, since those that fail take no time; `None` as long as there are none. Rows that
    /// run are half done, on average.
    fn seconds_left(&self) -> Option<f64> {
        let counts = &self.counts;
        let left = self.total?.saturating_sub(counts.rows);
        let own = counts.rows.saturating_sub(counts.kept + counts.failed);
        let half = left.min(self.running.into()) as f64 / 2.0;
        (own > 0).then(|| self.seconds * (left as f64 - half) / (own as f64 + half))
    }
}

/// `1:05`, `2:00:05`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// In at most four characters up to 999T: `999`, `1.2k`, `54k`, `1.0M`.
fn brief(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        // What would be rounded up to 1000 belongs to the next unit.
        if number < 999.5 {
            return if unit.is_empty() || number >= 9.95 {
                format!("{number:.0}{unit}")
            } else {
                format!("{number:.1}{unit}")
            };
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(rows: u64, total: Option<u64>, failed: u64, tokens: u64, seconds: f64) -> State {
        State {
            counts: Counts {
                rows,
                failed,
                tokens,
                ..Counts::default()
            },
            total,
            seconds,
            running: 32,
            waiting: 7,
        }
    }

    #[test]
    fn all_that_counts_fits_40_columns() {
        for (state, expected) in [
            (
                state(5, Some(20), 1, 100, 2.0),
                "5/20 25% 1 fail 50 t/s 0:02",
            ),
            (
                state(100_000, Some(1_000_000), 3_000, 386_000_000, 7200.0),
                "100k/1.0M 10% 3.0k fail 54k t/s 18:33:12",
            ),
            (
                state(999, Some(1000), 0, 0, 9.0),
                "999/1.0k 99% 0 fail 0 t/s 0:01",
            ),
            (state(12, None, 0, 30, 3.0), "12 rows 0 fail 10 t/s"),
        ] {
            assert_eq!(state.in_short(40), expected);
        }
        let widest = state(123_456, Some(999_499), 99_400, 99_400_000, 1000.0);
        assert!(
            widest.in_short(39).ends_with(" 10:06:32"),
            "{}",
            widest.in_short(39)
        );
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        for (rows, failed) in [(0, 0), (1, 1), (987_654_321, 12_345_678)] {
            for total in [None, Some(rows), Some(rows * 3 + 1)] {
                let state = state(rows, total, failed, rows * 100, 1e5);
                for width in 0..150 {
                    let line = state.in_short(width);
                    assert!(line.is_ascii() && line.len() <= width, "{width}: {line}");
                }
                assert!(state.long().ends_with("32 running, 7 waiting"));
            }
        }
    }

    #[test]
    fn what_was_kept_says_nothing_of_the_time_left() {
        let mut state = state(600, Some(1000), 0, 0, 10.0);
        state.counts.kept = 500;
        assert!(
            state
                .long()
                .contains("600 of 1000 rows (60%), 0 failed; 0 prompt tok/s; 0:34 left")
        );
        state.counts.kept = 600;
        assert!(!state.long().contains("left"));
    }
}
