//! `serve`.

use super::rows::SamplingArgs;
use crate::command::args::{EngineArgs, ModelArg, RecordArg, RunArgs, TextArgs};
use crate::command::values::parse_seconds;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Serves until SIGINT or SIGTERM.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The address to listen on. TLS is the work of a proxy before it
    #[arg(
        long,
        value_name = "IP",
        default_value = "127.0.0.1",
        help_heading = "Server"
    )]
    pub host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 8000,
        help_heading = "Server"
    )]
    pub port: u16,
    /// What requests must send as "Authorization: Bearer KEY"; /health needs none. Better given as TAILGRAPH_API_KEY, for
    /// arguments are seen by other users
    #[arg(long, value_name = "KEY", env = "TAILGRAPH_API_KEY", hide_env = true, value_parser = NonEmptyStringValueParser::new(), help_heading = "Server")]
    pub api_key: Option<String>,
    /// Sequences that may wait beside those that run; a request past them is answered with 429
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = parse_queue, help_heading = "Server")]
    pub max_queue: usize,
    /// Time for answers that are under way when a signal comes. A second signal ends the server at once
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = |s: &str| parse_seconds(s, 0.0..=1e9), help_heading = "Server")]
    pub drain_timeout: Duration,
    /// Serve /v1/files and /v1/batches, which are kept in this folder. One batch runs at a time, with at most half of the server's
    /// slots; a server that is started again goes on with the rest
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    pub batches: Option<PathBuf>,
    /// Refuse requests with unknown fields, rather than warn of them
    #[arg(long)]
    pub strict: bool,
    /// Use this Jinja chat template instead of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    #[command(flatten)]
    pub clock: super::ClockArg,
    #[command(flatten)]
    pub record: RecordArg,
    #[command(flatten)]
    pub text: TextArgs,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// A number that a semaphore holds beside the slots of any device.
fn parse_queue(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let number: usize = text.parse().map_err(|_| "expected a number".to_owned())?;
    match number {
        0..=MOST => Ok(number),
        _ => Err(format!("found {number}, expected at most {MOST}")),
    }
}
