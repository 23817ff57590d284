//! Several devices, which on a CPU are several engines on the host: replicas and stages give the answers of one engine, each
//! replica's recording replays alone, and what cannot be is refused by name.

use crate::common::program::{Ended, command, make_pipe, run, run_with_input};
use crate::common::rows::{mixed_input, rows, rows_without_timing, text};
use crate::common::schema::{check, schema};
use serde_json::{Value, json};
use std::path::Path;

/// Greedy and sampled, with and without logprobs.
fn input() -> String {
    mixed_input(|i, row| {
        if i.is_multiple_of(2) {
            row["temperature"] = json!(0.8);
            row["frequency_penalty"] = json!(0.5);
            row["logit_bias"] = json!({"40": 3, "41": -2.5});
        }
        if i.is_multiple_of(3) {
            row["logprobs"] = json!(i % 4);
        }
    })
}

fn generate(device: &str, output: &Path, more: &[&str]) -> Vec<Value> {
    answers(&input(), device, output, more)
}

fn answers(input: &str, device: &str, output: &Path, more: &[&str]) -> Vec<Value> {
    let common = ["generate", "--model", "random:tiny", "--device", device];
    let sizes = ["--quiet", "--max-seqs", "3", "--step-tokens", "80"];
    let args = [&common[..], &sizes, &["--output", text(output)], more].concat();
    let ended = run_with_input(&args, input);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    rows_without_timing(output)
}

fn replay(record: &Path) -> Ended {
    let record = text(record);
    let model = ["--model", "random:tiny", "--device", "cpu"];
    run(&[&["replay", "--record", record], &model[..]].concat())
}

#[test]
fn answers_are_those_of_one_engine_however_devices_share_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let expected = generate("cpu", &path("one"), &[]);
    for (device, more) in [
        ("cpu:0,1", &[][..]),
        ("cpu:3,0,7", &["--parallel", "replicas", "--stages", "2"]),
        ("cpu:0,1", &["--parallel", "stages"]),
        ("cpu:0,1", &["--parallel", "stages", "--stages", "4"]),
    ] {
        let found = generate(device, &path("several"), more);
        assert_eq!(found, expected, "{device} {more:?}");
        std::fs::remove_file(path("several")).unwrap();
    }
}

#[test]
fn each_replica_has_a_recording_that_replays_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let record = path("run.jsonl");
    let answers = generate("cpu:0,1", &path("rows"), &["--record", text(&record)]);
    assert!(!record.exists());
    let mut served = 0;
    let mut tokens = 0;
    for replica in 0..2 {
        let record = path(&format!("run.{replica}.jsonl"));
        let lines = rows(&std::fs::read_to_string(&record).unwrap());
        let count = |key: &str| lines.iter().filter(|line| line.get(key).is_some()).count();
        assert_eq!(count("request"), count("end"));
        let ended = replay(&record);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        let expected = format!(
            " {} tokens, {} requests: equal\n",
            count("token"),
            count("end")
        );
        assert!(ended.stdout.ends_with(&expected), "{}", ended.stdout);
        served += count("request");
        tokens += count("token");
    }
    let record = text(&path("run.0.jsonl")).to_owned();
    let ended = run(&[
        "replay",
        "--record",
        &record,
        "--model",
        "random:tiny",
        "--device",
        "cpu:0,1",
    ]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("`replay` looks at one alone"),
        "{}",
        ended.stderr
    );
    let answered = answers
        .iter()
        .map(|row| row["output_ids"].as_array().unwrap().len());
    assert_eq!((served, tokens), (answers.len(), answered.sum::<usize>()));
}

