//! The CPU reference against what transformers computes, and against itself: a row's bits depend on nothing
//! but its own sequence.

use crate::common::golden::{self, Golden, relative_error};
use crate::machine::{self, Job, Output, Setup, run};
use std::sync::{Arc, Mutex};
use tailgraph::backend::StageBackend;
use tailgraph::backend::cpu::CpuStage;
use tailgraph::plan::OpKind;

const VARIANTS: [&str; 2] = ["a", "b"];
const GREEDY_TOKENS: u32 = 32;

/// A score and a greedy job for every prompt.
fn all_jobs(golden: &Golden) -> Vec<Job> {
    golden
        .prompts()
        .iter()
        .flat_map(|prompt| [Job::score(prompt), Job::greedy(prompt, GREEDY_TOKENS)])
        .collect()
}

#[test]
fn logits_and_greedy_continuations_are_those_of_transformers() {
    for variant in VARIANTS {
        let golden = golden::load(variant);
        let outputs = run(
            &golden.model,
            &Setup::plain(&golden.model.config),
            &all_jobs(&golden),
        );
        let expected: Vec<_> = (0..golden.prompts().len())
            .map(|i| golden.f32s(&format!("logits.{i}")))
            .collect();
        let found = outputs.iter().step_by(2).map(|o| o.logits.as_slice());
        let error = relative_error(found.zip(expected.iter().map(Vec::as_slice)));
        println!("golden {variant}: relative error of all logits {error:.2e}");
        assert!(error <= 1e-5, "golden {variant}: {error:e}");
        for (i, output) in outputs.iter().skip(1).step_by(2).enumerate() {
            let expected = golden.ids(&format!("greedy.{i}"));
            assert_eq!(output.tokens(), expected, "golden {variant}, prompt {i}");
        }
    }
}

#[test]
fn hidden_states_and_router_choices_are_those_of_transformers() {
    for variant in VARIANTS {
        let golden = golden::load(variant);
        let config = &golden.model.config;
        let prompt = golden
            .prompts()
            .swap_remove(golden.ids("hidden_prompt")[0] as usize);
        let setup = Setup::plain(config);
        let plan = machine::plan(config, &setup.stages);
        let mut stage = CpuStage::new(
            golden.model.clone(),
            &plan,
            0,
            &setup.options(),
            Some(Arc::new(Ignore)),
        )
        .unwrap();
        let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let record = seen.clone();
        stage.set_probe(Box::new(move |op, probed| {
            let (hidden, experts) = &mut *record.lock().unwrap();
            match op.kind {
                OpKind::Embed | OpKind::DenseDown | OpKind::ExpertDown => {
                    hidden.push(probed.h.to_vec());
                }
                OpKind::FinalNorm => hidden.push(probed.x.to_vec()),
                OpKind::Router => experts.push((op.layer.unwrap(), probed.experts.to_vec())),
                _ => {}
            }
        }));
        let mut stages: Vec<Box<dyn StageBackend>> = vec![Box::new(stage)];
        machine::drive(&mut stages, &setup, &[Job::score(&prompt)]).unwrap();
        let (mut hidden, experts) = std::mem::take(&mut *seen.lock().unwrap());
        // The last layer's output stands only behind the final norm in the golden.
        let layers = config.num_hidden_layers;
        assert_eq!(hidden.len(), layers + 2);
        hidden.remove(layers);
        for (layer, found) in hidden.iter().enumerate() {
            let expected = golden.f32s(&format!("hidden.{layer}"));
            let error = relative_error([(found.as_slice(), expected.as_slice())].into_iter());
            println!("golden {variant}: hidden.{layer} {error:.2e}");
            assert!(error <= 1e-5, "golden {variant}, hidden.{layer}: {error:e}");
        }
        assert_eq!(experts.len(), layers - config.num_dense_layers);
        for (layer, found) in experts {
            let mut expected = golden.ids(&format!("router.{layer}"));
            for row in expected.chunks_mut(config.num_experts_per_tok) {
                row.sort_unstable();
            }
            assert_eq!(found, expected, "golden {variant}, router.{layer}");
        }
    }
}

struct Ignore;

impl tailgraph::backend::LogitsSink for Ignore {
    fn rows(&self, _: u64, _: u32, _: &[f32]) -> tailgraph::Result<()> {
        Ok(())
    }
}

