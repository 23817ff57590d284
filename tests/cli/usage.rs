//! What is refused, with which exit code and words.

use crate::common::fixtures::golden;
use crate::common::program::{Ended, command, run, run_with_input, tailgraph};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn flags_have_the_names_that_people_type() {
    let ours = [
        "--max-new-tokens",
        "1024",
        "--max-seqs",
        "2",
        "--max-context",
        "3000",
        "--dtype",
        "f32",
    ];
    let theirs = [
        "-n",
        "1K",
        "--max-num-seqs",
        "2",
        "--max-model-len",
        "3k",
        "--dtype",
        "float32",
    ];
    let run = |flags: &[&str]| {
        tailgraph(&[&["generate", "--model", "random:tiny"], flags, &["x"]].concat())
    };
    let expected = run(&ours);
    assert_eq!(run(&theirs), expected);
    assert_eq!(
        run(&[&["--max-tokens", "1024"], &ours[2..]].concat()),
        expected
    );
}

#[test]
fn help_has_examples_and_where_all_flags_are() {
    let help = |flag| tailgraph(&["generate", flag]);
    let (short, all) = (help("--help"), help("--help-all"));
    for text in [&short, &all] {
        assert!(text.contains("Examples:\n") && text.contains("Read more: "));
        assert!(text.contains("--help-all") && text.contains("Exit codes: "));
    }
    assert!(all.contains("--chunk-align") && !short.contains("--chunk-align"));
    assert!(tailgraph(&["bench", "decode", "--help"]).contains("Examples:\n"));
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_was_expected() {
    let generate = |rest: &[&str]| -> Vec<String> {
        let head = ["generate", "--model", "random:tiny"];
        head.iter().chain(rest).map(|s| (*s).to_owned()).collect()
    };
    let mut cases = vec![
        (
            generate(&["--device", "tpu", "x"]),
            "--device tpu: expected cpu, cuda",
        ),
        (
            generate(&["--dtype", "bf16", "x"]),
            "--dtype bf16: the CPU computes in f32 only",
        ),
        (
            generate(&["--fp16", "x"]),
            "--fp16: the CPU computes in f32 only",
        ),
        (
            generate(&["--fp16", "--dtype", "f16", "x"]),
            "cannot be used with",
        ),
        (
            generate(&["--launch", "bare", "x"]),
            "host-kernels, host-graph, host-graph-ahead, device-graph]",
        ),
        (
            generate(&["--launch", "host-graph", "x"]),
            "--launch: the CPU launches no kernels",
        ),
        (
            generate(&["--launch", "host-graph-event", "x"]),
            "host-kernels, host-graph, host-graph-ahead, device-graph]",
        ),
        (
            generate(&["--kernel-file", "/no/such.toml", "x"]),
            "--kernel-file: it is an option of --device cuda",
        ),
        (
            generate(&["--temperature=-1", "x"]),
            "expected a number from 0 (greedy)",
        ),
        // Was "unexpected argument '-1' found".
        (
            generate(&["--temperature", "-1", "x"]),
            "expected a number from 0 (greedy)",
        ),
        // Was "unexpected argument '-1' found", and how to make it a prompt.
        (
            generate(&["--max-new-tokens", "-1", "x"]),
            "invalid value '-1' for '--max-new-tokens",
        ),
        (
            generate(&["--max-seqs", "-1", "x"]),
            "invalid value '-1' for '--max-seqs",
        ),
        (
            generate(&["--seed", "1.5", "x"]),
            "expected a 64-bit integer",
        ),
        (
            generate(&["--top-k", "-2", "x"]),
            "expected an integer from 0 to 4294967295 (0 or -1 keeps all)",
        ),
        (
            generate(&["--top-p", "1.5", "x"]),
            "expected a number from 0 (keeps the most likely token alone) to 1",
        ),
        (
            generate(&["--max-new-tokens", "0", "x"]),
            "expected a number of tokens from 1 to",
        ),
        (
            generate(&["--tensor-parallel-size", "2", "x"]),
            "tip: --device cuda:0,1 takes several GPUs",
        ),
        (
            generate(&["--n-gpu-layers", "99", "x"]),
            "tip: --device cuda has all",
        ),
        (generate(&["--logprobs", "21", "x"]), "21 is not in 0..=20"),
        (generate(&["--stop", "", "x"]), "found an empty string"),
        (
            generate(&["--stop", &"s".repeat(4097), "x"]),
            "found a string of 4097 bytes, expected at most 4096",
        ),
        (
            generate(&[&["--stop", "s"].repeat(65)[..], &["x"]].concat()),
            "--stop: found 65 strings, expected at most 64",
        ),
        (
            generate(&["--memory-limit", "many", "x"]),
            "--memory-limit 'many'",
        ),
        (
            generate(&["--stages", "99", "x"]),
            "--stages 99: expected 1 to 5",
        ),
        (
            generate(&["--max-context", "999999", "x"]),
            "--max-context 999999: expected 1 to 4096",
        ),
        (generate(&["--resume", "x"]), "--output"),
        (
            generate(&["--resume", "--output", "-", "x"]),
            "--resume: expected --output FILE",
        ),
        (generate(&["--input", "rows", "x"]), "cannot be used with"),
        (
            vec![
                "generate".into(),
                "--model".into(),
                "random:none".into(),
                "x".into(),
            ],
            "found the preset \"none\"",
        ),
        (vec!["generate".into(), "x".into()], "--model"),
        (vec!["nothing".into()], "unrecognized subcommand"),
        (
            vec!["man".into(), "nothing".into()],
            "there is no such command",
        ),
    ];
    if !cfg!(feature = "cuda") {
        let expected = "cargo build --release --features cuda";
        cases.push((generate(&["--device", "cuda:0,1", "x"]), expected));
    }
    let score = |rest: &[&str]| -> Vec<String> {
        let head = ["score", "--model", "random:tiny", "--input"];
        head.iter().chain(rest).map(|s| (*s).to_owned()).collect()
    };
    cases.extend([
        (score(&["a.npy"]), "score has nothing to do"),
        (score(&["a.bin", "--logprobs"]), "expected --shape N,T"),
        (
            score(&["a.bin", "--logprobs", "--shape", "3x4"]),
            "--shape 3x4: expected N,T",
        ),
        (
            score(&["a.npy", "--logprobs", "--shape", "3,4"]),
            "--shape: expected only with a .bin input",
        ),
        (
            score(&["a.npy", "--output", "out.npy"]),
            "expected a name that ends in .safetensors",
        ),
        (
            score(&["a.npy", "--logprobs", "--logits", "last"]),
            "--logprobs needs the logits of all positions",
        ),
    ]);
    for (args, expected) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ended = run(&args);
        ended.fails(2, &[expected]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn fatal_errors_are_exit_code_1_and_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let bad = format!("{here}/bad.toml");
    std::fs::write(&bad, "decode = \"many\"\n").unwrap();
    let empty = format!("{here}/empty.safetensors");
    std::fs::write(&empty, "").unwrap();
    let folder = format!("{here}/folder.safetensors");
    std::fs::create_dir(&folder).unwrap();
    let rows = format!("{here}/rows.jsonl");
    std::fs::write(&rows, "{\"input_ids\": [1, 2]}\n").unwrap();
    let model = ["--model", "random:tiny"];
    let cases: &[(&[&str], &str)] = &[
        (
            &["generate", "--output", "/no/such/dir/out", "x"],
            "/no/such/dir/out: found no such directory, expected a directory that exists",
        ),
        (&["generate", "--output", here, "x"], "found a directory"),
        (
            &["synth", "--output", "/proc/no/such"],
            "/proc/no/such: found no such directory, expected a directory that exists",
        ),
        (
            &["synth", "--output", &bad],
            "bad.toml: found a file, expected a directory to write",
        ),
        (
            &["inspect", "--output", "/no/such/dir/x.txt"],
            "/no/such/dir/x.txt: found no such directory, expected a directory that exists",
        ),
        (
            &["generate", "--input", "/no/such/rows"],
            "/no/such/rows: found no such file, expected a file of JSON lines",
        ),
        (&["generate", "--input", here], "found a directory"),
        (
            &["generate", "--bucket-file", "/no/such.toml", "x"],
            "/no/such.toml: found no such file, expected a TOML file of bucket sizes",
        ),
        (&["generate", "--bucket-file", &bad, "x"], "bad.toml"),
        (
            &["generate", "--memory-limit", "1MiB", "x"],
            "not enough memory",
        ),
        (
            &["score", "--logprobs", "--input", "/no/such.npy"],
            "/no/such.npy: found no such file, expected a .npy file",
        ),
        (
            &["score", "--logprobs", "--input", &empty],
            "empty.safetensors",
        ),
        (
            &["score", "--logprobs", "--input", &folder],
            "folder.safetensors: found a directory, expected a .safetensors file",
        ),
        (
            &["score", "--input", &rows, "--expect", "/dev/null"],
            "/dev/null: found a pipe or a device, expected a .safetensors file",
        ),
        (
            &["generate", "--bucket-file", here, "x"],
            "found a directory, expected a TOML file of bucket sizes",
        ),
        (
            &["replay", "--record", here],
            "found a directory, expected a file that --record wrote",
        ),
    ];
    for (args, expected) in cases {
        let args: Vec<&str> = args[..1]
            .iter()
            .chain(&model)
            .chain(&args[1..])
            .copied()
            .collect();
        let ended = run(&args);
        ended.fails(1, &[expected]);
        assert_eq!(
            ended.stderr.lines().count(),
            1,
            "{args:?}: {}",
            ended.stderr
        );
    }
    let ended = run(&["generate", "--model", here, "x"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("no config.json"), "{}", ended.stderr);
}

#[test]
fn an_output_that_is_the_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, "{\"prompt\":\"x\"}\n").unwrap();
    let path = path.to_str().unwrap();
    let ended = run(&[
        "generate",
        "--model",
        "random:tiny",
        "--input",
        path,
        "--output",
        path,
    ]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        "{\"prompt\":\"x\"}\n"
    );
}

#[test]
fn a_model_without_a_chat_template_refuses_messages_only() {
    let dir = tempfile::tempdir().unwrap();
    for file in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ] {
        std::fs::copy(format!("{}/{file}", golden("a")), dir.path().join(file)).unwrap();
    }
    let input = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n{\"prompt\":\"x\",\"max_new_tokens\":1}\n";
    let ended = run_with_input(
        &["generate", "--model", dir.path().to_str().unwrap()],
        input,
    );
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let rows = ended.rows();
    assert_eq!(rows[0]["error"]["code"], "chat_template");
    assert_eq!(rows[1]["output_ids"].as_array().unwrap().len(), 1);
}

/// What a file is written by way of is no input of the same command, nor is the file behind standard input.
/// Names of files need not be text.
#[test]
fn what_is_no_text_is_named() {
    let broken = |text: &[u8]| OsStr::from_bytes(&[text, b"\xff"].concat()).to_owned();
    let mut generate = command(&["generate", "--model", "random:tiny", "--stop"]);
    let generate = generate.arg(broken(b"x")).arg(broken(b"y"));
    let ended = Ended::of(generate.output().unwrap());
    ended.fails_in_a_line(2, &["found x", " and y", "not UTF-8: expected text"]);
}

#[test]
fn no_command_writes_over_what_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let rows = "{\"id\":\"a\",\"prompt\":\"x\",\"max_new_tokens\":1}\n";
    std::fs::write(at("x.partial"), rows).unwrap();
    let (x, partial) = (at("x"), at("x.partial"));
    let model = ["--model", "random:tiny", "--device", "cpu"];
    let commands: [&[&str]; 5] = [
        &["generate", "--input", &partial, "--record", &x],
        &["score", "--input", &partial, "--logprobs", "--output", &x],
        &["trace", "--input", &partial, "--output", &x],
        &["trace", "--from", &partial, "--output", &x],
        &["generate", "--output", &partial, "--record", &x, "prompt"],
    ];
    for wrong in commands {
        let mut args = wrong.to_vec();
        if !wrong.contains(&"--from") {
            args.extend(model);
        }
        let ended = run(&args);
        ended.fails(2, &["x.partial"]);
        assert_eq!(std::fs::read_to_string(&partial).unwrap(), rows, "{args:?}");
    }
    let ended = run(&["report", &partial, "--output", &x]);
    ended.fails(2, &["x.partial"]);

    let mut by_standard_input = command(&["generate", "--output", &partial, "-q"]);
    let stdin = std::fs::File::open(&partial).unwrap();
    let output = by_standard_input.args(model).stdin(stdin).output().unwrap();
    Ended::of(output).fails(2, &["found the input file"]);
    assert_eq!(std::fs::read_to_string(&partial).unwrap(), rows);
}
