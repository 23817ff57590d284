//! `score`: every input, every output, and the verdict.

use crate::common::fixtures::golden;
use crate::common::program::{run, run_with_input};
use crate::common::rows::rows;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::Path;

fn floats(file: &SafeTensors<'_>, name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = file.tensor(name).unwrap();
    let values = tensor
        .data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    (tensor.shape().to_vec(), values.collect())
}

fn golden_arrays() -> String {
    format!("{}/golden.safetensors", golden("a"))
}

#[test]
fn goldens_agree_and_a_changed_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let model = golden("a");
    let input = format!("{model}/golden.safetensors");
    let out = dir.path().join("logits.safetensors");
    let out = out.to_str().unwrap();
    let ended = run(&[
        "score",
        "--model",
        &model,
        "--input",
        &input,
        "--expect",
        &input,
        "--output",
        out,
        "--tolerance",
        "1e-5",
    ]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(
        ended.stdout.contains("top-1 agreement 609/609"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.ends_with("VALID (tolerance 1e-5)\n"),
        "{}",
        ended.stdout
    );
    assert!(ended.stderr.contains("samples/s"), "{}", ended.stderr);

    // Ours as expectation: not a bit differs, whatever the sizes.
    let again = run(&[
        "score",
        "--model",
        &model,
        "--input",
        &input,
        "--expect",
        out,
        "--tolerance",
        "0",
        "--stages",
        "2",
        "--step-tokens",
        "80",
        "--chunk-align",
        "16",
        "--page-tokens",
        "16",
        "--max-seqs",
        "3",
    ]);
    assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);
    assert!(
        again.stdout.contains("relative difference 0.000e0"),
        "{}",
        again.stdout
    );

    // One logit changed is INVALID.
    let mut bytes = std::fs::read(out).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&1e3_f32.to_le_bytes());
    std::fs::write(out, bytes).unwrap();
    let wrong = run(&[
        "score", "--model", &model, "--input", &input, "--expect", out,
    ]);
    assert_eq!(wrong.code, 4, "{}{}", wrong.stdout, wrong.stderr);
    assert!(
        wrong.stdout.contains("disagrees: logits.10 position 256"),
        "{}",
        wrong.stdout
    );
    assert!(
        wrong.stdout.ends_with("INVALID (tolerance 1e-4)\n"),
        "{}",
        wrong.stdout
    );
}

#[test]
fn every_kind_of_input_gives_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ids: Vec<u8> = [5_i32, 6, 7, 8, 9, 10]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    std::fs::write(at("ids.bin"), &ids).unwrap();
    let view = TensorView::new(Dtype::I32, vec![2, 3], &ids).unwrap();
    serialize_to_file(
        [("input_ids", view)],
        None,
        Path::new(&at("ids.safetensors")),
    )
    .unwrap();
    let (one, two) = (
        TensorView::new(Dtype::I32, vec![3], &ids[..12]).unwrap(),
        TensorView::new(Dtype::I32, vec![3], &ids[12..]).unwrap(),
    );
    serialize_to_file(
        [("prompt.0", one), ("prompt.1", two)],
        None,
        Path::new(&at("prompts.safetensors")),
    )
    .unwrap();
    std::fs::write(
        at("ids.jsonl"),
        "{\"input_ids\":[5,6,7]}\n{\"id\":\"x\",\"input_ids\":[8,9,10]}\n",
    )
    .unwrap();
    let score = |input: &str, output: &str, more: &[&str]| {
        let mut args = vec![
            "score",
            "--model",
            "random:tiny",
            "--input",
            input,
            "--output",
            output,
            "--overwrite",
        ];
        args.extend(more);
        let ended = run(&args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        std::fs::read(output).unwrap()
    };
    let expected = score(&at("ids.bin"), &at("a.safetensors"), &["--shape", "2,3"]);
    for input in ["ids.safetensors", "prompts.safetensors", "ids.jsonl"] {
        assert!(
            score(&at(input), &at("b.safetensors"), &[]) == expected,
            "{input}"
        );
    }
    let all = SafeTensors::deserialize(&expected).unwrap();
    let (shape, values) = floats(&all, "logits.1");
    assert_eq!(shape, [3, 512]);
    let bytes = score(
        &at("ids.jsonl"),
        &at("last.safetensors"),
        &["--logits", "last"],
    );
    let last = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(
        floats(&last, "logits.1"),
        (vec![512], values[2 * 512..].to_vec())
    );
}

