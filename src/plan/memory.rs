//! Memory arithmetic for a run: everything that is allocated at start-up, itemised, and the context and page pool
//! that fit a budget. Known before any weight is read. What runs on a device of its own has its own arithmetic, in the same lines.

use super::core_bytes::{self, ring_bytes, scheduler_bytes};
use super::options::DEFAULT_MAX_SEQS;
use super::{
    Budget, EngineOptions, Limits, Plan, Precision, RingCapacities, SCORE_TILE_ROWS, StepKind,
    Usual,
};
use crate::bytes::{Bytes, whole_bytes};
use crate::error::{Error, Result};
use crate::model::tensors::model_bytes;

/// Rows of a step and sequences where nobody asks for another number; a CPU is no faster with more.
const USUAL: Usual = Usual {
    rows: 512,
    seqs: DEFAULT_MAX_SEQS,
    steps: 1,
};

/// Where the weights are while an engine runs on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightPlacement {
    /// Mapped from a checkpoint: the system may drop pages and read them again, so they are no part of the budget.
    Mapped,
    /// Generated or converted into memory: part of the budget.
    Resident,
}

/// What memory something is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// That which the budget is about: the device's own, or the host's where it has none.
    Budget,
    /// Files, mapped.
    Mapped,
    /// The host's, pinned for the device.
    Pinned,
    /// The host's, until it has been copied to the device.
    Loading,
}

impl Place {
    /// The name in `doctor`'s JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Mapped => "mapped",
            Self::Pinned => "pinned",
            Self::Loading => "loading",
        }
    }
}

/// One line of the arithmetic.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MemoryItem {
    pub name: &'static str,
    pub bytes: u64,
    /// What the bytes are made of.
    #[serde(skip)]
    pub arithmetic: String,
    pub place: Place,
}

/// Sizes that fit, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    pub options: EngineOptions,
    pub rings: RingCapacities,
    pub items: Vec<MemoryItem>,
    pub budget: Budget,
}

impl MemoryPlan {
    /// The engine's sizes for `plan` within `limits` and `budget`. The pool holds `max_seqs` sequences of
    /// `max_context` tokens where that fits, else as many pages as do; a context that nobody asked for shrinks to
    /// what the pool holds.
    ///
    /// # Errors
    /// [`Error::Usage`] for limits that cannot be, [`Error::Memory`] with the arithmetic where the pool would not hold
    /// one sequence of the context that was asked for (or one page).
    pub fn new(
        plan: &Plan,
        precision: Precision,
        placement: WeightPlacement,
        limits: &Limits,
        budget: Budget,
    ) -> Result<Self> {
        let mut options = limits.resolve(plan, USUAL)?;
        let page_bytes =
            page_bytes(plan, precision, &options).saturating_add(core_bytes::WORD_BYTES);
        let rings = RingCapacities::new(&options);
        let fixed = fixed_items(plan, precision, placement, &options, &rings);
        let fixed_bytes = budgeted(&fixed);
        let room_pages = budget.bytes.saturating_sub(fixed_bytes) / page_bytes;
        let context_pages = u64::from(options.max_context.div_ceil(options.page_tokens));
        let wanted_pages = context_pages * u64::from(options.max_seqs);
        let pages = wanted_pages.min(room_pages).min(u64::from(u32::MAX));

        let needed_pages = limits.max_context.map_or(1, |_| context_pages);
        if pages < needed_pages {
            let context = if limits.max_context.is_some() {
                options.max_context
            } else {
                options.page_tokens.min(options.max_context)
            };
            return Err(too_little(
                &fixed,
                context,
                needed_pages.saturating_mul(page_bytes),
                &budget,
            ));
        }
        // Both fit u32: pages was capped, and the product is only taken where it is below max_context.
        options.pages = pages as u32;
        if pages < context_pages {
            options.max_context = options.pages * options.page_tokens;
        }

        let rings = RingCapacities::new(&options);
        let mut items = fixed_items(plan, precision, placement, &options, &rings);
        let token_bytes = plan.kv_bytes_per_token(precision.compute);
        items.push(MemoryItem {
            name: "keys and values",
            bytes: pages.saturating_mul(page_bytes),
            arithmetic: format!(
                "{pages} pages of {} tokens, {} a token",
                options.page_tokens,
                Bytes(whole_bytes(token_bytes))
            ),
            place: Place::Budget,
        });
        Ok(Self {
            options,
            rings,
            items,
            budget,
        })
    }

