//! `inspect --json` against its schema; with captured graphs the same is done in tests/gpu_failures.

use crate::common::fixtures::golden;
use crate::common::program::run;
use crate::common::schema::{check, schema};
use serde_json::{Value, json};

fn inspected(model: &str, rest: &[&str]) -> Value {
    let ended = run(&[&["inspect", "--model", model, "--json"], rest].concat());
    assert_eq!(ended.code, 0, "{rest:?}: {}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn the_plan_as_json_is_what_the_schema_says() {
    let golden = golden("a");
    for (model, rest) in [
        ("random:tiny", &[][..]),
        ("random:tiny", &["--stages", "2", "--tokens", "1,3"]),
        (
            "random:lfm2-8b-a1b",
            &["--tokens", "1,256", "--dtype", "f32"],
        ),
        (&golden, &["--kind", "score", "--gpu", "a100"]),
        ("random:lfm2.5-24b-a2b", &["--weights", "fp8"]),
    ] {
        let shown = inspected(model, rest);
        check(&schema("inspect"), &shown)
            .unwrap_or_else(|wrong| panic!("{model} {rest:?}: {wrong}"));
        assert_eq!(
            (&shown["device"], &shown["graphs"]),
            (&Value::Null, &json!([]))
        );
    }
}

/// In other programs -o names a format. `doctor` may find that something does not work here, which is exit code 1.
#[test]
fn an_output_is_a_file_and_no_format() {
    let dir = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 2] = [&["inspect", "--model", "random:tiny"], &["doctor"]];
    for command in commands {
        for format in ["text", "json"] {
            run(&[command, &["-o", format]].concat()).fails_in_a_line(
                2,
                &[&format!("--output {format}: found the name of a format, expected a file: formats are --format {format}")],
            );
        }
        let file = dir.path().join(command[0]);
        let file = file.to_str().unwrap();
        let ended = run(&[command, &["-o", file, "--json"]].concat());
        assert!([0, 1].contains(&ended.code), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
        let written: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(written.is_object(), "{written}");
        run(&[command, &["-o", "/no/such/folder/x"]].concat())
            .fails_in_a_line(1, &["/no/such/folder"]);
    }
}

#[test]
fn the_schema_lets_nothing_else_pass() {
    let schema = schema("inspect");
    let shown = inspected("random:tiny", &[]);
    let wrong = |change: fn(&mut Value)| {
        let mut shown = shown.clone();
        change(&mut shown);
        check(&schema, &shown).unwrap_err()
    };
    let message = wrong(|shown| shown["model"]["head_dim"] = 1.5.into());
    assert!(message.contains("$.model.head_dim"), "{message}");
    wrong(|shown| shown["new"] = 1.into());
    wrong(|shown| shown["stages"][0]["operations"][0]["operation"] = "other".into());
    wrong(|shown| shown["graphs"] = json!([{"captured": {"nodes": 1}}]));
    wrong(|shown| {
        shown.as_object_mut().unwrap().remove("totals");
    });
}
