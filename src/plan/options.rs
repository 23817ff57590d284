//! The sizes an engine is started with, and the limits they are derived from.

use super::{BucketSizes, MAX_SEQS, MAX_STEPS_IN_FLIGHT, Plan, StepKind, StepShape};
use crate::error::{Error, Result};
use crate::sys::abi::TG_MAX_BIASES;
use serde::{Deserialize, Serialize};

/// Everything an engine allocates follows from these; nothing is allocated after start-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineOptions {
    /// Sequences running at once (slots).
    pub max_seqs: u32,
    /// prompt + max_new_tokens of one request, at most.
    pub max_context: u32,
    /// Tokens of a key-value page, 16 to 256.
    pub page_tokens: u32,
    /// Pages in the pool.
    pub pages: u32,
    /// Rows of one step, at most; at least `max_seqs + chunk_align`.
    pub step_tokens: u32,
    /// The most prefill tokens in a mixed step; `chunk_align` to `step_tokens`.
    pub chunk_tokens: u32,
    /// The share of the prompt tokens yet to be read that a step may have instead, where that is more: one in so many; 0: never.
    #[serde(default)]
    pub chunk_share: u32,
    /// Prompt chunks end on multiples of this, or at the prompt's end.
    pub chunk_align: u32,
    /// Micro-batches in flight; at least the number of stages.
    pub steps_in_flight: u32,
    /// Prefixes that may be shared at once, each with a snapshot of the state of a sequence; 0: none are.
    #[serde(default)]
    pub prefixes: u32,
    /// Keep every trace record: a full trace ring blocks the scheduler instead of losing the oldest.
    pub record: bool,
}

impl EngineOptions {
    /// What the scheduler keeps of its sequences: one that names no limit may have to be recomputed from its tokens. 4
    /// bytes each: 16 MiB for 1,024 sequences of 4,096 tokens, 128 MiB for as many of 32,768.
    pub fn kept_token_bytes(&self) -> u64 {
        u64::from(self.max_seqs) * u64::from(self.max_context) * 4
    }

    /// Sizes that there is room for wherever there is room for either.
    #[must_use]
    pub fn least(self, other: &Self) -> Self {
        Self {
            max_seqs: self.max_seqs.min(other.max_seqs),
            max_context: self.max_context.min(other.max_context),
            pages: self.pages.min(other.pages),
            step_tokens: self.step_tokens.min(other.step_tokens),
            chunk_tokens: self.chunk_tokens.min(other.chunk_tokens),
            ..self
        }
    }

    /// Where all stages run one after the other, as on one device, whatever was asked for.
    pub fn one_step_in_flight(self) -> Self {
        Self {
            steps_in_flight: 1,
            ..self
        }
    }
}

/// What the user asked for; `None` is the default of [`EngineOptions`]' derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Default: 16 on a CPU; on a GPU as many as its memory holds and `requests` come to. Where there are `prompts`, as many as
    /// fill the largest step, up to 256 for each GPU that has stages. At most the largest decode bucket.
    pub max_seqs: Option<u32>,
    /// Sequences of the whole job, where that is known: more of them never run at once.
    pub requests: Option<u32>,
    /// Prompts that are all there from the start and generate nothing, where a run is of such alone.
    pub prompts: Option<Prompts>,
    /// Default: the smallest of max_position_embeddings, 4096 and what the pool holds.
    pub max_context: Option<u32>,
    /// 16 to 256; default 64.
    pub page_tokens: Option<u32>,
    /// Default: what the device's memory arithmetic proposes (512 on a CPU, `MemoryPlan::on_device`'s on a GPU), but at
    /// least `max_seqs + chunk_align` and at most what the bucket sizes hold.
    pub step_tokens: Option<u32>,
    /// Default: 512, but at least `chunk_align` and at most `step_tokens`.
    pub chunk_tokens: Option<u32>,
    /// One part in so many of the prompt tokens that are yet to be read may be in a step beside decode rows, where that is more than
    /// `chunk_tokens`. Default: 8, or 0 (never) where `chunk_tokens` is given.
    pub chunk_share: Option<u32>,
    /// Default: 64.
    pub chunk_align: Option<u32>,
    /// Read by [`super::GraphFile::plan`]. Default: 1.
    pub stages: Option<usize>,
    /// Default: the number of stages.
    pub steps_in_flight: Option<u32>,
    /// Default: as many as sequences, from 8 to 256.
    pub prefixes: Option<u32>,
}

