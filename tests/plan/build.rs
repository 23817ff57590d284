//! Stages, operations and plan files.

use crate::support::{lfm2_8b_a1b, plan};
use std::path::Path;
use std::sync::Arc;
use tailgraph::Error;
use tailgraph::plan::OpKind::{self, *};
use tailgraph::plan::{GraphFile, Limits, Plan, Prompts, StepKind};

fn kinds(plan: &Plan, layer: Option<usize>) -> Vec<OpKind> {
    plan.stages
        .iter()
        .flat_map(|stage| &stage.ops)
        .filter(|op| op.layer == layer)
        .map(|op| op.kind)
        .collect()
}

#[test]
fn operations_follow_the_forward_pass() {
    for stages in [1, 3] {
        let plan = plan(lfm2_8b_a1b(), stages);
        assert_eq!(kinds(&plan, None), [Embed, FinalNorm, LmHead, Sample]);
        assert_eq!(
            kinds(&plan, Some(0)),
            [
                OperatorNorm,
                ConvInProj,
                ShortConv,
                ConvOutProj,
                FfnNorm,
                DenseGateUp,
                DenseDown
            ]
        );
        assert_eq!(
            kinds(&plan, Some(21)),
            [
                OperatorNorm,
                QkvProj,
                QkNormRope,
                Attention,
                AttentionOutProj,
                FfnNorm,
                Router,
                ExpertGateUp,
                ExpertDown
            ]
        );
        // In order of layers, the embedding first and sampling last.
        let all: Vec<_> = plan.stages.iter().flat_map(|s| &s.ops).collect();
        assert_eq!(all[0].kind, Embed);
        assert_eq!(all.last().unwrap().kind, Sample);
        let layers: Vec<usize> = all.iter().filter_map(|op| op.layer).collect();
        assert!(layers.is_sorted());
        for stage in &plan.stages {
            let own = stage.ops.iter().filter_map(|op| op.layer);
            assert!(own.into_iter().all(|layer| stage.layers.contains(&layer)));
        }
    }
    let mut no_dense = lfm2_8b_a1b();
    no_dense.num_dense_layers = 0;
    assert!(kinds(&plan(no_dense, 1), Some(0)).contains(&Router));
}

#[test]
fn stages_are_contiguous_and_balanced() {
    for stages in 1..=16 {
        let plan = plan(lfm2_8b_a1b(), stages);
        assert_eq!(plan.stages.len(), stages);
        let mut next = 0;
        for (index, stage) in plan.stages.iter().enumerate() {
            assert_eq!((stage.index, stage.layers.start), (index, next));
            assert!(!stage.layers.is_empty());
            next = stage.layers.end;
        }
        assert_eq!(next, 24);
    }
    // Two dense layers are light, the head weighs little beside 22 expert layers.
    let two = plan(lfm2_8b_a1b(), 2);
    assert_eq!(two.stages[1].layers, 13..24);
}

/// A run of prompts alone is bound by its products: a dense layer takes as long as one of experts does, the last layers next to nothing
/// where few of their rows are needed, and the head as long as two layers where all positions have logits.
#[test]
fn stages_of_prompts_are_balanced_by_what_prompts_cost() {
    let layers = |stages, lengths: &[u32], kind| -> Vec<_> {
        let limits = Limits {
            stages: Some(stages),
            prompts: Prompts::of(lengths.iter().copied(), kind),
            ..Limits::default()
        };
        let graphs = GraphFile::built_in().unwrap();
        let plan = graphs.plan(Arc::new(lfm2_8b_a1b()), &limits).unwrap();
        let layers = plan.stages.iter().map(|stage| stage.layers.len());
        layers.collect()
    };
    let many = [32; 16384];
    assert_eq!(layers(2, &many, StepKind::Mixed), [11, 13]);
    assert_eq!(layers(4, &many, StepKind::Mixed), [5, 5, 6, 8]);
    assert_eq!(layers(2, &many, StepKind::Score), [13, 11]);
    // One short prompt waits for weights, as decode does.
    assert_eq!(layers(2, &[4], StepKind::Mixed), [13, 11]);
}

#[test]
fn impossible_stages_are_refused() {
    for stages in [0, 17, 25] {
        let limits = Limits {
            stages: Some(stages),
            ..Limits::default()
        };
        let error = GraphFile::built_in()
            .unwrap()
            .plan(Arc::new(lfm2_8b_a1b()), &limits)
            .unwrap_err();
        assert!(matches!(error, Error::Usage(_)));
        let message = error.to_string();
        assert!(message.contains(&format!("`stages` {stages}")), "{message}");
        assert!(message.contains("1 to 16"), "{message}");
    }
}

#[test]
fn the_built_in_bucket_sizes() {
    let bucket_sizes = GraphFile::built_in().unwrap().bucket_sizes;
    assert_eq!(
        bucket_sizes.decode,
        (0..11).map(|n| 1 << n).collect::<Vec<u32>>()
    );
    assert_eq!(
        bucket_sizes.mixed,
        (4..14).map(|n| 1 << n).collect::<Vec<u32>>()
    );
    assert_eq!(bucket_sizes.score, [512, 1024, 2048, 4096, 8192]);
    assert_eq!(bucket_sizes.bucket(StepKind::Decode, 1), Some(1));
    assert_eq!(bucket_sizes.bucket(StepKind::Decode, 3), Some(4));
    assert_eq!(bucket_sizes.bucket(StepKind::Decode, 257), Some(512));
    assert_eq!(bucket_sizes.bucket(StepKind::Decode, 1025), None);
    assert_eq!(bucket_sizes.bucket(StepKind::Mixed, 1), Some(16));
    assert_eq!(bucket_sizes.bucket(StepKind::Score, 4097), Some(8192));
}

