//! The loop of `generate` on a device of our own.

use crate::fakes::{CODEC, Echo};
use crate::rows::rules;
use serde_json::Value;
use std::io::{BufReader, Cursor, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use tailgraph::io::answer::Origin;
use tailgraph::io::kept::Kept;
use tailgraph::io::lines::Lines;
use tailgraph::io::output::{Ordered, Output};
use tailgraph::io::rows::Rows;
use tailgraph::io::source::Source;
use tailgraph::runtime::Engine;
use tailgraph::session::Progress;
use tailgraph::session::job::{Job, Style, Summary};
use tailgraph::session::prefixes::Prefixes;
use tailgraph::text::threads::{DEFAULT_LIMIT, Threads};

#[derive(Clone, Default)]
pub struct Shared(pub Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn run_to(output: Output, kept: Kept, input: &str, device: &mut dyn Engine) -> Summary {
    try_run_to(output, kept, input, device).unwrap()
}

/// The error is that of the input, before any of its rows is answered.
pub fn try_run_to(
    output: Output,
    kept: Kept,
    input: &str,
    device: &mut dyn Engine,
) -> tailgraph::Result<Summary> {
    let lines = Lines::reader(Box::new(Cursor::new(input.to_owned())), "input");
    let (rows, never) = (read(kept, lines)?, AtomicBool::new(false));
    Ok(run_rows(output, rows, Style::Json, device, &never))
}

fn run_with(
    output: Output,
    kept: Kept,
    lines: Lines,
    style: Style,
    device: &mut dyn Engine,
    interrupt: &AtomicBool,
) -> Summary {
    run_rows(output, read(kept, lines).unwrap(), style, device, interrupt)
}

fn read(kept: Kept, lines: Lines) -> tailgraph::Result<Rows> {
    let source = Source::new(lines, kept, 1, Box::new(|_| {}));
    let threads = Threads::new(DEFAULT_LIMIT);
    Rows::start(source, rules(), CODEC.clone(), threads)
}

fn run_rows(
    output: Output,
    rows: Rows,
    style: Style,
    device: &mut dyn Engine,
    interrupt: &AtomicBool,
) -> Summary {
    Job {
        rows,
        codec: &CODEC,
        output,
        style,
        origin: Origin {
            model: "tiny".into(),
            created: 7,
        },
        window: 8,
        in_order: false,
        prefixes: Prefixes::none(),
        progress: Progress::new(true, None),
        interrupt,
    }
    .run(device)
    .unwrap()
}

pub fn generate(input: &str, device: &mut dyn Engine) -> (Vec<Value>, Summary) {
    let out = Shared::default();
    let ordered = Ordered::new(Box::new(out.clone()), "out", "");
    let summary = run_to(Output::Stream(ordered), Kept::default(), input, device);
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let rows = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    (rows, summary)
}

#[test]
fn answers_come_in_input_order_and_bad_rows_in_their_places() {
    let input = r#"{"id":"long","prompt":"abc","max_new_tokens":20}
oops
{"id":"short","input_ids":[65,66],"max_new_tokens":1}

{"prompt":"n","max_new_tokens":2}
{"id":"short","prompt":"again"}
"#;
    let (rows, summary) = generate(input, &mut Echo::new(4));
    let ids: Vec<String> = rows.iter().map(|row| row["id"].to_string()).collect();
    assert_eq!(ids, ["\"long\"", "2", "\"short\"", "5", "\"short\""]);
    assert_eq!(rows[0]["output_ids"].as_array().unwrap().len(), 20);
    assert_eq!(rows[1]["error"]["code"], "invalid_json");
    assert_eq!(rows[2]["text"], "A");
    assert_eq!(rows[2]["finish_reason"], "length");
    assert_eq!(rows[2]["usage"]["total_tokens"], 3);
    assert_eq!(rows[4]["error"]["code"], "duplicate_id");
    assert_eq!((summary.counts.rows, summary.counts.failed), (5, 2));
}

#[test]
fn stop_strings_end_text_ids_and_usage() {
    let (rows, summary) = generate(
        r#"{"input_ids":[65,66,67,68],"max_new_tokens":50,"stop":["ZZ","BC"],"logprobs":1}"#,
        &mut Echo::new(1),
    );
    let row = &rows[0];
    assert_eq!(row["text"], "A");
    assert_eq!(row["output_ids"], serde_json::json!([65, 66, 67]));
    assert_eq!(row["usage"]["completion_tokens"], 3);
    assert_eq!(row["finish_reason"], "stop");
    assert_eq!(row["logprobs"].as_array().unwrap().len(), 3);
    let first = serde_json::json!({"token": "A", "id": 65, "logprob": -0.5, "top": [{"token": "A", "id": 65, "logprob": -1.0}]});
    assert_eq!(row["logprobs"][0], first);
    assert_eq!(summary.counts.tokens, 3);
    assert_eq!(summary.counts.failed, 0);
}

#[test]
fn a_stop_id_is_in_the_ids_and_not_in_the_text() {
    let (rows, _) = generate(
        r#"{"input_ids":[65,66,67],"stop_ids":[66]}"#,
        &mut Echo::new(1),
    );
    assert_eq!(rows[0]["output_ids"], serde_json::json!([65, 66]));
    assert_eq!(rows[0]["text"], "A");
    assert_eq!(rows[0]["finish_reason"], "stop");
}

#[test]
fn timeouts_count_as_failed() {
    let (rows, summary) = generate(r#"{"prompt":"abc","timeout_ms":1}"#, &mut Echo::new(1));
    assert_eq!(rows[0]["finish_reason"], "timeout");
    assert_eq!(summary.counts.failed, 1);
}

#[test]
fn openai_rows_are_answered_in_their_format() {
    let input = r#"{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"AB"}],"max_tokens":3,"logprobs":true,"top_logprobs":1}}
{"custom_id":"t","method":"POST","url":"/v1/completions","body":{"prompt":[65,66],"max_tokens":2,"logprobs":1}}
{"custom_id":"bad","method":"POST","url":"/v1/completions","body":{"prompt":"x","best_of":3}}
{"custom_id":"late","method":"POST","url":"/v1/completions","body":{"prompt":"x","timeout_ms":1}}
"#;
    let (rows, summary) = generate(input, &mut Echo::new(4));
    let chat = &rows[0];
    assert_eq!(chat["custom_id"], "c");
    assert_eq!(chat["error"], Value::Null);
    assert_eq!(chat["response"]["status_code"], 200);
    let body = &chat["response"]["body"];
    assert_eq!(body["object"], "chat.completion");
    assert_eq!((&body["model"], &body["created"]), (&"m".into(), &7.into()));
    assert_eq!(
        body["choices"][0]["message"],
        serde_json::json!({"role": "assistant", "content": "ABA"})
    );
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(
        body["choices"][0]["logprobs"]["content"][0]["bytes"],
        serde_json::json!([65])
    );
    assert_eq!(body["usage"]["prompt_tokens"], 2);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let body = &rows[1]["response"]["body"];
    assert_eq!(body["model"], "tiny");
    assert_eq!(body["choices"][0]["text"], "AB");
    assert_eq!(
        body["choices"][0]["logprobs"]["text_offset"],
        serde_json::json!([0, 1])
    );
    assert_eq!(rows[2]["response"]["status_code"], 400);
    assert_eq!(rows[2]["error"]["code"], "unsupported");
    assert_eq!(rows[3]["response"], Value::Null);
    assert_eq!(rows[3]["error"]["code"], "timeout");
    assert_eq!(summary.counts.failed, 2);
}

#[test]
fn a_failed_device_gives_error_rows_for_what_it_had() {
    let input: String = (0..20)
        .map(|i| format!("{{\"id\":{i},\"prompt\":\"abc\",\"max_new_tokens\":4}}\n"))
        .collect();
    let mut device = Echo::new(3);
    device.fail_after = Some(14);
    let (rows, summary) = generate(&input, &mut device);
    assert!(matches!(
        summary.failure,
        Some(tailgraph::Error::Runtime(_))
    ));
    assert!(rows.len() < 20);
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["id"], index);
        assert!(
            row["error"]["code"] == "device" || row["finish_reason"] == "length",
            "{row}"
        );
    }
    assert!(rows.iter().any(|row| row["error"]["code"] == "device"));
}

#[test]
fn the_window_bounds_what_waits_behind_a_long_row() {
    let mut input = "{\"prompt\":\"abc\",\"max_new_tokens\":90}\n".to_owned();
    for _ in 0..50 {
        input.push_str("{\"prompt\":\"abc\",\"max_new_tokens\":1}\n");
    }
    let mut device = Echo::new(100);
    let (rows, _) = generate(&input, &mut device);
    assert_eq!(rows.len(), 51);
    assert!(
        device.most_running <= 8,
        "{} rows ran at once",
        device.most_running
    );
}

struct TellsItsEnd(Cursor<String>, Sender<()>);

impl Read for TellsItsEnd {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(bytes)?;
        if read == 0 {
            let _ = self.1.send(());
        }
        Ok(read)
    }
}

