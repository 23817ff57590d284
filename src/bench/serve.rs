//! `bench serve`: requests that arrive at a rate, and how long they take under that load.

use super::args::{LISTS, Points, SharedArgs, options, positive};
use super::kind::{Measurement, longest_of, name_longest};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use super::workload::{self, Arrival, Line, Random};
use super::{Kind, Point};
use crate::command::paths::Files;
use crate::error::Result;
use crate::plan::StepKind;
use crate::runtime::Logits;
use clap::{ArgGroup, Args};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
#[command(group(ArgGroup::new("load").required(true).multiple(true).args(["request_rate", "max_concurrency", "arrivals"])))]
pub struct ServeArgs {
    /// Requests a second, arriving as a Poisson process; inf is all at once
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = rate)]
    request_rate: Vec<f64>,
    /// Requests in flight at most: the next is sent when one ends, and its times begin there; all at once but for that where
    /// --request-rate says nothing
    #[arg(long, value_name = "LIST", value_parser = positive)]
    max_concurrency: Option<List>,
    /// Arrivals from a file instead, SECONDS or SECONDS PROMPT_LEN GEN_LEN a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["request_rate", "num_prompts"])]
    arrivals: Option<PathBuf>,
    /// How many requests arrive [default: 4 times the batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_prompts: Option<u32>,
    /// Sequences at once, at most [default: 32, or --max-concurrency]
    #[arg(long, short, value_name = "LIST", value_parser = positive)]
    batch: Option<List>,
    /// Tokens of each prompt; a plain range such as 100-2000 is one workload, whose lengths are drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "128", conflicts_with = "context")]
    prompt_len: Lengths,
    /// Tokens to generate for each
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, default_value = "64")]
    gen_len: List,
    /// Instead of --prompt-len: tokens of a sequence at its end, the generated ones included
    #[arg(long, value_name = "LIST", value_parser = positive)]
    context: Option<List>,
    #[command(flatten)]
    shared: SharedArgs,
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    // One in twelve days, so that times add up to what a duration holds.
    let found = text.parse().ok().filter(|&rate: &f64| rate >= 1e-6);
    found.ok_or_else(|| {
        "expected requests a second of at least 1e-6, or inf for all at once".to_owned()
    })
}

pub const COLUMNS: &[Column] = &[
    Column::field("req/s", "request_throughput"),
    Column::field("t/s out", "output_throughput").marked(),
    Column::latency("TTFT ms", "median_ttft_ms", "p99_ttft_ms"),
    Column::latency("TPOT ms", "median_tpot_ms", "p99_tpot_ms"),
    Column::latency("ITL ms", "median_itl_ms", "p99_itl_ms"),
    Column::latency("E2E ms", "median_e2el_ms", "p99_e2el_ms"),
    Column::field("t/s in and out", "total_token_throughput").rank(4),
    Column::interval("TTFT 95% of p50", "median_ttft_ms_ci95"),
    Column::interval("of p99", "p99_ttft_ms_ci95"),
];

/// The arguments, and what is in the file that they name.
pub struct Serve<'a> {
    args: &'a ServeArgs,
    lines: Option<Vec<Line>>,
}

impl ServeArgs {
    /// # Errors
    /// The file of arrivals cannot be read, or is none.
    pub fn open(&self) -> Result<Serve<'_>> {
        let lines = self.arrivals.as_deref().map(workload::read_arrivals);
        Ok(Serve {
            args: self,
            lines: lines.transpose()?,
        })
    }
}

impl Measurement for Serve<'_> {
    fn kind(&self) -> Kind {
        Kind::Serve
    }

    fn shared(&self) -> &SharedArgs {
        &self.args.shared
    }

    fn files(&self, files: Files) -> Files {
        files.reads("--arrivals", self.args.arrivals.as_deref())
    }

    fn points(&self) -> Result<Vec<Point>> {
        let args = self.args;
        let in_flight = args.max_concurrency.as_ref();
        let in_flight = options(in_flight.map_or(&[], |list| &list.0[..]));
        let mut rates = options(&args.request_rate);
        if args.max_concurrency.is_some() && args.arrivals.is_none() && rates == [None] {
            rates = vec![Some(f64::INFINITY)];
        }
        let batches = options(args.batch.as_ref().map_or(&[], |list| &list.0[..]));
        let points = Points::of(Kind::Serve)
            .each(&batches, |point, batch| point.batch = batch.unwrap_or(0))
            .each(&args.gen_len.0, |point, &new| point.new_tokens = new)
            .lengths(&args.prompt_len, args.context.as_ref())?
            .each(&rates, |point, &rate| point.rate = rate)
            .each(&in_flight, |point, &most| {
                point.most_in_flight = most;
                if point.batch == 0 {
                    point.batch = most.unwrap_or(32);
                }
            });
        Ok(points.beside(&args.shared.measuring.cpu_load))
    }

    fn longest(&self, points: &[Point]) -> (u32, u32) {
        let lines = self.lines.iter().flatten();
        longest_of(points, lines.filter_map(|line| line.lengths))
    }

    fn name_longest(&self, prompt: u32, new: u32) -> String {
        let mut lines = self.lines.iter().flatten();
        let in_file = lines.any(|line| line.lengths == Some((prompt, new)));
        if let Some(path) = self.args.arrivals.as_ref().filter(|_| in_file) {
            return format!(
                "--arrivals {}, a prompt of {prompt} and {new} to generate, {} tokens",
                path.display(),
                prompt.saturating_add(new)
            );
        }
        let with = format!("--gen-len {new}");
        name_longest(self.args.context.is_some(), prompt, new, &with)
    }

    fn name_batch(&self, batch: u32) -> String {
        if self.args.batch.is_none() && self.args.max_concurrency.is_some() {
            return format!("--max-concurrency {batch}");
        }
        format!("--batch {batch}")
    }

    fn steps(&self) -> Vec<StepKind> {
        vec![StepKind::Decode, StepKind::Mixed]
    }

    /// An engine for each batch, whose sequences it holds.
    fn groups(&self, points: &[Point]) -> Vec<(Option<u32>, Vec<Point>)> {
        let mut groups: Vec<(Option<u32>, Vec<Point>)> = Vec::new();
        for point in points {
            let batch = Some(point.batch);
            match groups.iter_mut().find(|(of, _)| *of == batch) {
                Some((_, group)) => group.push(*point),
                None => groups.push((batch, vec![*point])),
            }
        }
        groups
    }

    fn arrivals(&self, point: &Point, vocabulary: u32, random: &mut Random) -> Vec<Arrival> {
        if let Some(lines) = &self.lines {
            return workload::from_lines(lines, point, vocabulary, random);
        }
        let count = self.args.num_prompts;
        let count = count.unwrap_or(point.batch.saturating_mul(4));
        let mut arrivals = workload::at_once(point, count, Logits::None, vocabulary, random);
        if let Some(rate) = point.rate {
            workload::poisson(&mut arrivals, rate, random);
        }
        arrivals
    }
}
