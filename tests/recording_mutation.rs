//! Recordings under seeded mutation, as `trace --from` and `replay` read them: a timeline, a comparison or a one-line
//! error, never a panic or an abort, and never much time or memory. TAILGRAPH_FUZZ_SECONDS sets how long each (default
//! 1).

mod common;

use common::memory::assert_childrens_peak_below_a_gib;
use common::program::{Ended, command, end_within, run};
use common::random::Random;
use common::rows::{rows, text};
use serde_json::Value;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};
use tailgraph::io::record::Reader;
use tailgraph::trace::convert;

/// Numbers at which counts, indices and times go wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    31,
    1024,
    65_536,
    1 << 20,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// A small run on record.
fn recorded(folder: &Path) -> Vec<Value> {
    let record = folder.join("record");
    let asked: String = (0..9)
        .map(|i| {
            format!(
                "{{\"id\":{i},\"prompt\":\"row {i}\",\"max_new_tokens\":{}}}\n",
                1 + i % 4
            )
        })
        .collect();
    let input = folder.join("rows.jsonl");
    std::fs::write(&input, asked).unwrap();
    let (answers, model) = (folder.join("answers"), ["--model", "random:tiny"]);
    let args = ["generate", "--device", "cpu", "-q", "--max-seqs", "3"];
    let files = [
        ["--output", text(&answers)],
        ["--input", text(&input)],
        ["--record", text(&record)],
    ];
    run(&[&args[..], &model, files.as_flattened()].concat()).good();
    rows(&std::fs::read_to_string(&record).unwrap())
}

/// All arrays below `value`.
fn arrays<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Vec<Value>>) {
    match value {
        // Those of arrays are not reached, but there is always one around them that is.
        Value::Array(items) => found.push(items),
        Value::Object(fields) => fields.values_mut().for_each(|field| arrays(field, found)),
        _ => {}
    }
}

/// All numbers below `value`.
fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Number(_) => found.push(value),
        Value::Array(items) => items.iter_mut().for_each(|item| numbers(item, found)),
        Value::Object(fields) => fields.values_mut().for_each(|field| numbers(field, found)),
        _ => {}
    }
}

fn mutated(lines: &[Value], seed: u64) -> String {
    let mut random = Random(seed);
    let mut lines = lines.to_vec();
    for _ in 0..=random.below(3) {
        let at = match random.below(4) {
            // The header decides what is allocated.
            0 => 0,
            _ => random.below(lines.len()),
        };
        match random.below(8) {
            0 => drop(lines.remove(at)),
            1 => {
                let line = lines[at].clone();
                lines.insert(random.below(lines.len()), line);
            }
            2 => {
                let other = random.below(lines.len());
                lines.swap(at, other);
            }
            3 => {
                let mut found = Vec::new();
                arrays(&mut lines[at], &mut found);
                let which = random.below(found.len());
                if let Some(items) = found
                    .into_iter()
                    .nth(which)
                    .filter(|items| !items.is_empty())
                {
                    let at = random.below(items.len());
                    match random.below(3) {
                        0 => drop(items.remove(at)),
                        1 => items.insert(at, items[at].clone()),
                        _ => items.clear(),
                    }
                }
            }
            _ => {
                let mut found = Vec::new();
                numbers(&mut lines[at], &mut found);
                let which = random.below(found.len());
                if let Some(number) = found.into_iter().nth(which) {
                    let old = number.as_u64().unwrap_or_default();
                    *number = match random.below(3) {
                        0 => old.wrapping_add(1).into(),
                        1 => old.wrapping_sub(1).into(),
                        _ => NUMBERS[random.below(NUMBERS.len())].into(),
                    };
                }
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if random.below(8) == 0 {
        text.truncate(random.below(text.len()));
    }
    text
}

fn time() -> Duration {
    common::fuzz::time(1.0)
}

#[test]
fn recordings_survive_mutation() {
    let folder = tempfile::tempdir().unwrap();
    let lines = recorded(folder.path());
    let (record, trace) = (
        folder.path().join("mutated"),
        folder.path().join("trace.json"),
    );
    let until = Instant::now() + time();
    let (mut refused, mut traced) = (0_u64, 0_u64);
    for seed in 0.. {
        if Instant::now() > until {
            break;
        }
        std::fs::write(&record, mutated(&lines, seed)).unwrap();
        let start = Instant::now();
        let ended = catch_unwind(|| {
            Reader::open(&record).and_then(|mut recording| convert(&mut recording, &trace))
        });
        let ended = ended.unwrap_or_else(|_| panic!("seed {seed} panics"));
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "seed {seed} took {took:?}");
        match ended {
            Ok(_) => traced += 1,
            Err(error) => {
                let error = error.to_string();
                assert!(!error.contains('\n'), "seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    assert!(
        refused > 0 && traced > 0,
        "{refused} refused, {traced} traced"
    );
}

/// A run of over 10 s is ended, and is none that ended well.
fn replayed(record: &Path) -> Ended {
    let args = ["replay", "--device", "cpu", "--model", "random:tiny"];
    let mut command = command(&[&args[..], &["--record", text(record)]].concat());
    end_within(Duration::from_secs(10), &mut command, "")
}

#[test]
fn replays_survive_mutated_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let lines = recorded(folder.path());
    let record = folder.path().join("mutated");
    let until = Instant::now() + time();
    // By exit code: equal, refused, different.
    let mut ended = [0_u64; 5];
    for seed in 0.. {
        if Instant::now() > until {
            break;
        }
        std::fs::write(&record, mutated(&lines, seed)).unwrap();
        let Ended {
            code, stderr: said, ..
        } = replayed(&record);
        assert!([0, 1, 4].contains(&code), "seed {seed}: {code} {said}");
        assert!(!said.contains("panicked"), "seed {seed}: {said}");
        assert!(said.lines().count() <= 3, "seed {seed}: {said}");
        assert!(
            code != 1 || said.starts_with("tailgraph: "),
            "seed {seed}: {said}"
        );
        assert_childrens_peak_below_a_gib(&format!("seed {seed}"));
        ended[code as usize] += 1;
    }
    println!(
        "equal, refused, different: {}, {}, {}",
        ended[0], ended[1], ended[4]
    );
    assert!(ended[1] > 0 && ended[0] + ended[4] > 0, "{ended:?}");
}