/// The second row has more bytes than the window's rows may have, and the first one is not done: no other is taken in. Its
/// events are nearly as many as a turn of the job takes, so that the input has its turn before the first row ends.
#[test]
fn long_answers_that_wait_hold_up_the_input() {
    let mut input = "{\"prompt\":\"abc\",\"max_new_tokens\":90}\n".to_owned();
    let body = r#"{"messages":[{"role":"user","content":"ab"}],"n":19,"max_tokens":50,"logprobs":true,"top_logprobs":20}"#;
    input.push_str(&format!(
        "{{\"custom_id\":\"c\",\"url\":\"/v1/chat/completions\",\"body\":{body}}}\n"
    ));
    input.push_str(&"{\"prompt\":\"abc\",\"max_new_tokens\":1}\n".repeat(50));
    let interrupt = Arc::new(AtomicBool::new(false));
    let mut device = Echo::new(20);
    device.interrupt_after = Some((20 * 50 + 30, interrupt.clone()));
    let out = Shared::default();
    let ordered = Ordered::new(Box::new(out.clone()), "out", "");
    let (tell, told) = channel();
    let input = BufReader::new(TellsItsEnd(Cursor::new(input), tell));
    let rows = read(Kept::default(), Lines::reader(Box::new(input), "input")).unwrap();
    // All rows are there when the device begins, however slow the threads that read them are.
    told.recv().unwrap();
    let summary = run_rows(
        Output::Stream(ordered),
        rows,
        Style::Json,
        &mut device,
        &interrupt,
    );
    let bytes = out.0.lock().unwrap().len();
    assert_eq!(summary.counts.rows, 2, "{bytes} bytes");
}