/// Asserts equal bits and names the first that differs.
fn assert_same(found: &[Output], expected: &[Output], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (job, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.tokens(), expected.tokens(), "{what}, job {job}");
        assert_eq!(
            found.logits.len(),
            expected.logits.len(),
            "{what}, job {job}"
        );
        for (index, (f, e)) in found.logits.iter().zip(&expected.logits).enumerate() {
            assert_eq!(
                f.to_bits(),
                e.to_bits(),
                "{what}, job {job}, logit {index}: {f} {e}"
            );
        }
        assert!(found == expected, "{what}, job {job}: logprobs differ");
    }
}

#[test]
fn bits_do_not_depend_on_companions_chunks_pages_or_stages() {
    for variant in VARIANTS {
        let golden = golden::load(variant);
        let (model, config) = (&golden.model, &golden.model.config);
        let layers = config.num_hidden_layers;
        let mut jobs = all_jobs(&golden);
        for (index, job) in jobs.iter_mut().enumerate().skip(1).step_by(4) {
            job.sampling.temperature = 0.8f32.to_bits();
            job.sampling.repetition_penalty = 1.2f32.to_bits();
            job.sampling.top_p = 0.95f32.to_bits();
            job.sampling.key = index as u64;
            job.sampling.logprobs = 5;
        }
        let plain = Setup::plain(config);
        let reference = run(model, &plain, &jobs);

        let alone: Vec<_> = jobs
            .iter()
            .flat_map(|job| run(model, &plain, std::slice::from_ref(job)))
            .collect();
        assert_same(&alone, &reference, "one by one");

        let two = vec![0..2, 2..layers];
        let three = vec![0..1, 1..3, 3..layers];
        let one = machine::one_stage(config);
        for (chunk, page_tokens, stages) in [
            (1, 16, &three),
            (7, 64, &two),
            (16, 16, &one),
            (64, 64, &three),
            (64, 17, &two),
        ] {
            let setup = Setup {
                slots: 11,
                page_tokens,
                step_tokens: 83,
                chunk,
                stages: stages.clone(),
            };
            let what = format!("golden {variant} with {setup:?}");
            assert_same(&run(model, &setup, &jobs), &reference, &what);
        }
    }
}

#[test]
fn the_last_logits_are_the_last_of_all_logits() {
    let golden = golden::load("b");
    let vocab = golden.model.config.vocab_size;
    let prompts = golden.prompts();
    let jobs: Vec<_> = prompts
        .iter()
        .flat_map(|prompt| [Job::score_last(prompt), Job::score(prompt)])
        .collect();
    let outputs = run(&golden.model, &Setup::plain(&golden.model.config), &jobs);
    for (prompt, pair) in prompts.iter().zip(outputs.chunks(2)) {
        assert_eq!(pair[0].first_position, Some(prompt.len() as u32 - 1));
        assert_eq!(pair[0].logits.len(), vocab);
        assert_eq!(pair[1].first_position, Some(0));
        assert_eq!(
            pair[0].logits,
            pair[1].logits[pair[1].logits.len() - vocab..]
        );
    }
}

#[test]
fn the_penalty_knows_the_prompt_and_what_was_generated() {
    let golden = golden::load("a");
    let config = &golden.model.config;
    // A penalty this large leaves a seen token no chance; three slots serve all, one after the other.
    let jobs: Vec<_> = golden
        .prompts()
        .iter()
        .filter(|prompt| prompt.len() <= 130)
        .map(|prompt| {
            let mut job = Job::greedy(prompt, GREEDY_TOKENS);
            job.sampling.repetition_penalty = 1e6f32.to_bits();
            job
        })
        .collect();
    let setup = Setup {
        chunk: 7,
        slots: 3,
        stages: vec![0..3, 3..config.num_hidden_layers],
        ..Setup::plain(config)
    };
    for (job, output) in jobs.iter().zip(run(&golden.model, &setup, &jobs)) {
        let mut seen = job.prompt.clone();
        for token in output.tokens() {
            assert!(!seen.contains(&token), "{token} again after {seen:?}");
            seen.push(token);
        }
        assert_eq!(seen.len(), job.prompt.len() + GREEDY_TOKENS as usize);
    }
}
