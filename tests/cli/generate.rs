//! `generate`: prompts as arguments, rows through standard input and output, options.

use crate::common::fixtures::golden;
use crate::common::program::{run, run_with_input};
use serde_json::{Value, json};

const TINY: [&str; 3] = ["generate", "--model", "random:tiny"];

fn tiny(rest: &[&str]) -> Vec<String> {
    TINY.iter().chain(rest).map(|s| (*s).to_owned()).collect()
}

pub fn generate(rest: &[&str], input: &str) -> crate::common::program::Ended {
    let args = tiny(rest);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run_with_input(&args, input)
}

#[test]
fn prompts_as_arguments_print_text_in_blocks() {
    let one = generate(&["--max-new-tokens", "8", "first"], "");
    assert_eq!(one.code, 0, "{}", one.stderr);
    assert!(one.stdout.len() > 8);
    let quiet = generate(&["--quiet", "--max-new-tokens", "8", "second"], "");
    assert_eq!(quiet.stderr, "");
    let both = generate(&["--max-new-tokens", "8", "first", "second"], "");
    assert_eq!(both.stdout, format!("{}\n{}", one.stdout, quiet.stdout));
}

#[test]
fn rows_come_back_in_order_with_errors_in_place() {
    let input = r#"{"id":"a","prompt":"one","max_new_tokens":30}
{"id":"b","prompt":
{"id":"c","input_ids":[1,2,3],"max_new_tokens":2,"surprise":1}

{"messages":[{"role":"user","content":"x"}],"max_new_tokens":3}
{"id":"a","prompt":"again"}
{"id":"d","input_ids":[1,512]}
{"id":"e","messages":[]}
{"id":"f","prompt":"x","max_new_tokens":5000}
"#;
    let ended = generate(&[], input);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let rows = ended.rows();
    let ids: Vec<&Value> = rows.iter().map(|row| &row["id"]).collect();
    assert_eq!(
        ids,
        [
            &json!("a"),
            &json!(2),
            &json!("c"),
            &json!(5),
            &json!("a"),
            &json!("d"),
            &json!("e"),
            &json!("f")
        ]
    );
    let codes: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["error"]["code"].as_str())
        .collect();
    assert_eq!(
        codes,
        [
            "invalid_json",
            "duplicate_id",
            "token_out_of_range",
            "empty_prompt",
            "context_length"
        ]
    );
    assert_eq!(
        rows[0]["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 30, "total_tokens": 34})
    );
    assert_eq!(rows[0]["finish_reason"], "length");
    assert!(
        rows[0]["timing"]["ttft_ms"].as_f64().unwrap()
            <= rows[0]["timing"]["total_ms"].as_f64().unwrap()
    );
    assert!(
        ended.stderr.contains("field \"surprise\" is not known"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_row_goes_before_a_flag() {
    let input = "{\"prompt\":\"x\"}\n{\"prompt\":\"x\",\"max_new_tokens\":2}\n";
    let rows = generate(&["--max-new-tokens", "5"], input).rows();
    let lengths: Vec<usize> = rows
        .iter()
        .map(|row| row["output_ids"].as_array().unwrap().len())
        .collect();
    assert_eq!(lengths, [5, 2]);
}

#[test]
fn sampling_depends_on_seeds_and_places_alone() {
    let row = |id: &str, more: &str| {
        format!(
            "{{\"id\":\"{id}\",\"prompt\":\"x\",\"max_new_tokens\":12,\"temperature\":1.0{more}}}\n"
        )
    };
    let ids = |args: &[&str], input: String| -> Vec<Value> {
        let rows = generate(args, &input).rows();
        rows.iter().map(|row| row["output_ids"].clone()).collect()
    };
    let all = ids(
        &[],
        row("a", "") + &row("b", "") + &row("c", ",\"seed\":5") + &row("d", ",\"seed\":5"),
    );
    assert_ne!(all[0], all[1]);
    assert_eq!(all[2], all[3]);
    // Companions, slots and ids do not matter; the place does, and the run's seed, except for rows with their own.
    assert_eq!(
        ids(&["--max-seqs", "1"], row("b", "") + &row("a", "")),
        all[..2]
    );
    let other = ids(&["--seed", "1"], row("a", "") + &row("c", ",\"seed\":5"));
    assert_ne!(other[0], all[0]);
    assert_eq!(other[1], all[2]);
    // Two spellings of all tokens.
    assert_eq!(
        ids(&["--top-k", "-1"], row("a", "")),
        ids(&["--top-k", "0"], row("a", ""))
    );
    // A flag took no negative seed, which rows may have: both name the same 64 bits.
    let negative = ids(&["--seed", "-1"], row("a", ""));
    let same_bits = ids(&["--seed", "18446744073709551615"], row("a", ""));
    assert_eq!(negative.len(), 1);
    assert_eq!(negative, same_bits);
}

#[test]
fn stop_ids_and_strings_end_a_row() {
    let whole = generate(&[], "{\"id\":1,\"prompt\":\"x\",\"max_new_tokens\":20}\n")
        .rows()
        .remove(0);
    let ids: Vec<u64> = whole["output_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let fifth = ids[4];
    let first = ids.iter().position(|&id| id == fifth).unwrap();
    let row = generate(
        &["--stop-ids", &fifth.to_string()],
        "{\"id\":1,\"prompt\":\"x\"}\n",
    )
    .rows()
    .remove(0);
    assert_eq!(row["output_ids"], json!(ids[..=first]));
    assert_eq!(row["finish_reason"], "stop");

    // A string that begins in the middle of the text.
    let text = whole["text"].as_str().unwrap();
    let start = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[start..].chars().take(2).collect();
    let input = json!({"id": 1, "prompt": "x", "max_new_tokens": 20, "stop": [stop.clone()], "logprobs": 0});
    let row = generate(&[], &format!("{input}\n")).rows().remove(0);
    assert_eq!(row["text"], text[..text.find(&stop).unwrap()]);
    assert_eq!(row["finish_reason"], "stop");
    let kept = row["output_ids"].as_array().unwrap().len();
    assert!(kept < 20);
    assert_eq!(row["usage"]["completion_tokens"], kept);
    assert_eq!(row["logprobs"].as_array().unwrap().len(), kept);
}

#[test]
fn greedy_continuations_of_a_checkpoint_are_the_goldens() {
    let path = format!("{}/golden.safetensors", golden("b"));
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ints = |name: String| -> Vec<i32> {
        let data = file.tensor(&name).unwrap().data().to_vec();
        data.chunks_exact(4)
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    let input: String = (0..6)
        .map(|i| {
            format!(
                "{}\n",
                json!({"id": i, "input_ids": ints(format!("prompt.{i}")), "max_new_tokens": 32})
            )
        })
        .collect();
    let ended = run_with_input(
        &["generate", "--model", &golden("b"), "--ignore-eos"],
        &input,
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for (i, row) in ended.rows().iter().enumerate() {
        assert_eq!(
            row["output_ids"],
            json!(ints(format!("greedy.{i}"))),
            "prompt {i}"
        );
    }
}

#[test]
fn openai_batches_are_answered_in_their_format() {
    let input = r#"{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3}}
{"custom_id":"n","method":"POST","url":"/v1/completions","body":{"model":"tiny","prompt":"x","best_of":2}}
"#;
    let ended = generate(&[], input);
    assert_eq!(ended.code, 3);
    let rows = ended.rows();
    let body = &rows[0]["response"]["body"];
    assert_eq!(rows[0]["custom_id"], "c");
    assert_eq!(body["usage"]["completion_tokens"], 3);
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert_eq!(rows[1]["response"]["status_code"], 400);
    assert_eq!(rows[1]["error"]["code"], "unsupported");
}

#[test]
fn a_timeout_is_a_failed_row() {
    let ended = generate(
        &[],
        "{\"prompt\":\"x\",\"max_new_tokens\":3000,\"timeout_ms\":1}\n",
    );
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert_eq!(ended.rows()[0]["finish_reason"], "timeout");
}

#[test]
fn a_preset_on_disk_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let out = out.to_str().unwrap();
    let ended = run(&[
        "synth",
        "--model",
        "random:tiny@3",
        "--output",
        out,
        "--shard-size",
        "2MB",
    ]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let answer = |model: &str| {
        let ended = run(&[
            "generate",
            "--model",
            model,
            "--ignore-eos",
            "--max-new-tokens",
            "12",
            "Same?",
        ]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stdout
    };
    assert_eq!(answer(out), answer("random:tiny@3"));
    assert_ne!(answer(out), answer("random:tiny@4"));
}

/// The journal of OUTPUT was the input, which it cut off and then grew as it was read; a recording that was not there yet
/// was written and then replaced by the answers.
#[test]
fn files_of_a_run_are_different_ones() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (answers, journal) = (at("a.jsonl"), at("a.jsonl.partial"));
    let row = "{\"prompt\":\"x\",\"max_new_tokens\":1}\n";
    std::fs::write(&journal, row).unwrap();
    let trace = ["trace", "--model", "random:tiny", "--input", &journal];
    let generate = ["generate", "--model", "random:tiny"];
    let score = ["score", "--model", "random:tiny", "--input", &journal];
    let cases: [(&[&str], &[&str], &str); 6] = [
        (
            &generate,
            &["--input", &journal, "--output", &answers],
            "by way of",
        ),
        (
            &generate,
            &["--output", &answers, "--record", &answers, "x"],
            "--record",
        ),
        (
            &generate,
            &["--output", &answers, "--record", &journal, "x"],
            "--record",
        ),
        (
            &score,
            &["--logprobs", "--output", &answers, "--record", &answers],
            "--record",
        ),
        (
            &trace,
            &["-o", &at("t"), "--answers", &answers],
            "--answers",
        ),
        (&trace, &["-o", &at("t"), "--answers", &at("t")], "--output"),
    ];
    for (command, files, expected) in cases {
        let args = [command, files].concat();
        let ended = run(&args);
        ended.fails(2, &[expected]);
        assert_eq!(std::fs::read_to_string(&journal).unwrap(), row, "{args:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_finished_output_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("a.jsonl");
    let record = dir.path().join("a.jsonl.job.json");
    let path = output.to_str().unwrap();
    let ask = |prompts: &[&str], rest: &[&str]| {
        let row =
            |(i, prompt)| format!("{{\"id\":{i},\"prompt\":\"{prompt}\",\"max_new_tokens\":3}}\n");
        let rows: String = (0..).zip(prompts).map(row).collect();
        generate(&[&["--output", path], rest].concat(), &rows)
    };
    ask(&["x", "y", "z"], &[]).good();
    let first = std::fs::read(&output).unwrap();
    ask(&["x"], &[]).fails_in_a_line(2, &[path, "--resume", "--overwrite"]);
    ask(&["a", "b", "c"], &["--resume"]).fails_in_a_line(1, &["found another input"]);
    ask(&["x", "y"], &["--resume"]).fails(1, &["answers to 1 behind these"]);
    assert_eq!(std::fs::read(&output).unwrap(), first);
    let said = "1 row is not as the earlier run had it, and is answered again: line 2\n";
    ask(&["x", "b", "z", "new"], &["--resume"]).fails(0, &[said]);
    let second = std::fs::read(&output).unwrap();
    assert_eq!(second.iter().filter(|&&byte| byte == b'\n').count(), 4);
    // Without the record ids are all that there is.
    std::fs::remove_file(&record).unwrap();
    let said = "its 4 answers are kept by their ids";
    ask(&["a", "b", "c", "d"], &["--resume"]).fails(0, &[said]);
    assert_eq!(std::fs::read(&output).unwrap(), second);
    ask(&["x"], &["--overwrite"]).good();
    assert_ne!(std::fs::read(&output).unwrap(), second);
}

#[test]
fn an_empty_input_is_done_and_says_so() {
    let ended = generate(&[], "\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""));
    assert!(
        ended.stderr.contains("standard input: found no rows"),
        "{}",
        ended.stderr
    );
}
