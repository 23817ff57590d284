//! What the CPU reference refuses, and how it says so.

use crate::machine::{self, Job, Setup};
use crate::options::{Make, base};
use std::sync::Arc;
use tailgraph::backend::cpu;
use tailgraph::model::{LayerType, Model, ModelConfig};

fn model(config: ModelConfig) -> Arc<Model> {
    Make {
        seed: 6,
        tensors: 0,
    }
    .model(config)
}

/// The error of running one job.
fn failure(job: Job) -> String {
    let model = model(base());
    let setup = Setup::plain(&model.config);
    let plan = machine::plan(&model.config, &setup.stages);
    let mut stages = cpu::stages(&model, &plan, &setup.options(), &None).unwrap();
    let error = machine::drive(&mut stages, &setup, &[job]).unwrap_err();
    error.to_string()
}

#[test]
fn a_token_outside_the_vocabulary() {
    assert_eq!(
        failure(Job::greedy(&[1, 70], 1)),
        "step 0: row 1 has token 70, expected one below 70"
    );
}

#[test]
fn logits_without_a_place_for_them() {
    let expected =
        "a request asks for its logits, but the engine was started without a place for them";
    assert_eq!(failure(Job::score(&[1, 2])), expected);
    assert_eq!(failure(Job::score_last(&[1, 2])), expected);
}

#[test]
fn a_plan_of_another_model() {
    let other = ModelConfig {
        layer_types: vec![LayerType::Conv; 3],
        ..base()
    };
    let model = model(base());
    let setup = Setup::plain(&other);
    let plan = machine::plan(&other, &setup.stages);
    let error = cpu::stages(&model, &plan, &setup.options(), &None)
        .err()
        .expect("layer 1 is attention in the model and a convolution in the plan");
    assert_eq!(
        error.to_string(),
        "the plan's layers 0..3 hold Op { layer: Some(1), kind: ConvInProj }, which this model does not have there: make the plan from the model's own configuration"
    );
}

#[test]
fn a_stage_with_nothing_to_start_from() {
    let model = model(base());
    let setup = Setup {
        stages: vec![0..1, 1..3],
        ..Setup::plain(&model.config)
    };
    let plan = machine::plan(&model.config, &setup.stages);
    let mut stages = cpu::stages(&model, &plan, &setup.options(), &None).unwrap();
    let mut second = stages.split_off(1);
    let error = machine::drive(&mut second, &setup, &[Job::score(&[1])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "step 0 has no activations of an earlier stage, which a stage that does not embed reads"
    );
}

#[test]
fn buffers_beyond_the_address_space() {
    let model = model(base());
    let setup = Setup::plain(&model.config);
    let mut options = setup.options();
    (options.pages, options.page_tokens) = (u32::MAX, u32::MAX);
    let plan = machine::plan(&model.config, &setup.stages);
    let error = cpu::stages(&model, &plan, &options, &None)
        .err()
        .expect("2^64 positions cannot fit");
    assert!(
        error
            .to_string()
            .contains("lower max-seqs, max-context or step-tokens"),
        "{error}"
    );
}
