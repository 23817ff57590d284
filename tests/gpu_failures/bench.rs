//! `bench` in every way to launch, over the test's driver, whose kernels take no time: what is counted, not how long.

use crate::common::schema::{check, schema};
use crate::rig::Run;
use serde_json::Value;

const SCHEDULED: [&str; 7] = [
    "host-kernels",
    "host-graph",
    "host-graph-event",
    "host-graph-block",
    "host-graph-ahead",
    "device-graph",
    "device-graph-tail",
];

fn bench(kind: &str) -> Run {
    Run::new(&[
        "bench", kind, "--device", "cuda", "--quiet", "--format", "json",
    ])
}

/// The steps 4, 6, ... and 22 of 23 in each of two runs.
const BARE_STEPS: u64 = 2 * 10;

fn results(run: Run) -> Vec<Value> {
    let ended = run.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("bench"), &found).unwrap();
    found.as_array().unwrap().clone()
}

fn decode(rest: &[&str]) -> Run {
    bench("decode")
        .and(&["--model", "random:tiny", "-p", "8"])
        .and(rest)
}

#[test]
fn the_bare_graph_stands_beside_every_way_to_schedule() {
    let ways = format!("bare,{}", SCHEDULED.join(","));
    let sizes = ["--launch", &ways, "-b", "1,2", "-n", "24", "-r", "2"];
    // The driver counts what engines before have freed as used.
    let found = results(decode(&sizes).with("MEMORY", 4u64 << 30));
    assert_eq!(found.len(), 2 * (1 + SCHEDULED.len()));
    for row in &found {
        let batch = row["batch"].as_f64().unwrap();
        let steps = row["step_count"].as_u64().unwrap();
        assert!(
            row["avg_ts"].as_f64().unwrap() > 0.0 && row["median_step_ms"].as_f64().unwrap() > 0.0
        );
        // The driver's routers choose expert 0 four times for each row.
        assert_eq!(row["experts_hit_max"], 1, "{row}");
        assert_eq!(row["expert_share_max"], 1.0);
        if row["launch"] == "bare" {
            // 20 launches each, of which nobody hears.
            assert_eq!(steps, BARE_STEPS, "{row}");
            assert_eq!(row["total_output_tokens"].as_f64(), Some(200.0 * batch));
            assert_eq!(row["launches_per_token"].as_f64(), Some(1.0 / batch));
            assert_eq!(row["completed"], 0);
            for name in ["median_itl_ms", "median_ttft_ms", "median_turn_us"] {
                assert!(row[name].is_null(), "{name}: {row}");
            }
            continue;
        }
        assert!(steps > 2 * 15, "{row}");
        assert_eq!(row["completed"].as_f64(), Some(batch));
        assert!(row["median_turn_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["median_itl_ms"].as_f64().unwrap() > 0.0, "{row}");
        let by_host = row["launches_per_token"].as_f64().unwrap();
        match row["launch"].as_str().unwrap() {
            "device-graph" | "device-graph-tail" => assert_eq!(by_host, 0.0, "{row}"),
            "host-kernels" => assert!(by_host > 10.0 / batch, "{row}"),
            _ => assert!((1.0 / batch..1.2 / batch).contains(&by_host), "{row}"),
        }
    }
}

#[test]
fn a_bare_graph_needs_steps_and_no_requests() {
    let sizes = [
        "--launch",
        "bare,device-graph",
        "-b",
        "1",
        "-n",
        "4",
        "-r",
        "2",
    ];
    let ended = decode(&sizes).end();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let said = "fewer than 4 decode steps, expected at least as many";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    // What else was measured is not lost.
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let ways: Vec<_> = found.as_array().unwrap().iter().collect();
    assert_eq!(ways.len(), 1);
    assert_eq!(ways[0]["launch"], "device-graph");
    let ended = bench("prefill")
        .and(&["--model", "random:tiny", "--launch", "bare"])
        .end();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("--launch bare: a way of `bench decode`"),
        "{}",
        ended.stderr
    );
}

/// The host waits in a way of its own for each step, so that another call is what hears of a lost GPU.
#[test]
fn a_way_that_fails_is_named_with_its_step() {
    let lost = "CUDA_ERROR_ILLEGAL_ADDRESS";
    for (way, setting, trouble, said) in [
        (
            "host-graph",
            "FAIL",
            "cuStreamSynchronize:cuGraphLaunch+9:700",
            lost,
        ),
        ("host-graph-event", "FAIL", "cuEventQuery:9:700", lost),
        ("host-graph-block", "FAIL", "cuEventSynchronize:9:700", lost),
        ("device-graph", "DEVICE", "refuse:7", "255 pending"),
        ("device-graph-tail", "DEVICE", "refuse:7", "255 pending"),
        ("device-graph-tail", "DEVICE", "fault:7:700", lost),
    ] {
        let run = decode(&["--launch", way, "-b", "1", "-n", "24", "-r", "1"]);
        let ended = run.with(setting, trouble).end();
        let way = format!("--launch {way}: ");
        ended.fails_in_a_line(1, &[&way, "step ", "stage 0", "decode", said]);
    }
}

/// With the driver holding the host to the order of its work, and with a host that does not hear of an event that it slept for.
#[test]
fn samples_are_read_when_the_host_knows_that_they_have_come() {
    let run = |way| {
        let sizes = ["--launch", way, "-b", "2", "-n", "24", "-r", "1"];
        decode(&sizes).with("ORDER", 1)
    };
    for way in ["host-graph", "host-graph-event", "host-graph-block"] {
        assert_eq!(results(run(way)).len(), 1, "{way}");
    }
    let deaf = run("host-graph-block").with("DEAF", "host").end();
    assert_ne!(deaf.code, 0, "{}", deaf.stdout);
}

/// A run has the ways that serve it best; those that are there to be compared with are `bench`'s.
#[test]
fn no_run_has_a_way_of_bench_alone() {
    let ended = Run::generate("host-graph-block").and(&["x"]).end();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    for part in [
        "host-graph-block",
        "host-kernels, host-graph, host-graph-ahead, device-graph]",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let stages = ["--device", "cuda:0,1", "--parallel", "stages"];
    for way in ["host-graph-event", "device-graph-tail"] {
        let run = Run::new(&["bench", "decode", "--quiet", "--model", "random:tiny"]);
        let ended = run
            .and(&stages)
            .and(&["--launch", way])
            .with("DEVICES", 2)
            .end();
        let said = format!("--launch {way}: a way of one GPU");
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    }
}

/// Pinned bytes of all engines of a run.
fn pinned(run: Run) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let [row] = &results(run.with("LOG", log.display()))[..] else {
        panic!("one result")
    };
    assert_eq!(row["completed"], 20, "{row}");
    let log = std::fs::read_to_string(log).unwrap();
    let lines = log.lines().filter_map(|line| line.strip_prefix("pinned "));
    lines
        .map(|bytes| bytes.trim().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn logits_that_stay_on_the_device_need_no_way_to_the_host() {
    for way in ["host-graph", "device-graph"] {
        let score = |more: &[&str]| {
            let run = bench("score").and(&["--model", "random:tiny", "-b", "20", "-p", "8"]);
            run.and(&["--launch", way, "-r", "1"]).and(more)
        };
        let (sent, kept) = (pinned(score(&[])), pinned(score(&["--logits-on-device"])));
        // An engine that is timed and one that counts experts, each with two tiles of 160 rows at least.
        assert!(
            sent >= kept + 2 * 2 * 160 * 512 * 4,
            "{way}: {sent}, {kept}"
        );
    }
}
