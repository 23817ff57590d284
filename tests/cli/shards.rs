//! `--shard` and `merge`: shards of any number make the file of a run of all rows, and what does not is refused by name.

use crate::common::memory::peak_bytes;
use crate::common::program::{Ended, command, run};
use crate::common::rows::{mixed_input, rows_without_timing, text};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tailgraph::files::{Unfinished, Whole};
use tailgraph::io::identity::Identity;
use tailgraph::io::shard::{Holds, InputHash, Shard, ShardOutput};

/// Runs `arguments` (a command and its options without OUTPUT) as shard `index` of `count`.
fn shard(arguments: &[&str], output: &Path, index: u64, count: u64) -> Ended {
    let which = format!("{index}/{count}");
    let more = ["--quiet", "--output", text(output), "--shard", &which];
    run(&[arguments, &more].concat())
}

/// All shards, named `NAME.I`.
fn shards(arguments: &[&str], name: &Path, count: u64) -> Vec<PathBuf> {
    let extension = name.extension().unwrap().to_str().unwrap();
    (0..count)
        .map(|index| {
            let output = name.with_extension(format!("{index}.{extension}"));
            let ended = shard(arguments, &output, index, count);
            assert!([0, 3].contains(&ended.code), "{}", ended.stderr);
            output
        })
        .collect()
}

pub fn merge(shards: &[PathBuf], output: &Path) -> Ended {
    let shards = shards.iter().map(|path| text(path));
    let more = ["--quiet", "--overwrite", "--output", text(output)];
    run(&[&["merge"], &shards.collect::<Vec<_>>()[..], &more].concat())
}

/// Rows that are served, sampled by their place, called by their line, in error, and that have an id once more.
fn awkward_input() -> String {
    let more = |i: u32, row: &mut Value| {
        row["temperature"] = json!(0.9);
        match i % 6 {
            1 => drop(row.as_object_mut().unwrap().remove("id")),
            2 => row["id"] = json!("twice"),
            3 => row["max_new_tokens"] = json!("many"),
            _ => {}
        }
    };
    mixed_input(more).replacen('\n', "\n\n{torn\n", 3)
}

