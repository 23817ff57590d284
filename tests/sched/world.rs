//! Random worlds: a configuration of the core, and the requests that will come.

use crate::common::random::Random;
use tailgraph::io::hash::mix64;
use tailgraph::sys::abi;

pub struct World {
    pub config: abi::tg_config,
    pub shape: abi::tg_rings,
    pub requests: Vec<Planned>,
    /// Chances in percent, per tick.
    pub push: u32,
    pub cancel: u32,
    pub stage: u32,
    pub stall: u32,
    pub tick_ns: u32,
    /// The tick of the stop flag, if it comes.
    pub stop_at: Option<u32>,
}

pub struct Planned {
    pub request: abi::tg_request,
    pub prompt: Vec<i32>,
    /// The host cancels it, some time after pushing it.
    pub cancel: bool,
}

/// Prompt token `position` of request `number`: no two prompts look alike.
pub fn prompt_token(number: u64, position: u32) -> i32 {
    (mix64(number << 32 | u64::from(position)) & 0x7fff_ffff) as i32
}

/// Biases of request `number`, which has `count`: no two requests have the same.
pub fn biases(number: u64, count: u32) -> impl Iterator<Item = abi::tg_bias> {
    (0..count).map(move |i| {
        let word = mix64(number << 32 | 1 << 31 | u64::from(i));
        abi::tg_bias {
            id: word as u32,
            bias: (word >> 32) as u32,
        }
    })
}

/// Sampled tokens come from a small vocabulary, so that stop ids are met.
pub const VOCABULARY: u32 = 8;

fn bucket_sizes(rng: &mut Random, least: u32) -> ([u32; 16], u32) {
    let mut rows = [0; 16];
    let mut count = 0;
    let mut bucket = rng.range(1, 3);
    while bucket < least && count < 14 {
        rows[count] = bucket;
        count += 1;
        bucket += rng.range(1, least / 3 + 1);
    }
    rows[count] = bucket.max(least) + if rng.percent(30) { rng.below(5) } else { 0 };
    (rows, count as u32 + 1)
}

/// `crowded`: many sequences without a limit, which soon want more than the pool has, and are read slowly.
fn config(rng: &mut Random, crowded: bool) -> abi::tg_config {
    let slots = if crowded {
        rng.range(3, 8)
    } else if rng.percent(3) {
        rng.range(9, 40)
    } else {
        rng.range(1, 8)
    };
    let chunk_align = rng.pick(if crowded { &[1, 2] } else { &[1, 2, 4, 8, 16] });
    let page_tokens = rng.range(1, if crowded { 3 } else { 8 });
    let max_context = rng.range(if crowded { 30 } else { 8 }, 56);
    let most_pages = max_context.div_ceil(page_tokens);
    let pages = if crowded {
        rng.range(most_pages, most_pages + most_pages / 2)
    } else if rng.percent(50) {
        rng.range(1 + most_pages / 3, most_pages * 2)
    } else {
        slots * most_pages
    };
    let wide = !crowded && rng.percent(50);
    let step_tokens = slots + chunk_align + if wide { rng.below(24) } else { 0 };
    let chunk_tokens = chunk_align + rng.below(step_tokens);
    let ahead = rng.percent(20);
    let stages = if ahead { 1 } else { rng.range(1, 4) };
    let steps_in_flight = if ahead {
        2
    } else {
        stages + if rng.percent(60) { 0 } else { rng.below(3) }
    };
    let event_capacity = if rng.percent(40) {
        2
    } else {
        1 << rng.range(0, 6)
    };
    let sampled_capacity = if rng.percent(75) {
        event_capacity
    } else {
        (event_capacity >> rng.range(1, 3)).max(1)
    };
    let mut config = abi::tg_config {
        slots,
        pages,
        page_tokens,
        max_context,
        step_tokens,
        chunk_tokens,
        chunk_share: if rng.percent(50) { rng.range(1, 8) } else { 0 },
        chunk_align,
        stages,
        steps_in_flight,
        mailbox_depth: rng.range(1, steps_in_flight),
        request_capacity: 1 << rng.below(5),
        token_capacity: 64 << rng.below(2),
        event_capacity,
        sampled_capacity,
        ahead: u32::from(ahead),
        bias_capacity: rng.below(4),
        grow_tokens: rng.range(1, if crowded { 3 } else { 12 }),
        ..abi::tg_config::default()
    };
    for (kind, least) in [slots, step_tokens, step_tokens].into_iter().enumerate() {
        (config.bucket_rows[kind], config.bucket_count[kind]) = bucket_sizes(rng, least);
    }
    config
}

