//! Prompts as texts: what a model is asked by them, and the files that hold them, compressed ones too.

use crate::common::fixtures::golden;
use crate::common::program::{Ended, run_with_input};
use crate::common::rows::{rows, rows_without_timing, text};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

fn generate(model: &str, rest: &[&str], input: &str) -> Ended {
    let few = ["generate", "--model", model, "--max-new-tokens", "6", "-q"];
    run_with_input(&[&few, rest].concat(), input)
}

/// The texts of these rows' answers.
fn texts(model: &str, rest: &[&str], asked: &[Value]) -> Vec<String> {
    let input: String = asked.iter().map(|row| format!("{row}\n")).collect();
    let ended = generate(model, rest, &input);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let text = |row: &Value| row["text"].as_str().unwrap().to_owned();
    ended.rows().iter().map(text).collect()
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn a_prompt_is_a_chat_where_the_model_has_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.jinja");
    std::fs::write(
        &file,
        "{{ messages | map(attribute='content') | join('/') }}",
    )
    .unwrap();
    let own = text(&file);
    let user = || message("user", "Why?");
    let system = || message("system", "Be brief.");
    let bytes = |text: &str| json!({"input_ids": text.bytes().map(|b| 8 + u32::from(b)).collect::<Vec<_>>()});
    let random = "random:tiny";
    let cases = [
        (random, vec![], vec![], json!({"messages": [user()]})),
        (
            random,
            vec!["--system", "Be brief."],
            vec![],
            json!({"messages": [system(), user()]}),
        ),
        (random, vec!["--raw"], vec![], json!({"prompt": "Why?"})),
        (random, vec!["--chat-template", own], vec![], bytes("Why?")),
        (
            random,
            vec!["--chat-template", own, "--system", "Be brief."],
            vec![],
            bytes("Be brief./Why?"),
        ),
        // Rows go by it too.
        (
            random,
            vec!["--chat-template", own],
            vec!["--chat-template", own],
            json!({"messages": [user()]}),
        ),
    ];
    let mut seen = Vec::new();
    for (model, flags, flags_of_row, row) in cases {
        let expected = texts(model, &flags_of_row, &[row]).remove(0);
        let argument = generate(model, &[&flags[..], &["Why?"]].concat(), "");
        assert_eq!(
            argument.stdout,
            format!("{expected}\n"),
            "{flags:?}: {}",
            argument.stderr
        );
        let line = generate(model, &[&flags[..], &["--lines"]].concat(), "Why?\n");
        assert_eq!(line.stdout, argument.stdout, "{flags:?}: {}", line.stderr);
        seen.push(expected);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5, "{seen:?}");
}

#[test]
fn a_prompt_is_continued_where_the_model_has_no_template() {
    let folder = tempfile::tempdir().unwrap();
    let model = &golden("a")[..];
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let (from, to) = (format!("{model}/{file}"), folder.path().join(file));
        std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{from}: {error}"));
    }
    let model = text(folder.path());
    let expected = texts(model, &[], &[json!({"prompt": "Why?"})]);
    assert_eq!(
        generate(model, &["Why?"], "").stdout,
        expected[0].clone() + "\n"
    );
    let system = generate(model, &["--system", "x", "Why?"], "");
    system.fails(2, &["the model has no chat template"]);
}

fn packed(text: &str) -> [(&'static str, Vec<u8>); 2] {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    [
        ("gz", gzip.finish().unwrap()),
        ("zst", zstd::encode_all(text.as_bytes(), 1).unwrap()),
    ]
}

#[test]
fn lines_of_a_text_are_prompts_and_may_be_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let plain = "{\"Why?\"\r\n\n  And \u{e9}?  \n\"last\"";
    let asked = ["{\"Why?\"", "  And \u{e9}?  ", "\"last\""];
    let expected = generate("random:tiny", &asked, "").stdout;
    let mut files = vec![("txt", plain.as_bytes().to_vec())];
    files.extend(packed(plain));
    for (name, bytes) in files {
        let path = at(&format!("prompts.{name}"));
        std::fs::write(&path, bytes).unwrap();
        let texts = generate("random:tiny", &["--lines", "--input", text(&path)], "");
        assert_eq!(texts.stdout, expected, "{name}: {}", texts.stderr);
        // Into a file go rows.
        let out = at("out.jsonl");
        let args = [
            "--lines",
            "--input",
            text(&path),
            "--output",
            text(&out),
            "--overwrite",
        ];
        assert_eq!(generate("random:tiny", &args, "").code, 0);
        let ids: Vec<Value> = rows(&std::fs::read_to_string(&out).unwrap())
            .iter()
            .map(|row| row["id"].clone())
            .collect();
        assert_eq!(ids, [1, 3, 4], "{name}");
    }
}

