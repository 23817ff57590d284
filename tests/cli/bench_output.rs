//! What `bench` writes: tables, CSV and JSON of the same results, files, what an
//! interrupt leaves, and `bench compare` of two of them.

use crate::bench::{bench, results};
use crate::common::program::{command, run, send};
use crate::common::rows::{rows, text};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn tables_csv_and_lines_have_the_same_results() {
    let point = ["-b", "1", "-p", "4", "-n", "6", "-r", "1"];
    let text = |format: &str| {
        let ended = bench(&[&point[..], &["--format", format]].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stdout
    };
    let table = text("md");
    assert!(table.starts_with("random:tiny@0 on "), "{table}");
    assert!(
        table.contains("t/s (mean ± sd)") && table.contains("first token ms"),
        "{table}"
    );
    assert!(
        table
            .lines()
            .skip(1)
            .all(|line| line.chars().count() <= 120),
        "{table}"
    );
    let csv = text("csv");
    let (header, line) = csv.trim_end().split_once('\n').unwrap();
    assert!(
        header.contains(",avg_ts,stddev_ts,") && !header.contains("samples"),
        "{header}"
    );
    assert!(line.contains(",decode,1,4,,,,,6,"), "{line}");
    assert_eq!(rows(&text("jsonl"))[0]["n_gen"], 6);
}

#[test]
fn an_output_is_a_file_and_no_format() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bench.json");
    let file = file.to_str().unwrap();
    let point = ["-b", "1", "-p", "4", "-n", "6", "-r", "1"];
    for format in ["md", "csv", "json", "jsonl"] {
        let ended = bench(&[&point[..], &["-o", format]].concat());
        let advice = format!(
            "--output {format}: found the name of a format, expected a file: formats are --format {format}"
        );
        ended.fails(2, &[&advice]);
        run(&["bench", "compare", "a", "b", "-o", format]).fails(2, &[&advice]);
    }
    // What the file's name ends in is its format.
    let ended = bench(&[&point[..], &["-o", file]].concat());
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, ""),
        "{}",
        ended.stderr
    );
    let written = std::fs::read_to_string(file).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap()[0]["n_gen"],
        6
    );
    run(&["bench", "compare", file, file, "-o", file]).fails(2, &["found the A file"]);
    // One repeat is not enough, and that is said; three are, and nothing need be.
    let compared = run(&["bench", "compare", file, file]).stdout;
    assert!(
        compared.contains("too few repeats") && compared.contains("Welch"),
        "{compared}"
    );
}

#[test]
fn two_measurements_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let found = results(&["-b", "1", "-p", "4", "-n", "8", "-r", "3"]);
    std::fs::write(path("a"), serde_json::to_string(&found).unwrap()).unwrap();
    // The same, five times as fast; and as lines.
    let mut faster = found[0].clone();
    faster["samples"]["tokens_per_s"] = serde_json::json!([1e6, 1.01e6, 0.99e6]);
    faster["build_profile"] = "release".into();
    std::fs::write(path("b"), format!("{faster}\n")).unwrap();
    let compare = |a: &str, b: &str, format: &str| {
        run(&["bench", "compare", &path(a), &path(b), "--format", format])
    };

    let lines = compare("a", "b", "jsonl").rows();
    let verdict =
        |figure: &str| lines.iter().find(|l| l["figure"] == figure).unwrap()["verdict"].clone();
    assert_eq!(verdict("tokens_per_s"), "B better");
    assert_eq!(verdict("median_itl_ms"), "no difference shown");
    let table = compare("a", "a", "md");
    assert_eq!((table.code, table.stderr.as_str()), (0, ""));
    assert!(
        table.stdout.contains("no difference shown")
            && table.stdout.contains("B / A |")
            && table.stdout.contains("Welch"),
        "{}",
        table.stdout
    );
    if cfg!(debug_assertions) {
        let stderr = compare("a", "b", "md").stderr;
        assert!(stderr.contains("build profile differs"), "{stderr}");
    }
    std::fs::write(path("c"), "{\"kind\": 1}\n").unwrap();
    let ended = compare("a", "c", "md");
    assert_eq!(ended.code, 1);
    assert!(
        ended
            .stderr
            .contains("expected results of `bench --format json`"),
        "{}",
        ended.stderr
    );
}

/// What was measured before was lost; and it is no reason to give up what an earlier run came to.
#[test]
fn an_interrupted_bench_prints_its_whole_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    std::fs::write(&file, "of an earlier run").unwrap();
    interrupt_bench(&[]);
    let rest = interrupt_bench(&["--output", text(&file)]);
    assert!(rest.contains("bench.json: left as it is"), "{rest}");
    assert_eq!(std::fs::read(&file).unwrap(), b"of an earlier run");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// What it says on standard error.
fn interrupt_bench(more: &[&str]) -> String {
    let mut child = command(&[
        "bench",
        "--model",
        "random:tiny",
        "--batch",
        "1",
        "--gen-len",
        "16",
        "--repeats",
        "100000",
        "--format",
        "json",
    ])
    .args(more)
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    // The third has begun: two are whole.
    while !said.next().unwrap().unwrap().starts_with("repeat 3 ") {}
    send(&child, "-INT");
    // Or it would wait for a reader.
    let rest = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<_>>());
    let output = child.wait_with_output().unwrap();
    let rest = rest.join().unwrap().join("\n");
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(
        rest.contains("the results are of the repeats") && rest.ends_with("tailgraph: interrupted"),
        "{rest}"
    );
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows[0]["repeats"].as_u64().unwrap() >= 2, "{rows}");
    rest
}
