//! Timelines that `trace` wrote, and what is in them.

use crate::common::program::{run, run_with_input};
use crate::common::rows::{mixed_input, rows, text};
use crate::common::schema::{check, schema};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A traced and recorded run of [`mixed_input`]: more prompts than slots, one larger than the context.
pub fn traced(folder: &Path, stages: &str) -> (Value, Vec<Value>) {
    traced_with(folder, stages, &[])
}

pub fn traced_with(folder: &Path, stages: &str, more: &[&str]) -> (Value, Vec<Value>) {
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
    let ended = run_with_input(&[&args[..], more].concat(), &mixed_input(|_, _| ()));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    (
        read(&trace),
        rows(&std::fs::read_to_string(&record).unwrap()),
    )
}

pub fn read(path: &Path) -> Value {
    let trace = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    check(&schema("trace"), &trace).unwrap();
    trace
}

pub fn converted(record: &Path, to: &Path) -> Value {
    let ended = run(&["trace", "--from", text(record), "-o", text(to)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    read(to)
}

pub fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

/// A time of the trace in ns: three decimals of a microsecond.
pub fn ns(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1e3).round() as i64
}

#[derive(Debug, Clone)]
pub struct Slice {
    pub name: String,
    /// ns
    pub from: i64,
    pub to: i64,
    pub args: Value,
}

/// Slices by process and thread, in the order of their begins. None may begin before the one ahead of it has ended.
pub fn tracks(trace: &Value) -> BTreeMap<(u64, u64), Vec<Slice>> {
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
pub fn requests(trace: &Value) -> BTreeMap<String, (Slice, Vec<Slice>)> {
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

pub fn sum<'a>(slices: impl IntoIterator<Item = &'a Slice>, key: &str) -> u64 {
    slices
        .into_iter()
        .map(|slice| slice.args[key].as_u64().unwrap_or(0))
        .sum()
}
