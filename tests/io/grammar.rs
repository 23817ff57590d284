//! OpenAI rows made from a grammar: every field of the format with values right, nearly right and wrong, in any
//! combination. Each is a request or an error row in the format, soon. TAILGRAPH_FUZZ_SECONDS sets how long (default 1).

use crate::common::random::Random;
use crate::fakes::CODEC;
use crate::mutation::{LEAST, until};
use crate::rows::rules;
use serde_json::Value;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};
use tailgraph::io::answer::{self, Label};
use tailgraph::io::line::parse;
use tailgraph::io::prepare::prepare;

/// A row's own fields with values that mean something to them.
const BODY: [(&str, &[&str]); 34] = [
    ("model", &["\"m\"", "\"\""]),
    ("max_tokens", &["1", "5", "5.0", "1e1", "0", "99999999999"]),
    ("max_completion_tokens", &["1", "2.5", "-1"]),
    (
        "temperature",
        &["0", "1.5", "1e-40", "-0.0", "1e39", "NaN", "Infinity"],
    ),
    ("top_p", &["0", "1", "0.5", "1.0000001"]),
    ("top_k", &["-1", "0", "5", "5.0", "4294967296"]),
    ("min_p", &["0", "0.5", "2"]),
    ("repetition_penalty", &["1", "1e-40", "0", "3.5e38"]),
    (
        "seed",
        &[
            "0",
            "-1",
            "18446744073709551615",
            "18446744073709551616",
            "1.0",
        ],
    ),
    (
        "stop",
        &[
            "\"x\"",
            "[\"a\",\"b\"]",
            "[]",
            "[\"\"]",
            "[[\"a\"]]",
            "null",
        ],
    ),
    ("stop_token_ids", &["[]", "[1,2.0]", "[300]", "[-1]", "7"]),
    ("ignore_eos", &["true", "false", "1"]),
    ("timeout_ms", &["1", "1e3", "0"]),
    ("logprobs", &["true", "false", "0", "5", "20", "21"]),
    ("top_logprobs", &["0", "1", "20", "21", "2.5"]),
    ("n", &["1", "1.0", "2", "0"]),
    ("best_of", &["1", "3"]),
    ("stream", &["false", "true"]),
    ("echo", &["false", "true"]),
    ("suffix", &["\"\"", "\"x\""]),
    (
        "logit_bias",
        &[
            "{}",
            "{\"5\":0}",
            "{\"5\":1}",
            "{\"05\":1}",
            "{\"999\":-1e2}",
            "[]",
        ],
    ),
    ("frequency_penalty", &["0", "-0.0", "1", "-2.5"]),
    ("presence_penalty", &["0", "2"]),
    ("min_tokens", &["0", "1", "1e9"]),
    (
        "response_format",
        &["{\"type\":\"text\"}", "{\"type\":\"json_object\"}", "{}"],
    ),
    ("tools", &["[]", "[{\"type\":\"function\"}]", "[1]", "{}"]),
    (
        "tool_choice",
        &["\"auto\"", "\"none\"", "\"required\"", "{}"],
    ),
    ("modalities", &["[\"text\"]", "[\"audio\"]"]),
    ("user", &["\"u\"", "5"]),
    ("metadata", &["{}", "{\"a\":\"b\"}"]),
    ("functions", &["[]", "[{}]"]),
    ("verbosity", &["\"medium\"", "\"low\""]),
    ("unheard_of", &["1", "null"]),
    ("max_tokens", &["3", "null"]),
];
const PROMPTS: [&str; 12] = [
    "\"text\"",
    "\"\"",
    "\"\\u0000\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "[\"one\"]",
    "[\"one\",\"two\"]",
    "[1,2,3.0]",
    "[[1,2]]",
    "[[]]",
    "[1,\"x\"]",
    "[1e400]",
    "{}",
];
const CONTENTS: [&str; 9] = [
    "\"hi\"",
    "\"\"",
    "null",
    "[{\"type\":\"text\",\"text\":\"a\"}]",
    "[]",
    "[{\"type\":\"image_url\"}]",
    "[{\"type\":\"text\"}]",
    "5",
    "[NaN]",
];
const ROLES: [&str; 5] = ["\"user\"", "\"assistant\"", "\"tool\"", "\"\"", "7"];
const CALLS: [&str; 4] = [
    "[]",
    "null",
    "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
    "[{\"function\":{\"arguments\":\"{broken\"}}]",
];
const URLS: [&str; 6] = [
    "\"/v1/chat/completions\"",
    "\"/v1/completions\"",
    "\"/v1/chat/completions\"",
    "\"/v1/completions\"",
    "\"/v1/embeddings\"",
    "null",
];
const IDS: [&str; 7] = [
    "\"a\"",
    "\"\"",
    "7",
    "7.0",
    "[1]",
    "null",
    "18446744073709551616",
];
/// Values that may stand anywhere.
const ANY: [&str; 12] = [
    "null",
    "true",
    "0",
    "-1",
    "1e400",
    "-Infinity",
    "NaN",
    "\"\"",
    "[]",
    "{}",
    "[[[[[]]]]]",
    "18446744073709551616",
];

fn one_of<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    match random.below(40) {
        0 => ANY[random.below(ANY.len())],
        _ => of[random.below(of.len())],
    }
}