/// Prompts as far as sizes and stages depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompts {
    /// At least 1.
    pub count: u32,
    /// Tokens of all of them together; at least `count`.
    pub tokens: u64,
    /// The kind of the steps that read them: mixed where only a prompt's last position has logits.
    pub kind: StepKind,
}

impl Prompts {
    /// `None`: there are none.
    pub fn of(lengths: impl Iterator<Item = u32>, kind: StepKind) -> Option<Self> {
        let (count, tokens) = lengths.fold((0, 0), |(count, tokens), length| {
            (count + 1, tokens + u64::from(length))
        });
        (tokens > 0).then_some(Self {
            count,
            tokens,
            kind,
        })
    }

    /// The steps that they fill, `rows` at most in each; all as long as they are on average.
    pub(super) fn steps(self, rows: u32) -> StepShape {
        let mean = self.tokens.div_ceil(u64::from(self.count.max(1)));
        StepShape {
            kind: self.kind,
            rows: u32::try_from(self.tokens).map_or(rows, |tokens| tokens.min(rows)),
            context: u32::try_from(mean).unwrap_or(u32::MAX),
        }
    }

    /// How many of the mean length have so many rows together; no more than there are.
    fn filling(self, rows: u32) -> u32 {
        let filling = (u64::from(rows) * u64::from(self.count)).div_ceil(self.tokens);
        u32::try_from(filling).map_or(self.count, |n| n.min(self.count))
    }
}

/// What is taken for a size that nobody named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usual {
    /// [`Limits::step_tokens`].
    pub rows: u32,
    /// [`Limits::max_seqs`]; fewer where the rows of a step are too few for them.
    pub seqs: u32,
    /// How many steps of prompts run beside each other, for each of which there are to be sequences enough to fill it.
    pub steps: u32,
}

pub(crate) const DEFAULT_MAX_SEQS: u32 = 16;
/// [`Prompts::count`] where nobody says how many, at most: so many of 32 tokens fill the largest step, and each has a row of
/// logits in the device's memory.
const DEFAULT_MOST_PROMPTS: u32 = 256;
const DEFAULT_MAX_CONTEXT: u32 = 4096;
const DEFAULT_PAGE_TOKENS: u32 = 64;
const DEFAULT_CHUNK_TOKENS: u32 = 512;
/// An H100 takes 8 ms for a step of 512 rows of a prompt and 14 for one of 2,048 (profiles/README.md). So prompts that come in
/// one by one wait in chunks of 512, and many that wait together do not. Beside 64 running sequences, where 20 prompts of 2,048
/// come a second, an eighth keeps p99 between tokens at 1.7 quiet steps; a quarter had 2.03, and no more tokens a second.
const DEFAULT_CHUNK_SHARE: u32 = 8;
const DEFAULT_CHUNK_ALIGN: u32 = 64;
const PAGE_TOKENS: std::ops::RangeInclusive<u32> = 16..=256;

fn largest(sizes: &[u32]) -> u32 {
    sizes.last().copied().unwrap_or(0)
}

pub(crate) fn most_seqs(plan: &Plan) -> u32 {
    largest(&plan.bucket_sizes.decode).min(MAX_SEQS)
}

fn positions(plan: &Plan) -> u32 {
    u32::try_from(plan.config.max_position_embeddings).unwrap_or(u32::MAX)
}

/// Whether an engine can hold as many sequences. `named`: what asks for them, as the user wrote it.
///
/// # Errors
/// [`Error::Usage`]: it cannot.
pub fn check_seqs(plan: &Plan, seqs: u32, named: &str) -> Result<()> {
    let most = most_seqs(plan);
    if (1..=most).contains(&seqs) {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "{named}: expected 1 to {most} (the largest decode bucket has {} tokens, the scheduler at most {MAX_SEQS} slots)",
            largest(&plan.bucket_sizes.decode)
        )))
    }
}

/// Whether the model takes sequences of as many tokens. `named`: as in [`check_seqs`].
///
/// # Errors
/// [`Error::Usage`]: it does not.
pub fn check_context(plan: &Plan, tokens: u32, named: &str) -> Result<()> {
    let most = positions(plan);
    if (1..=most).contains(&tokens) {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "{named}: expected 1 to {most} (the model's max_position_embeddings)"
        )))
    }
}

