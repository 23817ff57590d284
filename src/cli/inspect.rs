//! `inspect`: a plan with each operation's shapes, bytes, FLOPs and least time, and its graphs as a GPU was given them. All that is
//! known is one [`document`], which is the JSON; tables and graphs for Graphviz are views of it.

mod command;
pub mod document;
mod dot;
mod text;

pub(super) use self::command::run;
use super::args::inspect::{Format, InspectArgs};
use crate::backend::cuda::listed::calls::StepCalls;
use crate::backend::cuda::tuning::gpu::H200;
use crate::error::{Error, Result};
use crate::plan::{Plan, Precision, StepKind};
use document::{Asked, Known};
use serde::Serialize;
use std::io::{self, Write};

impl InspectArgs {
    /// Prints `plan` to `out`, with what else is `known` of it.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds, [`Error::Io`] where `out` cannot be written.
    pub fn run(
        &self,
        plan: &Plan,
        precision: Precision,
        known: Known,
        out: &mut dyn Write,
    ) -> Result<()> {
        let known_gpu = known.on_gpu.as_ref().and_then(|on_gpu| on_gpu.known);
        let gpu = self.gpu.or(known_gpu).unwrap_or(&H200);
        let asked = Asked {
            plan,
            precision,
            gpu,
            rates: gpu.rates(precision),
            args: self,
            rows: self.rows(plan)?,
        };
        let document = asked.document(known);
        let written = match self.format() {
            Format::Text if self.roofline => text::roofline(&document, out),
            Format::Text => text::write(&document, out),
            Format::Json => json(&document, out),
            Format::Dot => dot::write(&document, out),
        };
        printed(written, out)
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    /// The buckets of the rows asked for, each once.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that no bucket holds.
    pub fn buckets(&self, plan: &Plan) -> Result<Vec<u32>> {
        let rows = self.rows(plan)?.into_iter();
        let mut buckets: Vec<u32> = rows
            .filter_map(|rows| plan.ladders.bucket(self.kind, rows))
            .collect();
        buckets.dedup();
        Ok(buckets)
    }

    /// Prints kernel calls to `out`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a format that lists none; [`Error::Io`] where `out` cannot be written.
    pub fn list_calls(
        &self,
        stages: usize,
        steps: &[StepCalls],
        out: &mut dyn Write,
    ) -> Result<()> {
        #[derive(Serialize)]
        struct Calls<'a> {
            steps: &'a [StepCalls],
        }
        let written = match self.format() {
            Format::Json => json(&Calls { steps }, out),
            Format::Text => text::calls(stages, steps, out),
            Format::Dot => {
                return Err(Error::Usage(
                    "--calls: a list, and no graph; expected --format text or json".into(),
                ));
            }
        };
        printed(written, out)
    }

    /// The rows asked for, or the default ones.
    fn rows(&self, plan: &Plan) -> Result<Vec<u32>> {
        let ladder = plan.ladders.of(self.kind);
        let largest = ladder.last().copied().unwrap_or(0);
        if let Some(rows) = self.rows.iter().find(|&&rows| rows > largest) {
            return Err(Error::Usage(format!(
                "--rows {rows}: expected at most {largest}, the largest {} bucket",
                self.kind.name()
            )));
        }
        Ok(match self.kind {
            _ if !self.rows.is_empty() => self.rows.clone(),
            StepKind::Decode if !self.roofline => [1, 8, 32, 128, 256]
                .into_iter()
                .filter(|&rows| rows <= largest)
                .collect(),
            _ => ladder.to_vec(),
        })
    }
}

fn json(document: &impl Serialize, out: &mut dyn Write) -> Written {
    serde_json::to_writer_pretty(&mut *out, document)?;
    writeln!(out)
}

fn printed(written: Written, out: &mut dyn Write) -> Result<()> {
    written
        .and_then(|()| out.flush())
        .map_err(|source| Error::io("standard output", source))
}

/// Fails only as the writer does.
type Written = io::Result<()>;