/// Eight groups of rows that begin alike, by turns: a replica gets those of a group one after the other. The first may be taken before
/// there are others to be seen.
#[test]
fn rows_that_begin_alike_go_to_replicas_together() {
    const GROUPS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let row = |i: usize| {
        let shared = (0..40).map(|j| 8 + (i % GROUPS) * 16 + j % 16);
        let ids: Vec<usize> = shared.chain([200 + i / GROUPS, 9]).collect();
        json!({"input_ids": ids, "max_new_tokens": 3}).to_string() + "\n"
    };
    let input: String = (0..128).map(row).collect();
    let expected = answers(&input, "cpu", &path("one"), &[]);
    let serve = |name: &str, more: &[&str]| {
        let record = path(&format!("{name}.jsonl"));
        let more = [&["--record", text(&record)], more].concat();
        let found = answers(&input, "cpu:0,1", &path(name), &more);
        assert_eq!(found, expected, "{more:?}");
    };
    serve("together", &[]);
    serve("by_turns", &["--in-order"]);
    // How often a replica's next request is of another group.
    let switches = |record: &str| {
        let mut groups = vec![];
        for replica in 0..2 {
            let record =
                std::fs::read_to_string(path(&format!("{record}.{replica}.jsonl"))).unwrap();
            let lines = rows(&record);
            let requests = lines.iter().filter_map(|line| line.get("request"));
            groups.extend(requests.map(|request| request["prompt"][0].as_u64().unwrap()));
        }
        assert_eq!(groups.len(), 128);
        groups.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    let [together, by_turns] = ["together", "by_turns"].map(switches);
    assert!(together < 64 && by_turns > 64, "{together}, {by_turns}");
}

/// Logits come out under the prompts' own numbers, whoever has scored them.
#[test]
fn scored_prompts_are_those_of_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let (input, logits) = (
        folder.path().join("prompts"),
        folder.path().join("one.safetensors"),
    );
    let row = |i: u32| json!({"input_ids": (0..1 + i % 9).map(|j| (i * 31 + j * 7) % 250).collect::<Vec<_>>()});
    let prompts: String = (0..60).map(|i| row(i).to_string() + "\n").collect();
    std::fs::write(&input, prompts).unwrap();
    let score = |device: &str, more: &[&str]| {
        let head = ["score", "--model", "random:tiny", "--device", device];
        let sizes = ["--max-seqs", "4", "--input", text(&input)];
        let ended = run(&[&head[..], &sizes, more].concat());
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
        ended
    };
    score("cpu", &["--output", text(&logits)]);
    for more in [&[][..], &["--parallel", "stages"]] {
        let expect = ["--expect", text(&logits), "--tolerance", "0"];
        let ended = score("cpu:0,1", &[&expect[..], more].concat());
        assert!(
            ended.stdout.contains("VALID (tolerance 0e0)"),
            "{}",
            ended.stdout
        );
    }
}

