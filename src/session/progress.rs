//! How far a run is: a bar on a terminal, else a line now and then.

use crate::runtime::EngineStatus;
use crate::telemetry::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// What has come out so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows with an answer, the failed ones included.
    pub rows: u64,
    pub failed: u64,
    /// Of `rows`: taken over from an earlier run.
    pub kept: u64,
    /// Prompt tokens of finished rows.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub tokens: u64,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines { last: Instant },
}

/// Shows progress on standard error.
pub struct Progress {
    shown: Shown,
    start: Instant,
    /// Rows in all, where that is known.
    total: Option<u64>,
}

const LINE_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    pub fn new(quiet: bool, total: Option<u64>) -> Self {
        let start = Instant::now();
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let template = if total.is_some() {
                "{bar:30} {msg}"
            } else {
                "{spinner} {msg}"
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let target = ProgressDrawTarget::stderr_with_hz(8);
            Shown::Bar(ProgressBar::with_draw_target(total, target).with_style(style))
        } else {
            Shown::Lines { last: start }
        };
        Self {
            shown,
            start,
            total,
        }
    }

    /// Call as often as convenient.
    pub fn tick(&mut self, counts: &Counts, status: &EngineStatus) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                bar.set_position(counts.rows);
                bar.set_message(self.describe(counts, status));
            }
            Shown::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    say(&self.describe(counts, status));
                    self.shown = Shown::Lines {
                        last: Instant::now(),
                    };
                }
            }
        }
    }

    fn describe(&self, counts: &Counts, status: &EngineStatus) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let of_total = self.total.map_or(String::new(), |n| format!("/{n}"));
        let failed = match counts.failed {
            0 => String::new(),
            n => format!(", {n} failed"),
        };
        format!(
            "{}{of_total} rows{failed}; {:.1} tok/s; {} running, {} waiting, {} pages free",
            counts.rows,
            (counts.tokens + counts.prompt_tokens) as f64 / seconds.max(1e-9),
            status.running,
            status.waiting,
            status.free_pages
        )
    }

    /// Takes the bar away; returns how long the run took.
    pub fn finish(&mut self) -> Duration {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        self.start.elapsed()
    }
}