#[test]
fn shards_make_the_file_of_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("in.jsonl"), awkward_input()).unwrap();
    let batch = |i: u32| {
        let body =
            json!({"model": "m", "prompt": format!("p{i}"), "max_tokens": 3, "temperature": 1});
        json!({"custom_id": format!("r{i}"), "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
            + "\n"
    };
    fs::write(at("batch.jsonl"), (0..7).map(batch).collect::<String>()).unwrap();
    let (rows, batch) = (at("in.jsonl"), at("batch.jsonl"));
    let model = ["--model", "random:tiny", "--input"];
    let scored = [&["score", "--logprobs"][..], &model, &[text(&rows)]].concat();
    let kinds: [(&[&str], &str, u64); 7] = [
        (
            &["generate", model[0], model[1], model[2], text(&rows)],
            "jsonl",
            3,
        ),
        (
            &["generate", model[0], model[1], model[2], text(&batch)],
            "jsonl",
            9,
        ),
        (&scored, "jsonl", 4),
        (
            &["score", model[0], model[1], model[2], text(&rows)],
            "safetensors",
            5,
        ),
        (
            &["generate", model[0], model[1], model[2], text(&rows)],
            "jsonl.gz",
            3,
        ),
        (&scored, "jsonl.zst", 4),
        (
            &[
                "score",
                "--logits",
                "last",
                model[0],
                model[1],
                model[2],
                text(&rows),
            ],
            "safetensors",
            40,
        ),
    ];
    for (kind, (arguments, extension, count)) in kinds.into_iter().enumerate() {
        let single = at(&format!("single{kind}.{extension}"));
        let code = run(&[arguments, &["--quiet", "--output", text(&single)]].concat()).code;
        let name = at(&format!("shard{kind}.{extension}"));
        let merged = at(&format!("merged{kind}.{extension}"));
        let ended = merge(&shards(arguments, &name, count), &merged);
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        if extension.starts_with("jsonl") {
            let without_times = |path: &Path| {
                let mut rows = rows_without_timing(path);
                for row in &mut rows {
                    if let Some(body) = row.pointer_mut("/response/body") {
                        body["created"] = Value::Null;
                        body["timing"] = Value::Null;
                    }
                }
                rows
            };
            let found = without_times(&merged);
            assert!(found.len() > 6);
            let is_text = fs::read(&merged).unwrap().starts_with(b"{");
            assert_eq!(is_text, extension == "jsonl");
            assert_eq!(found, without_times(&single), "{arguments:?}");
        } else {
            assert_eq!(fs::read(&merged).unwrap(), fs::read(&single).unwrap());
        }
    }
}

#[test]
fn a_finished_shard_is_taken_up_by_its_record_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    fs::write(&input, mixed_input(|_, _| {})).unwrap();
    let again = |model: &str, index, more: &[&str]| {
        let arguments = ["generate", "--model", model, "--input", text(&input)];
        shard(&[&arguments, more].concat(), &output, index, 2)
    };
    again("random:tiny", 1, &[]).good();
    let first = fs::read(&output).unwrap();
    again("random:tiny", 1, &["--resume"]).good();
    assert_eq!(fs::read(&output).unwrap(), first);

    let resume = ["--resume"];
    again("random:tiny@7", 1, &resume).fails_in_a_line(1, &["random model", "--overwrite"]);
    again("random:tiny", 1, &["--resume", "--seed", "5"])
        .fails_in_a_line(1, &["--seed (was 0, is 5)"]);
    again("random:tiny", 0, &resume).fails_in_a_line(1, &["--shard (was 1/2, is 0/2)"]);
    let record = dir.path().join("out.jsonl.job.json");
    let said = fs::read(&record).unwrap();
    fs::remove_file(&record).unwrap();
    again("random:tiny", 1, &resume).fails_in_a_line(1, &["nothing says which shard's"]);
    // A machine was lost when one of the two had its name: another run's OUTPUT beside this record.
    fs::write(&record, said).unwrap();
    fs::write(&output, [&first[..], b"{}\n"].concat()).unwrap();
    again("random:tiny", 1, &resume).fails_in_a_line(1, &["nothing says which shard's"]);
    fs::write(&output, first).unwrap();
    fs::write(&input, mixed_input(|_, row| row["temperature"] = json!(1))).unwrap();
    again("random:tiny", 1, &resume).fails_in_a_line(1, &["another input", "--overwrite"]);
    again("random:tiny", 1, &[]).fails_in_a_line(2, &["--resume", "--overwrite"]);
    again("random:tiny", 1, &["--overwrite"]).good();
}

/// Shards of `rows` rows, without a model.
fn made(folder: &Path, count: u64, rows: u64, of: &Identity, salt: u64) -> Vec<PathBuf> {
    let mut input = InputHash::default();
    (0..rows).for_each(|row| input.add(row, row ^ salt));
    let input = input.finish();
    let folder = folder.canonicalize().unwrap();
    (0..count)
        .map(|index| {
            let shard = Shard::parse(&format!("{index}/{count}")).unwrap();
            let path = folder.join(format!("{salt}.{index}.jsonl"));
            let mut out = BufWriter::new(Whole::open(&path, Unfinished::Removed).unwrap());
            for row in (0..rows).filter(|&row| shard.holds(row)) {
                let ids = [row; 6];
                writeln!(out, "{{\"id\":\"row-{row}\",\"output_ids\":{ids:?}}}").unwrap();
            }
            let record = ShardOutput::open(&path, shard, of.clone()).unwrap();
            record.input_was(input.clone());
            let whole = out.into_inner().unwrap();
            record
                .finish_with(whole, Holds::Lines, shard.share(rows), 0)
                .unwrap();
            path
        })
        .collect()
}

