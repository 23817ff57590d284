//! `trace`: what the timeline holds is what the run did.

use crate::run::{rows, run, run_with_input};
use crate::schema::{check, schema};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// More prompts than slots, of mixed lengths; some end by a stop id, one is larger than the context.
fn input() -> String {
    let row = |i: u32| {
        let ids: Vec<u32> = (0..1 + i * 29 % 90)
            .map(|j| 8 + (i * 37 + j * 11) % 250)
            .collect();
        let mut row = json!({"id": i, "input_ids": ids, "max_new_tokens": 1 + i * 7 % 30});
        if i.is_multiple_of(5) {
            row["stop_ids"] = json!((0..16).map(|j| 8 + (i + j * 16) % 250).collect::<Vec<_>>());
        }
        row.to_string() + "\n"
    };
    (0..24).map(row).collect()
}

/// A traced and recorded run of [`input`].
fn traced(folder: &Path, stages: &str) -> (Value, Vec<Value>) {
    traced_with(folder, stages, &[])
}

fn traced_with(folder: &Path, stages: &str, more: &[&str]) -> (Value, Vec<Value>) {
    let (trace, record) = (folder.join("trace.json"), folder.join("record.jsonl"));
    let answers = folder.join("answers.jsonl");
    let args = [
        "trace",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--quiet",
        "--max-seqs",
        "5",
        "--step-tokens",
        "80",
        "--stages",
        stages,
        "--record",
        text(&record),
        "--answers",
        text(&answers),
        "-o",
        text(&trace),
    ];
    let ended = run_with_input(&[&args[..], more].concat(), &input());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    (
        read(&trace),
        rows(&std::fs::read_to_string(&record).unwrap()),
    )
}

fn read(path: &Path) -> Value {
    let trace = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    check(&schema("trace"), &trace).unwrap();
    trace
}

