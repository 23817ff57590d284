//! How far a download is: a bar on a terminal, else a line now and then.

use crate::quote;
use crate::telemetry::{draw, say};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Shown {
    file: String,
    bar: Option<ProgressBar>,
    last: Cell<Instant>,
}

impl Shown {
    pub fn new(file: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "{msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}",
            );
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::no_length()
                .with_style(style)
                .with_message(format!("downloading {}:", quote::visible(file)))
        });
        draw(bar.clone());
        Self {
            file: file.to_owned(),
            bar,
            last: Cell::new(Instant::now()),
        }
    }

    /// So many bytes have come.
    pub fn tell(&self, bytes: u64, of: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(of);
            bar.set_position(bytes);
        } else if self.last.get().elapsed() >= LINE_EVERY {
            self.last.set(Instant::now());
            let (bytes, of) = (bytes >> 20, of >> 20);
            say(&format!("tailgraph: {}: {bytes} of {of} MiB", self.file));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            draw(None);
        }
    }
}
