//! `bench score`: logits of prompts that are all sent at once.

use super::args::{LISTS, Points, SharedArgs, positive};
use super::kind::{Measurement, name_longest};
use super::ranges::{self, Lengths, List};
use super::scored::Expected;
use super::workload::{self, Arrival, Random};
use super::{Kind, Point};
use crate::command::paths::Files;
use crate::command::values::Positions;
use crate::error::{Error, Result};
use crate::io::arrays::{self, Sample};
use crate::io::expect::default_tolerance;
use crate::io::target::LogitsTarget;
use crate::plan::{Prompts, StepKind};
use crate::runtime::Logits;
use crate::session::{Opened, RunSpec};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct ScoreArgs {
    /// Prompts
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1024")]
    batch: List,
    /// Tokens of each prompt; a plain range such as 100-2000 is one workload, whose lengths are drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "32", conflicts_with = "context")]
    prompt_len: Lengths,
    /// The same as --prompt-len
    #[arg(long, value_name = "LIST", value_parser = positive)]
    context: Option<List>,
    /// Positions to give logits of
    #[arg(long, value_name = "WHICH", default_value = "all")]
    logits: Positions,
    /// Logits are computed as ever, but stay in the GPU's memory
    #[arg(long, conflicts_with = "expect")]
    logits_on_device: bool,
    /// Token arrays instead of random prompts, .safetensors or .npy
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "prompt_len", "context"])]
    input: Option<PathBuf>,
    /// Compare with logits.{i} of this .safetensors file; exit code 4 if a repeat disagrees
    #[arg(long, value_name = "FILE", requires = "input")]
    expect: Option<PathBuf>,
    #[command(flatten)]
    shared: SharedArgs,
}

pub use super::prefill::COLUMNS;

/// The arguments, and the prompts of the file that they name.
pub struct Score<'a> {
    args: &'a ScoreArgs,
    samples: Option<Vec<Sample>>,
}

impl ScoreArgs {
    /// # Errors
    /// The file of prompts cannot be read, or is none.
    pub fn open(&self) -> Result<Score<'_>> {
        let samples = self.input.as_deref().map(read_samples).transpose()?;
        Ok(Score {
            args: self,
            samples,
        })
    }
}

fn read_samples(path: &Path) -> Result<Vec<Sample>> {
    let samples = match arrays::Kind::of(path) {
        arrays::Kind::Safetensors => arrays::safetensors(path)?,
        arrays::Kind::Npy => arrays::npy(path)?,
        _ => {
            return Err(Error::Usage(format!(
                "--input {}: expected a name that ends in .safetensors or .npy",
                path.display()
            )));
        }
    };
    if samples.is_empty() {
        return Err(Error::file(path, "found no prompts, expected at least one"));
    }
    Ok(samples)
}

fn lengths(samples: &[Sample]) -> impl Iterator<Item = u32> {
    samples.iter().map(|sample| sample.tokens.len() as u32)
}

impl Measurement for Score<'_> {
    fn kind(&self) -> Kind {
        Kind::Score
    }

    fn shared(&self) -> &SharedArgs {
        &self.args.shared
    }

    fn files(&self, files: Files) -> Files {
        files
            .reads("--input", self.args.input.as_deref())
            .reads("--expect", self.args.expect.as_deref())
    }

    fn points(&self) -> Result<Vec<Point>> {
        let points = Points::of(Kind::Score)
            .each(&self.args.batch.0, |point, &batch| point.batch = batch)
            .lengths(&self.args.prompt_len, self.args.context.as_ref())?;
        let mut points = points.beside(&self.args.shared.measuring.cpu_load);
        if let Some(samples) = &self.samples {
            for point in &mut points {
                point.batch = samples.len() as u32;
                point.prompt_tokens = lengths(samples).max().unwrap_or(0);
            }
        }
        Ok(points)
    }

    fn name_longest(&self, prompt: u32, new: u32) -> String {
        match &self.args.input {
            Some(path) => format!("--input {}, a prompt of {prompt} tokens", path.display()),
            None => name_longest(self.args.context.is_some(), prompt, new, ""),
        }
    }

    fn check(&self, spec: &RunSpec) -> Result<()> {
        if self.args.logits_on_device && spec.device.launch().is_none() {
            return Err(Error::Usage(
                "--logits-on-device: expected --device cuda; on a CPU logits never leave its memory".into(),
            ));
        }
        Ok(())
    }

    fn check_opened(&self, opened: &Opened) -> Result<()> {
        let (Some(path), Some(samples)) = (&self.args.input, &self.samples) else {
            return Ok(());
        };
        let most = opened.max_context() as usize;
        arrays::check(path, samples, opened.config.vocab_size, most)
    }

    fn steps(&self) -> Vec<StepKind> {
        vec![self.args.logits.step_kind()]
    }

    /// Prompts are scored as they come: how many at once is the engine's business.
    fn groups(&self, points: &[Point]) -> Vec<(Option<u32>, Vec<Point>)> {
        vec![(None, points.to_vec())]
    }

    /// What is read; of several points as many as the largest, and as short as the shortest.
    fn prompts(&self, points: &[Point]) -> Option<Prompts> {
        let kind = self.args.logits.step_kind();
        if let Some(samples) = &self.samples {
            return Prompts::of(lengths(samples), kind);
        }
        let count = points.iter().map(|point| point.batch).max()?;
        let shortest = points.iter().map(Point::mean_prompt).min()?;
        Some(Prompts {
            count,
            tokens: u64::from(count) * u64::from(shortest),
            kind,
        })
    }

    fn typical(&self, _point: &Point) -> Option<(StepKind, Option<u32>)> {
        Some((StepKind::Score, None))
    }

    fn is_uniform(&self, point: &Point) -> bool {
        let mut pairs = self.samples.iter().flat_map(|samples| samples.windows(2));
        point.ragged_from.is_none()
            && pairs.all(|pair| pair[0].tokens.len() == pair[1].tokens.len())
    }

    fn wanted(&self) -> Logits {
        match self.args.logits {
            Positions::All => Logits::All,
            Positions::Last => Logits::Last,
        }
    }

    fn arrivals(&self, point: &Point, vocabulary: u32, random: &mut Random) -> Vec<Arrival> {
        let Some(samples) = &self.samples else {
            return workload::at_once(point, point.batch, self.wanted(), vocabulary, random);
        };
        let arrival = |sample: &Sample| Arrival {
            due: Duration::ZERO,
            request: workload::request(sample.tokens.clone(), 0, self.wanted()),
        };
        samples.iter().map(arrival).collect()
    }

    fn logits_on_device(&self) -> Option<bool> {
        Some(self.args.logits_on_device)
    }

    fn expected(&self, opened: &Opened) -> Option<Expected> {
        let (file, samples) = (self.args.expect.as_ref()?, self.samples.as_ref()?);
        Some(Expected {
            file: file.clone(),
            targets: samples.iter().map(LogitsTarget::of).collect(),
            vocab_size: opened.config.vocab_size,
            tolerance: default_tolerance(opened.spec.device.dtype()),
            last_only: self.args.logits == Positions::Last,
        })
    }
}
