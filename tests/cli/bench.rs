//! `bench`: every kind on the CPU at tiny size.

use crate::common::program::{Ended, run};
use crate::common::rows::{rows, text};
use crate::common::schema::{check, schema};
use serde_json::{Value, json};

pub fn bench(rest: &[&str]) -> Ended {
    let on = ["--model", "random:tiny", "--device", "cpu", "--quiet"];
    run(&[&["bench"], rest, &on].concat())
}

/// The results as JSON, held to the schema.
pub fn results(rest: &[&str]) -> Vec<Value> {
    let ended = bench(&[rest, &["--format", "json"]].concat());
    assert_eq!(ended.code, 0, "{rest:?}: {}", ended.stderr);
    assert_eq!(ended.stderr, "", "{rest:?}");
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    check(&schema("bench"), &found).unwrap_or_else(|wrong| panic!("{rest:?}: {wrong}"));
    found.as_array().unwrap().clone()
}

pub fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} is {}", row[field]))
}

#[test]
fn decode_gives_all_combinations_and_figures_that_fit_together() {
    let found = results(&[
        "-b",
        "1-2",
        "--prompt-len",
        "4,8",
        "-n",
        "24",
        "--cpu-load",
        "0,1",
        "-r",
        "2",
        "--bandwidth",
        "10",
    ]);
    let combinations: Vec<_> = found
        .iter()
        .map(|row| [&row["batch"], &row["n_prompt"], &row["cpu_load"]].map(|v| v.as_u64().unwrap()))
        .collect();
    let expected = [
        [1, 4, 0],
        [1, 4, 1],
        [1, 8, 0],
        [1, 8, 1],
        [2, 4, 0],
        [2, 4, 1],
        [2, 8, 0],
        [2, 8, 1],
    ];
    assert_eq!(combinations, expected);
    for row in &found {
        let (batch, samples) = (number(row, "batch"), row["samples_ts"].as_array().unwrap());
        assert_eq!(samples.len(), 2);
        assert_eq!(number(row, "total_output_tokens"), batch * 24.0);
        assert_eq!(number(row, "ttft_count"), batch * 2.0);
        assert_eq!(number(row, "itl_count"), batch * 23.0 * 2.0);
        // The rate is that of the steps: the same figure twice over, by way of the tokens and of the turns.
        let steps_ms = number(row, "mean_step_ms") * number(row, "step_count");
        let tokens = number(row, "step_count") * batch;
        let nanoseconds: f64 = row["samples_ns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap())
            .sum();
        assert!((steps_ms * 1e6 / nanoseconds - 1.0).abs() < 1e-6, "{row}");
        let rates: f64 = row["samples_ts"]
            .as_array()
            .unwrap()
            .iter()
            .zip(row["samples_ns"].as_array().unwrap())
            .map(|(rate, ns)| rate.as_f64().unwrap() * ns.as_f64().unwrap() / 1e9)
            .sum();
        assert!((rates / tokens - 1.0).abs() < 1e-6, "{row}");
        for name in ["ttft", "itl", "step", "e2el"] {
            let at = |prefix: &str| number(row, &format!("{prefix}_{name}_ms"));
            assert!(
                at("median") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("p99.9"),
                "{row}"
            );
            assert!(at("median") > 0.0, "{row}");
        }
        assert!(number(row, "median_e2el_ms") <= number(row, "duration") * 1e3 * 2.0);
        assert!(number(row, "floor_fraction") > 0.0 && number(row, "floor_ms") > 0.0);
        // A row goes to 4 experts of 8; two rows to as many or more.
        let hit = ["min", "mean", "max"].map(|name| number(row, &format!("experts_hit_{name}")));
        assert!(
            4.0 <= hit[0] && hit[0] <= hit[1] && hit[1] <= hit[2],
            "{hit:?}"
        );
        assert!(
            hit[2] <= 4.0 * batch && (batch == 1.0 || hit[2] > 4.0),
            "{hit:?}"
        );
        let share = ["min", "mean", "max"].map(|name| number(row, &format!("expert_share_{name}")));
        // An expert has at most one of a row's four choices.
        assert!(
            share[0] <= share[1] && share[1] < share[2] && share[2] <= 0.25,
            "{share:?}"
        );
        assert_eq!(share[1], 0.125);
        assert_eq!(row["turns_lost"], 0);
        assert!(row["launches_per_token"].is_null() && row["energy_j_per_token"].is_null());
        assert!(number(row, "host_cpu_s_per_1k_tokens") > 0.0);
        assert!(number(row, "startup_first_token_ms") > 0.0);
    }
}

/// The figures of a row are those of its steps.
#[test]
fn every_step_is_kept_where_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.jsonl");
    let sizes = ["-b", "1,2", "-p", "4", "-n", "20", "-r", "2"];
    let found = results(&[&sizes[..], &["--steps", text(&file)]].concat());
    let steps = rows(&std::fs::read_to_string(&file).unwrap());
    let repeats: Vec<_> = steps.iter().map(|line| &line["repeat"]).collect();
    assert_eq!(repeats, [1, 2, 1, 2]);
    for (row, repeats) in found.iter().zip(steps.chunks(2)) {
        assert!(repeats.iter().all(|line| line["batch"] == row["batch"]));
        let times = repeats
            .iter()
            .flat_map(|line| line["step_ms"].as_array().unwrap());
        let mut times: Vec<f64> = times.map(|ms| ms.as_f64().unwrap()).collect();
        times.sort_by(f64::total_cmp);
        assert_eq!(times.len() as f64, number(row, "step_count"));
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((mean / number(row, "mean_step_ms") - 1.0).abs() < 1e-9);
        let interval = tailgraph::bench::stats::interval(&times, 0.5);
        assert_eq!(row["median_step_ms_ci95"], json!(interval.unwrap()));
        assert!(row["p99_step_ms_ci95"].is_null(), "too few");
    }
    let both = [&sizes[..], &["--steps", text(&file), "-o", text(&file)]].concat();
    bench(&both).fails(2, &["--steps", "found the same name as --output"]);
}

