//! Help, completions, manual pages, `inspect` and `doctor`.

use crate::common::program::run;

const COMMANDS: [&str; 11] = [
    "generate",
    "score",
    "serve",
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

/// Loads the completions into each shell that is here and asks it what it would offer.
#[test]
fn shells_load_their_completions() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // zsh is asked by way of a terminal of its own, as a person asks it.
    let zsh = "zmodload zsh/zpty; zpty z zsh -fi; \
        zpty -w z \"PS1='>'; fpath=($PWD \\$fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=1000; echo re''ady\"; \
        while zpty -r z line; do print -r -- $line; [[ $line == *ready* ]] && break; done; \
        zpty -n -w z $'tailgraph generate --model random:tiny --max-new-\\t'; sleep 2; \
        while zpty -rt z line; do print -r -- $line; done; zpty -d z";
    let bash = "source ./tailgraph.bash; COMP_WORDS=(tailgraph generate --max-new-); COMP_CWORD=2; \
        _tailgraph tailgraph --max-new- generate; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let fish = "source ./tailgraph.fish; complete -C 'tailgraph generate --max-new-'";
    for (shell, file, ask) in [
        ("bash", "tailgraph.bash", bash),
        ("zsh", "_tailgraph", zsh),
        ("fish", "tailgraph.fish", fish),
    ] {
        let completions = run(&["completions", shell]).stdout;
        std::fs::write(at(file), completions).unwrap();
        let asked = std::process::Command::new(shell)
            .args(["-c", ask])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .output();
        let asked = match asked {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                assert!(
                    std::env::var_os("TAILGRAPH_NEED_SHELLS").is_none(),
                    "no {shell} here"
                );
                println!("shells_load_their_completions: no {shell} here, skipped");
                continue;
            }
            asked => asked.unwrap(),
        };
        let out = String::from_utf8_lossy(&asked.stdout);
        let err = String::from_utf8_lossy(&asked.stderr);
        assert!(out.contains("--max-new-tokens"), "{shell}: {out}{err}");
        assert_eq!(err, "", "{shell}");
    }
}

#[test]
fn manual_pages_are_roff() {
    let top = run(&["man"]);
    assert_eq!(top.code, 0, "{}", top.stderr);
    assert!(top.stdout.contains(".TH tailgraph 1"), "{}", top.stdout);
    for command in COMMANDS {
        let page = run(&["man", command]).stdout;
        let title = format!(".TH tailgraph-{command} 1");
        for part in [
            &title,
            ".SH \"EXIT STATUS\"",
            ".SH ENVIRONMENT",
            "HF_HUB_OFFLINE",
            ".SH EXAMPLES",
            "Wrong usage",
        ] {
            assert!(page.contains(part), "{command}: no {part} in {page}");
        }
        assert_eq!(
            page.matches("Exit codes: ").count(),
            0,
            "{command}: said twice"
        );
    }
    let page = run(&["man", "generate"]).stdout;
    assert!(page.contains("max\\-new\\-tokens"));
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
    let short = run(&["doctor", "-m", "random:tiny", "--json"]);
    assert!(short.stdout.starts_with('{'), "{}", short.stdout);
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

#[test]
fn doctor_shows_the_arithmetic_and_names_problems() {
    let doctor = |more: &[&str]| {
        let model = ["doctor", "--device", "cpu", "--model", "random:tiny"];
        let sizes = ["--max-context", "4096", "--memory-limit"];
        run(&[&model[..], &sizes, more].concat())
    };
    let text = doctor(&["512MiB"]).good();
    for part in [
        "1024 pages of 64 tokens, 1.0 KiB a token",
        "64.0 MiB",
        "budget",
        "--memory-limit",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let json = doctor(&["512MiB", "--json"]).good();
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    for check in document["checks"].as_array().unwrap() {
        let is_ok = check["status"] == "ok";
        assert_eq!(is_ok, check["advice"].is_null(), "{check}");
    }
    let memory = &document["memory"];
    let items = memory["items"].as_array().unwrap().iter();
    let counted = items.filter(|item| item["in_budget"] == true);
    let sum: u64 = counted.map(|item| item["bytes"].as_u64().unwrap()).sum();
    assert_eq!(memory["total_bytes"], sum);
    assert_eq!(memory["options"]["pages"], 1024);
    for (more, part) in [
        (&["1MiB"][..], "not enough memory"),
        (&["512MiB", "--max-seqs", "9999"], "--max-seqs 9999"),
    ] {
        let ended = doctor(more);
        assert_eq!(ended.code, 1, "{}", ended.stdout);
        let mut lines = ended.stdout.lines();
        let problem = lines.find(|line| line.starts_with("problem  model"));
        assert!(problem.unwrap().contains(part), "{}", ended.stdout);
    }
    // A pool that holds fewer sequences than there are slots is worth a word, no more.
    let small = doctor(&["64MiB"]).good();
    assert!(small.contains("pages of 64 tokens hold"), "{small}");
}
