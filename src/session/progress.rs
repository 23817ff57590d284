//! How far a run is: a bar on a terminal, else a line now and then.

use crate::runtime::EngineStatus;
use crate::telemetry::{draw, say};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

mod line;

/// What has come out so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows with an answer, the failed ones included.
    pub rows: u64,
    pub failed: u64,
    /// Rows taken over from an earlier run, which `rows` includes.
    pub kept: u64,
    /// Rows ended by their limit of new tokens, which `rows` includes.
    pub at_limit: u64,
    /// Rows of which a sequence gave its memory to older ones and was recomputed.
    pub recomputed: u64,
    /// Prompt tokens of finished rows.
    pub prompt_tokens: u64,
    /// Those of them that were computed for other sequences.
    pub shared_tokens: u64,
    /// Tokens generated.
    pub tokens: u64,
}

/// Rows in all, once that is known.
pub type Total = Arc<OnceLock<u64>>;

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines { last: Instant },
}

/// Shows progress on standard error.
pub struct Progress {
    shown: Shown,
    /// Somebody types the input on the terminal where the bar would be.
    held_back: bool,
    /// The terminal has been too narrow for the line in words.
    is_short: bool,
    start: Instant,
    total: Total,
}

const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    pub fn new(quiet: bool, total: Option<u64>) -> Self {
        let start = Instant::now();
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let target = ProgressDrawTarget::stderr_with_hz(8);
            Shown::Bar(ProgressBar::with_draw_target(None, target).with_style(style))
        } else {
            Shown::Lines { last: start }
        };
        Self {
            shown,
            held_back: false,
            is_short: false,
            start,
            total: total
                .map(|total| Arc::new(total.into()))
                .unwrap_or_default(),
        }
    }

    /// Rows are counted meanwhile.
    #[must_use]
    pub fn counted(mut self, total: Total) -> Self {
        self.total = total;
        self
    }

    /// Rows are typed: a bar waits for [`Progress::input_ended`].
    #[must_use]
    pub fn typed(mut self, typed: bool) -> Self {
        self.held_back = typed;
        self
    }

    /// Every row has been read.
    pub fn input_ended(&mut self) {
        self.held_back = false;
    }

    /// Call as often as convenient.
    pub fn tick(&mut self, counts: &Counts, status: &EngineStatus) {
        if self.held_back {
            return;
        }
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                let (_, columns) = console::Term::stderr().size();
                // The last column stays free: a terminal may go to its next line there.
                let width = usize::from(columns).saturating_sub(1);
                draw(Some(bar.clone()));
                let state = self.state(counts, status);
                let long = state.long();
                // Once it did not fit it stays short: one that changes its form with each digit flickers.
                self.is_short |= long.len() > width;
                let line = if self.is_short {
                    state.in_short(width)
                } else {
                    long
                };
                bar.set_message(line);
            }
            Shown::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    say(&self.state(counts, status).long());
                    self.shown = Shown::Lines {
                        last: Instant::now(),
                    };
                }
            }
        }
    }

    fn state(&self, counts: &Counts, status: &EngineStatus) -> line::State {
        line::State {
            counts: *counts,
            total: self.total.get().copied(),
            seconds: self.start.elapsed().as_secs_f64(),
            running: status.running,
            waiting: status.waiting,
        }
    }

    /// Takes the bar away; returns how long the run took.
    pub fn finish(&mut self) -> Duration {
        if let Shown::Bar(bar) = &self.shown {
            draw(None);
            bar.finish_and_clear();
        }
        self.start.elapsed()
    }
}
