//! Rows that ask for several answers, on a device with room for few.

use crate::fakes::Echo;
use crate::job::generate;
use serde_json::Value;

#[test]
fn several_answers_are_one_rows() {
    let row = |id: &str, url: &str, body: &str| {
        format!(
            "{{\"custom_id\":\"{id}\",\"url\":\"/v1/{url}\",\"body\":{{{body},\"max_tokens\":3}}}}\n"
        )
    };
    let message = r#""messages":[{"role":"user","content":"ab"}]"#;
    let input = row(
        "lists",
        "completions",
        r#""prompt":["a",[66,67],"ccc"],"n":2"#,
    ) + &row("chat", "chat/completions", &format!("{message},\"n\":5"))
        + &row(
            "long",
            "completions",
            &format!(r#""prompt":["a","{}"]"#, "x".repeat(5000)),
        )
        + &row(
            "late",
            "completions",
            r#""prompt":["a","b"],"timeout_ms":1"#,
        )
        + &row("one", "completions", r#""prompt":"z""#);
    // Fewer slots than answers, and more.
    for slots in [1, 3, 40] {
        let (rows, summary) = generate(&input, &mut Echo::new(slots));
        let ids: Vec<&Value> = rows.iter().map(|row| &row["custom_id"]).collect();
        assert_eq!(ids, ["lists", "chat", "long", "late", "one"]);
        let body = |row: usize| &rows[row]["response"]["body"];
        let texts: Vec<(u64, &str)> = body(0)["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| {
                (
                    choice["index"].as_u64().unwrap(),
                    choice["text"].as_str().unwrap(),
                )
            })
            .collect();
        let expected = [
            "\u{100}a\u{100}",
            "\u{100}a\u{100}",
            "BCB",
            "BCB",
            "\u{100}cc",
            "\u{100}cc",
        ]
        .map(str::to_owned);
        assert!(
            texts
                .iter()
                .zip(&expected)
                .enumerate()
                .all(|(at, (found, text))| *found == (at as u64, text)),
            "{texts:?}"
        );
        // A prompt counts once, with its BOS where it is a text.
        assert_eq!(body(0)["usage"]["prompt_tokens"], 2 + 2 + 4);
        assert_eq!(body(0)["usage"]["completion_tokens"], 18);
        assert_eq!(body(1)["choices"].as_array().unwrap().len(), 5);
        assert_eq!(body(1)["usage"]["prompt_tokens"], 2);
        let message = rows[2]["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt[1]: "), "{message}");
        assert_eq!(rows[3]["error"]["code"], "timeout");
        assert_eq!(body(4)["choices"][0]["text"], "\u{100}z\u{100}");
        assert_eq!((summary.counts.rows, summary.counts.failed), (5, 2));
    }
}

#[test]
fn a_device_that_fails_fails_a_row_of_several_answers_once() {
    let row = |id: u32| {
        format!(
            "{{\"custom_id\":{id},\"url\":\"/v1/completions\",\"body\":{{\"prompt\":[\"a\",\"b\"],\"n\":3,\"max_tokens\":4}}}}\n"
        )
    };
    let input: String = (0..3).map(row).collect();
    for events in 0..80 {
        let mut device = Echo::new(2);
        device.fail_after = Some(events);
        let (rows, summary) = generate(&input, &mut device);
        let ids: Vec<u64> = rows
            .iter()
            .map(|row| row["custom_id"].as_u64().unwrap())
            .collect();
        // Those that were taken from the input, each once and in order.
        assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>(), "{events}");
        let failed = rows
            .iter()
            .filter(|row| row["error"]["code"] == "device")
            .count();
        assert_eq!(failed as u64, summary.counts.failed, "{events}");
        let whole = rows.iter().filter(|row| {
            row["response"]["body"]["choices"]
                .as_array()
                .is_some_and(|all| all.len() == 6)
        });
        assert_eq!(whole.count() + failed, rows.len(), "{events}");
        assert!(summary.failure.is_some() || rows.len() == 3, "{events}");
    }
}