#[test]
fn what_is_not_all_of_one_job_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let of = |value: u32| Identity::default().with("--temperature", value);
    let folder = |name: &str| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    };
    let good = made(&folder("good"), 4, 50, &of(1), 0);
    let output = dir.path().join("merged.jsonl");
    fs::write(&output, "what was there before").unwrap();
    let instead_of = |index: usize, path: &Path| {
        let mut shards = good.clone();
        shards[index] = path.to_owned();
        shards
    };
    let torn = folder("torn").join("2.jsonl");
    let other = torn.with_file_name("other.jsonl");
    let record = |path: &Path| PathBuf::from(format!("{}.shard.json", path.display()));
    let whole = fs::read(&good[2]).unwrap();
    for path in [&torn, &other] {
        fs::copy(record(&good[2]), record(path)).unwrap();
    }
    fs::write(&torn, &whole[..whole.len() - 5]).unwrap();
    fs::write(
        &other,
        String::from_utf8(whole)
            .unwrap()
            .replace("\"row-2\"", "\"row-3\""),
    )
    .unwrap();
    let alone = torn.with_file_name("alone.jsonl");
    fs::copy(&good[2], &alone).unwrap();
    let of_model = made(&folder("model"), 4, 50, &of(2), 0);
    let of_input = made(&folder("input"), 4, 50, &of(1), 9);
    let of_more = made(&folder("more"), 4, 51, &of(1), 0);
    let of_count = made(&folder("count"), 5, 50, &of(1), 0);
    let cases: [(Vec<PathBuf>, i32, &[&str]); 10] = [
        (
            good[..3].to_vec(),
            2,
            &["found 3 of 4 shards, missing 3: expected all"],
        ),
        (vec![good[1].clone()], 2, &["missing 0, 2, 3"]),
        (
            instead_of(3, &good[0]),
            1,
            &["found shard 0/4, which", "is too, expected each once"],
        ),
        (instead_of(2, &torn), 1, &["2.jsonl", "bytes, expected"]),
        (
            instead_of(2, &other),
            1,
            &["other.jsonl", "contents of the hash"],
        ),
        (
            instead_of(2, &alone),
            1,
            &["alone.jsonl.shard.json", "found no such file"],
        ),
        (
            instead_of(2, &of_model[2]),
            1,
            &[
                "another model or other options",
                "--temperature (was 1, is 2)",
            ],
        ),
        (
            instead_of(2, &of_input[2]),
            1,
            &["another input (50 rows, sha256"],
        ),
        (instead_of(2, &of_more[2]), 1, &["another input (51 rows"]),
        (
            instead_of(2, &of_count[2]),
            1,
            &["found shard 2/5, and", "is 0/4"],
        ),
    ];
    for (shards, code, parts) in cases {
        merge(&shards, &output).fails_in_a_line(code, parts);
        assert_eq!(
            fs::read_to_string(&output).unwrap(),
            "what was there before"
        );
    }
    merge(&good, &good[1]).fails_in_a_line(2, &["found the shard file"]);
    merge(&[record(&good[0])], &output).fails_in_a_line(2, &["found the record of a shard"]);
    merge(&good, &output).good();
    assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 50);
}

#[test]
fn rows_in_error_are_in_the_record_and_in_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |name: &str, rest: &str| {
        let path = dir.path().join(name);
        fs::write(
            &path,
            format!("{{\"prompt\":\"x\",\"max_new_tokens\":1}}\n{{torn\n{rest}"),
        )
        .unwrap();
        path
    };
    let own = rows("own.jsonl", "{\"input_ids\":[]}\n");
    // The second row has no time for its answer.
    let cut = rows(
        "cut.jsonl",
        "{\"prompt\":\"x\",\"max_new_tokens\":3000,\"timeout_ms\":1}\n",
    );
    let logits = rows("logits.jsonl", "{\"input_ids\":[5]}\n");
    let cases: [(&[&str], &Path, &str, u64); 3] = [
        (&["generate"], &own, "jsonl", 2),
        (&["generate"], &cut, "jsonl", 2),
        (&["score"], &logits, "safetensors", 1),
    ];
    for (number, (command, input, extension, failed)) in cases.into_iter().enumerate() {
        let output = dir.path().join(format!("{number}.{extension}"));
        let arguments = [command, &["--model", "random:tiny", "--input", text(input)]].concat();
        shard(&arguments, &output, 0, 1).fails(3, &[]);
        let merged = dir.path().join(format!("merged.{extension}"));
        merge(std::slice::from_ref(&output), &merged).fails(3, &[]);
        if extension == "safetensors" {
            let other = dir.path().join("merged.of-logits");
            let parts = ["merged.of-logits: expected a name that ends in .safetensors"];
            merge(std::slice::from_ref(&output), &other).fails_in_a_line(2, &parts);
            assert!(!other.exists());
        }
        let said = fs::read_to_string(format!("{}.shard.json", output.display())).unwrap();
        assert!(said.contains(&format!("\"failed\":{failed}")), "{said}");
    }
}

