//! A model's stages on several GPUs that hand steps to each other, by the real core and the real links.

use crate::common::program::Ended;
use crate::rig::{Run, WAYS, fails, launch};
use serde_json::Value;

pub const ROWS: usize = 12;

/// The tiny model has four layers.
pub fn on(devices: &str, count: usize, way: &str) -> Run {
    let model = ["generate", "--model", "random:tiny", "--device", devices];
    let sizes = [
        "--parallel",
        "stages",
        "--max-seqs",
        "4",
        "--step-tokens",
        "512",
    ];
    let run = Run::new(&model).and(&launch(way)).and(&sizes);
    run.and(&["--max-new-tokens", "3", "--quiet"])
        .with("DEVICES", count)
}

fn two(way: &str) -> Run {
    on("cuda:0,1", 2, way)
}

pub fn all_served((ended, answers): &(Ended, Vec<Value>), of: &str) {
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{of}");
    assert_eq!(answers.len(), ROWS, "{of}");
    for (row, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], row.to_string(), "{of}");
        assert_eq!(answer["text"], "AAA", "{of}: {answer}");
    }
}

#[test]
fn every_row_is_answered_in_every_way() {
    for way in WAYS {
        for (devices, count) in [("cuda:0,1", 2), ("cuda:1,0,2", 3), ("cuda:0,1,2,3", 4)] {
            all_served(
                &on(devices, count, way).over_rows(ROWS),
                &format!("{way} on {devices}"),
            );
        }
    }
}

#[test]
fn stages_are_shared_out_where_there_are_more_than_gpus() {
    let run = two("device-graph").and(&["--stages", "4"]);
    all_served(&run.over_rows(ROWS), "four stages on two");
}

#[test]
fn gpus_that_do_not_reach_each_other_hand_on_through_the_host() {
    let (ended, answers) = two("device-graph").with("PEERS", 0).over_rows(ROWS);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(answers.len(), ROWS);
    assert_eq!(
        ended.stderr.matches("memory of the host").count(),
        1,
        "{}",
        ended.stderr
    );
    let asked = two("device-graph").and(&["--handover", "host"]);
    all_served(&asked.over_rows(ROWS), "through the host");
    let peers = two("device-graph").and(&["--handover", "peer", "x"]);
    let ended = peers.with("PEERS", 0).end();
    ended.fails_in_a_line(2, &["--handover peer", "expected --handover host"]);
}

/// Steps overlap, so a replay has as many in flight; one GPU takes them again, stage after stage.
#[test]
fn a_recording_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.jsonl");
    let record = record.to_str().unwrap();
    let run = two("device-graph").and(&["--record", record]);
    all_served(&run.over_rows(ROWS), "recorded");
    let text = std::fs::read_to_string(record).unwrap();
    assert!(
        text.contains(r#""stages":2"#),
        "{}",
        text.lines().next().unwrap()
    );
    let replay = ["replay", "--model", "random:tiny", "--record", record];
    let replayed = Run::new(&replay)
        .and(&["--device", "cuda:1"])
        .with("DEVICES", 2)
        .end();
    assert_eq!((replayed.code, replayed.stderr.as_str()), (0, ""));
    let expected = format!("{ROWS} requests: equal\n");
    assert!(replayed.stdout.ends_with(&expected), "{}", replayed.stdout);
}

#[test]
fn a_gpu_that_faults_is_named_with_its_stage() {
    for (device, stage) in [(0, "stage 0 on cuda:0"), (1, "stage 1 on cuda:1")] {
        let run = two("device-graph").with("DEVICE", format!("fault:4:700@{device}"));
        fails(
            &run.over_rows(ROWS),
            0,
            &[stage, "CUDA_ERROR_ILLEGAL_ADDRESS"],
        );
    }
}

#[test]
fn a_stage_that_is_stuck_is_found_by_the_deadline() {
    let limit = ["--step-timeout-ms", "500"];
    let run = two("device-graph").with("DEVICE", "stuck:4@1").and(&limit);
    let (ended, answers) = run.over_rows(ROWS);
    fails(
        &(ended, answers),
        0,
        &[
            "link 1, as stage 0 on cuda:0 saw it",
            "stage 1 on cuda:1 left it waiting past its deadline",
        ],
    );
    let run = two("device-graph").with("DEVICE", "stuck:4@0").and(&limit);
    fails(&run.over_rows(ROWS), 0, &["4 (stage 0"]);
}

#[test]
fn a_stage_whose_graph_is_refused_ends_the_others() {
    let run = two("device-graph").with("DEVICE", "refuse:4@1");
    fails(
        &run.over_rows(ROWS),
        0,
        &["stage 1 on cuda:1 could not go on"],
    );
    let run = two("device-graph").with("DEVICE", "refuse:4@0");
    fails(
        &run.over_rows(ROWS),
        0,
        &["refused to launch the graph of step"],
    );
}

#[test]
fn what_stages_on_gpus_cannot_be_is_refused() {
    let run = |more: &[&str]| two("device-graph").and(more).and(&["x"]).end();
    run(&["--stages", "1"]).fails_in_a_line(2, &["--stages 1", "at least one for each of the 2"]);
    let whole = Run::generate("device-graph")
        .and(&["--handover", "host", "x"])
        .end();
    whole.fails_in_a_line(2, &["--handover", "--parallel stages"]);
}
