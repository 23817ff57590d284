use super::*;
use crate::model::ModelSource;

#[test]
fn rings_shrink_where_rows_are_large() {
    let stage = stage_bytes(2048);
    assert_eq!(stage, 8 * 4096);
    assert_eq!(stage_bytes(32), 8 * 128);
    let stages = |fixed| Limits::H200.ring(fixed, stage, 4).map(|ring| ring.stages);
    assert_eq!(stages(15_000), Some(4));
    assert_eq!(stages(110_000), Some(3));
    assert_eq!(stages(160_000), Some(2));
    assert_eq!(stages(170_000), None);
    assert_eq!(stages(u32::MAX), None);
}

#[test]
fn blocks_that_guess_take_nobodys_place() {
    let sizing = Sizing {
        operand: DType::BF16,
        limits: Limits::H200,
        stages: 4,
    };
    assert_eq!(sizing.guess_blocks(128, 32), 4);
    assert_eq!(sizing.blocks(128, 4), (132, 1, 1));
    assert_eq!(sizing.guess_blocks(132, 32), 0);
    // Two tiles for a block in either case.
    assert_eq!(sizing.guess_blocks(192, 9), 2);
    assert_eq!(sizing.blocks(192, 2), (98, 1, 1));
    let one = Sizing {
        limits: Limits {
            multiprocessors: 1,
            ..Limits::H200
        },
        ..sizing
    };
    assert_eq!(one.guess_blocks(1, 8), 0);
}

#[test]
fn blocks_have_as_many_tiles_each_and_leave_sms_to_others() {
    let sizing = Sizing {
        operand: DType::BF16,
        limits: Limits::H200,
        stages: 4,
    };
    assert_eq!(sizing.blocks(128, 0), (128, 1, 1));
    assert_eq!(sizing.blocks(4096, 0), (128, 1, 1));
    assert_eq!(sizing.blocks(192, 4), (100, 1, 1));
    assert_eq!(sizing.blocks(133, 0), (67, 1, 1));
    assert_eq!(sizing.blocks(264, 0), (132, 1, 1));
    assert_eq!(sizing.blocks_at_most(1792), (132, 1, 1));
    assert_eq!(sizing.blocks_at_most(4), (4, 1, 1));
    let with = |multiprocessors| Sizing {
        limits: Limits {
            multiprocessors,
            ..Limits::H200
        },
        ..sizing
    };
    // An LM head of 65,536: 28 tiles each, the last block fewer.
    assert_eq!(with(148).blocks(4096, 0), (147, 1, 1));
    assert_eq!(with(300).blocks(4096, 0), (256, 1, 1));
}

/// A ring of the wider stages, beside what a row's blocks keep of y; and blocks that guess in every layer.
#[test]
fn experts_fuse_where_there_is_room() {
    let (config, _) = ModelSource::parse("random:lfm2-8b-a1b")
        .unwrap()
        .config()
        .unwrap();
    let sizing = |operand, stages| Sizing {
        operand,
        limits: Limits::H200,
        stages,
    };
    let fused = |operand, stages| sizing(operand, stages).fused(2048, 1792, 4, 32).unwrap();
    assert_eq!(fused(DType::BF16, 16).stages, 6);
    assert_eq!(fused(DType::F32, 16).stages, 5);
    let (stages, bytes) = (4, |operand| fused(operand, 4).shared_bytes);
    assert_eq!(fused(DType::BF16, stages).stages, stages);
    // Of f32 two more parts of the row, and of each warp's columns of y.
    let parts = 2 * (pitch(2048, 2) + CONSUMER_WARPS * 32 * 16);
    assert_eq!(bytes(DType::F32) - bytes(DType::BF16), parts);
    let bf16 = sizing(DType::BF16, 4);
    let of_width = |inner| bf16.fused(64, inner, 4, 32).unwrap().shared_bytes;
    let of_down = of_width(1792) - of_width(64);
    assert_eq!(of_down, 4 * (stage_bytes(1792) - stage_bytes(64)));
    assert_eq!(bf16.fused(2048, 2080, 4, 32), None);
    bf16.fuses(&config).unwrap();
    let wider = ModelConfig {
        moe_intermediate_size: 2080,
        ..config.clone()
    };
    let error = bf16.fuses(&wider).unwrap_err();
    assert!(error.contains("moe_intermediate_size is 2080"), "{error}");
    let limits = Limits {
        multiprocessors: 128,
        ..Limits::H200
    };
    let error = Sizing { limits, ..bf16 }.fuses(&config).unwrap_err();
    assert!(error.contains("128 multiprocessors"), "{error}");
}

#[test]
fn only_short_rows_have_their_weights_in_registers() {
    let sizing = Sizing {
        operand: DType::F32,
        limits: Limits::H200,
        stages: 4,
    };
    let bytes = sum_bytes(8) + 8 * pitch(2048, 4) + 100;
    assert_eq!(sizing.holding(8, 2048, 100), Some(bytes));
    assert_eq!(sizing.holding(8, 2080, 100), None);
    assert_eq!(sizing.holding(8, 2048, 200_000), None);
}

#[test]
fn long_rows_come_in_stages_of_one_size() {
    assert_eq!(
        [32, 1792, 2048, 2080].map(stage_columns),
        [32, 1792, 2048, 1088]
    );
    assert_eq!(stage_columns(7168), 1792);
}

/// Three parts of 2 bytes for each f32 of a small bucket.
#[test]
fn rows_of_f32_lie_in_parts_where_they_are_few() {
    let sizing = |operand| Sizing {
        operand,
        limits: Limits::H200,
        stages: 4,
    };
    let bytes = |operand, rows| sizing(operand).row_bytes(rows, 2048);
    assert_eq!([1, 2].map(|rows| bytes(DType::F32, rows)), [12480, 24960]);
    assert_eq!([3, 8].map(|rows| bytes(DType::F32, rows)), [24624, 65664]);
    assert_eq!([1, 8].map(|rows| bytes(DType::BF16, rows)), [4160, 33280]);
}

/// Eight lanes read 16 bytes each of two rows: rows half the banks (or for f32 a quarter) apart.
#[test]
fn rows_lie_in_different_banks() {
    for elements in [32, 96, 1792, 2048] {
        assert_eq!(pitch(elements, 2) % 128, 64);
        assert_eq!(pitch(elements, 4) % 128, 16);
    }
}

/// More experts have more in shared memory beside the ring. Fused, they need blocks that guess: of 132 SMs a hidden size of 2048 leaves
/// four, each of 8 of up to 32 experts, and of 16 of more.
#[test]
fn more_experts_have_more_words() {
    let (config, _) = ModelSource::parse("random:lfm2-8b-a1b")
        .unwrap()
        .config()
        .unwrap();
    let sizing = Sizing {
        operand: DType::BF16,
        limits: Limits::H200,
        stages: 4,
    };
    let bytes = |experts| sizing.normed(8, 2048, experts).unwrap().shared_bytes;
    for (experts, choice, fuses) in [
        (1, 2176, true),
        (32, 2176, true),
        (33, 4256, true),
        (64, 4256, true),
        (65, 8416, false),
        (128, 8416, false),
    ] {
        let config = ModelConfig {
            num_experts: experts,
            ..config.clone()
        };
        sizing.serves(&config, 8, true).unwrap();
        assert_eq!(bytes(Some(experts)) - bytes(None), choice, "{experts}");
        let fused = sizing.fuses(&config);
        assert_eq!(fused.is_ok(), fuses, "{experts}: {fused:?}");
    }
}
