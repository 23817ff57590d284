//! The sizes an engine gets from limits and a budget.

use crate::support::{F32, lfm2_8b_a1b, plan};
use tailgraph::Error;
use tailgraph::plan::{
    Budget, EngineOptions, Limits, MemoryPlan, Place, Plan, Prompts, StepKind, WeightPlacement,
};

const GIB: u64 = 1 << 30;

fn budget(bytes: u64) -> Budget {
    Budget::new(Some(bytes))
}

fn memory(plan: &Plan, limits: Limits, bytes: u64) -> Result<MemoryPlan, Error> {
    MemoryPlan::new(plan, F32, WeightPlacement::Mapped, &limits, budget(bytes))
}

fn usage(limits: Limits) -> String {
    let error = memory(&plan(lfm2_8b_a1b(), 2), limits, 64 * GIB).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error:?}");
    error.to_string()
}

#[test]
fn defaults_with_ample_memory() {
    let memory = memory(&plan(lfm2_8b_a1b(), 1), Limits::default(), 20 * GIB).unwrap();
    assert_eq!(
        memory.options,
        EngineOptions {
            max_seqs: 16,
            max_context: 4096,
            page_tokens: 64,
            pages: 16 * 64,
            step_tokens: 512,
            chunk_tokens: 512,
            chunk_share: 8,
            chunk_align: 64,
            steps_in_flight: 1,
            prefixes: 16,
            record: false,
        }
    );
    assert_eq!(memory.full_sequences(), 16);
    let item = |name: &str| memory.items.iter().find(|i| i.name == name).unwrap();
    // 65,536 tokens of 24 KiB, and an entry of the free-page stack for each page.
    assert_eq!(item("keys and values").bytes, 65536 * 24 * 1024 + 1024 * 4);
    assert_eq!(item("conv state").bytes, 16 * 288 * 1024);
    assert_eq!(item("logits").bytes, 512 * 65536 * 4);
    assert_eq!(memory.mapped_bytes(), item("weights").bytes);
    assert!(memory.mapped_bytes() > 15 * GIB);
    let sum: u64 = memory
        .items
        .iter()
        .filter(|i| i.place == Place::Budget)
        .map(|i| i.bytes)
        .sum();
    assert_eq!(memory.total_bytes(), sum);
}

#[test]
fn a_short_context_model_has_a_short_context() {
    let mut config = lfm2_8b_a1b();
    config.max_position_embeddings = 1000;
    let memory = memory(&plan(config, 1), Limits::default(), 20 * GIB).unwrap();
    assert_eq!(memory.options.max_context, 1000);
    assert_eq!(memory.options.pages, 16 * 16);
}

#[test]
fn what_is_asked_for_is_what_there_is() {
    let limits = Limits {
        max_seqs: Some(3),
        requests: None,
        prompts: None,
        max_context: Some(100),
        page_tokens: Some(17),
        step_tokens: Some(10),
        chunk_tokens: Some(8),
        chunk_share: None,
        chunk_align: Some(7),
        stages: None,
        steps_in_flight: Some(5),
        prefixes: Some(6),
    };
    let memory = memory(&plan(lfm2_8b_a1b(), 2), limits, 2 * GIB).unwrap();
    assert_eq!(
        memory.options,
        EngineOptions {
            max_seqs: 3,
            max_context: 100,
            page_tokens: 17,
            pages: 3 * 6,
            step_tokens: 10,
            chunk_tokens: 8,
            chunk_share: 0,
            chunk_align: 7,
            steps_in_flight: 5,
            prefixes: 6,
            record: false,
        }
    );
    assert!(
        memory
            .items
            .iter()
            .any(|i| i.name == "links between stages")
    );
    // A prefix's snapshot is as large as what a sequence has of these.
    let bytes = |name| {
        let item = memory.items.iter().find(|item| item.name == name);
        item.unwrap().bytes
    };
    let of_three = bytes("conv state") + bytes("seen tokens");
    assert_eq!(bytes("shared prefixes"), 2 * of_three);
}

/// Scored prompts: sequences that fill a step, between the usual number and what there is.
#[test]
fn prompts_that_are_all_there_fill_a_step() {
    for (prompts, step_tokens, chunk_align, seqs) in [
        (vec![32; 1024], 8192, 64, 256),
        (vec![33; 1024], 8192, 64, 249), // 248 of 33 are 8,184 rows
        (vec![2000, 48], 8192, 64, 2),   // no more than there are
        ([vec![2; 50], vec![98; 50]].concat(), 4000, 64, 80), // 50 in the mean
        (vec![5000; 40], 8192, 64, 16),  // the usual number at least
        (vec![1; 1024], 8192, 64, 256),  // the largest decode bucket
        (vec![1; 1024], 120, 64, 56),    // and a chunk has room beside them
        (vec![9], 512, 64, 1),
    ] {
        let limits = Limits {
            prompts: Prompts::of(prompts.iter().copied(), StepKind::Mixed),
            step_tokens: Some(step_tokens),
            chunk_align: Some(chunk_align),
            ..Limits::default()
        };
        let memory = memory(&plan(lfm2_8b_a1b(), 1), limits, 64 * GIB).unwrap();
        assert_eq!(memory.options.max_seqs, seqs, "{} rows", step_tokens);
    }
    assert_eq!(Prompts::of([].into_iter(), StepKind::Mixed), None);
}

#[test]
fn step_tokens_grow_with_the_slots() {
    let limits = Limits {
        max_seqs: Some(256),
        chunk_align: Some(300),
        ..Limits::default()
    };
    let memory = memory(&plan(lfm2_8b_a1b(), 1), limits, 64 * GIB).unwrap();
    assert_eq!(memory.options.step_tokens, 556);
    assert_eq!(memory.options.chunk_tokens, 512);
}