/// `timeouts`, `unlimited`, `stops`: how many of a hundred have some, or no limit.
fn request(
    rng: &mut Random,
    config: &abi::tg_config,
    number: u64,
    timeouts: u32,
    unlimited: u32,
    stops: u32,
) -> Planned {
    let score = rng.percent(12);
    let mut max_new_tokens = if score { 0 } else { rng.range(1, 8) };
    let room = config.max_context.saturating_sub(max_new_tokens).max(1);
    let mut prompt_tokens = if rng.percent(50) {
        rng.range(1, room.min(6))
    } else {
        rng.range(1, room)
    };
    let mut request = abi::tg_request {
        timeout_ns: if rng.percent(timeouts) {
            rng.below(300u64)
        } else {
            abi::TG_NO_TIMEOUT
        },
        stop_count: if rng.percent(stops) {
            rng.range(1, 2)
        } else {
            0
        },
        ..abi::tg_request::default()
    };
    if score {
        request.flags = rng.pick(&[abi::TG_REQUEST_LOGITS_LAST, abi::TG_REQUEST_LOGITS_ALL]);
    }
    for id in &mut request.stop_ids {
        *id = rng.below(VOCABULARY) as i32;
    }
    request.sampling.key = rng.next();
    request.sampling.logprobs = if rng.percent(30) {
        rng.below(21)
    } else {
        abi::TG_LOGPROBS_NONE
    };
    request.sampling.bias_count = rng.below(config.bias_capacity + 1);
    match rng.below(60) {
        0 => prompt_tokens = 0,
        1 => request.stop_count = abi::TG_MAX_STOP_IDS + 1,
        2 => request.flags ^= abi::TG_REQUEST_LOGITS_LAST,
        3 => request.flags = 3,
        4 => request.flags |= 8,
        5 => request.sampling.logprobs = 21,
        6 => max_new_tokens = config.max_context,
        7 => max_new_tokens = u32::MAX,
        8 => max_new_tokens = 0,
        9 => request.sampling.bias_count = config.bias_capacity + 1,
        _ => {}
    }
    if request.flags == 0 && rng.percent(unlimited) {
        request.flags = abi::TG_REQUEST_UNLIMITED;
        if max_new_tokens > 0 && rng.percent(70) {
            max_new_tokens = config.max_context.saturating_sub(prompt_tokens);
        }
    }
    request.prompt_tokens = prompt_tokens;
    request.max_new_tokens = max_new_tokens;
    Planned {
        request,
        prompt: (0..prompt_tokens)
            .map(|p| prompt_token(number, p))
            .collect(),
        cancel: false,
    }
}

impl World {
    pub fn new(rng: &mut Random) -> Self {
        let crowded = rng.percent(30);
        let config = config(rng, crowded);
        let shape = abi::tg_rings {
            request_capacity: config.request_capacity,
            token_capacity: config.token_capacity,
            control_capacity: 1 << rng.below(4),
            event_capacity: config.event_capacity,
            sampled_capacity: config.sampled_capacity,
            bias_capacity: config.bias_capacity,
            trace_capacity: 1 << rng.range(0, 6),
            record: u32::from(rng.percent(25)),
            ..abi::tg_rings::default()
        };
        let many = if crowded { 80 } else { 30 };
        let count = rng.range(1, 6)
            + if rng.percent(many) {
                rng.range(1, 10)
            } else {
                0
            };
        let (timeouts, cancels) = (rng.pick(&[0, 20, 60]), rng.pick(&[0, 15, 50]));
        let unlimited = if crowded { 90 } else { rng.pick(&[0, 40, 80]) };
        let stops = if crowded { 10 } else { 40 };
        let mut requests: Vec<Planned> = (0..u64::from(count))
            .map(|number| request(rng, &config, number, timeouts, unlimited, stops))
            .collect();
        for planned in &mut requests {
            planned.cancel = rng.percent(cancels);
        }
        Self {
            config,
            shape,
            requests,
            push: rng.pick(&[10, 40, 100]),
            cancel: rng.pick(&[5, 30, 100]),
            stage: rng.pick(&[35, 60, 100]),
            stall: rng.pick(&[0, 0, 3, 12]),
            tick_ns: rng.range(1, 12),
            stop_at: rng.percent(4).then(|| rng.range(1, 40)),
        }
    }
}