impl Limits {
    /// Sequences where nobody asks for another number, of steps of `rows` rows, which hold a chunk beside them; `usual` of
    /// them where they generate.
    fn default_seqs(&self, rows: u32, chunk_align: u32, usual: Usual) -> u32 {
        let beside_a_chunk = rows.saturating_sub(chunk_align);
        let Some(prompts) = self.prompts else {
            return usual.seqs.min(beside_a_chunk.max(DEFAULT_MAX_SEQS));
        };
        let most = beside_a_chunk.min(DEFAULT_MOST_PROMPTS);
        let filling = prompts.filling(rows).min(most);
        let filling = filling.saturating_mul(usual.steps).min(beside_a_chunk);
        filling.max(DEFAULT_MAX_SEQS).min(prompts.count)
    }

    /// Checks the limits against `plan` and fills in defaults. The pool is left empty (`pages` 0) and the context
    /// is what was asked for or the default: both depend on memory.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the option, what was given and what is possible.
    pub(crate) fn resolve(&self, plan: &Plan, usual: Usual) -> Result<EngineOptions> {
        let BucketSizes { mixed, score, .. } = &plan.bucket_sizes;
        let most_rows = largest(mixed).min(largest(score));
        let chunk_align = self.chunk_align.unwrap_or(DEFAULT_CHUNK_ALIGN);
        if chunk_align == 0 {
            return Err(Error::Usage(
                "`chunk_align` 0: expected at least 1 token".into(),
            ));
        }
        let max_seqs = self.max_seqs.unwrap_or_else(|| {
            let rows = self.step_tokens.unwrap_or(usual.rows).min(most_rows);
            self.default_seqs(rows, chunk_align, usual)
                .min(most_seqs(plan))
        });
        check_seqs(plan, max_seqs, &format!("`max_seqs` {max_seqs}"))?;
        let least_rows = max_seqs.saturating_add(chunk_align);
        if least_rows > most_rows {
            return Err(Error::Usage(format!(
                "{max_seqs} sequences and a chunk of {chunk_align} tokens: {least_rows} tokens, more than the largest bucket that both mixed and score steps have ({most_rows} tokens): lower `max_seqs` or name larger buckets"
            )));
        }
        let step_tokens = self
            .step_tokens
            .unwrap_or(usual.rows.clamp(least_rows, most_rows));
        if step_tokens < least_rows {
            return Err(Error::Usage(format!(
                "`step_tokens` {step_tokens}: expected at least {least_rows} ({max_seqs} sequences + chunks of {chunk_align} tokens)"
            )));
        }
        if step_tokens > most_rows {
            return Err(Error::Usage(format!(
                "`step_tokens` {step_tokens}: expected at most {most_rows}, the largest mixed and score bucket (largest mixed {}, largest score {})",
                largest(mixed),
                largest(score)
            )));
        }

        let chunk_tokens = self
            .chunk_tokens
            .unwrap_or(DEFAULT_CHUNK_TOKENS.clamp(chunk_align, step_tokens));
        if !(chunk_align..=step_tokens).contains(&chunk_tokens) {
            return Err(Error::Usage(format!(
                "`chunk_tokens` {chunk_tokens}: expected {chunk_align} (chunks end on multiples of it: `chunk_align`) to {step_tokens} (`step_tokens`)"
            )));
        }

        let chunk_share = self.chunk_share.unwrap_or(match self.chunk_tokens {
            Some(_) => 0,
            None => DEFAULT_CHUNK_SHARE,
        });

        let page_tokens = self.page_tokens.unwrap_or(DEFAULT_PAGE_TOKENS);
        if !PAGE_TOKENS.contains(&page_tokens) {
            return Err(Error::Usage(format!(
                "`page_tokens` {page_tokens}: expected {} to {}",
                PAGE_TOKENS.start(),
                PAGE_TOKENS.end()
            )));
        }

        let max_context = self
            .max_context
            .unwrap_or(DEFAULT_MAX_CONTEXT.min(positions(plan)));
        check_context(plan, max_context, &format!("`max_context` {max_context}"))?;

        let stages = plan.stages.len() as u32;
        let steps_in_flight = self.steps_in_flight.unwrap_or(stages);
        if !(stages..=MAX_STEPS_IN_FLIGHT).contains(&steps_in_flight) {
            return Err(Error::Usage(format!(
                "{steps_in_flight} steps in flight: expected {stages} (one a stage) to {MAX_STEPS_IN_FLIGHT}"
            )));
        }

        Ok(EngineOptions {
            max_seqs,
            max_context,
            page_tokens,
            pages: 0,
            step_tokens,
            chunk_tokens,
            chunk_share,
            chunk_align,
            steps_in_flight,
            prefixes: self.prefixes.unwrap_or(max_seqs.clamp(8, 256)),
            record: false,
        })
    }
}