/// For budgets from too little to ample: nothing above the budget, and no page left out that would fit.
#[test]
fn the_pool_takes_what_the_budget_leaves() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let page_bytes = 64 * 24 * 1024 + 4;
    let mut short = 0;
    let mut ample = 0;
    for mib in (0..4000).step_by(37) {
        let bytes = mib << 20;
        match memory(&plan, Limits::default(), bytes) {
            Err(error) => {
                assert!(matches!(error, Error::Memory(_)), "{error:?}");
                assert_eq!(ample, 0);
                short += 1;
            }
            Ok(memory) => {
                let options = memory.options;
                assert!(memory.total_bytes() <= bytes);
                assert!(memory.full_sequences() >= 1);
                if options.pages < 16 * 64 {
                    // Tokens and pages of the default context are budgeted even where the context came out shorter.
                    let spared = u64::from(4096 - options.max_context);
                    let spared = 16 * (4 * spared + 4 * (spared / 64));
                    assert!(memory.total_bytes() + page_bytes + spared > bytes);
                } else {
                    ample += 1;
                }
            }
        }
    }
    assert!(short > 3 && ample > 3, "{short} short, {ample} ample");
}

#[test]
fn a_context_shrinks_only_where_nobody_asked_for_it() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let fixed = {
        let memory = memory(&plan, Limits::default(), 64 * GIB).unwrap();
        let pool = memory.items.iter().find(|i| i.name == "keys and values");
        memory.total_bytes() - pool.unwrap().bytes
    };
    let bytes = fixed + 10 * (64 * 24 * 1024 + 4);
    let shrunk = memory(&plan, Limits::default(), bytes).unwrap();
    assert_eq!(shrunk.options.pages, 10);
    assert_eq!(shrunk.options.max_context, 640);

    let limits = Limits {
        max_context: Some(641),
        ..Limits::default()
    };
    let error = memory(&plan, limits, bytes).unwrap_err();
    assert!(matches!(error, Error::Memory(_)));
    let message = error.to_string();
    for part in [
        "not enough memory",
        "needed",
        "allowed (`memory_limit`)",
        "logits 128.0 MiB",
        "one context of 641 tokens",
        "lower `max_context`",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(
        !message.contains('\n') && !message.contains("weights"),
        "{message}"
    );
}

#[test]
fn generated_weights_are_in_the_budget() {
    let plan = plan(lfm2_8b_a1b(), 1);
    let resident = |bytes| {
        MemoryPlan::new(
            &plan,
            F32,
            WeightPlacement::Resident,
            &Limits::default(),
            budget(bytes),
        )
    };
    let error = resident(15 * GIB).unwrap_err().to_string();
    assert!(error.contains("weights 15.5 GiB"), "{error}");
    assert!(error.contains("the weights alone do not fit"), "{error}");
    let memory = resident(22 * GIB).unwrap();
    assert_eq!(memory.mapped_bytes(), 0);
    assert!(memory.total_bytes() > 15 * GIB && memory.total_bytes() <= 22 * GIB);
}

#[test]
fn limits_that_cannot_be() {
    let none = Limits::default();
    for (limits, parts) in [
        (
            Limits {
                max_seqs: Some(0),
                ..none
            },
            vec!["`max_seqs` 0", "1 to 1024"],
        ),
        (
            Limits {
                max_seqs: Some(1025),
                ..none
            },
            vec!["`max_seqs` 1025", "1 to 1024"],
        ),
        (
            Limits {
                page_tokens: Some(15),
                ..none
            },
            vec!["`page_tokens` 15", "16 to 256"],
        ),
        (
            Limits {
                page_tokens: Some(257),
                ..none
            },
            vec!["`page_tokens` 257"],
        ),
        (
            Limits {
                step_tokens: Some(79),
                ..none
            },
            vec!["`step_tokens` 79", "at least 80"],
        ),
        (
            Limits {
                step_tokens: Some(8193),
                ..none
            },
            vec!["`step_tokens` 8193", "at most 8192"],
        ),
        (
            Limits {
                chunk_tokens: Some(63),
                ..none
            },
            vec!["`chunk_tokens` 63", "64 (", "to 512"],
        ),
        (
            Limits {
                chunk_tokens: Some(513),
                ..none
            },
            vec!["`chunk_tokens` 513", "to 512"],
        ),
        (
            Limits {
                chunk_align: Some(0),
                ..none
            },
            vec!["`chunk_align` 0"],
        ),
        (
            Limits {
                chunk_align: Some(u32::MAX),
                ..none
            },
            vec!["4294967295 tokens", "8192 tokens"],
        ),
        (
            Limits {
                max_context: Some(0),
                ..none
            },
            vec!["`max_context` 0", "1 to 128000"],
        ),
        (
            Limits {
                max_context: Some(128_001),
                ..none
            },
            vec!["`max_context` 128001"],
        ),
        (
            Limits {
                steps_in_flight: Some(1),
                ..none
            },
            vec!["1 steps in flight", "2"],
        ),
        (
            Limits {
                steps_in_flight: Some(17),
                ..none
            },
            vec!["17 steps in flight", "16"],
        ),
    ] {
        let message = usage(limits);
        for part in parts {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}

#[test]
fn absurd_shapes_are_too_large_and_nothing_worse() {
    let mut config = lfm2_8b_a1b();
    config.hidden_size = usize::MAX;
    config.num_attention_heads = usize::MAX;
    config.num_experts = usize::MAX;
    config.vocab_size = usize::MAX;
    config.max_position_embeddings = usize::MAX;
    for stages in [1, 2] {
        let error = memory(&plan(config.clone(), stages), Limits::default(), 64 * GIB).unwrap_err();
        assert!(matches!(error, Error::Memory(_)), "{error:?}");
    }
}
