//! Lines that are no rows, and the files they stand in.

use crate::fakes::Echo;
use crate::job::generate;
use serde_json::{Value, json};
use std::io::Cursor;
use tailgraph::io::Row;
use tailgraph::io::answer::{self, Label};
use tailgraph::io::lines::{Ids, Lines};
use tailgraph::io::row::Code;

const CHAT: &str = r#"{"custom_id":"c","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"hi"}]}}"#;
const OWN: &str = r#"{"prompt":"x"}"#;

fn rows_of(mut lines: Lines) -> Vec<Row> {
    std::iter::from_fn(|| lines.next_row().unwrap().map(|(row, _)| row)).collect()
}

fn of_file(text: &str) -> Vec<Row> {
    rows_of(Lines::file(Box::new(Cursor::new(text.to_owned())), "in"))
}

fn of_stream(text: &str) -> Vec<Row> {
    rows_of(Lines::reader(Box::new(Cursor::new(text.to_owned())), "in"))
}

/// What the answer to a row in error looks like.
fn answer(row: Row) -> Value {
    let error = row.ask.unwrap_err();
    let label = Label {
        line: row.line,
        id: row.id,
        format: row.format,
    };
    serde_json::from_str(&answer::failed(&label, &error)).unwrap()
}

fn names(answer: &Value) -> Vec<&str> {
    answer
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

const BATCH_NAMES: [&str; 4] = ["id", "custom_id", "response", "error"];

#[test]
fn a_broken_line_is_answered_as_its_file_is() {
    for broken in [
        "{\"oops\"",
        "[1,2]",
        "7",
        "{}",
        "{\"foo\":1}",
        "\"custom_id\"",
        "null",
    ] {
        // Before, between and after rows that can be read.
        for text in [
            format!("{CHAT}\n{broken}\n"),
            format!("{broken}\n{CHAT}\n"),
            format!("{broken}\n{broken}\n\n{CHAT}\n{OWN}\n"),
        ] {
            let mut broken_rows = 0;
            for row in of_file(&text).into_iter().filter(|row| row.ask.is_err()) {
                let line = row.line;
                assert!(!row.claims_id);
                let answer = answer(row);
                assert_eq!(names(&answer), BATCH_NAMES, "{text}");
                assert_eq!(answer["id"], format!("batch_req_{line}"));
                assert_eq!(answer["custom_id"], Value::Null, "{text}");
                assert_eq!(answer["response"]["status_code"], 400);
                assert!(answer["error"]["code"].is_string());
                broken_rows += 1;
            }
            assert!(broken_rows > 0, "{text}");
        }
        for text in [
            format!("{OWN}\n{broken}\n"),
            format!("{broken}\n{OWN}\n{CHAT}\n"),
            broken.to_owned(),
        ] {
            let first = of_file(&text)
                .into_iter()
                .find(|row| row.ask.is_err())
                .unwrap();
            let line = first.line;
            let answer = answer(first);
            assert_eq!(names(&answer), ["id", "error"], "{text}");
            assert_eq!(answer["id"], line);
        }
    }
}

#[test]
fn a_line_that_tells_its_format_needs_no_file() {
    for (line, id) in [
        (r#"{"custom_id":"b","method":"POST",}"#, json!("b")),
        (r#"{"custom_id" : 17, oops"#, json!(17)),
        (r#"{"custom_id":"cut of"#, json!(null)),
        (r#"{"body":{"prompt":"x"}}"#, json!(1)),
        (r#"{"url":"/v1/completions"}"#, json!(1)),
        (r#"{"custom_id":["x"],"body":{}}"#, json!(null)),
    ] {
        let mut rows = of_stream(&format!("{line}\n{OWN}\n"));
        let answer = answer(rows.remove(0));
        if line.contains("cut of") {
            // Neither its id nor anything else of it is certain.
            assert_eq!(names(&answer), ["id", "error"]);
            continue;
        }
        assert_eq!(names(&answer), BATCH_NAMES, "{line}");
        assert_eq!(answer["custom_id"], id, "{line}");
    }
    // A name in a text of the row is not the row's.
    let text = r#"{"prompt":"say \"custom_id\": 5", oops"#;
    let answer = answer(of_stream(text).remove(0));
    assert_eq!(names(&answer), ["id", "error"]);
    // One of ours may have such fields, which are then ignored.
    let row = of_stream(r#"{"prompt":"x","url":"https://a.b/c"}"#).remove(0);
    assert!(row.ask.is_ok());
    assert_eq!(row.ignored, ["url"]);
}

/// Whoever writes to a pipe may wait for the first answer before writing on.
#[test]
fn a_stream_is_not_read_ahead() {
    struct Waiting(Cursor<&'static [u8]>);
    impl std::io::Read for Waiting {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match std::io::Read::read(&mut self.0, buffer)? {
                0 => panic!("read on, while the writer waits"),
                bytes => Ok(bytes),
            }
        }
    }
    let from = std::io::BufReader::new(Waiting(Cursor::new(b"oops\n")));
    let mut lines = Lines::reader(Box::new(from), "in");
    assert!(lines.next_row().unwrap().unwrap().0.ask.is_err());
}

#[test]
fn only_written_ids_must_differ() {
    let input = r#"{"id":2,"prompt":"a","max_new_tokens":1}
{"prompt":"b","max_new_tokens":1}
{"prompt":"c","max_new_tokens":1}
{"id":"3","prompt":"d","max_new_tokens":1}
{"id":3.0,"prompt":"e","max_new_tokens":1}
"#;
    let (rows, summary) = generate(input, &mut Echo::new(2));
    let ids: Vec<String> = rows.iter().map(|row| row["id"].to_string()).collect();
    assert_eq!(ids, ["2", "2", "3", "\"3\"", "3"]);
    assert_eq!(rows[4]["error"]["code"], "duplicate_id");
    assert_eq!((summary.counts.rows, summary.counts.failed), (5, 1));
    let mut ids = Ids::default();
    let claimed = of_stream(input)
        .iter()
        .map(|row| ids.claim(row).is_ok())
        .collect::<Vec<_>>();
    assert_eq!(claimed, [true, true, true, true, false]);
}

/// The answer to a broken line has its custom_id, so that no other answer may have it.
#[test]
fn the_id_of_a_broken_line_is_taken() {
    let good = CHAT.trim_end();
    let id = serde_json::from_str::<Value>(good).unwrap()["custom_id"].clone();
    let broken = &good[..good.len() - 1];
    let claims = |text: String| -> Vec<(bool, Option<Code>)> {
        let mut ids = Ids::default();
        let rows = of_stream(&text).into_iter();
        rows.map(|row| {
            (
                row.id.as_str() == id,
                ids.claim(&row).err().map(|error| error.code),
            )
        })
        .collect()
    };
    let duplicate = Some(Code::DuplicateId);
    for (first, second) in [
        (broken, good),
        (good, broken),
        (good, good),
        (broken, broken),
    ] {
        let found = claims(format!("{first}\n{second}\n"));
        assert_eq!(
            found,
            [(true, None), (true, duplicate)],
            "{first}\n{second}"
        );
    }
}

#[test]
fn input_that_is_no_text_is_named_at_once() {
    let utf_16 = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        "{\"prompt\":\"x\"}\n"
            .encode_utf16()
            .flat_map(order)
            .collect()
    };
    let marked = [b"\xff\xfe".to_vec(), utf_16(u16::to_le_bytes)].concat();
    for (bytes, what) in [
        (marked, "UTF-16"),
        (utf_16(u16::to_le_bytes), "UTF-16"),
        (utf_16(u16::to_be_bytes), "UTF-16"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), "gzip"),
        (b"PAR1\x15\x04".to_vec(), "Parquet"),
        (b"<!DOCTYPE html>\n<html>".to_vec(), "HTML"),
    ] {
        let mut lines = Lines::file(Box::new(Cursor::new(bytes)), "in.jsonl");
        let error = lines.next_row().unwrap_err().to_string();
        assert!(error.starts_with("in.jsonl: found"), "{error}");
        assert!(
            error.contains(what) && error.contains("expected lines of JSON as UTF-8"),
            "{error}"
        );
    }
    // One array, and a table, are text: each line says what is wrong with it.
    for (text, says) in [
        ("[{\"prompt\":\"x\"}]\n", "jq -c '.[]' FILE"),
        ("id,prompt\n1,x\n", "line 1 is not JSON"),
        (
            "{\n\"prompt\": \"x\"\n}\n",
            "it ends too early, expected a whole JSON object in one line",
        ),
    ] {
        let error = of_stream(text).remove(0).ask.unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
}
