//! What rows of `generate` may ask for, and what is said of them.

use crate::generate::generate;
use serde_json::{Value, json};

#[test]
fn unknown_fields_are_one_warning_and_with_strict_an_error() {
    let own = |name: &str| format!("{{\"prompt\":\"x\",\"max_tokens\":1,\"{name}\":1}}\n");
    let batch = |name: &str| {
        let body = json!({"prompt": "x", "max_tokens": 1, name: 1});
        json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
            + "\n"
    };
    for (input, shown) in [
        (own("max_token").repeat(2), "\"max_token\""),
        (batch("a") + &batch("b"), "\"body.a\""),
    ] {
        let lenient = generate(&[], &input);
        assert_eq!(lenient.code, 0, "{}", lenient.stderr);
        let warning = format!("field {shown} is not known");
        assert_eq!(
            lenient.stderr.matches(&warning).count(),
            1,
            "{}",
            lenient.stderr
        );
        let strict = generate(&["--strict"], &input);
        assert_eq!(strict.code, 3, "{}", strict.stderr);
        assert!(!strict.stderr.contains("warning"), "{}", strict.stderr);
        for row in strict.rows() {
            assert_eq!(row["error"]["code"], "unsupported");
            let message = row["error"]["message"].as_str().unwrap();
            assert!(message.contains("expected none with --strict"), "{message}");
        }
    }
}

#[test]
fn a_prompt_that_gets_a_second_bos_is_one_warning() {
    const TEXT: &str = "<|startoftext|>x";
    let own = json!({"prompt": TEXT, "max_tokens": 1});
    let body = json!({"prompt": ["a", TEXT], "max_tokens": 1});
    let batch = ["a", "b"].map(|id| {
        let row =
            json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body});
        format!("{row}\n")
    });
    for (args, input) in [
        (&[][..], format!("{own}\n{own}\n")),
        (&[], batch.concat()),
        (
            &["--raw", "--max-new-tokens", "1", TEXT, TEXT],
            String::new(),
        ),
    ] {
        let ended = generate(args, &input);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let warned = ended.stderr.matches("begins with the BOS token").count();
        assert_eq!(warned, 1, "{}", ended.stderr);
    }
    // Two of them, as transformers has it.
    let one = generate(
        &["--quiet"],
        &json!({"input_ids": [1, 1, 128], "max_tokens": 4}).to_string(),
    );
    let two = generate(
        &["--quiet"],
        &json!({"prompt": TEXT, "max_tokens": 4}).to_string(),
    );
    assert_eq!(one.rows()[0]["output_ids"], two.rows()[0]["output_ids"]);
    assert_eq!(one.stderr, "");
    for other in ["x<|startoftext|>", "xx"] {
        let ended = generate(
            &["--quiet"],
            &json!({"prompt": other, "max_tokens": 1}).to_string(),
        );
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn the_summary_says_what_came_of_the_rows() {
    let input = "{\"prompt\":\"ab\",\"max_tokens\":3}\n{\"prompt\":\n{\"prompt\":\"a\",\"top_p\":7}\n{\"prompt\":4}\n";
    let ended = generate(&[], input);
    assert_eq!(ended.code, 3);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let [rows, json, request, tokens] = lines[..] else {
        panic!("{}", ended.stderr);
    };
    assert_eq!(
        rows,
        "4 rows, 3 failed, 1 ended by its limit of new tokens, up to 16 at once"
    );
    assert!(
        json.starts_with("  1 invalid_json: line 2 is not JSON: "),
        "{json}"
    );
    assert!(
        request.starts_with("  2 invalid_request, the first: line 3: top_p: found 7, "),
        "{request}"
    );
    assert!(
        tokens.starts_with("3 prompt tokens (") && tokens.contains(" tok/s) and 3 new tokens ("),
        "{tokens}"
    );
    let one = generate(&["--max-new-tokens", "1", "x"], "").stderr;
    assert!(one.starts_with("1 row, 0 failed, 1 ended by"), "{one}");
    assert!(one.contains(" 1 new token ("), "{one}");
}

#[test]
fn the_first_of_several_answers_is_the_only_one_and_all_can_be_had_again() {
    let body = |n: u32, more: Value| {
        let mut body = json!({"prompt": "x", "n": n, "max_tokens": 12, "temperature": 1.0});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"custom_id": n, "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
            + "\n"
    };
    let texts = |args: &[&str], input: &str| -> Vec<String> {
        let ended = generate(args, input);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let rows = ended.rows();
        let choices = rows[0]["response"]["body"]["choices"].as_array().unwrap();
        choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect()
    };
    for more in [json!({}), json!({"seed": 9})] {
        let all = texts(&[], &body(6, more.clone()));
        let mut different = all.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 6, "{all:?}");
        assert_eq!(texts(&["--max-seqs", "2"], &body(6, more.clone())), all);
        assert_eq!(texts(&[], &body(3, more.clone())), all[..3]);
        assert_eq!(texts(&[], &body(1, more)), all[..1]);
    }
}

#[test]
fn special_tokens_are_shown_to_who_asks_for_them() {
    // Ids 0 to 7 are special; a row whose answer has some is found by trying.
    let row = |seed: u32, more: &str| {
        format!(
            "{{\"prompt\":\"x\",\"max_new_tokens\":200,\"temperature\":3.0,\"seed\":{seed}{more}}}\n"
        )
    };
    let input: String = (0..4)
        .flat_map(|seed| {
            [
                row(seed, ""),
                row(seed, ",\"skip_special_tokens\":false"),
                row(seed, ",\"skip_special_tokens\":true"),
            ]
        })
        .collect();
    let rows = generate(&[], &input).rows();
    let mut special = 0;
    for of_seed in rows.chunks(3) {
        let [hidden, shown, same] = of_seed else {
            unreachable!()
        };
        assert_eq!(hidden["output_ids"], shown["output_ids"]);
        assert_eq!(hidden["text"], same["text"]);
        let ids = hidden["output_ids"].as_array().unwrap();
        let count = ids.iter().filter(|id| id.as_u64().unwrap() < 8).count();
        let text = |row: &Value| row["text"].as_str().unwrap().matches("<|").count();
        assert_eq!(text(shown), text(hidden) + count, "{shown}");
        special += count;
    }
    assert!(special > 0, "no special token in {} answers", rows.len());
}

#[test]
fn an_answer_that_calls_tools_is_kept_from_a_finished_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let row = |id: &str| json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}});
    std::fs::write(at("in"), format!("{}\n{}\n", row("a"), row("b"))).unwrap();
    let message = json!({"role": "assistant", "content": null, "tool_calls": []});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    let body = json!({"object": "chat.completion", "choices": [choice]});
    let before = json!({"id": "x", "custom_id": "a", "response": {"status_code": 200, "body": body}, "error": null});
    std::fs::write(at("out"), format!("{before}\n")).unwrap();
    let ended = generate(
        &["--input", &at("in"), "--output", &at("out"), "--resume"],
        "",
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let after = std::fs::read_to_string(at("out")).unwrap();
    assert!(after.starts_with(&format!("{before}\n")), "{after}");
    assert_eq!(after.lines().count(), 2);
}