#[test]
fn a_line_that_is_no_text_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts");
    std::fs::write(&path, b"one\n\xff\xfe bytes\nthree\n").unwrap();
    let ended = generate("random:tiny", &["--lines", "-i", text(&path)], "");
    ended.fails(
        3,
        &["prompt 2: invalid_request: line 2: found a byte that is no UTF-8 at byte 1"],
    );
    let others = generate("random:tiny", &["one", "three"], "").stdout;
    assert_eq!(ended.stdout.replace("\n\n\n\n", "\n\n"), others);
}

#[test]
fn text_without_lines_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    std::fs::write(&path, "Why is the sky blue?\nAnd the sea?\n").unwrap();
    let ended = generate("random:tiny", &["--input", text(&path)], "");
    ended.fails(
        1,
        &["prompts.txt: found lines of plain text, expected rows of JSON; `generate --lines`"],
    );
    // A stream's first line may be waited for, so each row says it.
    let ended = generate("random:tiny", &[], "Why?\n");
    assert_eq!(ended.code, 3);
    let message = ended.rows()[0]["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("`generate --lines` takes"), "{message}");
    let row = "{\"prompt\":\"x\"}\n";
    generate("random:tiny", &["--system", "x"], row).fails(2, &["rows have their own"]);
    generate("random:tiny", &["--raw"], row).fails(2, &["rows say what they are"]);
    let missing = ["--chat-template", "/no/such", "x"];
    generate("random:tiny", &missing, "").fails(1, &["/no/such: found no such file"]);
}

fn output(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn rows_of_a_torn_archive_are_kept_for_its_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let row = |i: u64| {
        let noise: Vec<u64> = (0..80)
            .map(|j| (i * 31 + j).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        json!({"id": i, "prompt": format!("row {i}"), "x": noise, "max_new_tokens": 2}).to_string()
            + "\n"
    };
    let input: String = (0..100).map(row).collect();
    let whole = at("whole.jsonl");
    assert_eq!(
        generate("random:tiny", &["-o", text(&whole)], &input).code,
        0
    );
    for (name, bytes) in packed(&input) {
        let path = at(&format!("rows.jsonl.{name}"));
        let out = at(&format!("{name}.jsonl"));
        let args = ["--input", text(&path), "--output", text(&out)];
        std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        let torn = generate("random:tiny", &args, "");
        torn.fails(1, &["data that is cut off or damaged after "]);
        assert!(torn.stderr.contains(text(&path)), "{}", torn.stderr);
        assert!(!out.exists());
        let partial = at(&format!("{name}.jsonl.partial"));
        assert!(output(&partial).lines().count() > 20, "{name}");
        std::fs::write(&path, &bytes).unwrap();
        let resumed = generate("random:tiny", &[&args[..], &["--resume"]].concat(), "");
        assert_eq!(resumed.code, 0, "{}", resumed.stderr);
        assert_eq!(rows_without_timing(&out), rows_without_timing(&whole));
    }
}

#[test]
fn another_template_is_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    for (name, source) in [
        ("a.jinja", "{{ messages[0].content }}"),
        ("b.jinja", "b{{ messages[0].content }}"),
    ] {
        std::fs::write(at(name), source).unwrap();
    }
    // A torn archive leaves a run unfinished.
    let [(_, packed), _] =
        packed(&"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n".repeat(9));
    let (rows, out) = (at("rows.gz"), at("out.jsonl"));
    let with = |bytes: &[u8], template: &str, more: &[&str]| {
        std::fs::write(&rows, bytes).unwrap();
        let args = ["-i", &rows, "-o", &out, "--chat-template", template];
        generate("random:tiny", &[&args[..], more].concat(), "")
    };
    let torn = &packed[..packed.len() - 5];
    with(torn, &at("a.jinja"), &[]).fails(1, &["cut off"]);
    with(&packed, &at("b.jinja"), &["--resume"]).fails(1, &["differ in --chat-template"]);
    let same = with(&packed, &at("a.jinja"), &["--resume"]);
    assert_eq!(same.code, 0, "{}", same.stderr);
}
