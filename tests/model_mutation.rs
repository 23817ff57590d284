//! Checkpoints under seeded mutation: whatever config.json, an index or a safetensors file says, loading ends in
//! success or in an error of one line, reserves nothing by a number that a file claims, and never panics.
//!
//! TAILGRAPH_FUZZ_SECONDS sets how long the tests here run in sum (6 by default), TAILGRAPH_FUZZ_SEED where each
//! starts.

mod common;

use common::checkpoint::{checkpoint, single_file_checkpoint, small_config};
use common::fixtures::fixture;
use common::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tailgraph::model::{GenerationConfig, Model, ModelConfig, ModelSource};

/// Remembers the largest allocation.
struct Watched;

static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to `System`; the counter does not allocate.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// The files here have at most 60 KB; nothing that reads them has use for more than this at once.
const LARGEST_ALLOWED_BYTES: usize = 8 << 20;

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// What may stand in the place of a number.
const VALUES: [&str; 27] = [
    "0",
    "1",
    "2",
    "-1",
    "3",
    "64",
    "4096",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    "-0.0",
    "1e-320",
    "null",
    "true",
    "\"\\n\"",
    "[]",
    "{}",
    "[[[[1]]]]",
    "NaN",
    "-Infinity",
    "2.0",
    "\"./x\"",
    "{\"rope_type\":\"default\"}",
];

/// One to three changes: bytes flipped, cut out, repeated; the end cut off; numbers and strings exchanged.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => {
                let end = (at + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                let end = (at + random.below(200)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => replace_token(bytes, at, random),
        }
    }
}

/// Puts another value in the place of the next number or string at or after `at`.
fn replace_token(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit() || bytes[i] == b'"')
    else {
        return;
    };
    let length = match bytes[start] {
        b'"' => bytes[start + 1..]
            .iter()
            .position(|&b| b == b'"')
            .map(|n| n + 2),
        _ => bytes[start..].iter().position(|b| !b.is_ascii_digit()),
    };
    let end = length.map_or(bytes.len(), |length| start + length);
    let value = VALUES[random.below(VALUES.len())];
    bytes.splice(start..end, value.bytes());
}

/// The tests here; they share the time.
const TESTS: u32 = 6;

/// Runs `check`, which accepts `original`, on mutants of it until this test's share of the time is over.
fn run(
    original: &[u8],
    check: impl Fn(&[u8]) -> Result<(), tailgraph::Error> + std::panic::RefUnwindSafe,
) {
    let time = common::fuzz::time(6.0) / TESTS;
    let mut seed = number_from_env("TAILGRAPH_FUZZ_SEED", 0);
    let start = Instant::now();
    let (mut accepted, mut refused) = (0, 0);
    check(original).expect("the original is accepted");
    while start.elapsed() < time {
        let mut bytes = original.to_vec();
        mutate(&mut bytes, &mut Random(seed));
        let again = format!("repeat with TAILGRAPH_FUZZ_SEED={seed}");
        match catch_unwind(|| check(&bytes)) {
            Ok(Ok(())) => accepted += 1,
            Ok(Err(error)) => {
                let message = error.to_string();
                assert!(
                    !message.chars().any(char::is_control),
                    "{message:?}; {again}"
                );
                assert!(message.len() < 2000, "{message:?}; {again}");
                refused += 1;
            }
            Err(_) => panic!("a panic; {again}"),
        }
        let largest = LARGEST_BYTES.load(Ordering::Relaxed);
        assert!(
            largest <= LARGEST_ALLOWED_BYTES,
            "{largest} bytes reserved at once; {again}"
        );
        seed += 1;
    }
    println!("{accepted} mutants accepted, {refused} refused");
    assert!(refused > 0, "no mutant of {accepted} was refused");
}

/// Puts the bytes into `file` and loads the checkpoint around it.
fn load_with(model: &Path, file: &Path, bytes: &[u8]) -> Result<(), tailgraph::Error> {
    std::fs::write(file, bytes).unwrap();
    Model::load(&ModelSource::Dir(model.to_owned())).map(|model| {
        let all = common::checkpoint::by_name(&model.weights);
        assert!(all.values().all(|tensor| !tensor.bytes().is_empty()));
    })
}

fn file_in(model: &Path, end: &str) -> PathBuf {
    let entries = std::fs::read_dir(model).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(end))
        .unwrap()
}

#[test]
fn mutated_safetensors_files() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 1);
    let file = model.join("model.safetensors");
    let original = std::fs::read(&file).unwrap();
    run(&original, |bytes| load_with(&model, &file, bytes));
}

/// Only the header is mutated, its length put right, so that every mutant reaches the JSON.
#[test]
fn mutated_safetensors_headers() {
    let dir = tempfile::tempdir().unwrap();
    let model = single_file_checkpoint(dir.path(), &small_config(), 2);
    let file = model.join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let header_bytes = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let (header, data) = whole[8..].split_at(header_bytes);
    run(header, |header| {
        let length = (header.len() as u64).to_le_bytes();
        load_with(&model, &file, &[&length, header, data].concat())
    });
}

#[test]
fn mutated_indices() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path(), &small_config(), 3);
    let file = file_in(&model, "index.json");
    let original = std::fs::read(&file).unwrap();
    run(&original, |bytes| load_with(&model, &file, bytes));
}

#[test]
fn mutated_configurations_of_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path(), &small_config(), 4);
    let file = model.join("config.json");
    let original = std::fs::read(&file).unwrap();
    run(&original, |bytes| load_with(&model, &file, bytes));
}

#[test]
fn mutated_configurations_alone() {
    let path = fixture("goldens/lfm2moe-tiny-b/config.json");
    let original = std::fs::read(&path).unwrap();
    run(&original, |bytes| {
        let config = ModelConfig::from_json(bytes, &path)?;
        // What is accepted can be written and read again.
        let again = ModelConfig::from_json(config.to_json().to_string().as_bytes(), &path)?;
        assert_eq!(again, config);
        Ok(())
    });
}

#[test]
fn mutated_generation_configurations() {
    let path = Path::new("generation_config.json");
    let original = br#"{"bos_token_id": 1, "eos_token_id": [7, 2], "do_sample": true, "temperature": 0.3, "top_k": 50, "top_p": 0.9, "min_p": 0.15, "repetition_penalty": 1.05, "max_new_tokens": 100}"#;
    run(original, |bytes| {
        GenerationConfig::from_json(bytes, path).map(|_| ())
    });
}
