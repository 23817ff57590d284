//! Tokenizers as they are published, of the goldens and of `synth`.

use crate::checkpoint::{Checkpoint, TEXTS, compare};
use crate::common::python::{ask, interpreter, real_files};
use serde_json::{Value, json};
use std::path::Path;
use tailgraph::model::{ModelSource, synth};
use tailgraph::text::Tokenizer;
use tailgraph::text::class::BUILT_BY_CLASS;

fn read(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn ids_of_the_published_tokenizer_are_those_of_transformers() {
    let test = "ids_of_the_published_tokenizer_are_those_of_transformers";
    let Some(folder) = real_files(test) else {
        return;
    };
    let tokenizer = read(&folder.join("LFM2-tokenizer.json"));
    let config = read(&folder.join("LFM2.5-1.2B-tokenizer_config.json"));
    let none = Value::Null;
    let alone = Checkpoint::new("LFM2 alone", &[("tokenizer.json", &tokenizer)]);
    let both = Checkpoint::new(
        "LFM2 with LFM2.5's config",
        &[
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", &config),
            ("added_tokens.json", &none),
        ],
    );
    compare(test, &[alone, both], TEXTS, 65_536, 65_536);
}

#[test]
fn ids_of_goldens_and_synth_are_those_of_transformers() {
    let test = "ids_of_goldens_and_synth_are_those_of_transformers";
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/goldens");
    let synthetic = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("random:tiny@3").unwrap();
    synth::write(&source, synthetic.path(), 1 << 30, &mut |_| {}).unwrap();
    let mut checkpoints = Vec::new();
    for (name, folder) in [
        ("golden a", goldens.join("lfm2moe-tiny-a")),
        ("golden b", goldens.join("lfm2moe-tiny-b")),
        ("synth", synthetic.path().to_owned()),
    ] {
        let tokenizer = read(&folder.join("tokenizer.json"));
        let config = read(&folder.join("tokenizer_config.json"));
        checkpoints.push(Checkpoint::new(
            name,
            &[
                ("tokenizer.json", &tokenizer),
                ("tokenizer_config.json", &config),
            ],
        ));
    }
    compare(test, &checkpoints, TEXTS, 700, 700);
    // The tokenizer of random presets is the one that synth writes.
    let written = checkpoints[2].load().unwrap();
    let built_in = Tokenizer::bytes();
    let mut random = crate::common::random::Random::new(5);
    for text in crate::texts::texts(&mut random, 500) {
        assert_eq!(
            built_in.encode(&text, true).unwrap(),
            written.encode(&text, true).unwrap()
        );
    }
    for ids in crate::texts::ids(&mut random, 300, 512, 512) {
        for skip in [false, true] {
            assert_eq!(
                built_in.decode(&ids, skip),
                written.decode(&ids, skip),
                "{ids:?}"
            );
        }
    }
    for name in ["bos_token", "eos_token", "pad_token"] {
        assert_eq!(built_in.named(name), written.named(name));
    }
}

#[test]
fn classes_that_build_their_own_tokenizer_are_those_of_transformers() {
    let Some(python) =
        interpreter("classes_that_build_their_own_tokenizer_are_those_of_transformers")
    else {
        return;
    };
    let names = BUILT_BY_CLASS.split(' ').chain(["Llama"]);
    let mut ours: Vec<String> = names.map(|name| format!("{name}Tokenizer")).collect();
    ours.sort_unstable();
    assert_eq!(
        ask(&python, "tokenizer_classes.py", &Value::Null),
        json!(ours)
    );
}
