//! The sizes an engine gets on a GPU, which need not be there.

use crate::support::{BF16, lfm2_8b_a1b, plan};
use tailgraph::backend::cuda::memory::arithmetic::{DeviceMemory, Overheads};
use tailgraph::plan::{Budget, LayerRange, Limits, MemoryPlan};

/// Bytes of the card, and of those the ones that a run may take.
fn memory(whole: u64, budget: u64, limits: &Limits) -> MemoryPlan {
    let memory = DeviceMemory {
        whole: Budget::new(Some(whole)),
        budget: Budget::new(Some(budget)),
    };
    let overheads = |_: &_| {
        Ok(Overheads {
            scheduler_bytes: 0,
            kept_token_bytes: 0,
            pinned_bytes: 0,
            pinned_arithmetic: String::new(),
            logits_bytes: 0,
            logits_arithmetic: String::new(),
        })
    };
    let plan = plan(lfm2_8b_a1b(), 1);
    let whole = [LayerRange::whole(&plan.config)];
    MemoryPlan::on_device((&plan, &whole), BF16, limits, &memory, &overheads).unwrap()
}

fn activations(memory: &MemoryPlan) -> u64 {
    let item = memory.items.iter().find(|i| i.name == "activations");
    item.unwrap().bytes
}

const GB: u64 = 1_000_000_000;
const AMPLE: u64 = 1000 * GB;

#[test]
fn steps_are_halved_until_activations_take_a_16th_of_the_card() {
    let mut halved = 0;
    for gb in [141, 80, 24, 16, 12, 8, 4, 2] {
        let found = memory(gb * GB, AMPLE, &Limits::default());
        let rows = found.options.step_tokens;
        assert!(
            rows >= 80 && (0..7).any(|half| rows == 8192 >> half),
            "{rows}"
        );
        assert_eq!(found.options.chunk_tokens, rows.min(512), "{gb} GB");
        assert!(activations(&found) <= gb * GB / 16, "{gb} GB: {rows} rows");
        let twice = Limits {
            step_tokens: Some(rows * 2),
            ..Limits::default()
        };
        if rows < 8192 {
            halved += 1;
            assert!(activations(&memory(gb * GB, AMPLE, &twice)) > gb * GB / 16);
        }
        let item = found.items.iter().find(|i| i.name == "activations");
        let arithmetic = &item.unwrap().arithmetic;
        assert!(arithmetic.contains("by default"), "{arithmetic}");
        assert!(arithmetic.contains("1/16 of"), "{arithmetic}");
    }
    assert!(halved > 1);
}

#[test]
fn steps_do_not_depend_on_what_is_free() {
    let steps = |free| {
        memory(80 * GB, free, &Limits::default())
            .options
            .step_tokens
    };
    assert_eq!(steps(70 * GB), 8192);
    assert_eq!(steps(20 * GB), 8192);
}

#[test]
fn a_step_holds_all_sequences_and_a_chunk_on_the_smallest_card() {
    let limits = Limits {
        max_seqs: Some(200),
        ..Limits::default()
    };
    let found = memory(GB / 100, AMPLE, &limits);
    assert_eq!(found.options.step_tokens, 264);
    let asked = Limits {
        step_tokens: Some(4096),
        ..limits
    };
    let found = memory(GB / 100, AMPLE, &asked);
    assert_eq!(found.options.step_tokens, 4096);
    let item = found.items.iter().find(|i| i.name == "activations");
    assert!(!item.unwrap().arithmetic.contains("default"));
}

fn seqs(gb: u64, limits: &Limits) -> u32 {
    memory(gb * GB, AMPLE, limits).options.max_seqs
}

#[test]
fn as_many_sequences_run_at_once_as_the_card_holds() {
    let mut different = Vec::new();
    for gb in [141, 80, 48, 32, 24] {
        let found = seqs(gb, &Limits::default());
        let holds = |seqs: u32| {
            let limits = Limits {
                max_seqs: Some(seqs),
                ..Limits::default()
            };
            let found = memory(gb * GB, AMPLE, &limits);
            assert_eq!(found.full_sequences(), seqs);
            found.total_bytes() <= gb * GB - gb * GB / 16
        };
        assert!(found == 16 || holds(found), "{gb} GB: {found}");
        assert!(found == 1024 || !holds(found * 2), "{gb} GB: {found}");
        different.push(found);
    }
    assert!(different.is_sorted_by(|a, b| a >= b), "{different:?}");
    assert_eq!(different[..2], [1024, 1024]);
    assert!(different[4] < 1024, "{different:?}");
}

#[test]
fn no_more_sequences_than_the_job_has_or_a_step_holds() {
    for requests in [1, 5, 16, 300, 1023, 5000] {
        let limits = Limits {
            requests: Some(requests),
            ..Limits::default()
        };
        assert_eq!(seqs(80, &limits), requests.min(1024));
        let named = Limits {
            max_seqs: Some(7),
            ..limits
        };
        assert_eq!(seqs(80, &named), 7);
    }
    let steps = |step_tokens| Limits {
        step_tokens: Some(step_tokens),
        ..Limits::default()
    };
    assert_eq!(seqs(80, &steps(512)), 512 - 64);
    assert_eq!(seqs(80, &steps(80)), 16);
}

#[test]
fn sequences_do_not_depend_on_what_is_free() {
    let free = |gb| memory(80 * GB, gb * GB, &Limits::default()).options;
    assert_eq!(free(70).max_seqs, free(30).max_seqs);
    assert!(free(30).pages < free(70).pages);
}
