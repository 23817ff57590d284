//! Two GPUs that hand rows to each other, or add them up: the same bits on both in every way, which are those that the host works
//! out; failures that say who waited for what. With fewer GPUs these tests say so, and look at nothing.

use crate::common::program::run;
use crate::techniques::table_of;
use std::collections::BTreeSet;
use std::time::Duration;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::listed::handover::{Carrier, HandoverWay};
use tailgraph::backend::cuda::tools::handover::{self, Foreseen, WAIT, open};

fn two() -> Option<[OpenGpu; 2]> {
    let found = machine::probe().unwrap().gpus.len();
    if found < 2 {
        eprintln!("skipped: found {found} GPU, expected two");
        return None;
    }
    Some([0, 1].map(|ordinal| OpenGpu::new(ordinal).unwrap()))
}

/// Rows on both sides of a block's, and of all blocks at once.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn all_ways_give_the_reference_bits_on_both_gpus() {
    let Some(gpus) = two() else { return };
    let (mut failed, mut ran) = (vec![], 0);
    for rows in [1, 3, 64, 65] {
        for way in HandoverWay::ALL {
            if let Err(lacks) = handover::check(&gpus, way) {
                eprintln!("skipped: {lacks}");
                continue;
            }
            let steps = Foreseen::new(rows, way.reduces);
            let goes = || {
                let mut run = open(&gpus, way, &steps, WAIT)?;
                for count in [1, 7, 40] {
                    let chunk = run.run(count)?;
                    assert_eq!(chunk.ends_ns.len() as u64, count, "{}", way.name());
                    assert!(
                        chunk.ends_ns.is_sorted() && chunk.launches > 0,
                        "{}",
                        way.name()
                    );
                }
                assert_eq!((run.done(), run.token()), (48, steps.token(48)));
                Ok::<_, tailgraph::Error>(())
            };
            ran += 1;
            if let Err(error) = goes() {
                failed.push(format!("{}, {rows} rows: {error}", way.name()));
            }
        }
    }
    assert!(failed.is_empty() && ran > 0, "{failed:#?}");
}

/// A reference of other steps is what no way gives: the comparison can fail.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn other_bits_are_an_error_that_names_way_and_gpu() {
    let Some(gpus) = two() else { return };
    for way in HandoverWay::ALL {
        if handover::check(&gpus, way).is_err() {
            continue;
        }
        let steps = Foreseen::new(2, way.reduces);
        steps.spoil(9);
        let mut run = open(&gpus, way, &steps, WAIT).unwrap();
        run.run(5).unwrap();
        let message = run.run(4).err().unwrap().to_string();
        for part in [way.name(), "after 9 steps of 2 rows cuda:0", "expected"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// Only the first GPU's part is queued: what its kernel waits for never comes.
#[test]
#[ignore = "needs two NVIDIA GPUs, whose kernels run beside each other"]
fn a_gpu_that_waits_in_vain_is_named_with_its_limit() {
    let Some(gpus) = two() else { return };
    for way in HandoverWay::ALL {
        if way.carrier != Carrier::Stores || handover::check(&gpus, way).is_err() {
            continue;
        }
        let steps = Foreseen::new(2, way.reduces);
        let mut run = open(&gpus, way, &steps, Duration::from_secs(1)).unwrap();
        run.run(3).unwrap();
        let message = run.run_alone().err().unwrap().to_string();
        for part in [way.name(), "step 3 on cuda:0", "of cuda:1", "within 1 s"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// Through the binary, beside another process on each GPU.
#[test]
#[ignore = "needs two NVIDIA GPUs, beside other processes"]
fn a_table_of_handovers_has_a_line_for_each_way_and_load() {
    if two().is_none() {
        return;
    }
    let options = "bench handover --rows 1,64 --gpu-load 0,1 --steps 300 -r 1 --most-seconds 1 --format jsonl";
    let ended = run(&options.split(' ').collect::<Vec<_>>());
    let rows = table_of(&ended.good(), "handover");
    let lines: BTreeSet<_> = rows
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64();
            (
                row["way"].as_str().unwrap(),
                number("rows"),
                number("gpu_load"),
            )
        })
        .collect();
    assert_eq!(lines.len(), rows.len());
    let ways: BTreeSet<_> = lines.iter().map(|(way, ..)| way).collect();
    assert_eq!(rows.len(), 2 * 2 * ways.len());
}
