//! Files and batches, over a restart.

use crate::common::rows::without_timing;
use crate::{Response, Server, generated};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

fn rows(count: usize, tokens: usize) -> String {
    let row = |number: usize| {
        let mut body = json!({"prompt": format!("row {number}"), "max_tokens": tokens});
        if number % 3 == 1 {
            body["echo"] = json!(true);
            body["logprobs"] = json!(1);
        }
        let row = json!({"custom_id": format!("r{number}"), "method": "POST", "url": "/v1/completions", "body": body});
        format!("{row}\n")
    };
    (0..count).map(row).collect()
}

fn upload(server: &Server, purpose: &str, content: &str) -> Response {
    let form = format!(
        "--line\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{content}\r\n--line\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n--line--\r\n"
    );
    let headers = [("content-type", "multipart/form-data; boundary=line")];
    server.ask("POST", "/v1/files", &headers, form.as_bytes())
}

fn begin(server: &Server, content: &str) -> String {
    let file = upload(server, "batch", content).json();
    assert_eq!(file["bytes"], content.len());
    let body = json!({"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    let batch = server.post("/v1/batches", body.to_string());
    assert_eq!(batch.status, 200, "{}", batch.text);
    batch.json()["id"].as_str().unwrap().to_owned()
}

fn over(server: &Server, id: &str) -> Value {
    for _ in 0..6000 {
        let batch = server.get(&format!("/v1/batches/{id}")).json();
        let status = batch["status"].as_str().unwrap();
        if !["validating", "in_progress", "cancelling"].contains(&status) {
            return batch;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{id} does not end");
}

fn bare(text: &str) -> Vec<Value> {
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|mut line| {
            let body = line["response"]["body"].as_object_mut();
            if let Some(body) = body {
                body.remove("created");
            }
            without_timing(line)
        })
        .collect()
}

fn serve(folder: &Path) -> Server {
    Server::start(&["--max-seqs", "4", "--batches", folder.to_str().unwrap()])
}

fn content_of(server: &Server, batch: &Value, field: &str) -> Vec<Value> {
    let id = batch[field].as_str().unwrap();
    bare(&server.get(&format!("/v1/files/{id}/content")).text)
}

#[test]
fn a_batch_goes_on_after_its_server_was_killed_and_no_row_is_lost_or_doubled() {
    let folder = tempfile::tempdir().unwrap();
    let content = rows(400, 16);
    let mut server = serve(folder.path());
    let id = begin(&server, &content);
    let journal = folder.path().join(format!(
        "{}-output.jsonl.partial",
        id.replace("batch_", "file-")
    ));
    let journaled = |least: usize| {
        for _ in 0..6000 {
            let text = std::fs::read_to_string(&journal).unwrap_or_default();
            if text.lines().count() >= least {
                return text.lines().count();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{} does not grow", journal.display());
    };
    let mut done = 0;
    for _ in 0..3 {
        done = journaled(done + 20);
        let body = json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": true});
        let mut stream = server.raw("/v1/completions", &body.to_string());
        let mut first = [0; 64];
        assert!(stream.read(&mut first).unwrap() > 0);
        server.signal("-KILL");
        let mut rest = Vec::new();
        // Broken off or reset, but no end of an answer.
        drop(stream.read_to_end(&mut rest));
        assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
        assert_eq!(server.ended().code, -1, "by the signal");
        server = serve(folder.path());
    }
    assert!(done < 400, "killed in the middle");
    let batch = over(&server, &id);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 400, "completed": 400, "failed": 0})
    );
    assert_eq!(
        content_of(&server, &batch, "output_file_id"),
        bare(&generated(&[], &content).stdout)
    );
    assert!(!journal.exists());
}

#[test]
fn a_batch_goes_on_after_a_restart_and_gives_the_file_of_generate() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let mut content = rows(300, 16);
    content +=
        "{\"custom_id\":\"wrong\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n";
    let id = begin(&server, &content);
    server.wait_for("tailgraph_sequences_running", |running| running > 0.0);
    // Others are served meanwhile.
    let body = json!({"prompt": "x", "max_tokens": 2}).to_string();
    assert_eq!(server.post("/v1/completions", body).status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended().code, 0);
    let server = serve(folder.path());
    let batch = over(&server, &id);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 301, "completed": 300, "failed": 1})
    );
    let expected = bare(&generated(&[], &content).stdout);
    assert_eq!(
        content_of(&server, &batch, "output_file_id"),
        expected[..300]
    );
    assert_eq!(
        content_of(&server, &batch, "error_file_id"),
        expected[300..]
    );
    let listed = server.get("/v1/files").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 3);
}

#[test]
fn a_batch_is_cancelled_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let id = begin(&server, &rows(5000, 16));
    let next = begin(&server, &rows(3, 2));
    server.wait_for("tailgraph_sequences_running", |running| running > 0.0);
    let cancel = |id: &str| server.post(&format!("/v1/batches/{id}/cancel"), "");
    assert_eq!(cancel(&id).json()["status"], "cancelling");
    let batch = over(&server, &id);
    assert_eq!(batch["status"], "cancelled");
    assert!(batch["cancelled_at"].is_u64() && batch["output_file_id"].is_null());
    assert_eq!(cancel(&id).status, 409);
    assert_eq!(
        over(&server, &next)["status"],
        "completed",
        "the next one runs"
    );

    assert_eq!(upload(&server, "assistants", "x").status, 400);
    let body = |input: &str, endpoint: &str| {
        let body =
            json!({"input_file_id": input, "endpoint": endpoint, "completion_window": "24h"});
        server.post("/v1/batches", body.to_string())
    };
    assert_eq!(body("file-none", "/v1/completions").status, 404);
    assert_eq!(body("../../etc/passwd", "/v1/completions").status, 404);
    let file = upload(&server, "batch", &rows(1, 1)).json();
    let file = file["id"].as_str().unwrap();
    assert!(
        body(file, "/v1/embeddings")
            .error()
            .contains("endpoint: found")
    );
    assert_eq!(server.get("/v1/files/..%2f..%2fetc%2fpasswd").status, 404);
    assert_eq!(
        server
            .ask("DELETE", &format!("/v1/files/{file}"), &[], b"")
            .json()["deleted"],
        true
    );
    assert_eq!(server.get(&format!("/v1/files/{file}")).status, 404);
}
