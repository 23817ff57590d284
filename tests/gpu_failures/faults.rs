//! A GPU that is lost, or faults, in the middle of a run: rows that were done are there, all others say what happened.

use crate::rig::{Run, WAIT, WAYS, assert_served};
use serde_json::Value;

/// Rows are served one after the other, three steps each: step 4 is the second of row 1.
const ROWS: usize = 4;

const CODES: [(u32, &str); 3] = [
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
];

#[test]
fn a_fault_ends_the_rows_in_flight_and_no_others() {
    for (code, name) in CODES {
        for way in WAYS {
            // The host hears of a step's fault when it asks for the samples' copy, or when it waits for it.
            let faults = match way {
                "device-graph" => vec![("DEVICE", format!("fault:4:{code}"))],
                _ => vec![
                    ("FAIL", format!("cuMemcpyDtoHAsync_v2:5:{code}")),
                    ("FAIL", format!("{WAIT}:{code}")),
                ],
            };
            for (setting, fault) in faults {
                let (ended, answers) = Run::generate(way).with(setting, fault).over_rows(ROWS);
                let parts = [name, "step 4", "stage 0", "decode"];
                ended.fails_in_a_line(1, &parts);
                assert_served(&answers, ROWS, 1, &parts);
            }
        }
    }
}

#[test]
fn a_lost_device_is_found_by_asking_the_stream() {
    // The second question comes while the device stands still in step 4; the host would otherwise wait for it.
    for (code, name) in CODES {
        let run = Run::generate("device-graph").with("DEVICE", "stuck:4");
        let (ended, answers) = run
            .with("FAIL", format!("cuStreamQuery:20:{code}"))
            .over_rows(ROWS);
        let parts = [name, "step 4", "stage 0", "decode"];
        ended.fails_in_a_line(1, &parts);
        assert_served(&answers, ROWS, 1, &parts);
    }
}

#[test]
fn a_graph_that_is_not_launched() {
    // The first launch of the GPU's own scheduler, and the host's fifth.
    let first = Run::generate("device-graph").with("FAIL", "cuGraphLaunch:1:719");
    let (ended, answers) = first.over_rows(ROWS);
    ended.fails_in_a_line(
        1,
        &[
            "launching the graph of the idle dispatcher",
            "CUDA_ERROR_LAUNCH_FAILED",
        ],
    );
    assert!(answers.is_empty(), "nothing had begun");

    let (ended, answers) = Run::generate("host-graph")
        .with("FAIL", "cuGraphLaunch:5:719")
        .over_rows(ROWS);
    let parts = [
        "step 4",
        "launching the graph of stage 0 decode 1",
        "CUDA_ERROR_LAUNCH_FAILED",
    ];
    ended.fails_in_a_line(1, &parts);
    assert_served(&answers, ROWS, 1, &parts);

    // The device's own.
    let (ended, answers) = Run::generate("device-graph")
        .with("DEVICE", "refuse:4")
        .over_rows(ROWS);
    let parts = [
        "the GPU refused to launch",
        "step 4 (stage 0, decode bucket of 1 token, 1 used)",
    ];
    ended.fails_in_a_line(1, &parts);
    assert_served(&answers, ROWS, 1, &parts);
}

/// A run that failed half-way goes on where it was.
#[test]
fn a_failed_run_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.jsonl"));
    let lines = (0..ROWS).map(|row| format!("{{\"id\":\"{row}\",\"prompt\":\"ab\"}}\n"));
    std::fs::write(&input, lines.collect::<String>()).unwrap();
    let run = || Run::generate("device-graph").and(&["--input", &input, "--output", &output]);
    run()
        .with("DEVICE", "fault:4:700")
        .end()
        .fails_in_a_line(1, &["ILLEGAL_ADDRESS"]);
    assert!(!std::path::Path::new(&output).exists());
    assert_eq!(run().and(&["--resume"]).end().code, 0);
    let answers = std::fs::read_to_string(&output).unwrap();
    let answers: Vec<_> = answers
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_served(&answers, ROWS, ROWS, &[]);
}

/// One prompt a step: two are scored when the third launch fails.
#[test]
fn scored_rows_are_there_and_the_others_say_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.jsonl"));
    let line = "{\"input_ids\":[9,10,11]}\n";
    std::fs::write(&input, line.repeat(ROWS)).unwrap();
    let run = Run::new(&[
        "score",
        "--model",
        "random:tiny",
        "--device",
        "cuda",
        "--quiet",
    ]);
    let run = run.and(&["--launch", "host-graph", "--max-seqs", "1", "--logprobs"]);
    let run = run.and(&["--input", &input, "--output", &output]);
    let ended = run.with("FAIL", "cuGraphLaunch:3:719").end();
    let parts = ["step 2 (stage 0 score 512)", "CUDA_ERROR_LAUNCH_FAILED"];
    ended.fails_in_a_line(1, &parts);
    let answers = std::fs::read_to_string(output + ".partial").unwrap();
    let answers: Vec<Value> = answers
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(answers.len(), ROWS);
    for (row, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], row + 1);
        assert_eq!(answer["logprobs"].is_array(), row < 2, "{answer}");
        if row >= 2 {
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
