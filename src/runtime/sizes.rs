//! From options to the two blocks' configurations, checked by the core's own rules.

use super::options::EngineShape;
use crate::backend::device::CoreBytes;
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions, RingCapacities};
use crate::sys::abi;

/// What the core takes on a device that schedules itself: a [`crate::backend::device::CoreSizes`].
///
/// # Errors
/// [`Error::Usage`] naming the options where they break a rule of the core.
pub fn core_bytes(
    bucket_sizes: &BucketSizes,
    options: &EngineOptions,
    stages: u32,
) -> Result<CoreBytes> {
    let rings = RingCapacities::new(options);
    let shape = EngineShape::on_device(bucket_sizes, options, rings, stages);
    let sizes = Sizes::of(&shape, options.record)?;
    Ok(CoreBytes {
        state: sizes.state_bytes,
        rings: sizes.ring_bytes,
        // SAFETY: it only reads the configuration, which the core has accepted.
        step: unsafe { abi::tg_step_place_words(&sizes.config, 0) } as usize * size_of::<u64>(),
    })
}

/// Tokens that a request without a limit takes pages for at a time: few enough that short answers leave the pool to others,
/// so many that most turns hand none out. Of a small context no more than a quarter.
fn grow_tokens(max_context: u32) -> u32 {
    (max_context / 4).clamp(1, 256)
}

/// What both blocks are laid out by, and how large they get.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub config: abi::tg_config,
    /// Only capacities and `record` are set.
    pub shape: abi::tg_rings,
    pub state_bytes: usize,
    pub ring_bytes: usize,
}

impl Sizes {
    /// The sizes of a core that does not run ahead.
    ///
    /// # Errors
    /// Fails as [`Sizes::of`] does.
    pub fn new(
        options: &EngineOptions,
        bucket_sizes: &BucketSizes,
        stages: u32,
        capacities: RingCapacities,
        record: bool,
    ) -> Result<Self> {
        let shape = EngineShape {
            options: *options,
            bucket_sizes: bucket_sizes.clone(),
            stages,
            rings: capacities,
            ahead: false,
        };
        Self::of(&shape, record)
    }

    /// # Errors
    /// [`Error::Usage`] naming the options where they break a rule of the core.
    pub fn of(shape: &EngineShape, record: bool) -> Result<Self> {
        let EngineShape {
            options,
            bucket_sizes,
            stages,
            rings: capacities,
            ahead,
        } = shape;
        let stages = *stages;
        let mut config = abi::tg_config {
            slots: options.max_seqs,
            pages: options.pages,
            page_tokens: options.page_tokens,
            max_context: options.max_context,
            step_tokens: options.step_tokens,
            chunk_tokens: options.chunk_tokens,
            chunk_share: options.chunk_share,
            chunk_align: options.chunk_align,
            stages,
            steps_in_flight: options.steps_in_flight,
            mailbox_depth: options.steps_in_flight,
            request_capacity: capacities.requests,
            token_capacity: capacities.tokens,
            event_capacity: capacities.events,
            sampled_capacity: capacities.sampled,
            grow_tokens: grow_tokens(options.max_context),
            ahead: u32::from(*ahead),
            bias_capacity: capacities.biases,
            prefixes: options.prefixes,
            ..Default::default()
        };
        for (kind, sizes) in [
            &bucket_sizes.decode,
            &bucket_sizes.mixed,
            &bucket_sizes.score,
        ]
        .into_iter()
        .enumerate()
        {
            if sizes.len() > config.bucket_rows[kind].len() {
                return Err(Error::Usage(format!(
                    "a kind of step has {} bucket sizes; at most {} are allowed",
                    sizes.len(),
                    config.bucket_rows[kind].len()
                )));
            }
            config.bucket_count[kind] = sizes.len() as u32;
            config.bucket_rows[kind][..sizes.len()].copy_from_slice(sizes);
        }
        let shape = abi::tg_rings {
            request_capacity: capacities.requests,
            token_capacity: capacities.tokens,
            control_capacity: capacities.controls,
            event_capacity: capacities.events,
            sampled_capacity: capacities.sampled,
            trace_capacity: capacities.trace,
            bias_capacity: capacities.biases,
            record: u32::from(record),
            ..Default::default()
        };
        // SAFETY: both functions only read what they are given.
        let (state_bytes, ring_bytes) =
            unsafe { (abi::tg_state_bytes(&config), abi::tg_rings_bytes(&shape)) };
        if state_bytes == 0 || ring_bytes == 0 {
            return Err(Error::Usage(format!(
                "the scheduler cannot run with these sizes: max-seqs {} (1 to {}), step-tokens {} (at least max-seqs + {} and at most \
                 the largest mixed and score buckets), chunk-tokens {} (at least {}), {stages} stages with {} steps in flight (at most {}), largest decode bucket {} \
                 (at least max-seqs), {} pages of {} tokens, context {}, {} prefixes (at most {}), rings of {capacities:?} (powers of two, but for at most {} biases; sampled at most events)",
                options.max_seqs,
                abi::TG_MAX_SLOTS,
                options.step_tokens,
                options.chunk_align,
                options.chunk_tokens,
                options.chunk_align,
                options.steps_in_flight,
                abi::TG_MAX_STEPS,
                bucket_sizes.decode.last().copied().unwrap_or(0),
                options.pages,
                options.page_tokens,
                options.max_context,
                options.prefixes,
                abi::TG_MAX_PREFIXES,
                abi::TG_MAX_BIASES,
            )));
        }
        Ok(Self {
            config,
            shape,
            state_bytes: state_bytes as usize,
            ring_bytes: ring_bytes as usize,
        })
    }
}
