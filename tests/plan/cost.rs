//! Bytes, FLOPs and rooflines of LFM2-8B-A1B against figures known from elsewhere.

use crate::support::{BF16, F32, lfm2_8b_a1b, plan};
use tailgraph::backend::cuda::tuning::gpu::{A100, Bound, H100, H200};
use tailgraph::model::tensors::{model_bytes, model_parameters};
use tailgraph::model::{DType, WeightFormat};
use tailgraph::plan::cost::{distinct_experts, kind_cost};
use tailgraph::plan::{Cost, OpKind, Precision, StepKind, StepShape};

fn decode(rows: u32, context: u32) -> StepShape {
    StepShape {
        kind: StepKind::Decode,
        rows,
        context,
    }
}

fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "found {found}, expected {expected} within {tolerance}"
    );
}

#[test]
fn parameters_and_stored_bytes() {
    let config = lfm2_8b_a1b();
    // Counted tensor by tensor.
    let (v, h, i, m, e) = (65536u64, 2048u64, 7168u64, 1792u64, 32u64);
    let conv = 3 * h * h + 3 * h + h * h;
    let attention = h * h + 2 * 512 * h + h * h + 2 * 64;
    let dense = 3 * i * h;
    let moe = e * h + e + e * 3 * m * h;
    let exact = v * h + h + 24 * 2 * h + 18 * conv + 6 * attention + 2 * dense + 22 * moe;
    assert_eq!(model_parameters(&config), exact as f64);
    close(exact as f64, 8.340e9, 5e-4);
    // expert_bias is f32.
    let bytes = 2 * exact + 2 * 22 * e;
    assert_eq!(model_bytes(&config, WeightFormat::BF16), bytes as f64);
    close(bytes as f64, 16.68e9, 5e-4);

    let mut untied = config.clone();
    untied.tie_word_embeddings = false;
    assert_eq!(model_parameters(&untied), (exact + v * h) as f64);
    let mut biased = config.clone();
    biased.conv_bias = true;
    assert_eq!(model_parameters(&biased), (exact + 18 * 5 * h) as f64);
    let mut unbiased = config;
    unbiased.use_expert_bias = false;
    assert_eq!(model_parameters(&unbiased), (exact - 22 * e) as f64);
}

#[test]
fn bytes_of_a_token() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let cost = plan.cost(&decode(1, 1), BF16);
    close(cost.weight_bytes, 3.115e9, 5e-4);
    let head = kind_cost(&plan.config, OpKind::LmHead, &decode(1, 1), BF16);
    assert_eq!(head.weight_bytes, 268_435_456.0);
    assert_eq!(plan.kv_bytes_per_token(DType::BF16), 12.0 * 1024.0);
    assert_eq!(plan.kv_bytes_per_token(DType::F32), 24.0 * 1024.0);
    assert_eq!(
        plan.conv_state_bytes_per_sequence(DType::BF16),
        144.0 * 1024.0
    );
    assert_eq!(
        plan.conv_state_bytes_per_sequence(DType::F32),
        288.0 * 1024.0
    );
    // One token of context: one token's keys and values written and read, conv state read and written.
    assert_eq!(cost.cache_bytes, (2.0 * 12.0 + 2.0 * 144.0) * 1024.0);
    // Two FLOPs a weight touched (norms and taps aside).
    close(cost.flops, 2.0 * 1.558e9, 2e-3);
}

#[test]
fn decode_floors_at_h200_bandwidth() {
    // Bytes at 4.54 TB/s after a 32-token prompt, in ms.
    let plan = plan(lfm2_8b_a1b(), 1);
    for (rows, floor_ms, tolerance) in [
        (1, 0.686, 0.005),
        (8, 2.50, 0.005),
        (32, 3.63, 0.005),
        (128, 3.68, 0.01),
        (256, 3.7, 0.01),
    ] {
        let shape = decode(rows, 33);
        let cost = plan.cost(&shape, BF16);
        close(
            cost.floor_bytes() / H200.bytes_per_s * 1e3,
            floor_ms,
            tolerance,
        );
        // Operation by operation it is no less. At 256 rows the matrices that every row meets are bound by
        // arithmetic (256 FLOPs a byte, the ridge is at 174), so there it is more.
        let costs = plan.costs(&shape, BF16);
        let step_ms = H200.rates(BF16).least(costs).us() / 1e3;
        assert!(step_ms >= cost.floor_bytes() / H200.bytes_per_s * 1e3 * 0.999_999);
        close(step_ms, floor_ms, if rows < 256 { 0.02 } else { 0.05 });
    }
}

