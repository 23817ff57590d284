//! Models whose weights hold NaN: rows that meet it fail, the others do not notice.

use crate::common::program::{run, run_with_input};
use crate::generate::generate;
use serde_json::Value;

/// `random:tiny` on disk, with a NaN in one weight of `tensor`.
fn broken_checkpoint(folder: &std::path::Path, tensor: &str) -> String {
    let model = folder.join("model");
    let model = model.to_str().unwrap();
    let made = run(&["synth", "--model", "random:tiny", "--output", model]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let path = format!("{model}/model-00001-of-00001.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let found = &header[tensor];
    assert_eq!(found["dtype"], "BF16", "{tensor} in {header}");
    let at = 8 + header_bytes + found["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    model.to_owned()
}

/// One expert of the last layer is broken: rows that meet it fail, the others do not notice.
#[test]
fn logits_that_are_not_finite_fail_their_rows_alone() {
    let input: String = (0..24)
        .map(|i| {
            format!(
                "{{\"id\":{i},\"prompt\":\"row {i}\",\"max_new_tokens\":{}}}\n",
                1 + i % 3
            )
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let expert = "model.layers.4.feed_forward.experts.0.w2.weight";
    let model = broken_checkpoint(folder.path(), expert);
    let good = generate(&[], &input);
    assert_eq!(good.code, 0, "{}", good.stderr);
    let broken = run_with_input(&["generate", "--model", &model], &input);
    assert_eq!(broken.code, 3, "{}", broken.stderr);
    let (good, broken) = (good.rows(), broken.rows());
    assert_eq!(broken.len(), good.len());
    let mut failed = 0;
    for (good, broken) in good.iter().zip(&broken) {
        assert_eq!(broken["id"], good["id"]);
        if broken["error"].is_null() {
            assert_eq!(broken["output_ids"], good["output_ids"]);
            continue;
        }
        failed += 1;
        assert_eq!(broken["error"]["code"], "non_finite_logits");
        let message = broken["error"]["message"].as_str().unwrap();
        assert!(message.contains("are not finite"), "{message}");
    }
    assert!(0 < failed && failed < good.len(), "{failed} rows failed");
}

#[test]
fn a_broken_head_fails_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let model = broken_checkpoint(folder.path(), "model.embedding_norm.weight");
    let input = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"temperature\":0.7,\"logprobs\":2}\n";
    let ended = run_with_input(&["generate", "--model", &model], input);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    for row in ended.rows() {
        assert_eq!(row["error"]["code"], "non_finite_logits", "{row}");
    }
}
