//! Clients that go away, send garbage, do not read or are too many; signals.

use crate::{Server, body_of};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";
const CANCELLED: &str = "tailgraph_sequences_total{end=\"cancelled\"}";

fn long(stream: bool) -> String {
    json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": stream}).to_string()
}

/// Reads until something is there.
fn first_bytes(stream: &mut TcpStream) {
    let mut some = [0; 512];
    assert!(stream.read(&mut some).unwrap() > 0);
}

#[test]
fn a_client_that_goes_away_cancels_its_sequences() {
    let server = Server::start(&["--max-seqs", "4"]);
    let mut streams = server.raw(COMPLETIONS, &long(true));
    first_bytes(&mut streams);
    drop(streams);
    server.wait_for(CANCELLED, |count| count == 1.0);
    // One that waits for the whole answer, and one with several choices.
    let waits = server.raw(COMPLETIONS, &long(false));
    server.wait_for("tailgraph_sequences_running", |running| running == 1.0);
    drop(waits);
    server.wait_for(CANCELLED, |count| count == 2.0);
    let mut choices: Value = serde_json::from_str(&long(true)).unwrap();
    choices["n"] = json!(7);
    let mut several = server.raw(COMPLETIONS, &choices.to_string());
    first_bytes(&mut several);
    server.wait_for("tailgraph_sequences_waiting", |waiting| waiting == 3.0);
    several.shutdown(Shutdown::Both).unwrap();
    server.wait_for(CANCELLED, |count| count == 9.0);
    server.wait_for("tailgraph_sequences_running", |running| running == 0.0);
    let tokens = server.metric("tailgraph_generation_tokens_total");
    assert!(tokens < 9.0 * 3000.0, "{tokens}: they were made for nobody");
}

#[test]
fn a_full_queue_is_told_to_come_again() {
    let server = Server::start(&["--max-seqs", "1", "--max-queue", "1"]);
    let running = server.raw(COMPLETIONS, &long(true));
    // It may have waited for its slot itself before.
    server.wait_for("tailgraph_sequences_running", |running| running == 1.0);
    let waiting = server.raw(COMPLETIONS, &long(true));
    server.wait_for("tailgraph_sequences_waiting", |waiting| waiting == 1.0);
    let refused = server.post(COMPLETIONS, long(false));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    assert!(refused.error().contains("--max-queue"));
    drop((running, waiting));
    server.wait_for(CANCELLED, |count| count == 2.0);
    let body = json!({"prompt": "x", "max_tokens": 1, "n": 9}).to_string();
    assert_eq!(
        server.post(COMPLETIONS, body).status,
        200,
        "more than there are places"
    );
}

#[test]
fn what_is_under_way_comes_to_its_end_before_the_server_does() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "x", "max_tokens": 1500, "stream": true}).to_string();
    let mut stream = server.raw(COMPLETIONS, &body);
    first_bytes(&mut stream);
    server.signal("-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(!rest.contains("error"), "{rest}");
    assert!(TcpStream::connect(&server.address).is_err());
    let ended = server.ended();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn what_outlasts_the_drain_is_cut_off_and_says_so() {
    let server = Server::start(&["--drain-timeout", "0.2"]);
    let mut body: Value = serde_json::from_str(&long(true)).unwrap();
    let mut stream = server.raw(COMPLETIONS, &body.to_string());
    body["stream"] = json!(false);
    let whole = server.raw(COMPLETIONS, &body.to_string());
    first_bytes(&mut stream);
    server.wait_for("tailgraph_sequences_running", |running| running == 2.0);
    server.signal("-INT");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"code\":\"cancelled\""), "{rest}");
    let (status, text) = body_of(whole);
    assert_eq!(status, 503, "{text}");
    let ended = server.ended();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("have been cut off"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let server = Server::start(&["--drain-timeout", "600"]);
    let mut stream = server.raw(COMPLETIONS, &long(true));
    first_bytes(&mut stream);
    server.signal("-TERM");
    while TcpStream::connect(&server.address).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.signal("-TERM");
    assert_eq!(server.ended().code, 143);
}