    /// Bytes that count against the budget.
    pub fn total_bytes(&self) -> u64 {
        budgeted(&self.items)
    }

    /// Bytes of mapped weights; 0 where the weights are in the budget.
    pub fn mapped_bytes(&self) -> u64 {
        bytes_in(&self.items, Place::Mapped)
    }

    /// Bytes of the host's memory that are pinned for the device.
    pub fn pinned_bytes(&self) -> u64 {
        bytes_in(&self.items, Place::Pinned)
    }

    /// Bytes of the host's memory that are taken until they have been copied to the device.
    pub fn loading_bytes(&self) -> u64 {
        bytes_in(&self.items, Place::Loading)
    }

    /// Sequences of `max_context` tokens that the pool holds at once.
    pub fn full_sequences(&self) -> u32 {
        let pages = self.options.max_context.div_ceil(self.options.page_tokens);
        self.options.pages / pages.max(1)
    }
}

fn bytes_in(items: &[MemoryItem], place: Place) -> u64 {
    items
        .iter()
        .filter(|item| item.place == place)
        .fold(0, |sum, item| sum.saturating_add(item.bytes))
}

fn budgeted(items: &[MemoryItem]) -> u64 {
    bytes_in(items, Place::Budget)
}

/// Keys and values of one page in all attention layers.
fn page_bytes(plan: &Plan, precision: Precision, options: &EngineOptions) -> u64 {
    whole_bytes(plan.kv_bytes_per_token(precision.compute) * f64::from(options.page_tokens))
}

/// The name of the weights' item, by which advice knows it.
pub(crate) const WEIGHTS: &str = "weights";

/// One line: what is needed, what there is, and what to change.
pub(crate) fn too_little(
    fixed: &[MemoryItem],
    context: u32,
    pool_bytes: u64,
    budget: &Budget,
) -> Error {
    let mut parts: Vec<String> = fixed
        .iter()
        .filter(|item| item.place == Place::Budget)
        .map(|item| format!("{} {}", item.name, Bytes(item.bytes)))
        .collect();
    parts.push(format!(
        "keys and values of one context of {context} tokens {}",
        Bytes(pool_bytes)
    ));
    let weights = fixed
        .iter()
        .filter(|item| item.name == WEIGHTS && item.place == Place::Budget);
    let advice = if weights.map(|item| item.bytes).sum::<u64>() > budget.bytes {
        "the weights alone do not fit: free memory, raise `memory_limit` or take a larger device"
    } else {
        "lower `max_context`, `max_seqs` or `step_tokens`, or raise `memory_limit`"
    };
    Error::Memory(format!(
        "not enough memory: {} needed, {} allowed ({}): {}; {advice}",
        Bytes(budgeted(fixed).saturating_add(pool_bytes)),
        Bytes(budget.bytes),
        budget.source,
        parts.join(" + ")
    ))
}

