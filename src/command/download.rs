//! A model as the command line names it, and how far its download is: a bar on a terminal, else a line now and then.

use crate::error::Result;
use crate::model::ModelSource;
use crate::model::hub::Download;
use crate::quote;
use crate::telemetry::{draw, say};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, OnceCell, RefCell};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(10);

/// The model that `text` names, downloaded where that is needed.
///
/// # Errors
/// Fails as [`ModelSource::parse`] does.
pub fn model(text: &str) -> Result<ModelSource> {
    model_that(text, |_| Ok(()))
}

/// [`model`], where `fits` finds nothing wrong with its shapes: it is asked before weights are downloaded.
///
/// # Errors
/// Fails as [`model`] does, and where `fits` does.
pub fn model_that(text: &str, fits: impl Fn(ModelSource) -> Result<()>) -> Result<ModelSource> {
    let (shown, wrong) = (Shown::new(), OnceCell::new());
    let model = ModelSource::watched(text, &|download| match download {
        Download::Shapes { folder } => match fits(ModelSource::Dir(folder.to_owned())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                wrong.get_or_init(|| error);
                ControlFlow::Break(())
            }
        },
        download => shown.tell(download),
    });
    wrong.into_inner().map_or(model, Err)
}

/// The model that `text` names, for who wants its shapes alone, which need no weights.
///
/// # Errors
/// Fails as [`ModelSource::watched_config`] does.
pub fn model_of_config(text: &str) -> Result<ModelSource> {
    let shown = Shown::new();
    ModelSource::watched_config(text, &|download| shown.tell(download))
}

struct Shown {
    bar: OnceCell<ProgressBar>,
    last: Cell<Instant>,
    said: RefCell<String>,
}

impl Shown {
    fn new() -> Self {
        Self {
            bar: OnceCell::new(),
            last: Cell::new(Instant::now()),
            said: RefCell::default(),
        }
    }

    /// A signal ends the process by itself, so that no download has to be ended here.
    fn tell(&self, download: Download<'_>) -> ControlFlow<()> {
        match download {
            Download::Came { file, bytes, of } if std::io::stderr().is_terminal() => {
                let bar = self.bar.get_or_init(bar);
                bar.set_message(quote::visible(file));
                bar.set_length(of);
                bar.set_position(bytes);
            }
            Download::Came { file, bytes, of } if self.last.get().elapsed() >= LINE_EVERY => {
                self.last.set(Instant::now());
                let (bytes, of) = (bytes >> 20, of >> 20);
                say(&format!("tailgraph: {file}: {bytes} of {of} MiB"));
            }
            Download::Waits { why } if *self.said.borrow() != why => {
                say(&format!("tailgraph: {why}"));
                why.clone_into(&mut self.said.borrow_mut());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "downloading {msg}: {bytes} of {total_bytes}, {bytes_per_sec}, {eta}",
    );
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::no_length().with_style(style);
    draw(Some(bar.clone()));
    bar
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
            draw(None);
        }
    }
}