#[test]
fn prefill_score_and_serve_measure_what_they_say() {
    let [prefill] = &results(&["prefill", "-b", "2", "-p", "40", "-r", "1"])[..] else {
        panic!("one result")
    };
    // 80 rows of 4 experts each, of 8.
    assert!(number(prefill, "experts_hit_mean") > 6.0, "{prefill}");
    assert_eq!(
        (&prefill["n_prompt"], &prefill["n_gen"]),
        (&40.into(), &1.into())
    );
    assert_eq!(number(prefill, "total_input_tokens"), 80.0);
    assert!(prefill["median_itl_ms"].is_null() && prefill["floor_ms"].is_null());

    let [score] = &results(&[
        "score",
        "-b",
        "40",
        "--prompt-len",
        "8",
        "-r",
        "1",
        "--warm-up",
        "0",
    ])[..] else {
        panic!("one result")
    };
    assert_eq!(number(score, "completed"), 40.0);
    assert_eq!(number(score, "total_output_tokens"), 0.0);
    assert!(score["mean_ttft_ms"].is_null());
    assert!(number(score, "avg_ts") > 0.0 && number(score, "request_throughput") > 0.0);
    assert!(number(score, "experts_hit_min") > 6.0, "{score}");
    assert!(number(score, "expert_share_max") < 0.25, "{score}");

    let rates = [
        "serve",
        "-b",
        "2",
        "-p",
        "6",
        "-n",
        "4",
        "--num-prompts",
        "10",
        "-r",
        "1",
    ];
    let found = results(&[&rates[..], &["--request-rate", "40,inf"]].concat());
    let [spread, at_once] = &found[..] else {
        panic!("two results")
    };
    assert_eq!(
        (&spread["request_rate"], &at_once["request_rate"]),
        (&40.0.into(), &"inf".into())
    );
    assert!(
        spread["experts_hit_mean"].is_null(),
        "no step of it is typical"
    );
    assert_eq!(number(spread, "max_seqs"), 2.0);
    // Ten at once wait for two places; the load is what makes the difference.
    let waits = |row: &Value| number(row, "p90_ttft_ms") / number(row, "median_tpot_ms");
    assert!(waits(at_once) > 8.0, "{at_once}");
}

/// Eight prompts of several steps come in one after the other, and end so.
#[test]
fn a_point_that_shows_nothing_leaves_the_others_their_results() {
    let point = ["-b", "1,8", "-p", "64", "-n", "4", "--step-tokens", "72"];
    let ended = bench(&[&point[..], &["-r", "1", "--format", "jsonl"]].concat());
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let expected = "8 sequences were never all in two decode steps";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    let batches: Vec<_> = ended
        .rows()
        .iter()
        .map(|row| number(row, "batch"))
        .collect();
    assert_eq!(batches, [1.0]);
}

#[test]
fn a_pause_is_made_before_each_run_that_counts() {
    let start = std::time::Instant::now();
    let point = ["-b", "1", "-p", "4", "-n", "4,6", "-r", "1"];
    results(&[&point[..], &["--pause", "0.3"]].concat());
    assert!(start.elapsed().as_secs_f64() > 0.6);
}
