//! Drives a backend without the scheduler core: composes steps by hand, with chunks of any size, scattered pages and stages that run one after the other.

use crate::block::{Block, Composed};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tailgraph::Result;
use tailgraph::backend::{InTurn, LogitsSink, StageBackend, StepView};
use tailgraph::model::tensors::operations;
use tailgraph::model::{Model, ModelConfig};
use tailgraph::plan::{BucketSizes, Plan, Stage};
use tailgraph::runtime::EngineOptions;
use tailgraph::sys::abi;

/// How steps are composed.
#[derive(Debug, Clone)]
pub struct Setup {
    pub slots: u32,
    pub page_tokens: u32,
    pub step_tokens: u32,
    /// Rows of one prompt in a step, at most.
    pub chunk: u32,
    /// Layers of each stage.
    pub stages: Vec<Range<usize>>,
}

impl Setup {
    /// One stage, a few slots, whole prompts where they fit.
    pub fn plain(config: &ModelConfig) -> Self {
        Self {
            slots: 4,
            page_tokens: 16,
            step_tokens: 320,
            chunk: 320,
            stages: one_stage(config),
        }
    }

    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            max_seqs: self.slots,
            max_context: CONTEXT,
            page_tokens: self.page_tokens,
            pages: self.slots * CONTEXT.div_ceil(self.page_tokens),
            step_tokens: self.step_tokens,
            chunk_tokens: self.step_tokens,
            chunk_share: 0,
            chunk_align: 1,
            steps_in_flight: self.stages.len() as u32 + 1,
            prefixes: 0,
            record: false,
        }
    }
}

const CONTEXT: u32 = 320;

/// All layers in one stage.
pub fn one_stage(config: &ModelConfig) -> Vec<Range<usize>> {
    std::iter::once(0..config.num_hidden_layers).collect()
}

/// One sequence to run.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Vec<u32>,
    pub max_new_tokens: u32,
    pub flags: u32,
    pub sampling: abi::tg_sampling,
}

impl Job {
    pub fn greedy(prompt: &[u32], max_new_tokens: u32) -> Self {
        Self {
            prompt: prompt.to_vec(),
            max_new_tokens,
            flags: 0,
            sampling: abi::tg_sampling {
                temperature: 0f32.to_bits(),
                top_p: 1f32.to_bits(),
                repetition_penalty: 1f32.to_bits(),
                logprobs: abi::TG_LOGPROBS_NONE,
                ..Default::default()
            },
        }
    }

    /// Wants the logits of all positions.
    pub fn score(prompt: &[u32]) -> Self {
        Self {
            flags: abi::TG_REQUEST_LOGITS_ALL,
            ..Self::greedy(prompt, 0)
        }
    }

    /// Wants the logits of the prompt's last position.
    pub fn score_last(prompt: &[u32]) -> Self {
        Self {
            flags: abi::TG_REQUEST_LOGITS_LAST,
            ..Self::greedy(prompt, 0)
        }
    }
}

/// What came of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    pub sampled: Vec<abi::tg_sampled>,
    /// Delivered logits, and the position of the first.
    pub logits: Vec<f32>,
    pub first_position: Option<u32>,
}

impl Output {
    pub fn tokens(&self) -> Vec<u32> {
        self.sampled.iter().map(|s| s.token as u32).collect()
    }
}

/// A plan of stages of these layers.
pub fn plan(config: &ModelConfig, stages: &[Range<usize>]) -> Plan {
    let stages = stages.iter().enumerate().map(|(index, layers)| Stage {
        index,
        layers: layers.clone(),
        ops: operations(config, layers.clone()),
    });
    Plan {
        config: Arc::new(config.clone()),
        bucket_sizes: BucketSizes {
            decode: vec![64],
            mixed: vec![512],
            score: vec![512],
        },
        stages: stages.collect(),
    }
}

/// Keeps delivered logits; asserts that they come in order.
#[derive(Default)]
pub struct Collector {
    outputs: Mutex<Vec<Output>>,
    vocab_size: usize,
}

impl LogitsSink for Collector {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let mut outputs = self.outputs.lock().unwrap();
        let output = &mut outputs[request as usize];
        let first = *output.first_position.get_or_insert(first_position);
        let next = first as usize + output.logits.len() / self.vocab_size;
        assert_eq!(first_position as usize, next, "request {request}");
        output.logits.extend_from_slice(logits);
        Ok(())
    }
}

/// Runs all jobs with the CPU reference.
pub fn run(model: &Arc<Model>, setup: &Setup, jobs: &[Job]) -> Vec<Output> {
    let sink = Arc::new(Collector {
        outputs: Mutex::new(vec![Output::default(); jobs.len()]),
        vocab_size: model.config.vocab_size,
    });
    let plan = plan(&model.config, &setup.stages);
    let shared: tailgraph::backend::SharedSink = Some(sink.clone());
    let mut stages =
        tailgraph::backend::cpu::stages(model, &plan, &setup.options(), &shared).unwrap();
    let sampled = drive(&mut stages, setup, jobs).unwrap();
    let mut outputs = sink.outputs.lock().unwrap();
    for (output, sampled) in outputs.iter_mut().zip(sampled) {
        output.sampled = sampled;
    }
    std::mem::take(&mut *outputs)
}

/// A job in a slot.
struct Running {
    job: usize,
    composed: u32,
    pages: Vec<u32>,
}

