//! A checkpoint's folder with a tokenizer, and what transformers makes of it beside what we do.

use crate::common::python::{ask, interpreter};
use crate::common::random::Random;
use crate::texts;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tailgraph::text::Tokenizer;
use tempfile::TempDir;

/// Texts of which the ids are compared.
pub const TEXTS: usize = 2000;

pub struct Checkpoint {
    pub name: String,
    pub folder: PathBuf,
    _temporary: TempDir,
}

impl Checkpoint {
    /// A folder with config.json and `files`, each a name and its JSON; null leaves one out.
    pub fn new(name: &str, files: &[(&str, &Value)]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().to_owned();
        let config = json!({"model_type": "lfm2_moe"});
        for (file, content) in [("config.json", &config)].iter().chain(files) {
            if !content.is_null() {
                std::fs::write(folder.join(file), content.to_string()).unwrap();
            }
        }
        Self {
            name: name.to_owned(),
            folder,
            _temporary: temporary,
        }
    }

    pub fn load(&self) -> Result<Tokenizer, String> {
        Tokenizer::load(&self.folder).map_err(|error| error.to_string())
    }
}

/// What transformers makes of these; `None` without its Python.
pub fn reference(
    test: &str,
    folders: &[&Path],
    texts: &[String],
    ids: &[Vec<u32>],
) -> Option<Vec<Value>> {
    let python = interpreter(test)?;
    let input = json!({"folders": folders, "texts": texts, "ids": ids});
    let Value::Array(answers) = ask(&python, "auto_tokenizer.py", &input) else {
        panic!("expected a list");
    };
    Some(answers)
}

/// Ids and texts of each checkpoint are those of transformers; `end`: ids go up to it, `singles` of them alone.
pub fn compare(test: &str, checkpoints: &[Checkpoint], texts: usize, end: u32, singles: u32) {
    let mut random = Random::new(0x29);
    let texts = texts::texts(&mut random, texts);
    let ids = texts::ids(&mut random, 300, end, singles);
    let folders: Vec<&Path> = checkpoints.iter().map(|c| c.folder.as_path()).collect();
    let Some(answers) = reference(test, &folders, &texts, &ids) else {
        return;
    };
    for (checkpoint, answer) in checkpoints.iter().zip(&answers) {
        let name = &checkpoint.name;
        assert_eq!(answer["error"], Value::Null, "{name}");
        let tokenizer = checkpoint
            .load()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for (i, text) in texts.iter().enumerate() {
            let special = tokenizer.encode(text, true).unwrap();
            assert_eq!(json!(special), answer["special"][i], "{name}: {text:?}");
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(json!(plain), answer["plain"][i], "{name}: {text:?}");
        }
        for (i, ids) in ids.iter().enumerate() {
            assert_eq!(
                json!(tokenizer.decode(ids, true)),
                answer["skipped"][i],
                "{name}: {ids:?}"
            );
            assert_eq!(
                json!(tokenizer.decode(ids, false)),
                answer["written"][i],
                "{name}: {ids:?}"
            );
        }
        let eos = tokenizer
            .named("eos_token")
            .and_then(|eos| tokenizer.token_id(eos));
        assert_eq!(json!(eos), answer["eos"], "{name}");
    }
}
