//! Penalties, biases and least lengths: what rows of both formats may say of them, and what becomes of it.

use crate::fakes::CODEC;
use crate::rows::rules;
use serde_json::{Map, Value, json};
use tailgraph::io::line::parse;
use tailgraph::io::prepare::{Prepared, Rules, prepare};
use tailgraph::io::row::{Code, Options, RowError};
use tailgraph::runtime::Request;

/// A row of each format with these fields.
fn both(fields: &Value, rules: &Rules) -> [Result<Prepared, RowError>; 2] {
    let with = |mut row: Value| {
        let all = row.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        row
    };
    let own = with(json!({"prompt": "x"}));
    let body = with(json!({"prompt": "x"}));
    let batch = json!({"custom_id": "c", "url": "/v1/completions", "body": body});
    [own, batch].map(|row| {
        let row = parse(row.to_string().as_bytes(), 1);
        assert!(row.ignored.is_empty(), "{:?}", row.ignored);
        prepare(rules, &CODEC, 0, &row.ask?)
    })
}

fn requests(fields: &Value) -> [Request; 2] {
    both(fields, &rules()).map(|prepared| prepared.unwrap().request)
}

#[test]
fn every_field_reaches_the_request() {
    let fields = json!({
        "presence_penalty": -2, "frequency_penalty": 1.5, "min_tokens": 3, "max_tokens": 3,
        "logit_bias": {"5": -100, "0": 0.25, "9": 0, "299": 100.0},
    });
    for request in requests(&fields) {
        assert_eq!(request.sampling.presence_penalty, -2.0);
        assert_eq!(request.sampling.frequency_penalty, 1.5);
        assert_eq!(request.min_new_tokens, 3);
        let mut biases = request.biases;
        biases.sort_by_key(|bias| bias.0);
        assert_eq!(biases, [(0, 0.25), (5, -100.0), (299, 100.0)]);
    }
    for request in requests(&json!({"logit_bias": null, "min_tokens": 0})) {
        assert_eq!((request.biases, request.min_new_tokens), (vec![], 0));
        assert_eq!(request.sampling.presence_penalty, 0.0);
        assert_eq!(request.sampling.frequency_penalty, 0.0);
    }
}

#[test]
fn a_row_goes_before_a_flag() {
    let with_flags = Rules {
        defaults: Options {
            presence_penalty: Some(1.0),
            frequency_penalty: Some(0.5),
            min_tokens: Some(2),
            max_new_tokens: Some(8),
            ..Options::default()
        },
        ..rules()
    };
    let said = |fields: Value| {
        both(&fields, &with_flags).map(|prepared| {
            let request = prepared.unwrap().request;
            let sampling = request.sampling;
            let penalties = (sampling.presence_penalty, sampling.frequency_penalty);
            (penalties, request.min_new_tokens)
        })
    };
    assert_eq!(said(json!({})), [((1.0, 0.5), 2); 2]);
    let none = json!({"presence_penalty": 0, "frequency_penalty": 0.0, "min_tokens": 0});
    assert_eq!(said(none), [((0.0, 0.0), 0); 2]);
}

#[test]
fn what_is_out_of_range_is_named() {
    let of = |count: usize| -> Value {
        let biases = (0..count).map(|id| (id.to_string(), json!(1)));
        Value::Object(biases.collect::<Map<String, Value>>())
    };
    use Code::{InvalidRequest, TokenOutOfRange};
    for (field, value, code, message) in [
        (
            "presence_penalty",
            json!(2.01),
            InvalidRequest,
            "found 2.01, expected a number from -2 to 2",
        ),
        (
            "frequency_penalty",
            json!(-3),
            InvalidRequest,
            "found -3, expected a number from -2 to 2",
        ),
        (
            "frequency_penalty",
            json!("1"),
            InvalidRequest,
            "found \"1\", expected a number",
        ),
        (
            "min_tokens",
            json!(-1),
            InvalidRequest,
            "found -1, expected an integer",
        ),
        (
            "min_tokens",
            json!(99),
            InvalidRequest,
            "found 99, expected at most the 5 new tokens",
        ),
        (
            "logit_bias",
            json!([5]),
            InvalidRequest,
            "found an array of 1, expected an object of token ids",
        ),
        (
            "logit_bias",
            json!({"5": 101}),
            InvalidRequest,
            "logit_bias.5: found 101, expected a number from -100",
        ),
        (
            "logit_bias",
            json!({"5": null}),
            InvalidRequest,
            "logit_bias.5: found null",
        ),
        (
            "logit_bias",
            json!({"x": 1}),
            InvalidRequest,
            "found the key \"x\", expected a token id",
        ),
        // Two keys of one id, or none of any.
        (
            "logit_bias",
            json!({"5": 1, "05": 1}),
            InvalidRequest,
            "found the key \"05\"",
        ),
        (
            "logit_bias",
            json!({"-1": 1}),
            InvalidRequest,
            "found the key \"-1\"",
        ),
        (
            "logit_bias",
            json!({"4294967296": 1}),
            InvalidRequest,
            "found the key \"4294967296\"",
        ),
        (
            "logit_bias",
            json!({"300": 1}),
            TokenOutOfRange,
            "found the key 300, expected token ids below the vocabulary",
        ),
        (
            "logit_bias",
            of(301),
            InvalidRequest,
            "found 301 tokens, expected at most 300",
        ),
    ] {
        for prepared in both(&json!({field: value, "max_tokens": 5}), &rules()) {
            let error = prepared.unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(
                error.message.starts_with(field) && error.message.contains(message),
                "{error}"
            );
        }
    }
}
