//! The fixtures' tokenizers, and tokenizers and templates as checkpoints have them.

use std::path::Path;
use tailgraph::text::{ChatTemplate, Tokenizer};

/// Files of tests/fixtures/text, see make_tokenizers.py there.
pub const TOKENIZERS: [&str; 4] = [
    "byte_level_a",
    "byte_level_b",
    "split_regex",
    "byte_fallback",
];

pub fn read(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text");
    std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap()
}

/// Chat templates in the ways that published ones are written.
pub fn templates() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/templates");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// The tokenizer of a checkpoint whose tokenizer.json holds `source`.
pub fn load(source: impl AsRef<[u8]>) -> Result<Tokenizer, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), source).unwrap();
    Tokenizer::load(dir.path()).map_err(|error| error.to_string())
}

/// The chat template of a checkpoint whose tokenizer_config.json holds this one.
pub fn load_template(source: &str) -> Result<ChatTemplate, String> {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"bos_token": "<s>", "chat_template": source});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Ok(load_both(dir.path())?.1.unwrap())
}

/// A tokenizer and a chat template. A folder without a tokenizer.json gets one that has no words.
pub fn load_both(dir: &Path) -> Result<(Tokenizer, Option<ChatTemplate>), String> {
    let path = dir.join("tokenizer.json");
    if !path.exists() {
        let model =
            serde_json::json!({"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"});
        let tokenizer = serde_json::json!({"version": "1.0", "added_tokens": [], "model": model});
        std::fs::write(path, tokenizer.to_string()).unwrap();
    }
    let tokenizer = Tokenizer::load(dir).map_err(|error| error.to_string())?;
    let template = ChatTemplate::load(dir, &tokenizer).map_err(|error| error.to_string())?;
    Ok((tokenizer, template))
}

/// `wrong` says what differs, each with what was found and expected.
#[track_caller]
pub fn assert_none_differ(wrong: &[String]) {
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