/// All that does not grow with the page pool.
fn fixed_items(
    plan: &Plan,
    precision: Precision,
    placement: WeightPlacement,
    options: &EngineOptions,
    rings: &RingCapacities,
) -> Vec<MemoryItem> {
    let item = |name, bytes, arithmetic| MemoryItem {
        name,
        bytes,
        arithmetic,
        place: Place::Budget,
    };
    let config = &plan.config;
    let slots = u64::from(options.max_seqs);
    let state_bytes = plan.conv_state_bytes_per_sequence(precision.compute);
    let stages = plan.stages.len();
    let rows = largest_bucket(plan, options);
    let stage_arena = arena_bytes(plan, precision, rows);
    let mut items = vec![
        MemoryItem {
            name: WEIGHTS,
            bytes: whole_bytes(model_bytes(config, precision.weights)),
            arithmetic: match placement {
                WeightPlacement::Mapped => {
                    "mapped from the checkpoint: the system may drop and reread them".into()
                }
                WeightPlacement::Resident => "generated or converted into memory".into(),
            },
            place: match placement {
                WeightPlacement::Mapped => Place::Mapped,
                WeightPlacement::Resident => Place::Budget,
            },
        },
        item(
            "conv state",
            whole_bytes(state_bytes * slots as f64),
            format!("{slots} sequences of {}", Bytes(whole_bytes(state_bytes))),
        ),
        item(
            "activations",
            stage_arena.saturating_mul(stages as u64),
            format!(
                "{stages} {} of {} for {rows} tokens",
                plural(stages, "stage"),
                Bytes(stage_arena)
            ),
        ),
    ];
    if stages > 1 {
        let links = core_bytes::links(options, rings, stages, config.hidden_size);
        items.push(item(
            "links between stages",
            links.bytes(),
            format!(
                "{} {} for a step of {} tokens, {} each, {} for what is sampled, {} each",
                links.steps.count,
                plural(links.steps.count as usize, "place"),
                options.step_tokens,
                Bytes(links.steps.each),
                links.results.count,
                Bytes(links.results.each)
            ),
        ));
    }
    let tile_rows = (SCORE_TILE_ROWS as u64).max(slots);
    let vocabulary = config.vocab_size as u64;
    let logits = format!("a tile of {tile_rows} tokens' logits, {vocabulary} each, in f32");
    items.push(item(
        "logits",
        tile_rows.saturating_mul(vocabulary.saturating_mul(4)),
        logits,
    ));
    for (name, bytes, what) in [
        ("seen tokens", vocabulary.div_ceil(8), "a bit"),
        (
            "answer counts",
            vocabulary.saturating_mul(size_of::<u16>() as u64),
            "16 bits",
        ),
    ] {
        let arithmetic = format!("{what} for each of {vocabulary} tokens, {slots} sequences");
        items.push(item(name, slots.saturating_mul(bytes), arithmetic));
    }
    if options.prefixes > 0 {
        let seen_bytes = vocabulary.div_ceil(8);
        let snapshot_bytes = whole_bytes(state_bytes).saturating_add(seen_bytes);
        items.push(item(
            "shared prefixes",
            u64::from(options.prefixes).saturating_mul(snapshot_bytes),
            format!(
                "{} snapshots of {}: a sequence's conv state, {} of seen tokens",
                options.prefixes,
                Bytes(snapshot_bytes),
                Bytes(seen_bytes)
            ),
        ));
    }
    let scheduler = scheduler_bytes(options, rings);
    items.push(item(
        "scheduler",
        // Each later stage has tables of its own, which steps are taken into.
        scheduler.saturating_mul(stages as u64),
        format!(
            "{slots} slots, {} of tokens so far, {} {} in flight of {} tokens{}",
            Bytes(options.kept_token_bytes()),
            options.steps_in_flight,
            plural(options.steps_in_flight as usize, "step"),
            options.step_tokens,
            match stages {
                1 => String::new(),
                stages => format!(", for each of {stages} stages"),
            }
        ),
    ));
    items.push(item("rings", ring_bytes(rings), rings.arithmetic()));
    items
}

pub(crate) fn plural(count: usize, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// Rows of the largest bucket that a step of these options can choose.
fn largest_bucket(plan: &Plan, options: &EngineOptions) -> u32 {
    let bucket = |kind, rows| plan.bucket_sizes.bucket(kind, rows).unwrap_or(rows);
    bucket(StepKind::Decode, options.max_seqs)
        .max(bucket(StepKind::Mixed, options.step_tokens))
        .max(bucket(StepKind::Score, options.step_tokens))
}

/// One stage's activations for `rows` rows: the residual stream `[R, H]` in f32, a matrix input `[R, max(H, heads D)]`,
/// the widest result between two operations, and the router's choices `[R, K]` (index and weight).
fn arena_bytes(plan: &Plan, precision: Precision, rows: u32) -> u64 {
    let config = &plan.config;
    let compute = precision.compute.bytes() as f64;
    let hidden = config.hidden_size as f64;
    let head_dim = config.head_dim as f64;
    let q = config.num_attention_heads as f64 * head_dim;
    let kv = config.num_key_value_heads as f64 * head_dim;
    let per_token = config.num_experts_per_tok as f64;
    let mut widest = (3.0 * hidden).max(q + 2.0 * kv);
    if config.num_dense_layers > 0 {
        widest = widest.max(config.intermediate_size as f64);
    }
    widest = widest.max(per_token * config.moe_intermediate_size as f64);
    let row = hidden * 4.0 + hidden.max(q) * compute + widest * compute + per_token * 8.0;
    whole_bytes(f64::from(rows) * row)
}
