//! `trace`: what the timeline holds is what the run did.

use crate::common::program::run;
use crate::common::rows::text;
use crate::timeline::{Slice, converted, events, ns, read, requests, sum, traced, tracks};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

const TURNS: (u64, u64) = (1, 100);
const STAGE: (u64, u64) = (1, 110);
const RUN: (u64, u64) = (3, 300);
const JOB: (u64, u64) = (3, 301);

#[test]
fn a_trace_holds_what_the_run_did() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, record) = traced(folder.path(), "1");
    let about = &trace["otherData"];
    let turns: Vec<&Value> = record.iter().filter_map(|line| line.get("turn")).collect();
    let tracks = tracks(&trace);
    let steps = &tracks[&STAGE];

    // There are as many slices as the engine had steps, each from the turn that composed it to the one that collected it.
    let composed: Vec<&&Value> = turns
        .iter()
        .filter(|turn| !turn["step"].is_null())
        .collect();
    assert_eq!(steps.len(), composed.len());
    assert_eq!(about["steps"], json!(steps.len()));
    assert_eq!(tracks[&TURNS].len(), turns.len());
    assert_eq!(about["turns"], json!(turns.len()));
    let zero = about["zero_ns"].as_i64().unwrap();
    for (n, (step, composer)) in steps.iter().zip(&composed).enumerate() {
        assert_eq!(step.args["step"], json!(n));
        assert_eq!(step.from + zero, composer["end_ns"].as_i64().unwrap());
        let collector = turns
            .iter()
            .find(|turn| turn["returned_step"] == json!(n))
            .unwrap();
        assert_eq!(step.to + zero, collector["now_ns"].as_i64().unwrap());
        let (rows, bucket) = (
            step.args["rows"].as_u64().unwrap(),
            step.args["bucket"].as_u64().unwrap(),
        );
        assert!(rows <= bucket && composer["rows"] == rows);
        let fill = step.args["fill"].as_f64().unwrap();
        assert!((fill - rows as f64 / bucket as f64).abs() < 1e-3);
        let kind = ["decode", "mixed", "score"][composer["kind"].as_u64().unwrap() as usize];
        assert_eq!(step.name, format!("{kind} {bucket}"));
    }

    // Each request once, and its rows: the prompt's, and one for each new token but the last.
    let requests = requests(&trace);
    assert_eq!(requests.len(), 24);
    assert_eq!(about["ended"], 24);
    let outer = || requests.values().map(|(outer, _)| outer);
    let (prompt, new) = (sum(outer(), "prompt_tokens"), sum(outer(), "new_tokens"));
    assert_eq!(sum(steps, "prompt_rows"), prompt);
    assert_eq!(sum(steps, "rows"), prompt + new - 24);
    assert_eq!(sum(steps, "sampled"), new);
    assert_eq!(about["tokens"], new);
    assert!(
        outer().any(|slice| slice.args["end"] == "stop"),
        "one ends by a stop id"
    );
    assert!(
        requests
            .values()
            .any(|(_, phases)| phases[0].name == "queued"),
        "one has to wait"
    );

    counters_agree(&trace, &turns);

    // The host: one submit a request, every event handled once, within the run.
    let job = &tracks[&JOB];
    assert_eq!(
        job.iter().filter(|slice| slice.name == "submit").count(),
        24
    );
    assert_eq!((sum(job, "tokens"), sum(job, "ends")), (new, 24));
    let names: Vec<&str> = tracks[&RUN].iter().map(|slice| &*slice.name).collect();
    assert_eq!(names, ["load", "start the engine", "serve", "drain"]);
    let serve = &tracks[&RUN][2];
    assert!(
        steps
            .iter()
            .all(|step| step.from >= serve.from && step.to <= serve.to)
    );
    assert_eq!(about["host_clock"], json!({"relation": "same"}));
}