/// Entries of the rings between host and scheduler; powers of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingCapacities {
    pub requests: u32,
    /// Prompt tokens waiting to be composed into steps.
    pub tokens: u32,
    pub controls: u32,
    pub events: u32,
    /// Events whose log-probabilities there is room for: once a request has asked for some, no more events than these are
    /// ahead of the host.
    pub sampled: u32,
    pub trace: u32,
    /// Biased tokens of one request.
    pub biases: u32,
}

/// For how long a host may stand still (stopped, or its container paused) before a GPU that schedules itself finds its events'
/// ring full and waits.
const HOST_SECONDS: u64 = 6;
/// Steps a second of LFM2-8B-A1B on the fastest GPU measured, an H200, at most: one sequence, 0.83 ms a step.
const MOST_STEPS_A_SECOND: u64 = 1_200;
/// Tokens a second of the same, at most: 1,024 sequences.
const MOST_TOKENS_A_SECOND: u64 = 120_000;
/// Steps whose log-probabilities there is room for: each takes 168 bytes, an event 64.
const SAMPLED_STEPS: u32 = 64;
/// Trace records, each of 272 bytes: 16 s at half a millisecond a step.
const TURNS: u32 = 1 << 15;
/// Events, and log-probabilities, that there is room for however few sequences there are.
const LEAST_EVENTS: u32 = 1024;

impl RingCapacities {
    /// Prompts for four times the running sequences, events of 6 s, log-probabilities of 64 steps, and trace records of 16 s at
    /// half a millisecond a step. Where a ring is full (of trace records only while a run is recorded) the scheduler waits for
    /// the host, and nothing is lost.
    ///
    /// Events of 6 s are those of the fastest model and GPU measured: 8,192 of one sequence (512 KiB), 131,072 of 16 (8 MiB),
    /// and 1,048,576 of 73 to 1,024 (64 MiB, 8.7 s or more), which is the most. Log-probabilities take 168 KiB up to 16 sequences
    /// and 10.5 MiB for 1,024. A smaller model's steps are shorter, and so is the time that its events stand for.
    pub fn new(options: &EngineOptions) -> Self {
        let power = |n: u32| n.clamp(1, 1 << 30).next_power_of_two();
        let requests = power(options.max_seqs.saturating_mul(4).max(64));
        let tokens_a_second = u64::from(options.max_seqs)
            .saturating_mul(MOST_STEPS_A_SECOND)
            .min(MOST_TOKENS_A_SECOND);
        let events = power(((HOST_SECONDS * tokens_a_second) as u32).max(LEAST_EVENTS));
        let sampled = options.max_seqs.saturating_mul(SAMPLED_STEPS);
        let sampled = power(sampled.max(LEAST_EVENTS));
        Self {
            requests,
            // A prompt must fit whole, and the next one beside it. With some for each sequence the scheduler sees how much is to be read.
            tokens: power(
                options
                    .max_context
                    .saturating_mul(2)
                    .max(options.max_seqs.saturating_mul(1024))
                    .max(1 << 16),
            ),
            controls: requests,
            events,
            sampled: sampled.min(events),
            trace: TURNS,
            biases: TG_MAX_BIASES,
        }
    }

    /// What they hold, in the words of `doctor` and `inspect`.
    pub(crate) fn arithmetic(&self) -> String {
        format!(
            "{} requests of up to {} biases, {} tokens, {} events, log-probabilities of {}, {} trace records",
            self.requests, self.biases, self.tokens, self.events, self.sampled, self.trace
        )
    }
}
