//! What the text tests share: the fixture tokenizers and a seeded generator.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod grammar;

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

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 where `end` is 0.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }
}
