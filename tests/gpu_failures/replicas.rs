//! Two GPUs that run a model each, on one queue: the driver has a context for each, and refuses what is done in the wrong one.

use crate::rig::{Run, WAYS, fails, launch};
use serde_json::Value;
use std::path::Path;

const ROWS: usize = 12;

fn two(way: &str) -> Run {
    let model = ["generate", "--model", "random:tiny", "--device", "cuda:0,1"];
    let sizes = ["--max-seqs", "2", "--step-tokens", "512"];
    let run = Run::new(&model).and(&launch(way)).and(&sizes);
    run.and(&["--max-new-tokens", "3", "--quiet"])
        .with("DEVICES", 2)
}

#[test]
fn every_row_is_answered_once_in_every_way() {
    for way in WAYS {
        let (ended, answers) = two(way).over_rows(ROWS);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{way}");
        assert_eq!(answers.len(), ROWS, "{way}");
        for (row, answer) in answers.iter().enumerate() {
            assert_eq!(answer["id"], row.to_string(), "{way}");
            assert_eq!(answer["text"], "AAA", "{way}: {answer}");
        }
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// GPUs that schedule themselves claim their rows from the queue, as schedulers on the host do. Either's run can be taken again.
#[test]
fn each_replica_has_a_recording_that_replays_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for way in ["device-graph", "host-graph"] {
        let record = path("run.jsonl");
        let record = record.to_str().unwrap();
        let (ended, _) = two(way).and(&["--record", record]).over_rows(ROWS);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{way}");
        let mut served = 0;
        for replica in 0..2 {
            let record = path(&format!("run.{replica}.jsonl"));
            let ends = lines(&record);
            let ends = ends.iter().filter(|line| line.get("end").is_some()).count();
            served += ends;
            let replayed = Run::new(&["replay", "--model", "random:tiny", "--device", "cuda:1"])
                .and(&["--record", record.to_str().unwrap()])
                .with("DEVICES", 2)
                .end();
            assert_eq!((replayed.code, replayed.stderr.as_str()), (0, ""), "{way}");
            let expected = format!("{ends} requests: equal\n");
            assert!(replayed.stdout.ends_with(&expected), "{}", replayed.stdout);
            std::fs::remove_file(record).unwrap();
        }
        assert_eq!(served, ROWS, "{way}");
    }
}

/// Half of them are cancelled by the host, which finds their stop strings; the GPUs claim all.
#[test]
fn ten_thousand_rows_with_cancels_are_answered_once() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let row = |row: usize| match row % 2 {
        0 => format!(
            "{{\"id\":\"{row}\",\"prompt\":\"ab\",\"max_new_tokens\":20,\"stop\":[\"AA\"]}}\n"
        ),
        _ => format!("{{\"id\":\"{row}\",\"prompt\":\"abcdef\"}}\n"),
    };
    std::fs::write(&input, (0..10_000).map(row).collect::<String>()).unwrap();
    let model = [
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cuda:0,1,2",
    ];
    let sizes = ["--max-seqs", "16", "--step-tokens", "512"];
    let run = Run::new(&model).and(&sizes).with("DEVICES", 3);
    let more = ["--max-new-tokens", "3", "--quiet", "--input"];
    let ended = run.and(&more).and(&[input.to_str().unwrap()]).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let answers = ended.rows();
    assert_eq!(answers.len(), 10_000);
    for (row, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], row.to_string());
        let (text, reason) = match row % 2 {
            0 => ("", "stop"),
            _ => ("AAA", "length"),
        };
        let found = (&answer["text"], &answer["finish_reason"]);
        assert_eq!(found, (&text.into(), &reason.into()), "{answer}");
    }
}

/// Then the host hands rows out, and says so.
#[test]
fn gpus_that_cannot_claim_from_one_queue_are_served_all_the_same() {
    for peers in ["0", "stores"] {
        let (ended, answers) = two("device-graph").with("PEERS", peers).over_rows(ROWS);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let says = "the host hands requests out";
        assert!(ended.stderr.contains(says), "{peers}: {}", ended.stderr);
        assert_eq!(answers.len(), ROWS, "{peers}");
        for answer in answers {
            assert_eq!(answer["text"], "AAA", "{peers}: {answer}");
        }
    }
}

#[test]
fn a_gpu_that_faults_is_named_and_the_other_stops() {
    let (ended, answers) = two("device-graph")
        .with("DEVICE", "fault:4:700@1")
        .over_endless_rows();
    fails(
        &(ended, answers),
        1,
        &["cuda:1: ", "CUDA_ERROR_ILLEGAL_ADDRESS", "step 4"],
    );
}

#[test]
fn a_gpu_that_is_stuck_is_named_by_the_deadline() {
    let (ended, answers) = two("device-graph")
        .with("DEVICE", "stuck:4@1")
        // So long that a machine with other work does not hold the other one up for as long.
        .and(&["--step-timeout-ms", "2000"])
        .over_endless_rows();
    fails(
        &(ended, answers),
        1,
        &["cuda:1: ", "step 4 (stage 0", "expected at most 2.0 s"],
    );
}

/// The other one serves all rows, so nothing fails. But somebody will want to know why the end took so long.
#[test]
fn a_gpu_that_does_nothing_is_named_at_the_end() {
    let run = two("device-graph").with("DEVICE", "dead@1");
    let (ended, answers) = run.over_rows(ROWS);
    assert_eq!((ended.code, answers.len()), (0, ROWS), "{}", ended.stderr);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    assert!(lines[0].contains("cuda:1: the scheduler there has not ended 20 s after"));
}

#[test]
fn gpus_that_cannot_be_are_refused_by_name() {
    let generate = |device: &str, more: &[&str]| {
        let model = [
            "generate",
            "--model",
            "random:tiny",
            "--device",
            device,
            "x",
        ];
        Run::new(&model).and(more).with("DEVICES", 2).end()
    };
    generate("cuda:0,2", &[]).fails_in_a_line(2, &["cuda:2 does not exist", "cuda:0 to cuda:1"]);
    generate("cuda:1,1", &[]).fails_in_a_line(2, &["found cuda:1 twice"]);
}

#[test]
fn serving_is_measured_on_both() {
    let model = [
        "bench",
        "serve",
        "--model",
        "random:tiny",
        "--device",
        "cuda:0,1",
    ];
    let load = ["--max-concurrency", "4", "--num-prompts", "8", "-n", "4"];
    let run = Run::new(&model)
        .and(&load)
        .and(&["-r", "1", "--quiet", "--format", "json"]);
    let ended = run.with("DEVICES", 2).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&found[0]["replicas"], &found[0]["completed"]),
        (&2.into(), &8.into())
    );
    assert_eq!(found[0]["max_seqs"], 2);
    let gpus = found[0]["gpu_info"].as_str().unwrap();
    assert!(
        gpus.contains("cuda:0 ") && gpus.contains(" and cuda:1 "),
        "{gpus}"
    );
}
