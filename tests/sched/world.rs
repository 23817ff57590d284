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

/// A prefix that requests may have, and the tokens of it.
struct Beginning {
    border: abi::tg_border,
    parent: Option<usize>,
    tokens: Vec<i32>,
}

/// Some beginnings, of which each may go on from an earlier one.
fn beginnings(rng: &mut Random, config: &abi::tg_config) -> Vec<Beginning> {
    let mut all: Vec<Beginning> = vec![];
    let first = rng.below(3 * config.prefixes + 1);
    for i in 0..rng.range(1, 5) {
        let parent = (i > 0 && rng.percent(60)).then(|| rng.below(i) as usize);
        let parent = parent.filter(|&parent: &usize| all[parent].tokens.len() < 30);
        let before = parent.map_or(&[][..], |parent| &all[parent].tokens);
        let own = rng.range(1, (config.max_context / 3).max(1));
        let own = (0..own).map(|p| prompt_token(1 << 20 | u64::from(i), p));
        let tokens: Vec<i32> = before.iter().copied().chain(own).collect();
        let border = abi::tg_border {
            prefix: 1 + first + i,
            tokens: tokens.len() as u32,
        };
        all.push(Beginning {
            border,
            parent,
            tokens,
        });
    }
    all
}

/// The request begins as one of them does, or as one that goes on from it; not all of its borders are named.
fn begin(rng: &mut Random, config: &abi::tg_config, all: &[Beginning], planned: &mut Planned) {
    let at = rng.below(all.len() as u32) as usize;
    let chain = std::iter::successors(Some(at), |at| all[*at].parent);
    let mut borders: Vec<abi::tg_border> = chain
        .filter(|_| rng.percent(85))
        .map(|at| all[at].border)
        .take(abi::TG_MAX_BORDERS as usize)
        .collect();
    borders.reverse();
    let request = &mut planned.request;
    let own = rng.range(1, 6).min(planned.prompt.len().max(1) as u32);
    planned.prompt.truncate(own as usize);
    planned.prompt.splice(0..0, all[at].tokens.iter().copied());
    request.prompt_tokens = planned.prompt.len() as u32;
    if request.flags & abi::TG_REQUEST_UNLIMITED != 0 || request.max_new_tokens > 8 {
        let room = config.max_context.saturating_sub(request.prompt_tokens);
        request.max_new_tokens = room.max(1);
    }
    match rng.below(60) {
        0 => borders.reverse(),
        1 => borders.iter_mut().for_each(|border| border.tokens = 0),
        2 => borders
            .iter_mut()
            .for_each(|border| border.tokens = request.prompt_tokens),
        _ => {}
    }
    request.borders[..borders.len()].copy_from_slice(&borders);
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
        prefixes: if rng.percent(70) { rng.range(1, 6) } else { 0 },
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
    /// Four requests that begin alike, in a pool that is short of pages for them; the last wants the place of a prefix that the
    /// others have. The host cancels whom it can.
    pub fn alike(config: &abi::tg_config) -> Self {
        let config = abi::tg_config {
            pages: 9,
            prefixes: 2,
            max_context: 24,
            step_tokens: 6,
            chunk_tokens: 4,
            chunk_align: 2,
            grow_tokens: 2,
            ..*config
        };
        let border = |prefix, tokens| abi::tg_border { prefix, tokens };
        let (short, long, other) = (border(1, 9), border(2, 15), border(3, 12));
        let none = abi::TG_NO_TIMEOUT;
        let unlimited = abi::TG_REQUEST_UNLIMITED;
        let requests = [
            (vec![short, long], 17, 7, unlimited, none),
            (vec![short, long], 16, 2, 0, none),
            (vec![short], 11, 13, unlimited, 900),
            (vec![short, other], 14, 1, 0, none),
        ];
        let requests = (0..).zip(requests).map(
            |(number, (borders, prompt_tokens, max_new_tokens, flags, timeout_ns))| {
                let mut request = abi::tg_request {
                    prompt_tokens,
                    max_new_tokens,
                    flags,
                    timeout_ns,
                    ..Default::default()
                };
                request.sampling.logprobs = abi::TG_LOGPROBS_NONE;
                request.borders[..borders.len()].copy_from_slice(&borders);
                let name = |p: u32| match borders.iter().find(|border| p < border.tokens) {
                    Some(border) => prompt_token(1 << 20 | u64::from(border.prefix), p),
                    None => prompt_token(number, p),
                };
                Planned {
                    request,
                    prompt: (0..prompt_tokens).map(name).collect(),
                    cancel: true,
                }
            },
        );
        Self {
            shape: super::script::shape(&config),
            config,
            requests: requests.collect(),
            push: 100,
            cancel: 0,
            stage: 100,
            stall: 0,
            tick_ns: 1,
            stop_at: None,
        }
    }

    pub fn new(rng: &mut Random) -> Self {
        let crowded = rng.percent(30);
        let mut config = config(rng, crowded);
        let alike = rng.pick(&[0, 50, 90]);
        let shares = alike == 90 && config.prefixes > 0;
        if shares {
            // In small steps, so that much can happen while a prefix is computed.
            config.step_tokens = config.slots + config.chunk_align;
        }
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
        let mut count = rng.range(1, 6);
        if shares || rng.percent(many) {
            count += rng.range(1, 10);
        }
        let (timeouts, cancels) = (rng.pick(&[0, 20, 60]), rng.pick(&[0, 20, 60]));
        let unlimited = if crowded { 90 } else { rng.pick(&[0, 40, 80]) };
        let stops = if crowded { 10 } else { 40 };
        let mut requests: Vec<Planned> = (0..u64::from(count))
            .map(|number| request(rng, &config, number, timeouts, unlimited, stops))
            .collect();
        let beginnings = beginnings(rng, &config);
        for planned in &mut requests {
            let begins = !planned.prompt.is_empty() && rng.percent(alike);
            if begins {
                begin(rng, &config, &beginnings, planned);
            }
            planned.cancel = rng.percent(if begins { 60 } else { cancels });
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
