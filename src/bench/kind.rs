//! What kinds that run a model differ in: what [`super::measure`] asks of each.

use super::args::SharedArgs;
use super::scored::Expected;
use super::workload::{self, Arrival, Random};
use super::{Kind, Point};
use crate::command::paths::Files;
use crate::error::Result;
use crate::plan::{Prompts, StepKind};
use crate::runtime::Logits;
use crate::session::{Opened, RunSpec};
use std::path::Path;

/// What a kind measures: all in which kinds differ.
pub trait Measurement {
    fn kind(&self) -> Kind;
    fn shared(&self) -> &SharedArgs;

    /// Adds the files that it reads beside those of all kinds.
    fn files(&self, files: Files) -> Files {
        files
    }

    /// All combinations of the lists that it takes.
    ///
    /// # Errors
    /// [`crate::Error::Usage`]: the lists do not go together.
    fn points(&self) -> Result<Vec<Point>>;

    /// Points that one engine serves, with the sequences that it is to hold; `None` leaves these to the engine.
    fn groups(&self, points: &[Point]) -> Vec<(Option<u32>, Vec<Point>)> {
        let largest = points.iter().map(|point| point.batch).max();
        vec![(largest, points.to_vec())]
    }

    /// Prompt and new tokens of the longest sequence.
    fn longest(&self, points: &[Point]) -> (u32, u32) {
        longest_of(points, std::iter::empty())
    }

    /// The options that the longest sequence comes from.
    fn name_longest(&self, prompt: u32, new: u32) -> String;

    /// The option that the sequences of an engine come from.
    fn name_batch(&self, batch: u32) -> String {
        format!("--batch {batch}")
    }

    /// What is read where nothing is generated.
    fn prompts(&self, _points: &[Point]) -> Option<Prompts> {
        None
    }

    /// # Errors
    /// [`crate::Error::Usage`]: it cannot be measured on such devices.
    fn check(&self, _spec: &RunSpec) -> Result<()> {
        Ok(())
    }

    /// # Errors
    /// [`crate::Error::Usage`]: it does not fit the engine.
    fn check_opened(&self, _opened: &Opened) -> Result<()> {
        Ok(())
    }

    /// The kinds of steps that engines make ready.
    fn steps(&self) -> Vec<StepKind>;

    /// The steps that `point` is about, of one number of rows where that matters; `None`: no step is typical.
    fn typical(&self, _point: &Point) -> Option<(StepKind, Option<u32>)> {
        None
    }

    /// All sequences are of one length, so that there is a floor.
    fn is_uniform(&self, point: &Point) -> bool {
        point.ragged_from.is_none()
    }

    /// The logits that requests ask for.
    fn wanted(&self) -> Logits {
        Logits::None
    }

    /// The requests of a repeat.
    fn arrivals(&self, point: &Point, vocabulary: u32, random: &mut Random) -> Vec<Arrival> {
        workload::at_once(point, point.batch, self.wanted(), vocabulary, random)
    }

    /// Whether logits stay on the device; `None`: there are none.
    fn logits_on_device(&self) -> Option<bool> {
        None
    }

    /// What the logits of each run are compared with.
    fn expected(&self, _opened: &Opened) -> Option<Expected> {
        None
    }

    /// The file for what each step took.
    fn steps_file(&self) -> Option<&Path> {
        None
    }
}

/// Prompt and new tokens of the longest of `points` and `others`.
pub fn longest_of(points: &[Point], others: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    let lengths = points.iter();
    let lengths = lengths.map(|point| (point.prompt_tokens, point.new_tokens));
    let longest = lengths
        .chain(others)
        .max_by_key(|&(prompt, new)| total(prompt, new));
    longest.unwrap_or((1, 0))
}

/// Tokens of a sequence.
pub fn total(prompt: u32, new: u32) -> u32 {
    prompt.saturating_add(new)
}

/// The options of the longest sequence. `with`: what is generated, as the message says it; nothing where nothing is.
pub fn name_longest(context: bool, prompt: u32, new: u32, with: &str) -> String {
    let tokens = total(prompt, new);
    match (context, with) {
        (true, _) => format!("--context {tokens}"),
        (false, "") => format!("--prompt-len {prompt}"),
        (false, with) => format!("--prompt-len {prompt} and {with}, {tokens} tokens"),
    }
}
