//! `tune`.

use crate::bench::ranges::{self, List};
use crate::command::args::TimedArgs;
use crate::model::DType;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct TuneArgs {
    /// Where to write a copy of the entries of --kernel-file, or of the built-in ones, with this GPU's new ones [default: standard
    /// output]
    #[arg(long, short, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// Types to measure; each takes 5 to 10 s a bucket
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "bf16,f32"
    )]
    pub dtype: Vec<DType>,
    /// Decode buckets to measure, such as 1,8 or 1-256*2, which is 1,2,4 up to 256 [default: all that have a choice, up to 256 tokens, in bf16 and f16 on sm_90 up to 1024]
    #[arg(long, value_name = "LIST", value_parser = ranges::parse)]
    pub bucket: Option<List>,
    /// The commit that the file names as measured [default: that of the build]
    #[arg(long, value_name = "ID")]
    pub commit: Option<String>,
    #[command(flatten)]
    pub timed: TimedArgs,
}
