//! profiles/decode.sh over the test's driver, whose kernels take no time: what is measured and where it goes, not how long it takes.

use crate::common::program::{Ended, end, recipe};
use crate::rig::driver;
use serde_json::Value;
use std::path::Path;

fn run(out: &Path, settings: &[(&str, &str)]) -> Ended {
    let mut command = recipe("decode.sh", out);
    command
        .env("LD_LIBRARY_PATH", driver())
        .env("BATCHES", "1,4")
        .env("TYPE_BATCHES", "1,2")
        .env("TOKENS", "8")
        .envs(settings.iter().copied());
    end(&mut command, "")
}

/// Launch, type, sequences, tokens of each and repeats of every row.
fn rows(path: &Path) -> Vec<(String, String, u64, u64, u64)> {
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    rows.iter()
        .map(|row| {
            (
                word(row, "launch"),
                word(row, "dtype"),
                number(row, "batch"),
                number(row, "n_prompt") + number(row, "n_gen"),
                number(row, "repeats"),
            )
        })
        .collect()
}

#[test]
fn decode_leaves_all_that_it_measured_and_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let settings = [
        ("PARTS", "ways types contexts"),
        ("CONTEXTS", "4x24+16 1x40+8"),
        ("REPEATS", "2"),
    ];
    let printed = run(&out, &settings).good();
    let row = |launch: &str, dtype: &str, batch, tokens, repeats| {
        (launch.to_owned(), dtype.to_owned(), batch, tokens, repeats)
    };
    let found = |name: &str| rows(&out.join(name));
    let way = |launch, batch| row(launch, "bf16", batch, 32 + 8, 2);
    assert_eq!(
        found("decode-ways.json"),
        [
            way("device-graph", 1),
            way("device-graph", 4),
            way("host-graph", 1),
            way("host-graph", 4)
        ]
    );
    let bare = |dtype, batch| row("bare", dtype, batch, 32 + 48, 1);
    assert_eq!(
        found("decode-types.json"),
        [
            bare("bf16", 1),
            bare("bf16", 2),
            bare("f32", 1),
            bare("f32", 2)
        ]
    );
    for (name, batch, tokens) in [("4x24", 4, 24), ("1x40", 1, 40)] {
        assert_eq!(
            found(&format!("decode-context-{name}.json")),
            [row("device-graph", "bf16", batch, tokens, 1)]
        );
    }
    let kept = std::fs::read_to_string(out.join("decode.txt")).unwrap();
    assert_eq!(printed, kept);
    assert_eq!(kept.lines().count(), 1 + 4 + 4 + 2, "{kept}");
    let last: Vec<&str> = kept.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(last[..4], ["device-graph", "bf16", "1", "40"], "{kept}");
    let left = std::fs::read_dir(&out).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "{left:?}");
}

#[test]
fn decode_says_what_it_did_not_understand() {
    let folder = tempfile::tempdir().unwrap();
    for (settings, expected) in [
        ([("PARTS", "ways2")], "expected ways, types"),
        ([("CONTEXTS", "32x4296")], "32x4296: expected SEQUENCESx"),
    ] {
        let settings = [&[("PARTS", "contexts")], &settings[..]].concat();
        run(folder.path(), &settings).fails(2, &[expected]);
    }
}