/// The counters' values after each turn are the outcome of that turn, which a replay comes to again.
fn counters_agree(trace: &Value, turns: &[&Value]) {
    let zero = trace["otherData"]["zero_ns"].as_i64().unwrap();
    let mut counters = events(trace)
        .iter()
        .filter(|event| event["ph"] == "C")
        .peekable();
    let mut now: HashMap<&str, u64> = HashMap::new();
    for turn in turns {
        let end = turn["end_ns"].as_i64().unwrap();
        while let Some(event) = counters.next_if(|event| ns(&event["ts"]) + zero <= end) {
            let value = event["args"].as_object().unwrap().values().next().unwrap();
            let changed = now.insert(event["name"].as_str().unwrap(), value.as_u64().unwrap());
            assert_ne!(changed, value.as_u64(), "written where it changes");
        }
        assert_eq!(now["queue depth"], turn["queue_depth"]);
        assert_eq!(now["running"], turn["running"]);
        assert_eq!(now["free pages"], turn["free_pages"]);
        if !turn["step"].is_null() {
            let name = ["decode", "mixed", "score"][turn["kind"].as_u64().unwrap() as usize];
            let sizes = &trace["otherData"]["engine"]["ladders"][name];
            let bucket = &sizes[turn["bucket"].as_u64().unwrap() as usize];
            let padding = bucket.as_u64().unwrap() - turn["rows"].as_u64().unwrap();
            assert_eq!(now["padding tokens"], padding);
        }
    }
    assert!(counters.next().is_none());
}

#[test]
fn a_recording_gives_the_same_timeline_as_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let (live, _) = traced(folder.path(), "1");
    let record = folder.path().join("record.jsonl");
    let from = converted(&record, &folder.path().join("from.json"));
    assert_eq!(
        from["otherData"]["host_clock"],
        json!({"relation": "absent"})
    );
    assert_eq!(
        from["otherData"]["source"],
        format!("recording {}", record.display())
    );
    for key in [
        "turns", "steps", "requests", "ended", "tokens", "complete", "engine", "clock",
    ] {
        assert_eq!(from["otherData"][key], live["otherData"][key], "{key}");
    }
    // By the scheduler's clock, everything but the host's.
    let device = |trace: &Value| -> Vec<(i64, i64, Value)> {
        let zero = trace["otherData"]["zero_ns"].as_i64().unwrap();
        let timed = events(trace)
            .iter()
            .filter(|event| event["ph"] != "M" && event["pid"] != 3);
        let mut all: Vec<_> = timed
            .map(|event| {
                let mut rest = event.clone();
                let fields = rest.as_object_mut().unwrap();
                let (ts, dur) = (fields.remove("ts").unwrap(), fields.remove("dur"));
                (ns(&ts) + zero, dur.as_ref().map_or(0, ns), rest)
            })
            .collect();
        all.sort_by_key(|(ts, dur, rest)| (*ts, *dur, rest.to_string()));
        all
    };
    let (live, from) = (device(&live), device(&from));
    assert_eq!(live.len(), from.len());
    for (live, from) in live.iter().zip(&from) {
        assert_eq!(live, from);
    }
}

#[test]
fn stages_side_by_side_have_tracks_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, _) = traced(folder.path(), "2");
    let tracks = tracks(&trace);
    let of = |stage: u64| -> BTreeMap<u64, &Slice> {
        let slices = tracks[&(1, 110 + stage)].iter();
        slices
            .map(|slice| (slice.args["step"].as_u64().unwrap(), slice))
            .collect()
    };
    let (first, second) = (of(0), of(1));
    let steps = trace["otherData"]["steps"].as_u64().unwrap();
    let arrows = |end: &str| {
        events(&trace)
            .iter()
            .filter(|event| event["ph"] == end)
            .count()
    };
    assert_eq!(
        (arrows("s") as u64, arrows("f") as u64),
        (2 * steps, 2 * steps)
    );
    assert_eq!((first.len() as u64, second.len() as u64), (steps, steps));
    let flights: Vec<&Slice> = tracks
        .iter()
        .filter(|((pid, _), _)| *pid == 4)
        .flat_map(|(_, s)| s)
        .collect();
    assert_eq!(flights.len() as u64, steps);
    let collected = |turn: &Slice| Some((turn.args.get("collected")?.as_u64()?, turn.to));
    let turns: BTreeMap<u64, i64> = tracks[&(1, 100)].iter().filter_map(collected).collect();
    // The stages' times are the host's, the flights' the scheduler's: one clock, or these would not fit.
    for flight in flights {
        let step = flight.args["step"].as_u64().unwrap();
        let (first, second) = (first[&step], second[&step]);
        assert_eq!(first.args["rows"], flight.args["rows"]);
        // A flight ends where the turn that collected it began, which reads the clock before it looks for steps.
        assert!(flight.to <= turns[&step], "step {step}");
        let order = [
            flight.from,
            first.from,
            first.to,
            second.from,
            second.to,
            turns[&step],
        ];
        assert!(order.is_sorted(), "step {step}: {order:?}");
    }
    assert_eq!(requests(&trace).len(), 24);

    // A recording does not hold when each stage worked.
    let record = folder.path().join("record.jsonl");
    let from = converted(&record, &folder.path().join("from.json"));
    let stages = self::tracks(&from)
        .into_keys()
        .filter(|&(pid, tid)| pid == 1 && tid >= 110);
    assert_eq!(stages.count(), 0);
}