fn converted(record: &Path, to: &Path) -> Value {
    let ended = run(&["trace", "--from", text(record), "-o", text(to)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    read(to)
}

fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

/// A time of the trace in ns: three decimals of a microsecond.
fn ns(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1e3).round() as i64
}

#[derive(Debug, Clone)]
struct Slice {
    name: String,
    from: i64,
    to: i64,
    args: Value,
}

/// Slices by process and thread, in the order of their begins. None may begin before the one ahead of it has ended.
fn tracks(trace: &Value) -> BTreeMap<(u64, u64), Vec<Slice>> {
    let mut tracks: BTreeMap<_, Vec<Slice>> = BTreeMap::new();
    for event in events(trace).iter().filter(|event| event["ph"] == "X") {
        let place = (
            event["pid"].as_u64().unwrap(),
            event["tid"].as_u64().unwrap(),
        );
        let from = ns(&event["ts"]);
        tracks.entry(place).or_default().push(Slice {
            name: event["name"].as_str().unwrap().to_owned(),
            from,
            to: from + ns(&event["dur"]),
            args: event["args"].clone(),
        });
    }
    for (place, slices) in &mut tracks {
        slices.sort_by_key(|slice| (slice.from, slice.to));
        for pair in slices.windows(2) {
            assert!(pair[0].to <= pair[1].from, "{place:?} overlap: {pair:?}");
        }
    }
    tracks
}

/// Every request's outer slice, and the phases in it, after checking that they nest and follow each other.
fn requests(trace: &Value) -> BTreeMap<String, (Slice, Vec<Slice>)> {
    let mut open: HashMap<&str, Vec<(&Value, Vec<Slice>)>> = HashMap::new();
    let mut done = BTreeMap::new();
    for event in events(trace)
        .iter()
        .filter(|event| event["cat"] == "request")
    {
        let id = event["id2"]["local"].as_str().unwrap();
        let stack = open.entry(id).or_default();
        if event["ph"] == "b" {
            assert!(!done.contains_key(id), "{id} begins twice");
            stack.push((event, vec![]));
            continue;
        }
        let (begin, inner) = stack.pop().expect("an end has a begin");
        assert_eq!(begin["name"], event["name"], "ends are of the innermost");
        let slice = Slice {
            name: begin["name"].as_str().unwrap().to_owned(),
            from: ns(&begin["ts"]),
            to: ns(&event["ts"]),
            args: begin["args"].clone(),
        };
        match stack.last_mut() {
            Some((_, outer)) => outer.push(slice),
            None => assert!(done.insert(id.to_owned(), (slice, inner)).is_none()),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every begin has an end");
    for (outer, phases) in done
        .values()
        .filter(|(outer, _)| outer.args.get("unfinished").is_none())
    {
        let mut at = outer.from;
        for phase in phases {
            assert!(["queued", "prefill", "decode"].contains(&&*phase.name));
            assert_eq!(phase.from, at, "phases follow each other");
            at = phase.to;
        }
        assert_eq!(at, outer.to, "phases are all of {}", outer.name);
    }
    done
}

fn sum<'a>(slices: impl IntoIterator<Item = &'a Slice>, key: &str) -> u64 {
    slices
        .into_iter()
        .map(|slice| slice.args[key].as_u64().unwrap_or(0))
        .sum()
}

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

    // As many as the engine had, each from the turn that composed it to the one that collected it.
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
            let ladder = &trace["otherData"]["engine"]["ladders"][name];
            let bucket = &ladder[turn["bucket"].as_u64().unwrap() as usize];
            let padding = bucket.as_u64().unwrap() - turn["rows"].as_u64().unwrap();
            assert_eq!(now["padding rows"], padding);
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

    let from = converted(
        &folder.path().join("record.jsonl"),
        &folder.path().join("from.json"),
    );
    let notes = from["otherData"]["notes"].to_string();
    assert!(
        notes.contains("stages have no tracks of their own"),
        "{notes}"
    );
}

/// By step, in order.
fn parts(tracks: &BTreeMap<(u64, u64), Vec<Slice>>, stage: u64) -> BTreeMap<u64, Vec<&Slice>> {
    let mut all: BTreeMap<u64, Vec<&Slice>> = BTreeMap::new();
    for slice in &tracks[&(1, 130 + stage)] {
        let step = slice.args["step"].as_u64().unwrap();
        all.entry(step).or_default().push(slice);
    }
    all
}

/// The operations of a step follow each other inside the slice of their stage; every seventh step is left untimed.
#[test]
fn kernels_are_slices_under_their_step() {
    for stages in 1..=2_u64 {
        let folder = tempfile::tempdir().unwrap();
        let (trace, _) = traced_with(folder.path(), &stages.to_string(), &["--kernels"]);
        let tracks = tracks(&trace);
        let mut names = vec![];
        for stage in 0..stages {
            let parts = parts(&tracks, stage);
            let steps = &tracks[&(1, 110 + stage)];
            assert!(steps.len() > 40);
            for (number, step) in steps.iter().enumerate() {
                let Some(parts) = parts.get(&(number as u64)) else {
                    assert_eq!(number % 7, 6, "step {number} has no operations");
                    continue;
                };
                assert_ne!(number % 7, 6, "step {number} was timed");
                assert!(parts[0].from >= step.from && parts.last().unwrap().to <= step.to);
                for pair in parts.windows(2) {
                    assert_eq!(pair[0].to, pair[1].from, "nothing lies between: {pair:?}");
                }
                if number == 0 {
                    names.extend(parts.iter().map(|part| part.name.clone()));
                }
            }
            let lengths: Vec<usize> = parts.values().map(Vec::len).collect();
            assert!(lengths.iter().all(|length| *length == lengths[0]));
        }
        // Both ways to cut the model have the same operations.
        assert_eq!(names.len(), 44, "{names:?}");
        assert_eq!((&*names[0], &*names[43]), ("embed", "sample"));
        kernels_add_up(&trace["otherData"]["kernels"], stages);
    }
}

fn kernels_add_up(kernels: &Value, stages: u64) {
    assert_eq!(
        (&kernels["lost"], &kernels["floor"]),
        (&json!(0), &json!(null))
    );
    let buckets = kernels["buckets"].as_array().unwrap();
    let counts = buckets
        .iter()
        .map(|bucket| bucket["steps"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), kernels["steps"].as_u64().unwrap());
    for bucket in buckets {
        let operations = bucket["operations"].as_array().unwrap();
        assert_eq!(operations.len(), 18, "random:tiny has every operation");
        let total = |key: &str| -> f64 {
            let values = operations
                .iter()
                .map(|operation| operation[key].as_f64().unwrap());
            values.sum()
        };
        assert_eq!(total("per_step"), 44.0);
        let (sum, whole) = (total("us_per_step"), bucket["kernels_us"].as_f64().unwrap());
        assert!((sum - whole).abs() < 0.05, "{sum} and {whole} us");
        assert!(whole < bucket["step_us"].as_f64().unwrap());
        assert!(total("bytes_per_step") > 1e5);
        if stages > 1 {
            assert!(
                bucket["overhead"].is_null(),
                "its steps run beside each other"
            );
        }
    }
}

#[test]
fn the_table_of_operations_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("t.json");
    let args = [
        "trace",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--kernels",
        "--max-new-tokens",
        "60",
        "-o",
        text(&to),
        "one prompt",
    ];
    let ended = run(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for line in [
        "decode 1: ",
        "mixed ",
        "operation ",
        "expert_gate_up ",
        "timing adds ",
    ] {
        assert!(ended.stderr.contains(line), "{line:?} in {}", ended.stderr);
    }
    let overhead = &read(&to)["otherData"]["kernels"]["buckets"][0]["overhead"];
    assert!(
        overhead["untimed_steps"].as_u64().unwrap() >= 6,
        "{overhead}"
    );
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
            "same name twice",
        ),
    ] {
        let ended = run(&args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(expected),
            "{args:?}: {}",
            ended.stderr
        );
    }
}
