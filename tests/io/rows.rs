//! One line in, a question out: options, defaults, names.

use crate::common::text::load_both;
use crate::fakes::CODEC;
use tailgraph::io::line::parse;
use tailgraph::io::prepare::{Prepared, Rules, prepare, sampling_key};
use tailgraph::io::row::Options;
use tailgraph::io::{Code, Codec, RowError};
use tailgraph::text::{StopMatcher, Unrendered};

pub fn rules() -> Rules {
    Rules {
        vocab_size: 300,
        max_context: 100,
        model_context: 200,
        eos_ids: vec![7],
        defaults: Options {
            max_new_tokens: Some(5),
            ..Options::default()
        },
        advised_new_tokens: None,
        run_seed: 0,
        prompt_logprobs: false,
    }
}

pub fn prepared(line: &str) -> Result<Prepared, RowError> {
    let row = parse(line.as_bytes(), 3);
    prepare(&rules(), &CODEC, ROW, &row.ask?)
}

/// Where the row stands in the input.
pub const ROW: u64 = 2;

#[test]
fn every_option_reaches_the_request() {
    let got = prepared(
        r#"{"id":"x","input_ids":[1,2,3],"max_new_tokens":9,"temperature":0.5,"top_k":4,"top_p":0.9,"min_p":0.1,
        "repetition_penalty":1.1,"seed":-1,"stop":"END","stop_ids":[9,7],"logprobs":3,"timeout_ms":1500}"#,
    )
    .unwrap();
    let request = got.request;
    assert_eq!(request.prompt, [1, 2, 3]);
    assert_eq!(request.max_new_tokens, 9);
    assert_eq!(request.stop_ids, [7, 9]);
    assert_eq!(
        request.timeout,
        Some(std::time::Duration::from_millis(1500))
    );
    let sampling = request.sampling;
    assert_eq!(
        (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p
        ),
        (0.5, 4, 0.9, 0.1)
    );
    assert_eq!(sampling.repetition_penalty, 1.1);
    assert_eq!(sampling.key, u64::MAX);
    assert_eq!(sampling.logprobs, Some(3));
    assert_eq!(got.stop, StopMatcher::new(&["END".to_owned()]));
}

#[test]
fn defaults_fill_gaps_and_places_key_the_sampling() {
    let got = prepared(r#"{"id":"x","prompt":"hi","stop":null}"#).unwrap();
    assert_eq!(got.request.prompt, [256, 104, 105]);
    assert_eq!(got.request.max_new_tokens, 5);
    assert_eq!(got.request.stop_ids, [7]);
    assert_eq!(got.request.sampling.temperature, 0.0);
    assert_eq!(got.request.sampling.key, sampling_key(0, ROW));
    assert_ne!(sampling_key(0, ROW), sampling_key(1, ROW));
    assert_ne!(sampling_key(0, ROW), sampling_key(0, ROW + 1));
    let ignoring = prepared(r#"{"prompt":"hi","ignore_eos":true,"stop_ids":[]}"#).unwrap();
    assert!(ignoring.request.stop_ids.is_empty());
}

#[test]
fn ids_and_unknown_fields() {
    let named = |line: &str| serde_json::to_string(&parse(line.as_bytes(), 8).id).unwrap();
    assert_eq!(named(r#"{"id":"a","prompt":"x"}"#), "\"a\"");
    assert_eq!(named(r#"{"id":-5,"prompt":"x"}"#), "-5");
    assert_eq!(named(r#"{"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":null,"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":1.5,"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":2.0,"prompt":"x"}"#), "2");
    assert_eq!(
        named(r#"{"id":18446744073709551615,"prompt":"x"}"#),
        "18446744073709551615"
    );
    assert_eq!(
        named(r#"{"id":18446744073709551617,"prompt":"x"}"#),
        "18446744073709551617"
    );
    let row = parse(br#"{"prompt":"x","temprature":1}"#, 1);
    assert_eq!(row.ignored, ["temprature"]);
    assert!(row.ask.is_ok());
    // Refused, or neutral: not ignored.
    let known = parse(br#"{"prompt":"a","n":1,"max_length":3}"#, 1);
    assert!(known.ask.is_err() && known.ignored.is_empty());
}

/// Below the steps of f32 at a logit's size there is nothing to draw from but ties; and f32 overflows not much below.
#[test]
fn tiny_temperatures_and_top_p_0_are_greedy() {
    let temperature = |options: &str| {
        let line = format!("{{\"prompt\":\"x\",{options}}}");
        prepared(&line).unwrap().request.sampling.temperature
    };
    for tiny in [
        "0", "0.0", "-0.0", "1e-45", "1e-38", "1e-30", "9e-6", "1e-400",
    ] {
        assert_eq!(
            temperature(&format!("\"temperature\":{tiny}")),
            0.0,
            "{tiny}"
        );
    }
    assert_eq!(temperature("\"temperature\":1e-5"), 1e-5);
    assert_eq!(temperature("\"temperature\":3e38"), 3e38);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":0"), 0.0);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":0.01"), 1.5);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":1.0"), 1.5);
}

/// The tokenizer's BOS is a prompt; where it has none there is nothing to go on from.
#[test]
fn an_empty_prompt_is_its_bos() {
    assert_eq!(prepared(r#"{"prompt":""}"#).unwrap().request.prompt, [256]);
    let batch = r#"{"custom_id":"c","url":"/v1/completions","body":{"prompt":[""]}}"#;
    assert_eq!(prepared(batch).unwrap().request.prompt, [256]);
    let ask = parse(br#"{"prompt":""}"#, 1).ask.unwrap();
    let (tokenizer, _) = load_both(tempfile::tempdir().unwrap().path()).unwrap();
    let without_bos = Codec::new(Some(tokenizer), None);
    let error = prepare(&rules(), &without_bos, 0, &ask).unwrap_err();
    assert_eq!(error.code, Code::EmptyPrompt);
    assert!(error.message.contains("prompt: found no tokens"), "{error}");
}

/// The system is out of threads for now: that is no answer to the row.
#[test]
fn a_chat_that_finds_no_thread_is_tried_again() {
    let error = RowError::from(Unrendered::NoThread("none is left".to_owned()));
    assert_eq!(error.code, Code::NoThread);
    assert!(error.code.may_succeed_later());
}