/// Composes and runs steps until every job is done; gives what each one sampled.
pub fn drive(
    stages: &mut [Box<dyn StageBackend>],
    setup: &Setup,
    jobs: &[Job],
) -> Result<Vec<Vec<abi::tg_sampled>>> {
    let options = setup.options();
    let mut block = Block::new(&options);
    let mut between = InTurn::new(stages, options.step_tokens);
    let mut waiting: VecDeque<usize> = (0..jobs.len()).collect();
    // Scattered on purpose: neighbours in a sequence are never neighbours in the pool.
    let mut free_pages: Vec<u32> = (0..options.pages).map(|p| p * 37 % options.pages).collect();
    free_pages.sort_by_key(|page| (page * 7919) % 101);
    free_pages.dedup();
    let mut slots: Vec<Option<Running>> = (0..setup.slots).map(|_| None).collect();
    let mut results = vec![Vec::new(); jobs.len()];
    let mut number = 0;
    loop {
        for (slot, entry) in slots.iter_mut().enumerate() {
            if let (None, Some(&job)) = (&entry, waiting.front()) {
                let tokens = jobs[job].prompt.len() as u32 + jobs[job].max_new_tokens;
                let pages = tokens.div_ceil(setup.page_tokens) as usize;
                let pages = free_pages.split_off(free_pages.len() - pages);
                block.admit(slot as u32, job as u64, &jobs[job], &pages);
                waiting.pop_front();
                *entry = Some(Running {
                    job,
                    composed: 0,
                    pages,
                });
            }
        }
        if slots.iter().all(Option::is_none) {
            return Ok(results);
        }
        let step = compose(setup, jobs, &mut slots, &results);
        block.write(number, &step);
        // SAFETY: the block outlives the view, and the step was just written.
        let view = unsafe { StepView::new(block.state(), number) };
        between.run(stages, view)?;
        for (index, &row) in step.sample_rows.iter().enumerate() {
            let slot = step.rows[row as usize].slot;
            let job = slots[slot as usize].as_ref().unwrap().job;
            let sampled = block.sampled(number, index);
            block.set_last_token(slot, sampled.token);
            if jobs[job].max_new_tokens > 0 {
                results[job].push(sampled);
            }
        }
        for slot in &mut slots {
            if let Some(running) = slot {
                let job = &jobs[running.job];
                let done = running.composed as usize == job.prompt.len()
                    && results[running.job].len() == job.max_new_tokens as usize;
                if done {
                    free_pages.append(&mut running.pages);
                    *slot = None;
                }
            }
        }
        number += 1;
    }
}

impl Composed {
    fn push(
        &mut self,
        slot: usize,
        positions: Range<u32>,
        tokens: &[i32],
        flags: u32,
        sample: bool,
    ) {
        let sequence = self.sequences.len() as u32;
        let first_row = self.rows.len() as u32;
        for (position, &token) in positions.clone().zip(tokens) {
            self.rows.push(abi::tg_row {
                slot: slot as u32,
                position,
                token,
                sequence,
            });
        }
        self.sequences.push(abi::tg_sequence {
            slot: slot as u32,
            first_row,
            rows: positions.len() as u32,
            first_position: positions.start,
            sample: if sample {
                self.sample_rows.len() as u32
            } else {
                u32::MAX
            },
            flags,
            ..abi::tg_sequence::UNSHARED
        });
        if sample {
            self.sample_rows.push(self.rows.len() as u32 - 1);
        }
    }
}

fn compose(
    setup: &Setup,
    jobs: &[Job],
    slots: &mut [Option<Running>],
    results: &[Vec<abi::tg_sampled>],
) -> Composed {
    let mut step = Composed {
        kind: abi::TG_KIND_DECODE,
        ..Default::default()
    };
    for (slot, running) in slots.iter().enumerate() {
        let Some(running) = running else { continue };
        let prompt = jobs[running.job].prompt.len();
        if running.composed as usize == prompt {
            let position = (prompt + results[running.job].len() - 1) as u32;
            let flags = abi::TG_SEQUENCE_LAST | abi::TG_SEQUENCE_DECODE;
            step.push(slot, position..position + 1, &[-1], flags, true);
        }
    }
    for (slot, running) in slots.iter_mut().enumerate() {
        let Some(running) = running else { continue };
        let job = &jobs[running.job];
        let left = job.prompt.len() as u32 - running.composed;
        let room = setup.step_tokens - step.rows.len() as u32;
        let rows = left.min(setup.chunk).min(room);
        if rows == 0 {
            continue;
        }
        let positions = running.composed..running.composed + rows;
        let tokens: Vec<i32> = job.prompt[positions.start as usize..positions.end as usize]
            .iter()
            .map(|&id| id as i32)
            .collect();
        let mut flags = 0;
        if positions.start == 0 {
            flags |= abi::TG_SEQUENCE_FIRST;
        }
        if rows == left {
            flags |= abi::TG_SEQUENCE_LAST;
        }
        let all = job.flags & abi::TG_REQUEST_LOGITS_ALL != 0;
        if all {
            step.kind = abi::TG_KIND_SCORE;
        } else if step.kind == abi::TG_KIND_DECODE {
            step.kind = abi::TG_KIND_MIXED;
        }
        running.composed = positions.end;
        step.push(slot, positions, &tokens, flags, rows == left && !all);
    }
    step
}
