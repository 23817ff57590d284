//! Prompts that are texts, and what is made of them.

use crate::text::parse_time;
use chrono::NaiveDateTime;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prompts")]
pub struct PromptArgs {
    /// Read the input as plain text: each line that is not blank is a prompt
    #[arg(long)]
    pub lines: bool,
    /// Put this system message before each prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Continue the prompts' text as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// Use this Jinja chat template instead of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub chat_template: Option<PathBuf>,
    #[command(flatten)]
    pub clock: ClockArg,
}

#[derive(Debug, Clone, Default, Args)]
pub struct ClockArg {
    /// The date and time that chat templates get, such as 2026-03-31T08:00:00; an offset behind it is ignored [default: when the
    /// job began, in local time]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub now: Option<NaiveDateTime>,
}