#[test]
fn a_recording_that_was_cut_off_is_traced_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (_, lines) = traced(folder.path(), "1");
    let record = folder.path().join("record.jsonl");
    let whole = std::fs::read_to_string(&record).unwrap();
    // In the middle of a turn's line, with requests and a step under way.
    let turns = lines
        .iter()
        .filter(|line| line.get("turn").is_some())
        .count();
    let middle = whole.match_indices("{\"turn\":{").nth(turns / 2).unwrap().0;
    std::fs::write(&record, &whole[..middle + 30]).unwrap();
    let to = folder.path().join("from.json");
    let ended = run(&["trace", "--from", text(&record), "-o", text(&to)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("did not come to its end"),
        "{}",
        ended.stderr
    );
    let trace = read(&to);
    assert_eq!(trace["otherData"]["complete"], false);
    assert_eq!(trace["otherData"]["turns"], json!(turns / 2));
    let tracks = tracks(&trace);
    let open = |slice: &&Slice| slice.args.get("unfinished").is_some();
    assert_eq!(tracks[&STAGE].iter().filter(open).count(), 1);
    assert!(requests(&trace).values().any(|(outer, _)| open(&outer)));
}

#[test]
fn a_recording_with_another_schedule_is_no_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let (_, mut lines) = traced(folder.path(), "1");
    let record = folder.path().join("record.jsonl");
    let turn = lines
        .iter_mut()
        .filter_map(|line| line.get_mut("turn"))
        .nth(3)
        .unwrap();
    turn["free_pages"] = json!(turn["free_pages"].as_u64().unwrap() + 1);
    let lines = lines.iter().map(|line| line.to_string() + "\n");
    std::fs::write(&record, lines.collect::<String>()).unwrap();
    let to = folder.path().join("from.json");
    let ended = run(&["trace", "--from", text(&record), "-o", text(&to)]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.contains("schedules differently"),
        "{}",
        ended.stderr
    );
}

#[test]
fn sizes_that_no_engine_has_are_the_recordings() {
    let folder = tempfile::tempdir().unwrap();
    traced(folder.path(), "1");
    let record = folder.path().join("record.jsonl");
    let whole = std::fs::read_to_string(&record).unwrap();
    let to = folder.path().join("from.json");
    for (size, wrong) in [
        ("max_seqs", "0"),
        ("page_tokens", "0"),
        ("pages", "4294967295"),
    ] {
        let at = whole.find(&format!("\"{size}\":")).unwrap() + size.len() + 3;
        let end = at + whole[at..].find([',', '}']).unwrap();
        std::fs::write(&record, format!("{}{wrong}{}", &whole[..at], &whole[end..])).unwrap();
        let ended = run(&["trace", "--from", text(&record), "-o", text(&to)]);
        ended.fails_in_a_line(1, &["record.jsonl: a size of the recorded run"]);
        assert!(!to.exists(), "{size}");
    }
}

#[test]
fn wrong_usage_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("t.json");
    for (args, expected) in [
        (vec!["trace", "-o", text(&to), "x"], "--model"),
        (vec!["trace", "--model", "random:tiny", "x"], "--output"),
        (
            vec![
                "trace",
                "-o",
                text(&to),
                "--from",
                "r",
                "--model",
                "random:tiny",
            ],
            "cannot be used with",
        ),
        (
            vec!["trace", "-o", text(&to), "--from", "r", "--kernels"],
            "cannot be used with",
        ),
        (
            vec!["trace", "-o", text(&to), "--from", text(&to)],
            "found the --from file",
        ),
    ] {
        let ended = run(&args);
        ended.fails(2, &[expected]);
    }
}