#[test]
fn prompts_as_arguments_print_blocks() {
    let out = Shared::default();
    let ordered = Ordered::new(Box::new(out.clone()), "out", "\n");
    let lines = Lines::arguments(vec!["ab".into(), "x".repeat(100), "c".into()]);
    let never = AtomicBool::new(false);
    let mut device = Echo::new(2);
    let summary = run_with(
        Output::Stream(ordered),
        Kept::default(),
        lines,
        Style::Plain,
        &mut device,
        &never,
    );
    assert_eq!(
        out.0.lock().unwrap().as_slice(),
        "\u{100}ab\u{100}a\n\n\n\n\u{100}c\u{100}c\u{100}\n".as_bytes()
    );
    assert_eq!(summary.counts.failed, 1);
}

#[test]
fn an_interrupt_cancels_what_runs_and_leaves_out_what_has_not_begun() {
    let out = Shared::default();
    let ordered = Ordered::new(Box::new(out.clone()), "out", "");
    let lines = Lines::arguments(vec!["ab".into(); 6]);
    let interrupt = Arc::new(AtomicBool::new(false));
    let mut device = Echo::new(2);
    device.interrupt_after = Some((13, interrupt.clone()));
    let summary = run_with(
        Output::Stream(ordered),
        Kept::default(),
        lines,
        Style::Json,
        &mut device,
        &interrupt,
    );
    assert!(summary.interrupted);
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    // What was cut is no answer: neither its text nor its tokens are there.
    let ended: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|row: Value| match row.get("text") {
            Some(_) => row["finish_reason"].clone(),
            None => row["error"]["code"].clone(),
        })
        .collect();
    // Rows are read on threads of their own: of the two places one may have been empty for a while.
    let cut = ended.iter().filter(|code| *code == "cancelled").count();
    let whole = ended.iter().filter(|code| *code == "length").count();
    assert_eq!(cut + whole, ended.len(), "{ended:?}");
    assert!(
        (1..=2).contains(&cut) && (1..=2).contains(&whole),
        "{ended:?}"
    );
    assert!(!text.contains("\"output_ids\":[97,98]"), "{text}");
    assert_eq!(summary.counts.failed, cut as u64);
}

/// A reader that dies must not look like the end of the input: OUTPUT would be put in place without the rest.
#[test]
fn a_reader_that_goes_away_is_no_end_of_the_input() {
    struct Dies;
    impl Read for Dies {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            panic!("the reader dies")
        }
    }
    let summary = run_with(
        Output::Stream(Ordered::new(Box::new(std::io::sink()), "nowhere", "")),
        Kept::default(),
        Lines::reader(Box::new(BufReader::new(Dies)), "input"),
        Style::Json,
        &mut Echo::new(1),
        &AtomicBool::new(false),
    );
    let failure = summary.failure.unwrap().to_string();
    assert!(failure.contains("ended before the input did"), "{failure}");
}
