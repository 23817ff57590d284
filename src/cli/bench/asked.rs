//! What the flags of `bench` ask for: every combination of their lists.

use crate::backend::LaunchWay;
use crate::backend::cuda::listed::techniques::Technique;
use crate::bench::ranges::{Length, List};
use crate::bench::{Kind, Point};
#[cfg(feature = "cuda")]
use crate::cli::args::bench::HandoverArgs;
use crate::cli::args::bench::{BenchArgs, Way};
use crate::cli::args::{BucketArgs, EngineArgs, Positions, PrecisionArgs, RunArgs};
use crate::error::{Error, Result};

impl Way {
    /// As `--launch` and `--ahead` of other commands.
    fn flags(self) -> (LaunchWay, bool) {
        match self {
            // Its graphs are those that the host launches; those that `bench launch` has of its own have no engine.
            Self::Bare | Self::All | Self::Alone(_) => (LaunchWay::HostGraph, false),
            Self::Scheduled(LaunchWay::HostGraphAhead) => (LaunchWay::HostGraph, true),
            Self::Scheduled(way) => (way, false),
        }
    }
}

impl Way {
    /// What steps launched so failed by, with the way named.
    pub fn failed(self, error: Error) -> Error {
        match error {
            Error::Runtime(message) => {
                Error::Runtime(format!("--launch {}: {message}", self.name()))
            }
            other => other,
        }
    }
}

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
        only(self.kernels.0 != [4, 123], "--kernels", Kind::Launch)?;
        only(self.steps.is_some(), "--steps", Kind::Launch)?;
        only(self.renew.is_some(), "--renew", Kind::Launch)?;
        only(self.most_seconds.is_some(), "--most-seconds", Kind::Launch)?;
        if self.gpu_load.0 != [0] && !matches!(kind, Kind::Decode | Kind::Launch) {
            return usage(format!(
                "--gpu-load: an option of `bench decode` and `bench launch`, found `bench {name}`"
            ));
        }
        self.check_alone()?;
        let bare = self.launch.contains(&Way::Bare);
        if bare && !matches!(kind, Kind::Decode | Kind::Launch) {
            return usage(format!(
                "--launch bare: a way of `bench decode` and `bench launch`, found `bench {name}`, which needs a scheduler"
            ));
        }
        match kind {
            Kind::Serve if self.request_rate.is_empty() && self.arrivals.is_none() && !closed => {
                usage("bench serve: expected --request-rate, --max-concurrency or --arrivals")
            }
            Kind::Decode | Kind::Launch if self.is_ragged() => usage(format!(
                "--prompt-len: `bench {name}` measures steps of equal sequences, found a range of lengths (100-2000+100 is a list)"
            )),
            Kind::Serve if self.arrivals.is_some() && self.num_prompts.is_some() => {
                usage("--num-prompts: the file of --arrivals says how many there are")
            }
            Kind::Prefill | Kind::Score if self.gen_len.is_some() => usage(format!(
                "--gen-len: `bench {name}` generates nothing that is measured"
            )),
            Kind::Launch => self.check_launch(),
            _ if self.model.is_none() => usage(format!(
                "bench {name}: expected --model DIR or --model random:PRESET[@SEED]"
            )),
            _ => Ok(()),
        }
    }

    /// The ways that `bench launch` compares without a scheduler have steps of their own, and a table of their own.
    fn check_alone(&self) -> Result<()> {
        let alone = |way: &&Way| matches!(way, Way::All | Way::Alone(_));
        let Some(way) = self.launch.iter().find(alone) else {
            for (given, option) in [
                (self.steps.is_some(), "--steps"),
                (self.renew.is_some(), "--renew"),
                (self.most_seconds.is_some(), "--most-seconds"),
            ] {
                if given {
                    return usage(format!(
                        "{option}: expected `bench launch --launch all`, or a way of its list, whose steps need no scheduler"
                    ));
                }
            }
            return Ok(());
        };
        let (way, name) = (way.name(), self.kind.name());
        if self.kind != Kind::Launch {
            return usage(format!(
                "--launch {way}: a way of `bench launch`, found `bench {name}`"
            ));
        }
        if let Some(other) = self.launch.iter().find(|way| !alone(way)) {
            return usage(format!(
                "--launch {way},{}: found a way with a scheduler beside one without, expected one sort: they have a table each",
                other.name()
            ));
        }
        for (given, option) in [
            (self.batch.is_some(), "--batch"),
            (self.gen_len.is_some(), "--gen-len"),
        ] {
            if given {
                return usage(format!(
                    "{option}: `bench launch --launch {way}` has no sequences, expected --kernels and --steps"
                ));
            }
        }
        Ok(())
    }

    /// Every combination of busy threads and busy processes.
    pub fn loads(&self) -> Vec<(u32, u32)> {
        loads(&self.cpu_load, &self.gpu_load)
    }

    /// The ways without a scheduler that are asked for, each once; none where others are.
    pub fn alone(&self) -> Vec<Technique> {
        let asked = |technique: &Technique| {
            self.launch.contains(&Way::All) || self.launch.contains(&Way::Alone(*technique))
        };
        Technique::ALL.into_iter().filter(asked).collect()
    }

    /// Steps of kernels without a model have no model's sizes.
    fn check_launch(&self) -> Result<()> {
        let EngineArgs {
            max_seqs,
            max_context,
            page_tokens,
            step_tokens,
            chunk_tokens,
            chunk_align,
            memory_limit,
            stages,
        } = &self.engine;
        let sizes = [
            max_seqs,
            max_context,
            page_tokens,
            step_tokens,
            chunk_tokens,
            chunk_align,
            stages,
        ];
        for (given, option) in [
            (self.model.is_some(), "--model"),
            (!self.dtype.is_empty(), "--dtype"),
            (!self.bucket_file.is_empty(), "--bucket-file"),
            (!self.kernel_file.is_empty(), "--kernel-file"),
            (self.prompt_len.is_some(), "--prompt-len"),
            (self.context.is_some(), "--context"),
            (self.bandwidth.is_some(), "--bandwidth"),
            (self.tflops.is_some(), "--tflops"),
            (
                sizes.iter().any(|size| size.is_some()) || memory_limit.is_some(),
                "the sizes of an engine",
            ),
        ] {
            if given {
                return usage(format!("{option}: `bench launch` runs no model"));
            }
        }
        Ok(())
    }

    /// All combinations of launch, type, bucket file and kernel file, as the flags of other commands.
    pub fn settings(&self) -> Vec<(Option<Way>, RunArgs)> {
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
                    let flags = way.map(Way::flags);
                    let run = RunArgs {
                        device: self.device.clone(),
                        parallel: self.parallel,
                        handover: self.handover,
                        precision: PrecisionArgs { dtype, fp16: false },
                        launch: flags.map(|(launch, _)| launch),
                        ahead: flags.is_some_and(|(_, ahead)| ahead),
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
            Kind::Launch => (&[1, 32, 256], 4, 1000),
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
                            for (cpu_load, gpu_load) in self.loads() {
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
                                    gpu_load,
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

#[cfg(feature = "cuda")]
impl HandoverArgs {
    /// Every combination of busy threads and busy processes.
    pub fn loads(&self) -> Vec<(u32, u32)> {
        loads(&self.cpu_load, &self.gpu_load)
    }
}

fn loads(cpu_load: &List, gpu_load: &List) -> Vec<(u32, u32)> {
    let beside = gpu_load.0.iter();
    beside
        .flat_map(|&gpu| cpu_load.0.iter().map(move |&cpu| (cpu, gpu)))
        .collect()
}

/// Each of `values`, or nothing once where there are none.
fn options<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    match values {
        [] => vec![None],
        values => values.iter().cloned().map(Some).collect(),
    }
}
