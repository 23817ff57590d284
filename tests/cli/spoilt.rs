//! A checkpoint with a number that is none, the rows that are put to it, and what must come of them.

use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tailgraph::model::{ModelSource, synth};

pub const NAN: [u8; 2] = 0x7fc0u16.to_le_bytes();
pub const INFINITY: [u8; 2] = 0x7f80u16.to_le_bytes();

pub const MAX_NEW_TOKENS: &str = "24";
const ROWS: usize = 9;

/// A random model whose LM head is not its embedding, so that either can be spoilt alone.
pub fn checkpoint(folder: &Path) -> PathBuf {
    let mut config: Value =
        serde_json::from_str(include_str!("../../src/model/presets/tiny.json")).unwrap();
    config["tie_embedding"] = json!(false);
    let preset = folder.join("preset.json");
    std::fs::write(&preset, config.to_string()).unwrap();
    let source = ModelSource::parse(&format!("random:{}", preset.display())).unwrap();
    let out = folder.join("model");
    synth::write(&source, &out, 1 << 30, &mut |_| {}).unwrap();
    out
}

/// Writes `bits` over element `column` of row `row` of a bf16 matrix.
pub fn spoil(model: &Path, name: &str, row: usize, column: usize, bits: [u8; 2]) {
    let mut files = std::fs::read_dir(model).unwrap();
    let weights = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
    let path = files.find_map(|entry| Some(entry.unwrap().path()).filter(weights));
    let path = path.expect("a file of weights");
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let info = metadata.info(name).unwrap();
    assert_eq!(info.dtype, safetensors::Dtype::BF16);
    let at = 8 + header + info.data_offsets.0 + (row * info.shape[1] + column) * 2;
    bytes[at..at + 2].copy_from_slice(&bits);
    std::fs::write(&path, bytes).unwrap();
}

/// Rows of mixed lengths, greedy and sampled.
pub fn input() -> String {
    let row = |id: u32| {
        let ids: Vec<u32> = (0..5 + id * 9)
            .map(|i| 60 + (id * 41 + i * 17) % 200)
            .collect();
        let temperature = [0.0, 0.9][id as usize % 2];
        json!({"id": id, "input_ids": ids, "temperature": temperature, "logprobs": 1}).to_string()
    };
    (0..ROWS as u32).map(|id| row(id) + "\n").collect()
}

fn ids(row: &Value) -> Vec<u64> {
    let ids = row["output_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A token that one row meets on its way and nobody else ever.
pub struct Victim {
    pub row: usize,
    /// New tokens up to and with it.
    pub after: usize,
    pub token: usize,
}

impl Victim {
    /// Of the answers of the checkpoint as it was; as early a row as there is, so that others follow in its place.
    pub fn choose(clean: &[Value]) -> Self {
        let asked: Vec<Value> = input()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let meets = |row: usize, id: u64| {
            let prompt = asked[row]["input_ids"].as_array().unwrap();
            ids(&clean[row]).contains(&id) || prompt.contains(&json!(id))
        };
        let alone = |row: usize, after: usize| {
            let (before, id) = (&ids(&clean[row])[..after - 1], ids(&clean[row])[after - 1]);
            let others = (0..ROWS).any(|other| other != row && meets(other, id));
            let prompt = asked[row]["input_ids"].as_array().unwrap();
            let first = !before.contains(&id) && !prompt.contains(&json!(id));
            (first && !others).then_some(Self {
                row,
                after,
                token: id as usize,
            })
        };
        (0..ROWS)
            .flat_map(|row| (2..20).map(move |after| (row, after)))
            .find_map(|(row, after)| alone(row, after))
            .expect("a token of one row alone")
    }

    /// With the token's embedding spoilt the row fails after it, and all others are as they were.
    pub fn check(&self, clean: &[Value], spoilt: &[Value]) {
        assert_eq!((clean.len(), spoilt.len()), (ROWS, ROWS));
        for (row, (clean, spoilt)) in clean.iter().zip(spoilt).enumerate() {
            if row == self.row {
                let error = &spoilt["error"];
                assert_eq!(error["code"], "non_finite_logits", "{spoilt}");
                let after = self.after;
                let found = format!("found logits that are not finite after {after} new tokens");
                let message = error["message"].as_str().unwrap();
                assert!(message.starts_with(&found), "{message}");
                assert_eq!(spoilt["output_ids"], Value::Null);
            } else {
                for field in ["id", "output_ids", "text", "finish_reason", "logprobs"] {
                    assert_eq!(spoilt[field], clean[field], "row {row}");
                }
            }
        }
    }
}
