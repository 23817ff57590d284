//! A model's stages on several GPUs, launched by the host: what orders the work of the GPUs, and what becomes of trouble. The
//! driver checks the order (driver/order.c).

use crate::common::program::Ended;
use crate::rig::{Run, driver, fails};
use crate::stages::{ROWS, all_served, on};
use serde_json::Value;

const WAYS: [&str; 3] = ["host-kernels", "host-graph", "host-graph-ahead"];
const HANDOVERS: [&str; 3] = ["peer", "host", "nccl"];

fn ordered(devices: &str, count: usize, way: &str, handover: &str) -> Run {
    on(devices, count, way)
        .and(&["--handover", handover])
        .with("ORDER", 1)
}

fn two(way: &str, handover: &str) -> Run {
    ordered("cuda:0,1", 2, way, handover)
}

#[test]
fn the_order_of_the_work_of_all_gpus_is_right() {
    for way in WAYS {
        for handover in HANDOVERS {
            for (devices, count) in [("cuda:0,1", 2), ("cuda:2,0,1", 3), ("cuda:0,1,2,3", 4)] {
                let run = ordered(devices, count, way, handover);
                let of = format!("{way}, {handover} on {devices}");
                all_served(&run.over_rows(ROWS), &of);
            }
        }
    }
}

/// A stream that does not wait once, where it is told to, is noticed: so each of these waits is there for something, and the test
/// above would not pass without it. The driver says which wait it leaves out; a run that has fewer waits says nothing.
#[test]
fn every_wait_orders_something() {
    // How many waits there are depends on how many steps find others on their way.
    let (fewest, most) = (5, 24);
    for way in ["host-graph", "host-graph-ahead"] {
        for handover in HANDOVERS {
            let mut noticed = 0;
            for wait in 1..=most {
                let run = two(way, handover).with("DEAF", wait);
                let (ended, _) = run.over_rows(ROWS);
                let of = format!("{way}, {handover}, wait {wait}: {}", ended.stderr);
                if ended.stderr.is_empty() {
                    assert_eq!(ended.code, 0, "{of}");
                    continue;
                }
                noticed += 1;
                assert_eq!(ended.code, 77, "{of}");
                let said: Vec<_> = ended.stderr.lines().collect();
                assert!(said[0].ends_with("a stream is deaf"), "{of}");
                assert!(said[1].starts_with("order: GPU "), "{of}");
            }
            assert!(noticed >= fewest, "{way}, {handover}: {noticed}");
        }
    }
}

/// What it has looked at meanwhile tells it the same now and then, so not every run without the wait is noticed.
#[test]
fn the_host_waits_for_what_it_copies_from() {
    let mut noticed = 0;
    for way in ["host-graph", "host-graph-ahead"].repeat(5) {
        let (ended, _) = two(way, "peer").with("DEAF", "host").over_rows(ROWS);
        if ended.code == 0 {
            continue;
        }
        assert_eq!(ended.code, 77, "{}", ended.stderr);
        assert!(ended.stderr.contains("the host wrote"), "{}", ended.stderr);
        noticed += 1;
    }
    assert!(noticed > 0);
}

/// In its place lies what is no library, so that the system's own is not found either.
#[test]
fn nccl_is_asked_for_where_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libnccl.so.2", "libnccl.so"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    std::fs::copy(
        driver().join("libcuda.so"),
        folder.path().join("libcuda.so"),
    )
    .unwrap();
    let run = |way| on("cuda:0,1", 2, way).and(&["--handover", "nccl", "x"]);
    let ended = run("host-graph").over(folder.path()).end();
    ended.fails_in_a_line(2, &["--handover nccl", "libnccl.so.2", "LD_LIBRARY_PATH"]);
    run("device-graph")
        .end()
        .fails_in_a_line(2, &["--handover nccl", "expected --launch host-graph"]);
}