#[test]
fn bucket_sizes_of_some_kinds_keep_the_largest_of_the_others() {
    let bucket_sizes = GraphFile::built_in().unwrap().bucket_sizes;
    let only = bucket_sizes.only(&[StepKind::Decode]);
    assert_eq!(only.decode, bucket_sizes.decode);
    assert_eq!(
        (&only.mixed[..], &only.score[..]),
        (&[8192][..], &[8192][..])
    );
    assert_eq!(bucket_sizes.only(&StepKind::ALL), bucket_sizes);
}

fn file(text: &str) -> (tempfile::TempDir, Result<GraphFile, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, text).unwrap();
    let read = GraphFile::open(Some(&path));
    (dir, read)
}

#[test]
fn a_file_replaces_what_it_names() {
    let (_dir, read) = file("[buckets]\ndecode = [3, 7]\n[stages]\n3 = [5, 20]\n1 = []\n");
    let graphs = read.unwrap();
    assert_eq!(graphs.bucket_sizes.decode, [3, 7]);
    assert_eq!(
        graphs.bucket_sizes.mixed,
        GraphFile::built_in().unwrap().bucket_sizes.mixed
    );
    let config = Arc::new(lfm2_8b_a1b());
    let ranges = |stages| {
        let limits = Limits {
            stages: Some(stages),
            ..Limits::default()
        };
        let plan = graphs.plan(config.clone(), &limits).unwrap();
        plan.stages
            .into_iter()
            .map(|s| s.layers)
            .collect::<Vec<_>>()
    };
    assert_eq!(ranges(3), [0..5, 5..20, 20..24]);
    assert_eq!(ranges(1), vec![0..24]);
    assert_eq!(ranges(2), [0..13, 13..24]);
}

#[test]
fn cuts_that_the_model_does_not_have() {
    let (_dir, read) = file("[stages]\n2 = [24]\n");
    let limits = Limits {
        stages: Some(2),
        ..Limits::default()
    };
    let error = read
        .unwrap()
        .plan(Arc::new(lfm2_8b_a1b()), &limits)
        .unwrap_err();
    let message = error.to_string();
    for part in ["mine.toml", "stages.2", "[24]", "24 layers"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn wrong_files_say_where_and_what() {
    for (text, parts) in [
        ("[bucket]\n", vec!["'bucket'", "[buckets] or [stages]"]),
        ("bucket = 1\n", vec!["'bucket'", "[buckets] or [stages]"]),
        ("buckets = 3\n", vec!["buckets", "3", "table"]),
        (
            "[buckets]\nprefill = [1]\n",
            vec!["'prefill'", "decode, mixed or score"],
        ),
        (
            "[buckets]\ndecode = []\n",
            vec!["buckets.decode", "0 buckets", "1 to 16"],
        ),
        (
            "[buckets]\ndecode = [1, 4, 2]\n",
            vec!["buckets.decode[2]", "2 after 4", "ascending"],
        ),
        (
            "[buckets]\nmixed = [512, 512]\n",
            vec!["buckets.mixed[1]", "512 after 512"],
        ),
        (
            "[buckets]\nscore = [0]\n",
            vec!["buckets.score[0]", "found 0", "from 1"],
        ),
        (
            "[buckets]\nscore = [-5]\n",
            vec!["buckets.score[0]", "found -5"],
        ),
        (
            "[buckets]\nscore = [1.5]\n",
            vec!["buckets.score[0]", "found 1.5"],
        ),
        (
            "[buckets]\nscore = [\"a\\nb\"]\n",
            vec!["buckets.score[0]", "found \"a\\nb\""],
        ),
        (
            "[buckets]\ndecode = 4\n",
            vec!["buckets.decode", "found 4", "array"],
        ),
        (
            "[buckets]\ndecode = [2048]\n",
            vec!["buckets.decode[0]", "2048", "1024"],
        ),
        (
            "[buckets]\nmixed = [9223372036854775807]\n",
            vec!["buckets.mixed[0]", "65536"],
        ),
        (
            "[buckets]\ndecode = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]\n",
            vec!["buckets.decode", "17 buckets", "1 to 16"],
        ),
        ("[stages]\ntwo = [1]\n", vec!["'two'", "number of stages"]),
        ("[stages]\n17 = [1]\n", vec!["'17'", "1 to 16"]),
        (
            "[stages]\n3 = [4]\n",
            vec!["stages.3", "1 layers", "expected 2"],
        ),
        ("[stages]\n3 = [4, 4]\n", vec!["stages.3[1]", "4 after 4"]),
        ("[buckets]\ndecode = [1,\n\n", vec!["not TOML", "line"]),
        (
            "[buckets]\ndecode = [1]\ndecode = [2]\n",
            vec!["not TOML", "line 3"],
        ),
    ] {
        let (_dir, read) = file(text);
        let error = read.expect_err(text);
        assert!(matches!(error, Error::File { .. }), "{error:?}");
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message}");
        for part in parts.into_iter().chain(["mine.toml"]) {
            assert!(message.contains(part), "{text:?}: {message} lacks {part}");
        }
    }
}

#[test]
fn a_file_that_is_not_there() {
    let error = GraphFile::open(Some(Path::new("no/such/graphs.toml"))).unwrap_err();
    assert!(matches!(error, Error::File { .. }));
    assert!(error.to_string().contains("no/such/graphs.toml"));
    let (dir, _) = file("");
    let path = dir.path().join("bytes.toml");
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    let error = GraphFile::open(Some(&path)).unwrap_err();
    assert!(error.to_string().contains("bytes.toml"));
}
