//! `trace` of stages on several GPUs, each with a clock of its own: a track a GPU, and hand-overs as arrows.

use crate::common::compile::shared_library;
use crate::common::program::end;
use crate::common::schema::{check, schema};
use crate::rig::{Run, launch};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ROWS: usize = 12;
/// Between the clocks of neighbours: far more than any hand-over takes.
const AHEAD_NS: i64 = 7_000_000_000;
const TURNS: u64 = 100;

/// From, to and name of a slice.
type Slice = (i64, i64, String);

fn ns(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1e3).round() as i64
}

fn traced(way: &str, devices: &str, count: usize) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let run = Run::new(&["trace", "--model", "random:tiny", "--device", devices]);
    let run = run.and(&launch(way)).and(&["--parallel", "stages"]);
    let run = run.and(&["--max-seqs", "4", "--step-tokens", "512"]);
    let run = run.and(&["--max-new-tokens", "3", "--quiet"]);
    let run = run.and(&["--output", path.to_str().unwrap()]);
    let run = run.with("DEVICES", count).with("CLOCKS", AHEAD_NS);
    let (ended, answers) = run.over_rows(ROWS);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{way}");
    assert_eq!(answers.len(), ROWS, "{way}");
    let trace = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    check(&schema("trace"), &trace).unwrap();
    trace
}

fn events<'a>(trace: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = trace["traceEvents"].as_array().unwrap().iter();
    all.filter(move |event| event["ph"] == kind)
}

/// Names of the stages' tracks, in order.
fn names(trace: &Value) -> Vec<&str> {
    let tracks = events(trace, "M").filter(|event| event["name"] == "thread_name");
    let stages = tracks.filter(|event| (110..130).contains(&event["tid"].as_u64().unwrap()));
    stages
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect()
}

/// By track, then by `key` of their arguments.
fn slices(trace: &Value, key: &str) -> BTreeMap<u64, BTreeMap<u64, Slice>> {
    let mut found: BTreeMap<u64, BTreeMap<u64, Slice>> = BTreeMap::new();
    for event in events(trace, "X").filter(|event| event["pid"] == 1) {
        if let Some(number) = event["args"][key].as_u64() {
            let (from, name) = (ns(&event["ts"]), event["name"].as_str().unwrap());
            let slice = (from, from + ns(&event["dur"]), name.to_owned());
            let track = event["tid"].as_u64().unwrap();
            let before = found.entry(track).or_default().insert(number, slice);
            assert!(before.is_none(), "step {number} twice on {track}");
        }
    }
    found
}

/// Tracks and times of each arrow, by its number.
fn arrows(trace: &Value) -> BTreeMap<u64, [(u64, i64); 2]> {
    let end = |event: &Value| (event["tid"].as_u64().unwrap(), ns(&event["ts"]));
    let id = |event: &Value| event["id"].as_u64().unwrap();
    let heads: BTreeMap<u64, _> = events(trace, "f").map(|e| (id(e), end(e))).collect();
    let begins = events(trace, "s");
    let found: BTreeMap<_, _> = begins.map(|e| (id(e), [end(e), heads[&id(e)]])).collect();
    assert_eq!(
        (found.len(), heads.len()),
        (events(trace, "s").count(), found.len())
    );
    found
}

/// Each step has a slice on each stage, one after the other, with arrows between them and to the turn that collects it.
fn hands_every_step_on(trace: &Value, stages: u64) {
    let (by_step, collecting) = (slices(trace, "step"), slices(trace, "collected"));
    let steps = trace["otherData"]["steps"].as_u64().unwrap();
    let arrows = arrows(trace);
    assert!(steps > 3);
    assert_eq!(arrows.len() as u64, steps * stages);
    for step in 0..steps {
        let at = |stage: u64| &by_step[&(110 + stage)][&step];
        let turn = &collecting[&TURNS][&step];
        for stage in 0..stages {
            let (from, to, name) = at(stage);
            assert_eq!(*name, at(0).2);
            assert!(from <= to);
            let (next, track) = if stage + 1 == stages {
                (turn, TURNS)
            } else {
                (at(stage + 1), 111 + stage)
            };
            assert!(
                *to <= next.0 + 1,
                "step {step} from stage {stage}: {to} {next:?}"
            );
            let [begin, head] = arrows[&(step * stages + stage)];
            assert_eq!((begin.0, head.0), (110 + stage, track));
            assert!((*from..=*to).contains(&begin.1), "{begin:?}");
            assert!((next.0..=next.1).contains(&head.1), "{head:?}");
            assert!(begin.1 <= head.1 + 1, "step {step}: back in time");
        }
    }
}

