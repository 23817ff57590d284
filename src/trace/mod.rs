//! A run as a timeline that ui.perfetto.dev (and chrome://tracing) opens as it is: Chrome's trace event format.
//!
//! - [`timeline`]: a recording's lines, one after the other, as tracks of steps, turns and counters; `requests`: a track each
//! - [`live`]: a run that is going on: the same lines, and what the host does
//! - [`parts`]: the kernels of each step, where they were timed; [`kernels`]: what they came to
//! - [`json`]: events as text, written as they come; [`about`]: what the file says of itself
//!
//! Nothing here grows with the length of a run. Uses `io`'s recordings and the runtime; the command line uses it.

pub mod about;
pub mod clock;
pub mod json;
pub mod kernels;
pub mod live;
pub mod offset;
pub mod parts;
mod requests;
pub mod step;
pub mod timeline;

pub use about::About;
pub use live::{Begin, Item, Live};
pub use timeline::Timeline;

use crate::error::Result;
use crate::files::Unfinished;
use crate::io::record::{Reader, of_recording};
use std::path::Path;

/// Makes the timeline of a recording, and says what is in it.
///
/// # Errors
/// The recording is none, this version schedules differently, or `output` cannot be written.
pub fn convert(recording: &mut Reader, output: &Path) -> Result<About> {
    let out = json::Out::create(output, Unfinished::Removed)?;
    let source = format!("recording {}", recording.path().display());
    let timeline = Timeline::new(out, &recording.header, source);
    let mut timeline = timeline.map_err(|error| of_recording(recording.path(), error))?;
    while let Some(line) = recording.next_line()? {
        timeline.line(line)?;
    }
    let (about, out) = timeline.end()?;
    out.finish()?;
    Ok(about)
}
