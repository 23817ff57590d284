//! Help, completions, manual pages, `inspect` and `doctor`.

use crate::common::program::run;

const COMMANDS: [&str; 10] = [
    "generate",
    "score",
    "inspect",
    "profile",
    "trace",
    "report",
    "synth",
    "doctor",
    "completions",
    "man",
];

#[test]
fn every_command_helps() {
    let top = run(&["--help"]);
    assert_eq!(top.code, 0);
    for command in COMMANDS {
        assert!(top.stdout.contains(command), "{command}");
        let help = run(&[command, "--help"]);
        assert_eq!(help.code, 0, "{command}");
        assert!(help.stdout.contains("Usage: tailgraph"), "{command}");
    }
}

#[test]
fn completions_know_the_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        for word in ["generate", "max-new-tokens", "bucket-file"] {
            assert!(ended.stdout.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn manual_pages_are_roff() {
    let top = run(&["man"]);
    assert_eq!(top.code, 0, "{}", top.stderr);
    assert!(top.stdout.contains(".TH tailgraph 1"), "{}", top.stdout);
    let page = run(&["man", "generate"]);
    assert!(
        page.stdout.contains(".TH tailgraph-generate 1"),
        "{}",
        page.stdout
    );
    assert!(page.stdout.contains("max\\-new\\-tokens"));
}

#[test]
fn inspect_and_doctor_print_what_was_asked() {
    let text = run(&["inspect", "--model", "random:lfm2-8b-a1b"]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("24 layers"), "{}", text.stdout);
    let json = run(&[
        "inspect",
        "--model",
        "random:tiny",
        "--format",
        "json",
        "--stages",
        "2",
    ]);
    serde_json::from_str::<serde_json::Value>(&json.stdout).unwrap();
    let doctor = run(&["doctor", "--model", "random:tiny", "--format", "json"]);
    assert_eq!(doctor.code, 0, "{}{}", doctor.stdout, doctor.stderr);
    serde_json::from_str::<serde_json::Value>(&doctor.stdout).unwrap();
    let problem = run(&["doctor", "--model", "/no/such/model"]);
    assert_eq!(problem.code, 1, "{}", problem.stdout);
    assert!(
        problem.stdout.contains("/no/such/model"),
        "{}",
        problem.stdout
    );
}

#[test]
fn doctor_names_a_model_once() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    let empty = &format!("{here}/empty")[..];
    std::fs::create_dir(empty).unwrap();
    let wrong = &format!("{here}/wrong")[..];
    std::fs::create_dir(wrong).unwrap();
    std::fs::write(format!("{wrong}/config.json"), "{").unwrap();
    for (model, expected) in [
        ("nosuch", "  nosuch: is missing"),
        (empty, "empty: found no config.json"),
        (&format!("{empty}/"), "empty/: found no config.json"),
        (wrong, "wrong/config.json: "),
        (&format!("{wrong}/"), "wrong/config.json: "),
        ("random:nosuch", "  --model random:nosuch: found"),
        // What the option is, and the model that it is too much for.
        ("random:tiny", "  random:tiny: --max-seqs 9999"),
    ] {
        let ended = run(&["doctor", "--model", model, "--max-seqs", "9999"]);
        assert_eq!(ended.code, 1, "{}", ended.stdout);
        let mut lines = ended.stdout.lines();
        let line = lines.find(|line| line.starts_with("problem  model"));
        let line = line.unwrap_or_else(|| panic!("{}", ended.stdout));
        assert!(line.contains(expected), "{line}");
        assert_eq!(line.matches(model).count(), 1, "{line}");
    }
}