#[test]
fn each_gpu_has_a_track_and_each_hand_over_an_arrow() {
    for (devices, expected) in [
        ("cuda:0,1", vec!["stage 0 on cuda:0", "stage 1 on cuda:1"]),
        (
            "cuda:2,0,1",
            vec![
                "stage 0 on cuda:2",
                "stage 1 on cuda:0",
                "stage 2 on cuda:1",
            ],
        ),
    ] {
        let trace = traced("device-graph", devices, 3);
        assert_eq!(names(&trace), expected);
        hands_every_step_on(&trace, expected.len() as u64);
        let clocks = &trace["otherData"]["gpu_clocks"];
        assert_eq!(clocks["left_out"], 0);
        let uncertain = clocks["uncertainty_ns"].as_i64().unwrap();
        let offsets = clocks["offsets_ns"].as_array().unwrap();
        assert_eq!(offsets.len(), expected.len());
        for (stage, offset) in offsets.iter().enumerate() {
            let wrong = offset.as_i64().unwrap() - AHEAD_NS * stage as i64;
            // No hand-over took as long: what is not known is small beside what is.
            assert!(uncertain < AHEAD_NS / 4, "{clocks}");
            assert!(wrong.abs() <= AHEAD_NS / 4, "{clocks}");
        }
    }
}

/// It launches them ahead, and sees no more than the ends of steps. The trace shows no track that it does not know.
#[test]
fn stages_that_the_host_launches_are_shown_as_steps() {
    for way in ["host-kernels", "host-graph"] {
        let trace = traced(way, "cuda:1,0", 2);
        assert_eq!(names(&trace), Vec::<&str>::new());
        assert_eq!(arrows(&trace).len(), 0);
        let about = &trace["otherData"];
        assert_eq!(about.get("gpu_clocks"), None);
        let flights = events(&trace, "X").filter(|event| event["pid"] == 4);
        assert_eq!(about["steps"], json!(flights.count()));
    }
}

/// What a profiler hears of a run of two stages, in `way`.
fn heard(way: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let listener = folder.path().join("listener.so");
    shared_library(&listener, &["tests/fixtures/nvtx_listener.c"], &["-Wall"]);
    let run = Run::new(&["generate", "--model", "random:tiny", "--device", "cuda:1,0"]);
    let run = run.and(&launch(way)).and(&["--parallel", "stages"]);
    let run = run.and(&["--max-seqs", "1", "--step-tokens", "512"]);
    // Standard output is the listener's alone.
    let answers = folder.path().join("answers.jsonl");
    let run = run.and(&["--output", answers.to_str().unwrap()]);
    let run = run.and(&["--max-new-tokens", "3", "--quiet", "x"]);
    let mut command = run.with("DEVICES", 2).command();
    command.env("NVTX_INJECTION64_PATH", &listener);
    command.env("TAILGRAPH_NAME_NODES", "1");
    let printed = end(&mut command, "").good();
    let lines = printed
        .lines()
        .filter_map(|line| line.split("nvtx ").nth(1));
    lines.map(str::to_owned).collect()
}

/// A profiler's kernels in graphs are named by what was marked before their capture.
#[test]
fn captured_kernels_are_marked_with_step_and_layer() {
    let heard = heard("host-graph");
    let of = |stage: &str| {
        let start = format!("mark tailgraph start/node of stage {stage} decode 1: ");
        let marks = heard.iter().filter_map(|line| line.strip_prefix(&start));
        marks.collect::<Vec<_>>()
    };
    let (first, last) = (of("0"), of("1"));
    let begins = |marks: &[&str], with: &str| marks.iter().any(|mark| mark.starts_with(with));
    assert!(
        begins(&first, "embed") && begins(&first, "layer 0 "),
        "{first:?}"
    );
    assert!(
        !begins(&last, "layer 0 ") && begins(&last, "layer "),
        "{last:?}"
    );
    assert!(last.iter().any(|mark| mark.contains("lm_head")), "{last:?}");
}

/// A profiler shows what each GPU does by names that hold its stage.
#[test]
fn ranges_name_stage_and_gpu() {
    let heard_of = heard("device-graph");
    let at = |what: &str| {
        let line = format!("{what} on cuda:");
        let found = heard_of.iter().filter(|heard| heard.contains(&line));
        let ends = found.map(|heard| heard.split(&line).nth(1).unwrap().to_owned());
        ends.collect::<Vec<_>>()
    };
    for (stage, gpu) in [(0, "1"), (1, "0")] {
        assert_eq!(
            at(&format!("push tailgraph start/capture stage {stage}")),
            [gpu]
        );
        assert_eq!(
            at(&format!("push tailgraph run/launch stage {stage}")),
            [gpu]
        );
        assert_eq!(at(&format!("start tailgraph run/stage {stage}")), [gpu]);
    }
    let heard_of = heard("host-graph");
    for stage in ["stage 0 on cuda:1", "stage 1 on cuda:0"] {
        let step = format!("push tailgraph step/{stage}: decode 1");
        let steps = heard_of.iter().filter(|heard| **heard == step).count();
        assert_eq!(steps, 2, "{stage}: {heard_of:?}");
    }
}