#[test]
fn a_slow_reader_holds_nobody_up_and_gets_its_answer() {
    let server = Server::start(&[]);
    let slow = server.raw(
        COMPLETIONS,
        &json!({"prompt": "x", "max_tokens": 1500, "stream": true, "logprobs": 20}).to_string(),
    );
    server.wait_for("tailgraph_sequences_running", |running| running == 1.0);
    let body = json!({"prompt": "x", "max_tokens": 3}).to_string();
    for _ in 0..20 {
        assert_eq!(server.post(COMPLETIONS, &body).status, 200);
    }
    server.wait_for("tailgraph_sequences_running", |running| running == 0.0);
    let (status, text) = body_of(slow);
    assert_eq!(status, 200);
    assert!(text.len() > 1_000_000, "{}", text.len());
    assert!(text.ends_with("data: [DONE]\n\n"));
    assert_eq!(text.matches("\"finish_reason\":\"length\"").count(), 1);
}

#[test]
fn garbage_is_refused_and_harms_nobody() {
    let server = Server::start(&[]);
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        // It may be told no before it has said all.
        drop(stream.write_all(bytes));
        drop(stream.shutdown(Shutdown::Write));
        let mut said = Vec::new();
        drop(stream.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    };
    let garbage: Vec<u8> = (0..20_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    assert!(say(&garbage).starts_with("HTTP/1.1 400"));
    say(b"");
    say(b"\0\0\0\0");
    say(b"GET / HTTP/9.9\r\n\r\n");
    let head = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    assert!(say(head.as_bytes()).starts_with("HTTP/1.1 431"));
    // A body that does not come.
    say(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
    let big = format!("{{\"prompt\":\"{}\"}}", "a".repeat(10_000_000));
    let refused = server.post(COMPLETIONS, &big);
    assert_eq!(refused.status, 400);
    assert!(
        refused.error().contains("found 10000000 bytes of text"),
        "{}",
        refused.error()
    );
    let long =
        format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{{");
    assert!(say(long.as_bytes()).starts_with("HTTP/1.1 413"));
    assert_eq!(server.get("/health").status, 200);
}

/// 300 connections, of which every second dies in the middle.
#[test]
fn half_of_the_clients_die_and_the_others_have_their_answers() {
    let server = Server::start(&["--max-seqs", "32"]);
    let body = |number: usize, dies: bool| {
        let tokens = if dies { 4000 } else { 5 + number % 20 };
        json!({"prompt": format!("client {number}"), "max_tokens": tokens, "stream": true})
            .to_string()
    };
    let text = |events: &str| -> String {
        let events = events
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: {"));
        let events =
            events.map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).unwrap());
        events
            .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let alone = |number: usize| text(&body_of(server.raw(COMPLETIONS, &body(number, false))).1);
    // What each gets where nobody else asks.
    let expected: Vec<String> = (0..300)
        .map(|number| {
            if number % 2 == 0 {
                alone(number)
            } else {
                String::new()
            }
        })
        .collect();
    server.wait_for("tailgraph_sequences_running", |running| running == 0.0);
    let before = server.descriptors();
    std::thread::scope(|scope| {
        for number in 0..300 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                let dies = number % 2 == 1;
                let mut stream = server.raw(COMPLETIONS, &body(number, dies));
                if dies {
                    if number % 4 == 1 {
                        first_bytes(&mut stream);
                    }
                    return;
                }
                let (status, events) = body_of(stream);
                assert_eq!(status, 200, "{events}");
                assert_eq!(text(&events), expected[number], "client {number}");
            });
        }
    });
    server.wait_for("tailgraph_sequences_running", |running| running == 0.0);
    server.wait_for("tailgraph_sequences_waiting", |waiting| waiting == 0.0);
    assert_eq!(
        server.metric("tailgraph_sequences_total{end=\"length\"}"),
        300.0
    );
    // Some that died at once were never asked.
    let cancelled = server.metric(CANCELLED);
    assert!((75.0..=150.0).contains(&cancelled), "{cancelled}");
    for _ in 0..500 {
        if server.descriptors() <= before {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} descriptors, {before} before", server.descriptors());
}