#[test]
fn serving_and_scoring_are_measured_on_several_devices() {
    for (kind, rest) in [
        (
            "serve",
            &["--max-concurrency", "6", "--num-prompts", "12", "-n", "8"][..],
        ),
        ("score", &["-b", "9", "-p", "5"]),
    ] {
        let head = [
            "bench",
            kind,
            "--model",
            "random:tiny",
            "--device",
            "cpu:0,1",
        ];
        let more = ["-r", "2", "--quiet", "--format", "json"];
        let ended = run(&[&head[..], rest, &more].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{kind}");
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        check(&schema("bench"), &found).unwrap_or_else(|wrong| panic!("{kind}: {wrong}"));
        let row = &found[0];
        assert_eq!(row["replicas"], 2);
        let (completed, tokens) = match kind {
            "serve" => (12, 12 * 8),
            _ => (9, 0),
        };
        assert_eq!(row["completed"], completed);
        assert_eq!(row["total_output_tokens"], tokens);
        assert!(row["median_ts"].as_f64().unwrap() > 0.0);
        assert!(row["floor_ms"].is_null(), "a floor is that of one device");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let generate = ["generate", "--model", "random:tiny", "x"];
    let bench = ["bench", "decode", "--model", "random:tiny"];
    let trace = ["trace", "--model", "random:tiny", "-o", "none", "x"];
    for (command, rest, expected) in [
        (
            &generate[..],
            &["--device", "cpu:0,0"][..],
            "found cpu:0 twice",
        ),
        (
            &generate,
            &["--device", "cpu:0,x"],
            "expected cpu, cuda, or either with numbers",
        ),
        (
            &generate,
            &["--device", "cpu:"],
            "expected cpu, cuda, or either with numbers",
        ),
        (
            &generate,
            &["--device", "gpu:0,1"],
            "expected cpu, cuda, or either with numbers",
        ),
        (
            &generate,
            &["--parallel", "stages"],
            "--parallel: expected --device with several",
        ),
        (
            &generate,
            &[
                "--device",
                "cpu:0,1,2",
                "--parallel",
                "stages",
                "--stages",
                "2",
            ],
            "--stages 2: expected at least one for each of the 3 devices",
        ),
        (
            &generate,
            &["--device", "cpu:0,1,2,3,4,5", "--parallel", "stages"],
            "a stage on each of the 6 devices of --device: --stages 6: expected 1 to 5",
        ),
        (
            &bench,
            &["--device", "cpu:0,1"],
            "bench decode: measures the steps of one device",
        ),
        (
            &trace,
            &["--device", "cpu:0,1"],
            "trace: expected --device with one device",
        ),
    ] {
        let ended = run(&[command, rest].concat());
        assert_eq!(ended.code, 2, "{rest:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(expected),
            "{rest:?}: {}",
            ended.stderr
        );
    }
}

/// A name of a stream with a number behind it is no stream: `-.0`, and in /dev a file that nobody looks for.
#[test]
fn recordings_of_several_devices_are_files() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"input_ids\":[9,8,80]}\n").unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let devices = ["--model", "random:tiny", "--device", "cpu:0,1", "-q"];
    for run in [
        &["generate", "-o", "answers", "-i"][..],
        &["score", "--logprobs", "-o", "answers", "-i"],
    ] {
        for stream in ["-", "/dev/stderr", "/dev/null", "pipe"] {
            let mut run = command(run);
            let run = run.arg(&rows).args(devices).args(["--record", stream]);
            let ended = Ended::of(run.current_dir(folder.path()).output().unwrap());
            ended.fails_in_a_line(2, &["--record", stream, "each of the 2 devices"]);
            let found = std::fs::read_dir(folder.path()).unwrap();
            assert_eq!(found.count(), 2, "{stream}");
        }
    }
}

/// By the name that `--record` had, `replay` and `trace` take the recordings of all devices.
#[test]
fn recordings_of_several_devices_are_one_set() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let rows: String = (1..9)
        .map(|n| format!("{{\"input_ids\":[{n},8,80]}}\n"))
        .collect();
    std::fs::write(path("rows.jsonl"), rows).unwrap();
    let (rows, record, trace) = (path("rows.jsonl"), path("run.jsonl"), path("t.json"));
    let generate = [
        "generate",
        "-m",
        "random:tiny",
        "--device",
        "cpu:0,1",
        "-n",
        "4",
        "-q",
        "-i",
        text(&rows),
        "--record",
        text(&record),
        "-o",
        "/dev/null",
    ];
    assert_eq!(run(&generate).code, 0);
    let replay = ["replay", "-m", "random:tiny", "--device", "cpu", "--record"];
    let replayed = run(&[&replay[..], &[text(&record)]].concat());
    assert_eq!(replayed.code, 0, "{}", replayed.stderr);
    let equal: Vec<&str> = replayed.stdout.lines().collect();
    assert_eq!(equal.len(), 2);
    for (device, line) in equal.iter().enumerate() {
        let named = line.contains(&format!("run.{device}.jsonl: "));
        assert!(named && line.ends_with(": equal"), "{line}");
    }
    let traced = run(&["trace", "--from", text(&record), "-o", text(&trace)]);
    assert_eq!(traced.code, 0, "{}", traced.stderr);
    assert!(path("t.0.json").is_file() && path("t.1.json").is_file() && !trace.exists());
    let one = run(&["trace", "--from", text(&record), "-o", "/dev/stdout"]);
    one.fails_in_a_line(2, &["--output", "each of the 2 devices"]);
    // A device's that is missing ends the set; none at all is the file that was asked for.
    std::fs::remove_file(path("run.0.jsonl")).unwrap();
    run(&[&replay[..], &[text(&record)]].concat()).fails(1, &["run.jsonl", "found no such file"]);
}