#[test]
fn experts_are_touched_as_rows_grow() {
    let config = lfm2_8b_a1b();
    for (rows, expected) in [
        (0.0, 0.0),
        (1.0, 4.0),
        (2.0, 7.5),
        (8.0, 21.004),
        (1e6, 32.0),
    ] {
        assert!((distinct_experts(&config, rows) - expected).abs() < 1e-3);
    }
    let mut all = config.clone();
    all.num_experts_per_tok = 32;
    assert_eq!(distinct_experts(&all, 1.0), 32.0);
    let mut none = config;
    none.num_experts = 0;
    assert_eq!(distinct_experts(&none, 5.0), 0.0);
}

#[test]
fn prefill_of_short_prompts_is_bound_by_matrix_products() {
    // 128 prompts of 32 tokens with one row of logits each: about 8,500 prompts/s at 790 TFLOP/s were arithmetic all.
    let plan = plan(lfm2_8b_a1b(), 1);
    let shape = StepShape {
        kind: StepKind::Mixed,
        rows: 4096,
        context: 32,
    };
    assert_eq!(shape.sequences(), 128.0);
    let prompts_per_s = |cost: Cost| 128.0 / (cost.flops / H200.half_flops_per_s);
    let ops = plan.stages[0].ops.iter();
    let all_rows = ops.map(|op| kind_cost(&plan.config, op.kind, &shape, BF16));
    close(prompts_per_s(all_rows.sum()), 8500.0, 0.03);
    // The last two layers need 5 rows of each prompt, and so does the one before but for its products of q, k and v.
    let needed = plan.cost(&shape, BF16);
    close(
        prompts_per_s(needed),
        8500.0 / (1.0 - 2.9 / 24.0 * 27.0 / 32.0),
        0.03,
    );
    let experts = kind_cost(&plan.config, OpKind::ExpertGateUp, &shape, BF16);
    let least = H200.rates(BF16).least([experts]);
    assert_eq!(least.bound(), Bound::Compute);
}

#[test]
fn steps_of_each_kind() {
    let shape = |kind, rows, context| StepShape {
        kind,
        rows,
        context,
    };
    let mixed = shape(StepKind::Mixed, 512, 2048);
    assert_eq!(mixed.sequences(), 1.0);
    // Positions 1536 .. 2047 see 1537 .. 2048 keys.
    assert_eq!(mixed.attended(mixed.chunk()), (1537.0 + 2048.0) / 2.0);
    assert_eq!((mixed.logit_rows(), mixed.sampled_rows()), (1.0, 1.0));
    let short = shape(StepKind::Mixed, 512, 32);
    assert_eq!(
        (short.sequences(), short.attended(short.chunk())),
        (16.0, 16.5)
    );
    let score = shape(StepKind::Score, 512, 32);
    assert_eq!((score.logit_rows(), score.sampled_rows()), (512.0, 0.0));
    let decode = decode(8, 100);
    assert_eq!(
        (decode.sequences(), decode.attended(decode.chunk())),
        (8.0, 100.0)
    );
    assert_eq!(decode.logit_rows(), 8.0);
}

#[test]
fn stages_share_out_the_whole() {
    for stages in 1..=4 {
        let plan = plan(lfm2_8b_a1b(), stages);
        let shape = decode(8, 100);
        let sum: Cost = plan
            .stages
            .iter()
            .map(|stage| stage.cost(&plan.config, &shape, F32))
            .sum();
        let whole = crate::support::plan(lfm2_8b_a1b(), 1).cost(&shape, F32);
        close(sum.weight_bytes, whole.weight_bytes, 1e-12);
        close(sum.flops, whole.flops, 1e-12);
        close(sum.activation_bytes, whole.activation_bytes, 1e-12);
    }
}

#[test]
fn activations_cost_memory_only_beyond_the_cache() {
    let small = Cost {
        weight_bytes: 10.0,
        cache_bytes: 5.0,
        activation_bytes: 40e6,
        flops: 0.0,
    };
    let large = Cost {
        activation_bytes: 51e6,
        ..small
    };
    let bytes = |cost| H100.rates(BF16).least([cost]).bytes;
    assert_eq!((bytes(small), bytes(large)), (15.0, 51e6 + 15.0));
    let busy = Cost {
        flops: 312e12,
        ..small
    };
    let compute_us = |dtype, checkpoint| {
        let rates = A100.rates(Precision::new(dtype, checkpoint));
        rates.least([busy]).compute_us
    };
    assert_eq!(compute_us(DType::BF16, WeightFormat::BF16), 1e6);
    assert_eq!(compute_us(DType::F32, WeightFormat::F32), 16e6);
    // Three products of bf16, where the weights are.
    assert_eq!(compute_us(DType::F32, WeightFormat::BF16), 3e6);
}