#[test]
fn logprobs_are_those_of_the_logits() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits.safetensors");
    let input =
        "{\"id\":\"a\",\"input_ids\":[9,20,300]}\nbroken\n{\"id\":\"one\",\"input_ids\":[9]}\n";
    let ended = run_with_input(
        &[
            "score",
            "--model",
            "random:tiny",
            "--input",
            "-",
            "--logprobs",
        ],
        input,
    );
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let rows = rows(&ended.stdout);
    assert_eq!(rows[1]["error"]["code"], "invalid_json");
    assert!(rows[2]["perplexity"].is_null());

    let args = [
        "score",
        "--model",
        "random:tiny",
        "--input",
        "-",
        "--output",
        out.to_str().unwrap(),
    ];
    let ended = run_with_input(&args, input);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("line 2: invalid_json"),
        "{}",
        ended.stderr
    );
    let bytes = std::fs::read(&out).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, logits) = floats(&file, "logits.0");
    let mut sum = 0.0;
    for (position, token) in [(0, 20), (1, 300)] {
        let row = &logits[position * 512..(position + 1) * 512];
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = f64::from(row[token]) - total.ln();
        let found = rows[0]["logprobs"][position + 1].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        sum += expected;
    }
    assert!(rows[0]["logprobs"][0].is_null());
    let perplexity = rows[0]["perplexity"].as_f64().unwrap();
    assert!((perplexity - (-sum / 2.0).exp()).abs() / perplexity < 1e-5);
}

#[test]
fn arrays_that_do_not_fit_the_model_are_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ids.bin");
    let ids: Vec<u8> = [5_i32, 512].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&path, ids).unwrap();
    let out = dir.path().join("out.safetensors");
    let (path, output) = (path.to_str().unwrap(), out.to_str().unwrap());
    let score = |more: &[&str]| {
        let mut args = vec![
            "score",
            "--model",
            "random:tiny",
            "--input",
            path,
            "--output",
            output,
        ];
        args.extend(more);
        run(&args)
    };
    let ended = score(&["--shape", "1,2"]);
    assert_eq!(ended.code, 1);
    assert!(
        ended
            .stderr
            .contains("row 0: found token id 512 at position 1"),
        "{}",
        ended.stderr
    );
    let ended = score(&["--shape", "1,3"]);
    assert!(
        ended.stderr.contains("found 8 bytes, expected 1 x 3 int32"),
        "{}",
        ended.stderr
    );
    let ended = score(&["--shape", "1,2", "--max-context", "1"]);
    assert_eq!(ended.code, 1);
    // Nothing is left of what never began.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// `--output` was written over the arrays that `--input` or `--expect` had just been read from.
#[test]
fn an_output_that_is_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("arrays.safetensors");
    std::fs::copy(golden_arrays(), &path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let arrays = path.to_str().unwrap();
    let other = golden_arrays();
    let cases: [(&[&str], &str); 3] = [
        (&["--input", arrays], "found the input file"),
        (&["--input", arrays, "--logprobs"], "found the input file"),
        (
            &["--input", &other, "--expect", arrays],
            "found the --expect file",
        ),
    ];
    for (args, expected) in cases {
        let model = golden("a");
        let args = [&["score", "--model", &model, "--output", arrays], args].concat();
        let ended = run(&args);
        ended.fails(2, &[expected]);
        assert_eq!(std::fs::read(&path).unwrap(), before, "{args:?}");
    }
}

/// A comparison of nothing was VALID.
#[test]
fn nothing_agrees_with_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    let (model, expected) = (golden("a"), golden_arrays());
    let input = empty.to_str().unwrap();
    let ended = run(&[
        "score", "--model", &model, "--input", input, "--expect", &expected,
    ]);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(
        ended.stdout.contains("positions compared: 0 of 0"),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("INVALID"), "{}", ended.stdout);
}

/// What cannot run takes nothing from an earlier run's file.
#[test]
fn a_run_that_does_not_begin_leaves_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("logprobs.jsonl");
    std::fs::write(&output, "earlier\n").unwrap();
    let (model, input) = (golden("a"), golden_arrays());
    let output = output.to_str().unwrap();
    let ended = run(&[
        "score",
        "--model",
        &model,
        "--input",
        &input,
        "--logprobs",
        "--output",
        output,
        "--bucket-file",
        "/no/such.toml",
    ]);
    assert_ne!(ended.code, 0);
    assert_eq!(
        std::fs::read_to_string(output).unwrap(),
        "earlier\n",
        "{}",
        ended.stderr
    );
}

/// The logits are put together in OUTPUT.partial, which was the input.
#[test]
fn the_file_on_the_way_to_an_output_is_not_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let partial = dir.path().join("x.safetensors.partial");
    std::fs::copy(golden_arrays(), &partial).unwrap();
    let before = std::fs::read(&partial).unwrap();
    let (input, output) = (partial.to_str().unwrap(), dir.path().join("x.safetensors"));
    let output = output.to_str().unwrap();
    let ended = run(&[
        "score",
        "--model",
        &golden("a"),
        "--input",
        input,
        "--output",
        output,
    ]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("by way of"), "{}", ended.stderr);
    assert_eq!(std::fs::read(&partial).unwrap(), before);
}
