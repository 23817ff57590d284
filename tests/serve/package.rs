//! The openai package, unmodified: each way to ask that it has, and each answer and chunk held to its types.

use crate::Server;
use crate::common::python::{ask, interpreter};
use serde_json::json;

#[test]
fn the_openai_package_is_served() {
    let Some(python) = interpreter("the_openai_package_is_served") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let batches = folder.path().to_str().unwrap();
    let server = Server::start(&["--batches", batches, "--api-key", "key"]);
    let url = format!("http://{}/v1", server.address);
    let held = ask(
        &python,
        "openai_client.py",
        &json!({"url": url, "key": "key"}),
    );
    assert_eq!(held["faults"], json!([]));
    assert_eq!(
        held["checked"].as_u64().map(|checked| checked > 100),
        Some(true),
        "{held}"
    );
}
