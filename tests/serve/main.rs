//! `serve` as its clients see it: real sockets to the binary, with random:tiny on the CPU.
//!
//! - `interface`: each route, whole and in chunks, beside what `generate` answers to the same rows
//! - `echo`: prompts repeated in answers, and their logprobs beside those of `score`
//! - `faults`: clients that go away, send garbage, do not read or are too many; signals
//! - `batches`: files and batches, over a restart
//! - `package`: the openai package, unmodified

#[path = "../common/mod.rs"]
mod common;

mod batches;
mod echo;
mod faults;
mod interface;
mod package;

use common::program::{Ended, command, run_with_input, send, tailgraph};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server, which ends with the test.
pub struct Server {
    child: Child,
    pub address: String,
    said: Option<JoinHandle<String>>,
}

/// A response that has come.
pub struct Response {
    pub status: u16,
    pub retry_after: Option<String>,
    pub text: String,
}

impl Response {
    pub fn json(&self) -> Value {
        let value = serde_json::from_str(&self.text);
        value.unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The text of the error that it is.
    pub fn error(&self) -> String {
        let body = self.json();
        let message = body["error"]["message"].as_str();
        message.unwrap_or_else(|| panic!("{body}")).to_owned()
    }

    /// What the events of a stream hold, of which the last says that it is done.
    pub fn events(&self) -> Vec<Value> {
        let events = self.text.strip_suffix("\n\n").unwrap_or(&self.text);
        let mut events: Vec<&str> = events.split("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.text);
        let data = events.iter().map(|event| event.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data.expect("an event")).expect("JSON"))
            .collect()
    }
}

impl Server {
    pub fn start(more: &[&str]) -> Self {
        Self::of("random:tiny", more)
    }

    pub fn of(model: &str, more: &[&str]) -> Self {
        let first = ["serve", "--model", model, "--port", "0"];
        let device: &[&str] = if more.contains(&"--device") {
            &[]
        } else {
            &["--device", "cpu"]
        };
        let mut command = command(&[&first, device, more].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut before = String::new();
        let address = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended: {before}");
            if let Some((_, address)) = line.split_once(" at http://") {
                break address.trim().to_owned();
            }
            before += &line;
        };
        let said = std::thread::spawn(move || {
            lines.read_to_string(&mut before).unwrap();
            before
        });
        Self {
            child,
            address,
            said: Some(said),
        }
    }

    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.ask(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.as_ref(),
        )
    }

    pub fn get(&self, path: &str) -> Response {
        self.ask("GET", path, &[], b"")
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = config.build().new_agent();
        let url = format!("http://{}{path}", self.address);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = match method {
            "GET" | "DELETE" => agent.run(request.body(()).unwrap()),
            _ => agent.run(request.body(body).unwrap()),
        }
        .unwrap();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        Response {
            status: response.status().as_u16(),
            retry_after,
            text: response.body_mut().read_to_string().unwrap(),
        }
    }

    /// A connection on which a request was sent.
    pub fn raw(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// What `/metrics` has under this name, labels and all; 0 where it has none.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    pub fn wait_for(&self, name: &str, is: impl Fn(f64) -> bool) {
        let start = Instant::now();
        while !is(self.metric(name)) {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "{name}: {}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, signal: &str) {
        send(&self.child, signal);
    }

    /// Descriptors that the server has open.
    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }

    /// Its exit code, and what it said.
    pub fn ended(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "it does not end"
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        let stderr = self.said.take().unwrap().join().unwrap();
        Ended::of(std::process::Output {
            status,
            stdout: Vec::new(),
            stderr: stderr.into_bytes(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What `generate` has for these rows.
pub fn generated(more: &[&str], rows: &str) -> Ended {
    let args = [
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "-q",
    ];
    run_with_input(&[&args, more].concat(), rows)
}

/// What `replay` says of a server's recording.
pub fn replayed(record: &str) -> String {
    tailgraph(&[
        "replay",
        "-m",
        "random:tiny",
        "--device",
        "cpu",
        "--record",
        record,
    ])
}

/// Without its head.
pub fn body_of(mut stream: TcpStream) -> (u16, String) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let all = String::from_utf8_lossy(&all).into_owned();
    let (head, body) = all
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{all}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if !head.contains("chunked") {
        return (status, body.to_owned());
    }
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        let Some(chunk) = more.get(..size) else { break };
        text += chunk;
        rest = more[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    (status, text)
}
