//! The time that chat templates read is the job's: that of its resumed runs, and of all its shards.

use crate::common::program::run;
use crate::common::rows::{rows_without_timing, text};
use crate::shards::merge;
use serde_json::json;
use std::fs;
use std::path::Path;

/// A template that shows the time to the microsecond, so that two times are never alike.
#[test]
fn templates_of_a_job_read_one_time() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let template = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}{{ messages[0].content }}";
    fs::write(at("clock.jinja"), template).unwrap();
    fs::write(at("none.jinja"), "{{ messages[0].content }}").unwrap();
    let chat = |i: u32| {
        let chat = json!([{"role": "user", "content": format!("q{i}")}]);
        json!({"id": i, "messages": chat, "max_new_tokens": 4}).to_string() + "\n"
    };
    fs::write(at("chats"), (0..6).map(chat).collect::<String>()).unwrap();
    let prompts = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";
    fs::write(at("prompts"), prompts).unwrap();
    let (clock, none) = (at("clock.jinja"), at("none.jinja"));
    let generate = |template: &Path, input: &str, more: &[&str]| {
        let arguments = ["generate", "--model", "random:tiny", "--quiet"];
        let (template, input) = (text(template), at(input));
        let files = ["--chat-template", template, "--input", text(&input)];
        run(&[&arguments[..], &files, more].concat())
    };
    let parts = [at("0.jsonl"), at("1.jsonl")];
    let shards = |template: &Path, input: &str, times: [&[&str]; 2]| {
        for (part, (which, time)) in parts.iter().zip(["0/2", "1/2"].into_iter().zip(times)) {
            let more = ["--output", text(part), "--shard", which, "--overwrite"];
            generate(template, input, &[&more, time].concat()).good();
        }
        merge(&parts, &at("merged.jsonl"))
    };
    let time = ["--now", "2026-03-31T08:00:00.000042"];
    let (now, other): ([&[&str]; 2], [&[&str]; 2]) = ([&time, &time], [&time, &[]]);
    shards(&clock, "chats", now).good();
    generate(
        &clock,
        "chats",
        &[&["--output", text(&at("whole.jsonl"))], &time[..]].concat(),
    )
    .good();
    let whole = rows_without_timing(&at("whole.jsonl"));
    assert_eq!(rows_without_timing(&at("merged.jsonl")), whole);
    let apart = shards(&clock, "chats", other);
    apart.fails_in_a_line(1, &["read the time", "2026-03-31T08:00:00.000042", "--now"]);
    // Where no template read it, time is nothing.
    shards(&clock, "prompts", other).good();
    shards(&none, "chats", other).good();

    // A finished shard's time is that of the run which takes it up.
    shards(&clock, "chats", now).good();
    let record = fs::read(at("1.jsonl.shard.json")).unwrap();
    let again = ["--output", text(&parts[1]), "--shard", "1/2", "--resume"];
    generate(&clock, "chats", &again).good();
    assert_eq!(fs::read(at("1.jsonl.shard.json")).unwrap(), record);
    let later = ["--now", "2026-03-31T08:00:01"];
    generate(&clock, "chats", &[&again[..], &later].concat()).fails_in_a_line(
        1,
        &["--now (was 2026-03-31T08:00:00.000042, is 2026-03-31T08:00:01)"],
    );

    // A journal's time is that of the run which goes on from it: here no row came in time.
    let output = at("late.jsonl");
    let late = ["--output", text(&output), "--timeout-ms", "1"];
    assert_eq!(
        generate(&clock, "chats", &[&late[..], &time].concat()).code,
        3
    );
    let resume = ["--output", text(&output), "--resume"];
    generate(&clock, "chats", &[&resume[..], &later].concat()).fails_in_a_line(
        1,
        &["--now (was 2026-03-31T08:00:00.000042, is 2026-03-31T08:00:01)"],
    );
    generate(&clock, "chats", &resume).good();
    assert_eq!(rows_without_timing(&output), whole);
    generate(&clock, "chats", &["--now", "today"]).fails(2, &["--now", "expected a time such as"]);
}
