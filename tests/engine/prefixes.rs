//! Shared prefixes through a whole engine on the CPU: jobs with and without them give the same tokens and logits to the bit,
//! whatever they share and whoever is cancelled or preempted on the way.

use crate::common::engine::*;
use crate::common::random::Random;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tailgraph::backend::{LogitsSink, cpu};
use tailgraph::error::Result;
use tailgraph::model::{Model, ModelSource};
use tailgraph::plan::{BucketSizes, Plan};
use tailgraph::runtime::{
    Border, EndReason, Engine, EngineOptions, Event, Logits, Request, SingleEngine,
};

const JOBS: u64 = 500;

/// Requests of which some are cancelled, each after so many events of the job.
struct Job {
    options: EngineOptions,
    stages: usize,
    requests: Vec<Request>,
    cancels: BTreeMap<usize, u64>,
}

/// What came of a job.
struct Ran {
    tokens: Vec<Vec<u32>>,
    ends: Vec<EndReason>,
    logits: Vec<Vec<u32>>,
    cached: u64,
    recomputed: u64,
}

fn prompt_piece(rng: &mut Random, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|_| 8 + rng.below(256)).collect()
}

/// Prompts that begin as one of a few nested beginnings do, alone or in `n` choices, at random among each other.
fn requests(rng: &mut Random, options: &EngineOptions) -> Vec<Request> {
    let room = options.max_context;
    let mut beginnings: Vec<(Vec<Border>, Vec<u32>)> = vec![];
    let mut number = rng.below(100);
    let mut next_number = || {
        number += 1;
        number
    };
    for i in 0..rng.range(1, 5) {
        let (mut borders, mut tokens) = if i > 0 && rng.percent(60) {
            beginnings[rng.below(i) as usize].clone()
        } else {
            (vec![], vec![])
        };
        let own = rng.range(1, room / 5);
        tokens.extend(prompt_piece(rng, own));
        borders.push(Border {
            prefix: next_number(),
            tokens: tokens.len() as u32,
        });
        borders.truncate(4);
        beginnings.push((borders, tokens));
    }
    let mut all = vec![];
    for _ in 0..rng.range(4, 10) {
        let (mut borders, mut prompt) = if rng.percent(80) {
            beginnings[rng.below(beginnings.len() as u32) as usize].clone()
        } else {
            (vec![], vec![])
        };
        let own = rng.range(1, 12).min(room - prompt.len() as u32 - 4);
        prompt.extend(prompt_piece(rng, own));
        let n = if rng.percent(20) { rng.range(2, 4) } else { 1 };
        let last = prompt.len() as u32 - 1;
        if n > 1 && borders.len() < 4 && borders.last().is_none_or(|b| b.tokens < last) && last > 0
        {
            borders.push(Border {
                prefix: next_number(),
                tokens: last,
            });
        }
        let most = room - prompt.len() as u32;
        let unlimited = rng.percent(40);
        let max_new_tokens = if unlimited {
            most
        } else {
            rng.range(1, 9).min(most)
        };
        let scores = n == 1 && rng.percent(15);
        for _ in 0..n {
            let mut request = request(prompt.iter().copied(), max_new_tokens);
            request.borders.clone_from(&borders);
            request.unlimited = unlimited;
            request.sampling.key = rng.next();
            request.sampling.temperature = rng.pick(&[0.0, 0.0, 1.0]);
            request.sampling.repetition_penalty = rng.pick(&[1.0, 1.0, 1.3]);
            request.sampling.presence_penalty = rng.pick(&[0.0, 0.0, 0.7]);
            if scores {
                request.max_new_tokens = 0;
                request.unlimited = false;
                request.logits = Logits::Last;
            }
            all.push(request);
        }
    }
    rng.shuffle(&mut all);
    all
}

fn job(seed: u64) -> Job {
    let mut rng = Random::new(seed);
    let page_tokens = rng.range(3, 8);
    let max_context = rng.range(36, 60);
    let most_pages = max_context.div_ceil(page_tokens);
    let max_seqs = rng.range(1, 6);
    let chunk_align = rng.pick(&[1, 4, 8]);
    let step_tokens = max_seqs + chunk_align + rng.below(24);
    let stages = rng.range(1, 2);
    let pages = if rng.percent(50) {
        most_pages + rng.below(most_pages)
    } else {
        max_seqs * most_pages
    };
    let options = EngineOptions {
        max_seqs,
        max_context,
        page_tokens,
        pages,
        step_tokens,
        chunk_tokens: chunk_align + rng.below(step_tokens - chunk_align),
        chunk_share: 0,
        chunk_align,
        steps_in_flight: stages + rng.below(2),
        prefixes: rng.range(1, 6),
        record: false,
    };
    let requests = requests(&mut rng, &options);
    let cancels = rng.pick(&[0, 0, 2]);
    let cancels = (0..cancels).map(|_| {
        let request = rng.below(requests.len() as u32);
        (rng.below(30u32) as usize, u64::from(request))
    });
    Job {
        options,
        stages: stages as usize,
        cancels: cancels.collect(),
        requests,
    }
}

