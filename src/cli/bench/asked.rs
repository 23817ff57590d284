//! What the flags of `bench` ask for: every combination of their lists.

use crate::backend::LaunchWay;
use crate::bench::ranges::{Length, List};
use crate::bench::{Kind, Point};
use crate::cli::args::bench::BenchArgs;
use crate::cli::args::{BucketArgs, PrecisionArgs, RunArgs};
use crate::command::values::Positions;
use crate::error::{Error, Result};

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

impl BenchArgs {
    /// Refuses options that the kind has no use for.
    pub fn check(&self) -> Result<()> {
        let (kind, name) = (self.kind, self.kind.name());
        let only = |given: bool, option: &str, of: Kind| match given && kind != of {
            true => usage(format!(
                "{option}: an option of `bench {}`, found `bench {name}`",
                of.name()
            )),
            false => Ok(()),
        };
        only(!self.request_rate.is_empty(), "--request-rate", Kind::Serve)?;
        let closed = self.max_concurrency.is_some();
        only(closed, "--max-concurrency", Kind::Serve)?;
        only(self.arrivals.is_some(), "--arrivals", Kind::Serve)?;
        only(self.num_prompts.is_some(), "--num-prompts", Kind::Serve)?;
        only(self.trace.is_some(), "--trace", Kind::Decode)?;
        only(self.penalties, "--penalties", Kind::Decode)?;
        only(self.input.is_some(), "--input", Kind::Score)?;
        only(self.logits_on_device, "--logits-on-device", Kind::Score)?;
        only(self.logits != Positions::All, "--logits", Kind::Score)?;
        let bare = self.launch.contains(&LaunchWay::Bare);
        if bare && kind != Kind::Decode {
            return usage(format!(
                "--launch bare: a way of `bench decode`, found `bench {name}`, which needs a scheduler"
            ));
        }
        match kind {
            Kind::Serve if self.request_rate.is_empty() && self.arrivals.is_none() && !closed => {
                usage("bench serve: expected --request-rate, --max-concurrency or --arrivals")
            }
            Kind::Decode if self.is_ragged() => usage(format!(
                "--prompt-len: `bench {name}` measures steps of equal sequences, found a range of lengths (100-2000+100 is a list)"
            )),
            Kind::Serve if self.arrivals.is_some() && self.num_prompts.is_some() => {
                usage("--num-prompts: the file of --arrivals says how many there are")
            }
            Kind::Prefill | Kind::Score if self.gen_len.is_some() => usage(format!(
                "--gen-len: `bench {name}` generates nothing that is measured"
            )),
            _ if self.model.is_none() => usage(format!(
                "bench {name}: expected --model DIR or --model random:PRESET[@SEED]"
            )),
            _ => Ok(()),
        }
    }

    /// All combinations of launch, type, bucket file and kernel file, as the flags of other commands.
    pub fn settings(&self) -> Vec<(Option<LaunchWay>, RunArgs)> {
        let launches = options(&self.launch);
        let dtypes = options(&self.dtype);
        let files: Vec<BucketArgs> = options(&self.bucket_file)
            .into_iter()
            .flat_map(|bucket_file| {
                let kernel_files = options(&self.kernel_file).into_iter();
                kernel_files.map(move |kernel_file| BucketArgs {
                    bucket_file: bucket_file.clone(),
                    kernel_file,
                })
            })
            .collect();
        let mut settings = Vec::new();
        for &way in &launches {
            for &dtype in &dtypes {
                for buckets in &files {
                    let run = RunArgs {
                        device: self.device.clone(),
                        parallel: self.parallel,
                        handover: self.handover,
                        precision: PrecisionArgs { dtype, fp16: false },
                        launch: way,
                        step_timeout_ms: None,
                        buckets: buckets.clone(),
                    };
                    settings.push((way, run));
                }
            }
        }
        settings
    }

    /// All combinations of batch, lengths, rate and load.
    pub fn points(&self) -> Result<Vec<Point>> {
        let kind = self.kind;
        let (batches, prompts, news): (&[u32], u32, u32) = match kind {
            Kind::Decode => (&[1, 8, 32], 32, 128),
            Kind::Prefill => (&[1], 512, 1),
            Kind::Score => (&[1024], 32, 0),
            Kind::Serve => (&[32], 128, 64),
        };
        let list = |given: &Option<List>, default: &[u32]| {
            given
                .as_ref()
                .map_or_else(|| default.to_vec(), |l| l.0.clone())
        };
        let mut rates = options(&self.request_rate);
        let in_flight = options(
            self.max_concurrency
                .as_ref()
                .map_or(&[], |list| &list.0[..]),
        );
        if self.max_concurrency.is_some() && self.arrivals.is_none() && rates == [None] {
            rates = vec![Some(f64::INFINITY)];
        }
        let mut points = Vec::new();
        for batch in list(&self.batch, batches) {
            for new_tokens in list(&self.gen_len, &[news]) {
                for length in self.prompts(prompts, new_tokens)? {
                    let Length { shortest, longest } = length;
                    for &rate in &rates {
                        for &most_in_flight in &in_flight {
                            for &cpu_load in &self.cpu_load.0 {
                                let batch = match (&self.batch, most_in_flight) {
                                    (None, Some(all)) => all,
                                    _ => batch,
                                };
                                points.push(Point {
                                    kind,
                                    batch,
                                    prompt_tokens: longest,
                                    ragged_from: (shortest < longest).then_some(shortest),
                                    new_tokens,
                                    rate,
                                    most_in_flight,
                                    cpu_load,
                                    penalties: self.penalties,
                                });
                            }
                        }
                    }
                }
            }
        }
        Ok(points)
    }

    fn is_ragged(&self) -> bool {
        let mut lengths = self.prompt_len.iter().flat_map(|lengths| &lengths.0);
        lengths.any(|length| length.shortest < length.longest)
    }

    fn prompts(&self, default: u32, new_tokens: u32) -> Result<Vec<Length>> {
        let of_one = |tokens| Length {
            shortest: tokens,
            longest: tokens,
        };
        let Some(context) = &self.context else {
            let lengths = self.prompt_len.as_ref();
            return Ok(lengths.map_or_else(|| vec![of_one(default)], |list| list.0.clone()));
        };
        let prompt = |&context: &u32| match context.checked_sub(new_tokens) {
            None | Some(0) => usage(format!(
                "--context {context}: expected more than the {new_tokens} tokens that are generated"
            )),
            Some(prompt) => Ok(of_one(prompt)),
        };
        context.0.iter().map(prompt).collect()
    }
}

/// Each of `values`, or nothing once where there are none.
fn options<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    match values {
        [] => vec![None],
        values => values.iter().cloned().map(Some).collect(),
    }
}
