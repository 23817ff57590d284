use super::*;
use crate::model::{DType, ModelSource};

fn sizing(compute: DType) -> Sizing {
    Sizing {
        precision: Precision::new(compute, WeightFormat::BF16),
        limits: Limits::H200,
        stages: 4,
    }
}

fn with_multiprocessors(multiprocessors: u32) -> Sizing {
    Sizing {
        limits: Limits {
            multiprocessors,
            ..Limits::H200
        },
        ..sizing(DType::BF16)
    }
}

fn config() -> ModelConfig {
    let source = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
    source.config().unwrap().0
}

#[test]
fn rings_shrink_where_rows_are_large() {
    let sizing = sizing(DType::BF16);
    let stage = sizing.stage_bytes(2048);
    assert_eq!((stage, sizing.stage_bytes(32)), (8 * 4096, 8 * 128));
    let stages = |fixed| {
        Limits::H200
            .ring(fixed, stage, 2..=4)
            .map(|ring| ring.stages)
    };
    let found = [15_000, 110_000, 160_000, 170_000, u32::MAX].map(stages);
    assert_eq!(found, [Some(4), Some(3), Some(2), None, None]);
    let columns = [32, 1792, 2048, 2080, 7168].map(|inner| sizing.stage_columns(inner));
    assert_eq!(columns, [32, 1792, 2048, 1088, 1792], "of one size");
}

#[test]
fn blocks_have_as_many_tiles_each_and_leave_sms_to_others() {
    let bf16 = sizing(DType::BF16);
    let blocks = [128, 133, 264, 4096].map(|tiles| bf16.blocks(tiles, 0));
    assert_eq!(blocks, [128, 67, 132, 128]);
    let beside = [(128, 4), (192, 2), (192, 4)].map(|(tiles, others)| bf16.blocks(tiles, others));
    assert_eq!(beside, [132, 98, 100]);
    assert_eq!([1792, 4].map(|tiles| bf16.blocks_at_most(tiles)), [132, 4]);
    // An LM head of 65,536: 28 tiles each, the last block fewer.
    let of_head = [148, 300].map(|all| with_multiprocessors(all).blocks(4096, 0));
    assert_eq!(of_head, [147, 256]);
    // Those that predict take nobody's place; of 192 tiles a block has two in either case.
    let predicting = [(128, 32), (132, 32), (192, 9)];
    let predicting = predicting.map(|(tiles, experts)| bf16.prediction_blocks(tiles, experts));
    assert_eq!(predicting, [4, 0, 2]);
    assert_eq!(with_multiprocessors(1).prediction_blocks(1, 8), 0);
}

/// A ring of the wider stages, beside what a row's blocks keep of y; and blocks that predict in every layer.
#[test]
fn experts_fuse_where_there_is_room() {
    let config = config();
    let fused = |compute, stages| {
        let sizing = Sizing {
            stages,
            ..sizing(compute)
        };
        sizing.fused(2048, 1792, 4, 32).unwrap()
    };
    assert_eq!(fused(DType::BF16, 16).stages, 6);
    assert_eq!(fused(DType::F32, 16).stages, 5);
    let bytes = |compute| fused(compute, 4).shared_bytes;
    // f32 takes two more parts of the row, and of each warp's columns of y.
    let parts = 2 * (sizing(DType::F32).pitch(2048, 2) + CONSUMER_WARPS * 32 * 16);
    assert_eq!(bytes(DType::F32) - bytes(DType::BF16), parts);
    let bf16 = sizing(DType::BF16);
    assert_eq!(bf16.fused(2048, 2080, 4, 32), None);
    bf16.fuses(&config).unwrap();
    let wider = ModelConfig {
        moe_intermediate_size: 2080,
        ..config.clone()
    };
    let error = bf16.fuses(&wider).unwrap_err();
    assert!(error.contains("moe_intermediate_size is 2080"), "{error}");
    let error = with_multiprocessors(128).fuses(&config).unwrap_err();
    assert!(error.contains("128 multiprocessors"), "{error}");
}

#[test]
fn only_short_rows_have_their_weights_in_registers() {
    let sizing = sizing(DType::F32);
    let bytes = sum_bytes(8, SUM_PLACES) + 8 * sizing.pitch(2048, 4) + 100;
    assert_eq!(sizing.holding(8, 2048, 100), Some(bytes));
    assert_eq!(sizing.holding(8, 2080, 100), None);
    assert_eq!(sizing.holding(8, 2048, 200_000), None);
}

/// Eight lanes read 16 bytes each of two rows: rows half the banks (or for f32 a quarter) apart. Few f32 rows lie in three parts of 2
/// bytes each.
#[test]
fn rows_lie_in_different_banks() {
    for elements in [32, 96, 1792, 2048] {
        assert_eq!(sizing(DType::F32).pitch(elements, 2) % 128, 64);
        assert_eq!(sizing(DType::F32).pitch(elements, 4) % 128, 16);
    }
    let bytes = |compute, rows| sizing(compute).row_bytes(rows, 2048);
    let f32 = [1, 2, 3, 8].map(|rows| bytes(DType::F32, rows));
    assert_eq!(f32, [12480, 24960, 24624, 65664]);
    assert_eq!([1, 8].map(|rows| bytes(DType::BF16, rows)), [4160, 33280]);
}

/// More experts have more in shared memory beside the ring. Fused, they need blocks that predict: of 132 SMs a hidden size of 2048 leaves
/// four, each for 8 of up to 32 experts, and for 16 of more.
#[test]
fn more_experts_have_more_words() {
    let sizing = sizing(DType::BF16);
    let bytes = |experts| sizing.normed(8, 2048, experts).unwrap().shared_bytes;
    let with = |experts| ModelConfig {
        num_experts: experts,
        ..config()
    };
    for (experts, choice) in [
        (1, abi::TG_SKINNY_CHOICE_BYTES),
        (32, abi::TG_SKINNY_CHOICE_BYTES),
        (33, abi::TG_SKINNY_CHOICE_BYTES_2),
        (64, abi::TG_SKINNY_CHOICE_BYTES_2),
    ] {
        sizing.serves(&with(experts), 8, true).unwrap();
        assert_eq!(bytes(Some(experts)) - bytes(None), choice, "{experts}");
        sizing.fuses(&with(experts)).unwrap();
    }
    sizing.serves(&with(65), 8, false).unwrap();
    let error = sizing.serves(&with(65), 8, true).unwrap_err();
    assert!(error.contains("num_experts is 65"), "{error}");
}