#[derive(Default)]
struct Last(Mutex<BTreeMap<u64, Vec<u32>>>);

impl LogitsSink for Last {
    fn rows(&self, request: u64, _: u32, logits: &[f32]) -> Result<()> {
        let bits = logits.iter().map(|logit| logit.to_bits()).collect();
        assert!(
            self.0.lock().insert(request, bits).is_none(),
            "{request} came twice"
        );
        Ok(())
    }
}

fn run(model: &Arc<Model>, job: &Job, prefixes: u32) -> Ran {
    let options = EngineOptions {
        prefixes,
        ..job.options
    };
    let sizes = |count: u32| vec![count];
    let bucket_sizes = BucketSizes {
        decode: sizes(options.max_seqs),
        mixed: sizes(options.step_tokens),
        score: sizes(options.step_tokens),
    };
    let config = Arc::new(model.config.clone());
    let plan = Arc::new(Plan::new(config, bucket_sizes.clone(), job.stages, None).unwrap());
    let sink = Arc::new(Last::default());
    let stages = cpu::stages(model, &plan, &options, &Some(sink.clone() as _)).unwrap();
    let mut engine = SingleEngine::start(stages, &bucket_sizes, &options).unwrap();
    let count = job.requests.len();
    let mut ran = Ran {
        tokens: vec![vec![]; count],
        ends: vec![],
        logits: vec![],
        cached: 0,
        recomputed: 0,
    };
    let mut ends = BTreeMap::new();
    let (mut left, mut events) = (job.requests.as_slice(), 0);
    while ends.len() < count {
        let queued = engine.try_submit_all(&mut left.iter()).unwrap();
        left = &left[queued.count()..];
        if let Some(&request) = job.cancels.get(&events)
            && request < (count - left.len()) as u64
        {
            engine.cancel(request);
        }
        let event = engine.next_event(PATIENCE).unwrap().expect("an event");
        events += 1;
        match event {
            Event::Token { request, token, .. } => ran.tokens[request as usize].push(token),
            Event::End {
                request,
                reason,
                timing,
                ..
            } => {
                ran.cached += u64::from(timing.cached_tokens);
                ran.recomputed += u64::from(timing.recomputed);
                ends.insert(request, reason);
            }
        }
    }
    ran.ends = ends.into_values().collect();
    let mut logits = std::mem::take(&mut *sink.0.lock());
    ran.logits = (0..count as u64)
        .map(|request| logits.remove(&request).unwrap_or_default())
        .collect();
    ran
}

#[test]
fn jobs_that_share_prefixes_give_what_they_give_without() {
    let source = ModelSource::parse("random:tiny").unwrap();
    let model = Arc::new(Model::load(&source).unwrap());
    let (mut cached, mut recomputed, mut whole) = (0, 0, 0);
    for seed in 0..JOBS {
        let job = job(seed);
        let shared = run(&model, &job, job.options.prefixes);
        let alone = run(&model, &job, 0);
        assert_eq!(alone.cached, 0);
        for (number, request) in job.requests.iter().enumerate() {
            let ends = [shared.ends[number], alone.ends[number]];
            let place = || {
                format!(
                    "seed {seed}, request {number} of {:?}: {ends:?} {request:?}",
                    job.options
                )
            };
            let (a, b) = (&shared.tokens[number], &alone.tokens[number]);
            let same = a.len().min(b.len());
            assert_eq!(a[..same], b[..same], "{}", place());
            if ends.contains(&EndReason::Cancelled) {
                continue;
            }
            whole += 1;
            assert_eq!((a.len(), ends[0]), (b.len(), ends[1]), "{}", place());
            assert!(shared.logits[number] == alone.logits[number], "{}", place());
        }
        cached += shared.cached;
        recomputed += shared.recomputed;
    }
    println!("{whole} answers, {cached} tokens from prefixes, {recomputed} times recomputed");
    assert!(whole > 8 * JOBS && cached > 25 * JOBS && recomputed > JOBS / 10);
}
