//! `bench serve`: requests that arrive at a rate, and how long they take under that load.

use super::args::{LISTS, Measurement, SharedArgs, options, points, positive};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use super::{Kind, Point, Shared};
use clap::Args;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct ServeArgs {
    /// Requests a second, arriving as a Poisson process; inf is all at once
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = rate)]
    request_rate: Vec<f64>,
    /// The most requests in flight. The next is sent when one ends, and its times count from then [default: --batch, or as many as
    /// --request-rate sends]
    #[arg(long, value_name = "LIST", value_parser = positive)]
    max_concurrency: Option<List>,
    /// How many requests arrive [default: 4 times the batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_prompts: Option<u32>,
    /// Sequences at once, at most [default: 32, or --max-concurrency]
    #[arg(long, short, value_name = "LIST", value_parser = positive)]
    batch: Option<List>,
    /// Tokens of each prompt. A plain range such as 100-2000 is one workload, of lengths drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "128")]
    prompt_len: Lengths,
    /// Tokens that prompts begin with alike, which are among those of --prompt-len; and how many such beginnings there are, of
    /// which each prompt has one at random [default: 1]. --no-prefix-sharing shows what sharing them brings
    #[arg(long, value_name = "LEN[,GROUPS]", value_parser = shared_prefix)]
    shared_prefix: Option<Shared>,
    /// Tokens to generate for each
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, default_value = "64")]
    gen_len: List,
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

fn shared_prefix(text: &str) -> std::result::Result<Shared, String> {
    let (tokens, groups) = text.split_once(',').unwrap_or((text, "1"));
    let number = |text: &str| text.parse().ok().filter(|&number: &u32| number > 0);
    let found = number(tokens).zip(number(groups));
    let found = found.map(|(tokens, groups)| Shared { tokens, groups });
    found.ok_or_else(|| {
        "expected tokens, or tokens and how many such beginnings there are, such as 1000,4"
            .to_owned()
    })
}

pub const COLUMNS: &[Column] = &[
    Column::field("req/s", "request_throughput"),
    Column::field("t/s out", "output_throughput").marked(),
    Column::field("tokens shared", "total_cached_tokens").rank(3),
    Column::latency("TTFT ms", "median_ttft_ms", "p99_ttft_ms"),
    Column::latency("TPOT ms", "median_tpot_ms", "p99_tpot_ms"),
    Column::latency("ITL ms", "median_itl_ms", "p99_itl_ms"),
    Column::latency("E2E ms", "median_e2el_ms", "p99_e2el_ms"),
    Column::field("t/s in and out", "total_token_throughput").rank(4),
    Column::interval("TTFT 95% of p50", "median_ttft_ms_ci95"),
    Column::interval("of p99", "p99_ttft_ms_ci95"),
];

impl ServeArgs {
    pub fn measurement(&self) -> Measurement<'_> {
        let in_flight = self.max_concurrency.as_ref();
        let in_flight = options(in_flight.map_or(&[], |list| &list.0[..]));
        let closed = self.request_rate.is_empty();
        let mut rates = options(&self.request_rate);
        if closed {
            rates = vec![Some(f64::INFINITY)];
        }
        let batches = self.batch.as_ref().map_or(&[0][..], |list| &list.0);
        let lists = (batches, &self.gen_len.0[..], &self.prompt_len);
        let mut all = Vec::new();
        for point in points(Kind::Serve, lists, &self.shared) {
            for &rate in &rates {
                for &most_in_flight in &in_flight {
                    let batch = match point.batch {
                        0 => most_in_flight.unwrap_or(32),
                        batch => batch,
                    };
                    all.push(Point {
                        batch,
                        requests: self.num_prompts.unwrap_or(batch.saturating_mul(4)),
                        rate,
                        shared: self.shared_prefix,
                        most_in_flight: most_in_flight.or(closed.then_some(batch)),
                        ..point
                    });
                }
            }
        }
        // An engine serves the points of a batch.
        all.sort_by_key(|point| point.batch);
        Measurement::of(Kind::Serve, &self.shared, all)
    }
}
