//! Rows whose prompts begin alike: what is shared, and that nothing else changes.

use crate::common::program::{Ended, tailgraph};
use crate::common::random::Random;
use crate::common::rows::{rows, text, without_timing};
use crate::generate::generate;
use serde_json::{Value, json};

/// What all prompts begin with.
const SYSTEM: u32 = 100;

fn system() -> impl Iterator<Item = u32> {
    (0..SYSTEM).map(|at| 8 + at * 37 % 480)
}

/// A prompt that goes on as no other does.
fn prompt(row: u32) -> Vec<u32> {
    system()
        .chain((0..3 + row % 9).map(|at| 8 + row + at * 5))
        .collect()
}

/// Greedy and sampled, with penalties or without, more than run at once.
fn own_rows() -> String {
    let row = |i: u32| {
        let mut row = json!({"id": i, "input_ids": prompt(i), "max_new_tokens": 1 + i % 7});
        if !i.is_multiple_of(2) {
            row["temperature"] = json!(0.9);
        }
        if !i.is_multiple_of(3) {
            row["repetition_penalty"] = json!(1.3);
        }
        row.to_string() + "\n"
    };
    (0..40).map(row).collect()
}

/// An OpenAI batch's rows, of three answers each.
fn batch_rows() -> String {
    let row = |i: u32| {
        let body = json!({"prompt": prompt(i), "max_tokens": 5, "n": 3, "temperature": 0.8, "repetition_penalty": 1.2});
        let row = json!({"custom_id": i, "method": "POST", "url": "/v1/completions", "body": body});
        row.to_string() + "\n"
    };
    (0..12).map(row).collect()
}

/// Equal answers with sharing and without; those with it, some of which shared.
fn both(input: &str) -> Ended {
    let shared = both_as(&[], input);
    assert!(
        shared.stderr.contains(" of them shared)"),
        "{}",
        shared.stderr
    );
    shared
}