#[test]
fn gpus_that_do_not_reach_each_other_hand_on_through_the_host() {
    // A copy from GPU to GPU would be refused.
    let never = |run: Run| run.with("FAIL", "cuMemcpyPeerAsync:1:1").with("ORDER", 1);
    let (ended, answers) = never(on("cuda:0,1", 2, "host-graph").with("PEERS", 0)).over_rows(ROWS);
    assert_eq!((ended.code, answers.len()), (0, ROWS), "{}", ended.stderr);
    let told = ended.stderr.matches("memory of the host").count();
    assert_eq!(told, 1, "{}", ended.stderr);
    all_served(
        &never(two("host-graph", "host")).over_rows(ROWS),
        "as asked",
    );
    let peers = two("host-graph", "peer").with("PEERS", 0).and(&["x"]).end();
    peers.fails_in_a_line(2, &["--handover peer", "expected --handover host"]);
    let copied = never(two("host-graph", "peer")).over_rows(ROWS);
    let parts = [
        "step 0 (stage 0 mixed",
        "stage 0 on cuda:0",
        "copying rows from the GPU",
    ];
    fails(&copied, 0, &parts);
}

/// Steps overlap, or go behind each other; a replay has as many in flight.
#[test]
fn a_recording_is_taken_again() {
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("run.jsonl");
        let record = record.to_str().unwrap();
        let run = two(way, "peer").and(&["--record", record]);
        all_served(&run.over_rows(ROWS), way);
        let text = std::fs::read_to_string(record).unwrap();
        let stages = match way {
            "host-graph-ahead" => r#""stages":1"#,
            _ => r#""stages":2"#,
        };
        let header = text.lines().next().unwrap();
        assert!(header.contains(stages), "{header}");
        let replay = ["replay", "--model", "random:tiny", "--record", record];
        let replayed = Run::new(&replay).and(&["--device", "cuda"]).end();
        assert_eq!((replayed.code, replayed.stderr.as_str()), (0, ""));
        let expected = format!("{ROWS} requests: equal\n");
        assert!(replayed.stdout.ends_with(&expected), "{}", replayed.stdout);
    }
}

fn ends(way: &str, fail: &str) -> (Ended, Vec<Value>) {
    two(way, "peer").with("FAIL", fail).over_rows(ROWS)
}

#[test]
fn a_gpu_that_faults_is_named_with_its_stage() {
    let fault = "CUDA_ERROR_ILLEGAL_ADDRESS";
    for way in ["host-graph", "host-graph-ahead"] {
        // Each step launches one graph on each GPU.
        for (launch, stage) in [(5, "stage 0 on cuda:0"), (6, "stage 1 on cuda:1")] {
            let ended = ends(way, &format!("cuGraphLaunch:{launch}:700"));
            fails(&ended, 0, &["step 2 (stage", stage, fault]);
        }
        // While the step runs. What it is waited for by is looked at stage after stage.
        let ended = ends(way, "cuEventQuery:cuGraphLaunch+3:700");
        fails(&ended, 0, &["(stage 0", "stage 0 on cuda:0", fault]);
    }
}

/// While the step runs in stage 0, which by NCCL waits for what stage 1 receives.
#[test]
fn a_gpu_that_is_waited_for_is_named_rather_than_the_one_that_waits() {
    let fault = "CUDA_ERROR_ILLEGAL_ADDRESS";
    let fail = "cuEventQuery:5:600,cuEventQuery:6:700";
    for (handover, stage) in [("nccl", "stage 1 on cuda:1"), ("peer", "stage 0 on cuda:0")] {
        // Where the order is not checked, an event is asked once for each step and stage.
        let run = on("cuda:0,1", 2, "host-graph").and(&["--handover", handover]);
        let run = run.with("FAIL", fail);
        fails(&run.over_rows(ROWS), 0, &["step 2 (stage", stage, fault]);
    }
}

/// Which stage that is depends on how far the host had looked before.
#[test]
fn a_step_that_never_ends_is_named_with_its_stage() {
    for way in ["host-graph", "host-graph-ahead"] {
        let run = two(way, "peer").and(&["--step-timeout-ms", "500"]);
        let run = run.with("FAIL", "cuEventQuery:cuGraphLaunch+5:hang");
        let parts = ["(stage ", "expected at most 0.5 s", "a kernel is stuck"];
        fails(&run.over_rows(ROWS), 0, &parts);
    }
}
