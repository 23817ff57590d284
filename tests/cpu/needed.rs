//! Steps with prompts compute the last layers for few rows, score steps for all: both give the same bits.

use crate::machine::{Job, Setup, one_stage, run};
use crate::options::{Make, base};
use std::sync::Arc;
use tailgraph::model::philox::philox4x32_10;
use tailgraph::model::{LayerType, Model, ModelConfig};

use LayerType::{Conv, FullAttention};

const NEW_TOKENS: u32 = 4;

fn prompt(tokens: u32, vocab: usize) -> Vec<u32> {
    let id = |t| philox4x32_10([t, tokens, 0, 0], [63, 0])[0];
    (0..tokens).map(|t| id(t) % vocab as u32).collect()
}

/// The logits of the last position, by a step that computes all rows.
fn last_logits(model: &Arc<Model>, tokens: &[u32]) -> Vec<f32> {
    let setup = Setup::plain(&model.config);
    let [output] = &run(model, &setup, &[Job::score(tokens)])[..] else {
        panic!("one job has one output")
    };
    let first = output.logits.len() - model.config.vocab_size;
    output.logits[first..].to_vec()
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.unwrap() as u32
}

#[test]
fn the_last_layers_of_few_rows_are_those_of_all() {
    let orders: [&[LayerType]; 6] = [
        &[Conv, FullAttention, Conv, Conv],
        &[FullAttention, Conv, Conv, Conv],
        &[FullAttention, Conv, FullAttention, Conv],
        &[Conv, Conv, FullAttention],
        &[FullAttention, FullAttention],
        &[Conv, Conv],
    ];
    for layer_types in orders {
        for conv_l_cache in [1, 2, 3, 5, 8] {
            let layers = layer_types.len();
            let config = ModelConfig {
                num_hidden_layers: layers,
                layer_types: layer_types.to_vec(),
                conv_l_cache,
                ..base()
            };
            let (seed, vocab) = (conv_l_cache as u32, config.vocab_size);
            let model = Make { seed, tensors: 0 }.model(config);
            let prompts: Vec<_> = [1, 2, 3, 4, 5, 6, 29].map(|n| prompt(n, vocab)).to_vec();
            // What a prompt's last position gives, and what is generated from there.
            let expected: Vec<(Vec<f32>, Vec<u32>)> = prompts
                .iter()
                .map(|prompt| {
                    let (mut tokens, logits) = (prompt.clone(), last_logits(&model, prompt));
                    tokens.push(best(&logits));
                    for _ in 1..NEW_TOKENS {
                        tokens.push(best(&last_logits(&model, &tokens)));
                    }
                    (logits, tokens.split_off(prompt.len()))
                })
                .collect();
            for chunk in [1, 2, 3, 6, 320] {
                for cut in 0..layers {
                    let stages = match cut {
                        0 => one_stage(&model.config),
                        _ => vec![0..cut, cut..layers],
                    };
                    let setup = Setup {
                        chunk,
                        stages,
                        ..Setup::plain(&model.config)
                    };
                    let scored = prompts.iter().map(|prompt| Job::score_last(prompt));
                    let generated = prompts.iter().map(|prompt| Job::greedy(prompt, NEW_TOKENS));
                    let jobs: Vec<_> = scored.chain(generated).collect();
                    let outputs = run(&model, &setup, &jobs);
                    let (scored, generated) = outputs.split_at(prompts.len());
                    for (index, (logits, tokens)) in expected.iter().enumerate() {
                        let what = format!(
                            "{layer_types:?}, {conv_l_cache} taps, {} tokens in chunks of {chunk}, cut at {cut}",
                            prompts[index].len()
                        );
                        assert_eq!(&scored[index].logits, logits, "{what}");
                        assert_eq!(&generated[index].tokens(), tokens, "{what}");
                    }
                }
            }
        }
    }
}
