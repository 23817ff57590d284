//! `generate` with penalties, biases and least lengths, as rows and flags have them.

use crate::generate::generate;
use serde_json::{Value, json};

/// A row's answer with these flags and fields.
fn answer(flags: &[&str], fields: &Value) -> Value {
    let mut row = json!({"prompt": "Round and round", "max_new_tokens": 24});
    let all = row.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    let ended = generate(&[&["-q"], flags].concat(), &row.to_string());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.rows().remove(0)
}

fn ids(answer: &Value) -> Vec<u64> {
    let ids = answer["output_ids"].as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_flag_is_what_a_row_that_says_nothing_has() {
    let plain = answer(&[], &json!({}));
    for (flag, field) in [
        ("--presence-penalty=-2", json!({"presence_penalty": -2})),
        (
            "--frequency-penalty=-1.5",
            json!({"frequency_penalty": -1.5}),
        ),
    ] {
        let by_flag = answer(&[flag], &json!({}));
        assert_eq!(ids(&by_flag), ids(&answer(&[], &field)), "{flag}");
        assert_ne!(ids(&by_flag), ids(&plain), "{flag}");
        let undone = json!({"presence_penalty": 0, "frequency_penalty": 0});
        assert_eq!(ids(&answer(&[flag], &undone)), ids(&plain), "{flag}");
    }
    for (flag, expected) in [
        ("--presence-penalty=2.5", "a number from -2 to 2"),
        ("--frequency-penalty=nan", "a number from -2 to 2"),
        ("--min-tokens=-1", "invalid value"),
    ] {
        generate(&[flag], "").fails(2, &[flag.split('=').next().unwrap(), expected]);
    }
}

/// The token that comes first is held back, or is all that there is.
#[test]
fn a_bias_decides() {
    let first = ids(&answer(&[], &json!({})))[0];
    let with = |bias: i32| {
        ids(&answer(
            &[],
            &json!({"logit_bias": {first.to_string(): bias}}),
        ))
    };
    assert!(!with(-100).contains(&first));
    assert!(with(100).iter().all(|&id| id == first));
    // Logprobs are those of the logits as they were.
    let asked = |bias: i32| {
        let bias = json!({"logit_bias": {first.to_string(): bias}, "logprobs": 2});
        answer(&[], &bias)["logprobs"][0]["top"].clone()
    };
    assert_eq!(asked(-100), asked(0));
}

/// A stop id, and a stop string, ends the answer where it comes; not among the least tokens.
#[test]
fn nothing_ends_an_answer_before_its_least_tokens() {
    let plain = answer(&[], &json!({"seed": 3, "temperature": 1.5}));
    let said = ids(&plain);
    // The first token that has not come before, some way in.
    let place = (4..said.len())
        .find(|&at| !said[..at].contains(&said[at]))
        .unwrap();
    let with = |least: usize, flags: &[&str]| {
        let fields =
            json!({"seed": 3, "temperature": 1.5, "stop_ids": [said[place]], "min_tokens": least});
        answer(flags, &fields)
    };
    for least in [0, place] {
        let stopped = with(least, &[]);
        assert_eq!(stopped["finish_reason"], "stop");
        assert_eq!(ids(&stopped), said[..=place], "least {least}");
    }
    let longer = ids(&with(place + 1, &["--min-tokens=1"]));
    assert_eq!(longer[..place], said[..place]);
    assert!(longer.len() > place + 1 && longer[place] != said[place]);

    let whole = plain["text"].as_str().unwrap();
    let stop: String = whole.chars().take(1).collect();
    let with = |least: usize| {
        let fields = json!({"seed": 3, "temperature": 1.5, "stop": stop, "min_tokens": least});
        answer(&[], &fields)
    };
    assert_eq!(with(0)["text"], "");
    let later = with(5);
    assert!(ids(&later).len() > 5);
    assert!(later["text"].as_str().unwrap().starts_with(&stop));
}
