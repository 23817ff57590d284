//! Rows and files of arrays under seeded mutation: a question or a one-line error, never a panic.
//! TAILGRAPH_FUZZ_SECONDS sets how long (default 1).

use crate::common::random::Random;
use crate::fakes::CODEC;
use crate::rows::rules;
use std::panic::catch_unwind;
use std::time::Instant;
use tailgraph::io::arrays;
use tailgraph::io::line::parse;
use tailgraph::io::prepare::prepare;

const ROWS: [&str; 5] = [
    r#"{"id":"x","input_ids":[1,2,3],"max_new_tokens":9,"temperature":0.5,"top_k":4,"top_p":0.9,"min_p":0.1,"repetition_penalty":1.1,"seed":-1,"stop":["END"],"stop_ids":[9,7],"logprobs":3,"timeout_ms":1500,"ignore_eos":false}"#,
    r#"{"id":17,"prompt":"caf\u00e9 \ud83d\ude00","seed":18446744073709551615}"#,
    r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[]}],"tools":[{"name":"f"}]}"#,
    r#"{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"logprobs":true,"top_logprobs":2,"n":1,"stop":"x","response_format":{"type":"text"}}}"#,
    r#"{"custom_id":"d","method":"POST","url":"/v1/completions","body":{"prompt":[[1,2]],"max_tokens":3,"logprobs":2,"echo":true,"logit_bias":{}}}"#,
];
const PIECES: [&str; 22] = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "1e38",
    "18446744073709551616",
    "-9223372036854775809",
    "0.1",
    "[]",
    "{}",
    "\"\"",
    "\"\\ud800\"",
    "[[[[",
    "]",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "\"id\":",
    "\"body\":",
];

fn mutate(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut line = ROWS[random.below(ROWS.len())].as_bytes().to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(line.len().max(1)).min(line.len());
        let end = (at + random.below(12)).min(line.len());
        match random.below(6) {
            0 if at < line.len() => line[at] = random.below(256) as u8,
            1 => line.truncate(at),
            2 => drop(line.drain(at..end)),
            3 => drop(line.splice(at..end, PIECES[random.below(PIECES.len())].bytes())),
            4 => {
                let copy = line[at..end].to_vec();
                line.splice(at..at, copy);
            }
            _ => number_or_field(&mut line, &mut random),
        }
    }
    line
}

/// Puts a piece in the place of a whole value, so that most mutations are still JSON.
fn number_or_field(line: &mut Vec<u8>, random: &mut Random) {
    let colons: Vec<usize> = (0..line.len()).filter(|&i| line[i] == b':').collect();
    if colons.is_empty() {
        return;
    }
    let start = colons[random.below(colons.len())] + 1;
    let rest = &line[start..];
    let length = rest
        .iter()
        .position(|b| b",}]".contains(b))
        .unwrap_or(rest.len());
    let piece = PIECES[random.below(13)].bytes();
    line.splice(start..start + length, piece);
}

/// Mutations that are tried however little time there is.
pub const LEAST: u64 = 1024;

pub fn until() -> Instant {
    Instant::now() + crate::common::fuzz::time(1.0)
}

#[test]
fn array_files_survive_mutation() {
    let dir = tempfile::tempdir().unwrap();
    let (safetensors, npy) = (dir.path().join("a"), dir.path().join("b"));
    let data: Vec<u8> = (1..=6_i32).flat_map(i32::to_le_bytes).collect();
    crate::arrays::save(
        &safetensors,
        &[("prompt.0", safetensors::Dtype::I32, &[6], data.clone())],
    );
    crate::arrays::npy(&npy, "<i4", false, "(2, 3)", &data);
    let originals = [
        std::fs::read(&safetensors).unwrap(),
        std::fs::read(&npy).unwrap(),
    ];
    let path = dir.path().join("mutated");
    let until = until();
    let (mut good, mut bad) = (0_u64, 0_u64);
    for seed in 0.. {
        let mut random = Random(seed);
        let which = random.below(2);
        let mut bytes = originals[which].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len().max(1)).min(bytes.len());
            match random.below(4) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(
                    at..at,
                    b"99999999999999999999"[..random.below(20)].iter().copied(),
                )),
                _ if at < bytes.len() => bytes[at] = random.below(256) as u8,
                _ => {}
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let read = if which == 0 {
            arrays::safetensors
        } else {
            arrays::npy
        };
        match catch_unwind(|| read(&path)) {
            Ok(Ok(samples)) => {
                good += 1;
                assert!(samples.iter().all(|s| !s.tokens.is_empty()), "seed {seed}");
            }
            Ok(Err(error)) => {
                bad += 1;
                assert!(!error.to_string().contains('\n'), "seed {seed}: {error}");
            }
            Err(_) => panic!("seed {seed} panicked"),
        }
        if seed >= LEAST && seed % 16 == 0 && Instant::now() > until {
            break;
        }
    }
    assert!(
        good > 20 && bad > 20,
        "{good} good files, {bad} bad ones: the mutations are one-sided"
    );
}

#[test]
fn rows_survive_mutation() {
    let until = until();
    let (mut good, mut bad) = (0_u64, 0_u64);
    for seed in 0.. {
        let line = mutate(seed);
        let outcome = catch_unwind(|| {
            let row = parse(&line, 1);
            row.ask.and_then(|ask| prepare(&rules(), &CODEC, 0, &ask))
        });
        match outcome {
            Ok(Ok(prepared)) => {
                good += 1;
                let request = prepared.request;
                assert!(!request.prompt.is_empty(), "seed {seed}");
                assert!(request.prompt.iter().all(|&id| id < 300), "seed {seed}");
            }
            Ok(Err(error)) => {
                bad += 1;
                assert!(!error.message.contains('\n'), "seed {seed}: {error}");
                assert!(error.message.len() < 1000, "seed {seed}: {error}");
            }
            Err(_) => panic!(
                "seed {seed} panicked on {:?}",
                String::from_utf8_lossy(&line)
            ),
        }
        if seed >= LEAST && seed % 64 == 0 && Instant::now() > until {
            break;
        }
    }
    assert!(
        good > 20 && bad > 20,
        "{good} good rows, {bad} bad ones: the mutations are one-sided"
    );
}