/// Equal answers with sharing and without; those with it.
fn both_as(flags: &[&str], input: &str) -> Ended {
    let run = |more: &[&str]| {
        let ended = generate(&[&["--device", "cpu"], flags, more].concat(), input);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended
    };
    let (shared, alone) = (run(&[]), run(&["--no-prefix-sharing"]));
    let bare = |ended: &Ended| {
        let bare = |mut row: Value| {
            if let Some(body) = row["response"]["body"].as_object_mut() {
                body.remove("created");
            }
            without_timing(row)
        };
        rows(&ended.stdout)
            .into_iter()
            .map(bare)
            .collect::<Vec<_>>()
    };
    assert!(bare(&shared) == bare(&alone), "sharing changes answers");
    assert!(!alone.stderr.contains("shared"), "{}", alone.stderr);
    for row in alone.rows() {
        let cached = &row["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(row["usage"]["cached_tokens"].is_null() && cached.as_u64().unwrap_or(0) == 0);
    }
    shared
}

/// Context of random jobs, and tokens of a page.
const CONTEXT: u32 = 160;
const PAGE: u32 = 16;

/// A file of rows with nested beginnings, which come in any order or late, or differ in their last tokens alone.
fn random_rows(random: &mut Random) -> String {
    let mut beginnings = vec![vec![]];
    for _ in 0..random.range(1, 5) {
        let mut tokens: Vec<u32> = beginnings[random.below(beginnings.len())].clone();
        tokens.truncate(random.range(60, 100) as usize);
        tokens.extend((0..random.range(10, 40)).map(|_| random.range(8, 500)));
        beginnings.push(tokens);
    }
    let batch = random.percent(30);
    let count = random.range(4, 24);
    let row = |i: u32| {
        // Later beginnings show in mid-job alone.
        let known = (1 + i as usize / 2).min(beginnings.len());
        let mut prompt = beginnings[random.below(known)].clone();
        prompt.extend((0..random.range(1, 4)).map(|_| random.range(8, 500)));
        let most = CONTEXT - prompt.len() as u32;
        let new = [random.range(1, 9), most][usize::from(random.percent(20))];
        let (temperature, penalty) = (random.pick(&[0.0, 0.9]), random.pick(&[1.0, 1.3]));
        let row = if batch {
            let n = if temperature > 0.0 {
                random.range(1, 4)
            } else {
                1
            };
            let body = json!({"prompt": prompt, "max_tokens": new, "n": n, "temperature": temperature, "repetition_penalty": penalty});
            json!({"custom_id": i, "method": "POST", "url": "/v1/completions", "body": body})
        } else {
            json!({"id": i, "input_ids": prompt, "max_new_tokens": new, "temperature": temperature, "repetition_penalty": penalty})
        };
        row.to_string() + "\n"
    };
    (0..count).map(row).collect()
}

/// Files of random jobs, in pools that are often too small for all that run. `TAILGRAPH_JOBS` says how many.
#[test]
fn files_are_equal_with_and_without() {
    let jobs = std::env::var("TAILGRAPH_JOBS").map_or(40, |jobs| jobs.parse().unwrap());
    let mut shared_tokens = 0;
    for job in 0..jobs {
        let random = &mut Random(job);
        let input = random_rows(random);
        let (seqs, step) = (random.range(1, 8), random.pick(&[80, 128, 256]));
        let (seqs, step) = (seqs.to_string(), step.to_string());
        let (context, page) = (CONTEXT.to_string(), PAGE.to_string());
        let sizes = [
            "--max-seqs",
            &seqs,
            "--step-tokens",
            &step,
            "--max-context",
            &context,
            "--page-tokens",
            &page,
        ];
        let too_small = generate(
            &[&["--device", "cpu", "--memory-limit", "1MiB"][..], &sizes].concat(),
            &input,
        );
        let (needed, _) = too_small
            .stderr
            .split_once(" MiB needed")
            .expect("how much is needed");
        let needed: f64 = needed.rsplit(' ').next().unwrap().parse().unwrap();
        // The pool of one sequence, and some pages.
        let limit = format!(
            "{:.2}MiB",
            needed + 0.06 + 0.016 * f64::from(random.below(30u32))
        );
        let shared = both_as(&[&sizes[..], &["--memory-limit", &limit]].concat(), &input);
        for row in shared.rows() {
            let of_batch =
                &row["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"];
            let own = &row["usage"]["cached_tokens"];
            shared_tokens += own.as_u64().or(of_batch.as_u64()).unwrap_or(0);
        }
    }
    println!("{jobs} jobs, {shared_tokens} tokens shared");
    assert!(
        shared_tokens > 50 * jobs,
        "{shared_tokens} tokens in {jobs} jobs"
    );
}

/// How many rows have computed what all begin with. Others have it all from these.
fn computed(cached: &[u64]) -> usize {
    let system = u64::from(SYSTEM);
    assert!(
        cached.iter().all(|&tokens| tokens == 0 || tokens == system),
        "{cached:?}"
    );
    cached.iter().filter(|&&tokens| tokens == 0).count()
}

#[test]
fn a_system_prompt_is_computed_once() {
    let shared = both(&own_rows());
    let cached = shared.rows().into_iter();
    let cached = cached.map(|row| row["usage"]["cached_tokens"].as_u64().unwrap_or(0));
    let cached: Vec<u64> = cached.collect();
    // Where the reader is slow, the first row is on its way before the second is known.
    assert!((1..=2).contains(&computed(&cached)), "{cached:?}");
    let all: u64 = cached.iter().sum();
    assert!(
        shared.stderr.contains(&format!(", {all} of them shared")),
        "{}",
        shared.stderr
    );
}

#[test]
fn the_answers_of_a_row_share_its_prompt() {
    let shared = both(&batch_rows());
    let usage = |row: Value| row["response"]["body"]["usage"].clone();
    let usages: Vec<Value> = shared.rows().into_iter().map(usage).collect();
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let cached: Vec<u64> = usages.iter().filter_map(cached).collect();
    assert_eq!(cached.len(), 12);
    assert!((1..=2).contains(&computed(&cached)), "{cached:?}");
    // One row alone: its first answer computes the prompt, and the others all but the last token of it.
    let (input, tokens) = (batch_rows(), prompt(0).len());
    let ended = both(input.lines().next().unwrap());
    let said = format!("{} prompt tokens", 3 * tokens);
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    // Fewer than 16 tokens behind those before are no prefix.
    let said = format!(", {} of them shared", 2 * (tokens - 1));
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
}

/// Logits of last tokens are those of prompts that are computed as a whole.
#[test]
fn scored_prompts_share_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let input: String = (0..20)
        .map(|row| json!({"input_ids": prompt(row)}).to_string() + "\n")
        .collect();
    std::fs::write(path("rows.jsonl"), input).unwrap();
    let score = |name: &str, more: &[&str]| {
        let (rows, out, record) = (path("rows.jsonl"), path(name), path("record.jsonl"));
        let fixed = [
            "score",
            "--model",
            "random:tiny",
            "--device",
            "cpu",
            "-q",
            "--logits",
            "last",
        ];
        let files = [
            "--input",
            &rows,
            "--output",
            &out,
            "--record",
            &record,
            "--overwrite",
        ];
        tailgraph(&[&fixed[..], &files, more].concat());
        let turns = rows_of(&record);
        let skipped = turns
            .iter()
            .filter_map(|line| line["turn"]["skipped"].as_u64());
        (std::fs::read(path(name)).unwrap(), skipped.sum::<u64>())
    };
    let (shared, skipped) = score("shared.safetensors", &[]);
    let (alone, none) = score("alone.safetensors", &["--no-prefix-sharing"]);
    assert!(shared == alone, "the logits differ");
    assert_eq!((skipped, none), (19 * u64::from(SYSTEM), 0));
}

/// A timeline's steps have what its requests did not compute.
#[test]
fn a_timeline_shows_what_was_shared() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (
        folder.path().join("rows.jsonl"),
        folder.path().join("trace.json"),
    );
    std::fs::write(&input, own_rows()).unwrap();
    let fixed = ["trace", "--model", "random:tiny", "--device", "cpu", "-q"];
    tailgraph(&[&fixed[..], &["-i", text(&input), "-o", text(&out)]].concat());
    let trace: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let sum = |name: &str| -> u64 {
        let values = events
            .iter()
            .filter_map(|event| event["args"][name].as_u64());
        values.sum()
    };
    assert!(sum("cached_tokens") >= 38 * u64::from(SYSTEM));
    assert_eq!(sum("shared_tokens"), sum("cached_tokens"));
    assert_eq!(
        sum("prompt_rows") + sum("shared_tokens"),
        sum("prompt_tokens")
    );
}

fn rows_of(path: &str) -> Vec<Value> {
    rows(&std::fs::read_to_string(path).unwrap())
}