/// `generate`, `score` and `merge`, the first to a stream too.
#[test]
fn rows_in_error_may_have_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let input = at("in.jsonl");
    let batch = "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"best_of\":3}}\n";
    fs::write(&input, awkward_input() + batch).unwrap();
    let is_error = |row: &Value| row.get("error").is_some_and(|error| !error.is_null());
    for command in [&["generate"][..], &["score", "--logprobs"]] {
        let arguments = [
            command,
            &["--model", "random:tiny", "--input", text(&input)],
        ];
        let arguments = arguments.concat();
        let all = at("all.jsonl");
        let overwrite = ["--quiet", "--overwrite", "--output"];
        run(&[&arguments, &overwrite[..], &[text(&all)]].concat()).fails(3, &[]);
        let expected = rows_without_timing(&all);
        let (wrong, right): (Vec<Value>, Vec<Value>) = expected.into_iter().partition(is_error);
        assert!(wrong.len() > 3 && right.len() > 6);

        let (output, errors) = (at("out.jsonl"), at("errors.jsonl"));
        let apart = ["--quiet", "--errors", text(&errors)];
        let to = |output, more: &[&str]| {
            run(&[&arguments, &apart[..], more, &["--output", output]].concat())
        };
        let check = || {
            assert_eq!(rows_without_timing(&errors), wrong, "{command:?}");
            assert_eq!(rows_without_timing(&output), right, "{command:?}");
            fs::remove_file(&output).unwrap();
        };
        to(text(&output), &[]).fails(3, &[]);
        check();
        to(text(&output), &[]).fails_in_a_line(2, &["errors.jsonl", "--overwrite"]);
        assert_eq!(rows_without_timing(&errors), wrong);
        let streamed = to("-", &["--overwrite"]);
        streamed.fails(3, &[]);
        fs::write(&output, &streamed.stdout).unwrap();
        check();
        to(text(&output), &["--shard", "0/2"]).fails(2, &["--errors", "--shard"]);
        to(text(&input), &[]).fails(2, &["input"]);
        to(text(&errors), &[]).fails(2, &["expected a file of its own"]);

        let shards = shards(&arguments, &at("shard.jsonl"), 3);
        let mut merge = vec!["merge", "-q", "--overwrite", "--errors", text(&errors)];
        merge.extend(["--output", text(&output)]);
        merge.extend(shards.iter().map(|path| text(path)));
        run(&merge).fails(3, &[]);
        check();
        for shard in shards {
            for ending in ["", ".shard.json", ".job.json"] {
                let _ = fs::remove_file(format!("{}{ending}", shard.display()));
            }
        }
        let _ = fs::remove_file(at("out.jsonl.job.json"));
        fs::remove_file(&errors).unwrap();
    }
}

#[test]
fn a_shard_is_a_file_of_some_rows() {
    let arguments = ["generate", "--model", "random:tiny", "--shard", "0/2"];
    run(&[&arguments[..], &["p"]].concat()).fails(2, &["--output"]);
    run(&[&arguments[..], &["p", "--output", "-"]].concat())
        .fails_in_a_line(2, &["--shard: expected --output FILE"]);
    let ended = run(&[
        "score",
        "--model",
        "random:tiny",
        "--input",
        "-",
        "--output",
        "/dev/stdout",
        "--logprobs",
        "--shard",
        "0/2",
    ]);
    ended.fails_in_a_line(2, &["--shard: expected --output FILE"]);
    for wrong in ["2/2", "1", "a/b", "0/70000", "0/2/3"] {
        run(&["generate", "--shard", wrong]).fails(2, &["expected I/N"]);
    }
}

#[test]
fn two_million_rows_merge_in_bounded_memory() {
    const ROWS: u64 = 2_000_000;
    let dir = tempfile::tempdir().unwrap();
    let shards = made(dir.path(), 8, ROWS, &Identity::default(), 0);
    let output = dir.path().join("merged.jsonl");
    let mut merge = command(&["merge", "--output", text(&output)]);
    let start = std::time::Instant::now();
    let peak = peak_bytes(merge.args(&shards));
    let seconds = start.elapsed().as_secs_f64();
    let bytes = output.metadata().unwrap().len();
    let from_shards: u64 = shards
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert_eq!(bytes, from_shards);
    eprintln!("{ROWS} rows, {bytes} bytes: {peak} bytes of memory, {seconds:.2} s");
    assert!(peak < 48 << 20, "{peak} bytes");
}