fn messages(random: &mut Random) -> String {
    let message = |random: &mut Random| {
        let calls = match random.below(4) {
            0 => format!(",\"tool_calls\":{}", one_of(random, &CALLS)),
            _ => String::new(),
        };
        let (role, content) = (one_of(random, &ROLES), one_of(random, &CONTENTS));
        format!("{{\"role\":{role},\"content\":{content}{calls}}}")
    };
    let count = random.below(4);
    let all: Vec<String> = (0..count).map(|_| message(random)).collect();
    format!("[{}]", all.join(","))
}

fn line(seed: u64) -> String {
    let mut random = Random(seed);
    let random = &mut random;
    let mut body = Vec::new();
    for _ in 0..random.below(5) {
        let (name, values) = BODY[random.below(BODY.len())];
        body.push(format!("\"{name}\":{}", one_of(random, values)));
    }
    let url = one_of(random, &URLS);
    if url.contains("chat") != (random.below(20) == 0) {
        body.push(format!("\"messages\":{}", messages(random)));
    } else {
        body.push(format!("\"prompt\":{}", one_of(random, &PROMPTS)));
    }
    let mut line = format!(
        "{{\"custom_id\":{},\"method\":{},\"url\":{url},\"body\":{{{}}}}}",
        one_of(random, &IDS),
        one_of(random, &["\"POST\"", "\"POST\"", "\"POST\"", "\"GET\""]),
        body.join(",")
    );
    if random.below(10) == 0 {
        let at = random.below(line.len());
        line = line.chars().take(at).collect();
    }
    line
}

#[test]
fn openai_rows_of_a_grammar_are_requests_or_error_rows() {
    let until = until();
    let (mut good, mut bad) = (0_u64, 0_u64);
    for seed in 0.. {
        let line = line(seed);
        let began = Instant::now();
        let outcome = catch_unwind(|| {
            let mut row = parse(line.as_bytes(), 1);
            row.take_format(&parse(br#"{"custom_id":0}"#, 2).format);
            let prepared = row
                .ask
                .clone()
                .and_then(|ask| prepare(&rules(), &CODEC, 0, &ask));
            (row, prepared)
        });
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "seed {seed}: {line}"
        );
        match outcome {
            Err(_) => panic!("seed {seed} panicked on {line}"),
            Ok((_, Ok(prepared))) => {
                good += 1;
                let request = prepared.request;
                let tokens = request.prompt.len() as u32 + request.max_new_tokens;
                assert!(
                    !request.prompt.is_empty() && request.max_new_tokens > 0,
                    "{line}"
                );
                assert!(tokens <= rules().max_context, "{line}");
                let sampling = request.sampling;
                assert!(
                    sampling.temperature == 0.0 || sampling.temperature >= 1e-5,
                    "{line}"
                );
                assert!(
                    sampling.top_p > 0.0 || sampling.temperature == 0.0,
                    "{line}"
                );
            }
            Ok((row, Err(error))) => {
                bad += 1;
                assert!(!error.message.contains(char::is_control), "{line}: {error}");
                assert!(error.message.len() < 1000, "{line}: {error}");
                let label = Label {
                    line: row.line,
                    id: row.id,
                    format: row.format,
                };
                let answer: Value = serde_json::from_str(&answer::failed(&label, &error)).unwrap();
                assert_eq!(answer["response"]["status_code"], 400, "{line}: {answer}");
                assert!(answer.get("custom_id").is_some(), "{line}: {answer}");
            }
        }
        if seed >= LEAST && seed % 64 == 0 && Instant::now() > until {
            break;
        }
    }
    assert!(
        good > 20 && bad > 20,
        "{good} good rows, {bad} bad ones: the grammar is one-sided"
    );
    crate::common::memory::assert_peak_below_a_gib();
}
