//! `doctor` where something is wrong with the GPU.

use crate::common::program::Ended;
use crate::common::schema;
use crate::rig::Run;
use serde_json::Value;

fn doctor(device: &[&str]) -> Run {
    Run::new(&["doctor", "--model", "random:tiny"]).and(device)
}

/// The line of a check, and the advice below it.
fn check<'a>(ended: &'a Ended, name: &str) -> (&'a str, &'a str) {
    let mut lines = ended.stdout.lines();
    let line = lines.find(|line| line.split_whitespace().nth(1) == Some(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {}", ended.stdout));
    (line, lines.next().unwrap_or_default())
}

/// Each problem, asked for the GPU and not.
#[test]
fn every_problem_is_told_with_what_to_do() {
    for (name, value, part, advice) in [
        ("DEVICES", "0", "shows no GPU", "nvidia-smi"),
        ("VERSION", "12040", "speaks CUDA 12.4", "update it to 580"),
        (
            "FAIL",
            "cuInit:1:999",
            "cuInit with CUDA_ERROR_UNKNOWN",
            "nvidia-smi",
        ),
    ] {
        let asked = doctor(&["--device", "cuda"]).with(name, value).end();
        let (line, below) = check(&asked, "gpu");
        assert_eq!((asked.code, asked.stderr.as_str()), (1, ""), "{line}");
        assert!(line.starts_with("problem"), "{line}");
        assert!(below.contains(part) && below.contains(advice), "{below}");

        let not_asked = doctor(&[]).with(name, value).end();
        let (line, below) = check(&not_asked, "gpu");
        assert_eq!(
            (not_asked.code, not_asked.stderr.as_str()),
            (0, ""),
            "{line}"
        );
        assert!(
            line.starts_with("warn") && below.contains(part),
            "{line} {below}"
        );
        assert!(check(&not_asked, "model").0.starts_with("ok"));
    }
}

#[test]
fn a_gpu_without_kernels_is_named() {
    let run = |device: &[&str]| doctor(device).with("CAPABILITY", "7.5").end();
    let ended = run(&["--device", "cuda"]);
    let (line, below) = check(&ended, "gpu");
    assert!(ended.code == 1 && line.starts_with("problem"), "{line}");
    assert!(
        below.contains("compute capability 7.5")
            && below.contains("expected compute capability 8.x"),
        "{below}"
    );
    assert_eq!(run(&[]).code, 0);
}

#[test]
fn a_gpu_that_is_too_small_is_a_problem_of_the_model() {
    let ended = doctor(&["--device", "cuda"])
        .with("MEMORY", 3_000_000)
        .end();
    assert_eq!(ended.code, 1);
    let (line, below) = check(&ended, "model");
    assert!(
        line.contains("not enough memory") && line.contains("weights 5.4 MiB + "),
        "{line}"
    );
    assert!(
        below.contains("raise --memory-limit") || below.contains("lower --max-context"),
        "{below}"
    );
    assert!(check(&ended, "gpu").0.starts_with("ok"));
}

/// A wrong option stays one, whatever else is wrong.
#[test]
fn a_gpu_that_is_not_there_is_wrong_usage() {
    doctor(&["--device", "cuda:7"])
        .end()
        .fails_in_a_line(2, &["cuda:7 does not exist", "cuda:0 alone"]);
}

/// Whose entries serve is said, with what would measure own ones.
#[test]
fn borrowed_kernels_are_said_with_what_tune_would_bring() {
    let ended = doctor(&["--device", "cuda"]).end();
    let (line, below) = check(&ended, "kernels");
    for part in [
        "ok ",
        "graphs/sm_90.toml (built in) as m132-b4800 goes by it, sm_90-cc44e3f9af49a629",
        "bf16, f16, f32: entries this GPU's (m132-b4800), for h2048-e32-f1792, the nearest shapes",
    ] {
        assert!(line.contains(part), "{line} lacks {part}");
    }
    let tune = "`tailgraph tune --model random:tiny --dtype bf16,f16,f32 -o FILE`";
    assert!(below.contains(tune), "{below}");
    let full = |rate: &str| {
        let run = Run::new(&[
            "doctor",
            "--model",
            "random:lfm2-8b-a1b",
            "--device",
            "cuda",
        ]);
        run.with("RATE", rate).end()
    };
    let own = full("4917");
    let (_, below) = check(&own, "kernels");
    assert!(!below.contains("->"), "{below}");
    let other = full("3352");
    let (line, below) = check(&other, "kernels");
    assert!(
        line.contains("those of m132-b4800, the nearest GPU, 1.43 times"),
        "{line}"
    );
    assert!(
        below.contains("random:lfm2-8b-a1b --dtype bf16,f16,f32"),
        "{below}"
    );
    let without = Run::new(&["doctor"]).end();
    let (_, below) = check(&without, "kernels");
    assert!(!below.contains("->"), "{below}");
}

#[test]
fn kernels_are_told_to_programs() {
    let run = |more: &[&str]| {
        let run = doctor(&["--device", "cuda", "--json"]).and(more);
        let found: Value = serde_json::from_str(&run.with("RATE", 3352).end().stdout).unwrap();
        schema::check(&schema::schema("doctor"), &found).unwrap();
        found
    };
    let found = run(&[]);
    let kernels = &found["kernels"];
    assert_eq!(
        (&kernels["gpu"], &kernels["shape"]),
        (&"m132-b3352".into(), &"h256-e8-f64".into())
    );
    let first = &kernels["types"][0];
    assert_eq!(first["entries"]["gpu"], "m132-b4800");
    assert_eq!(first["entries"]["own_gpu"], false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.toml");
    std::fs::write(&path, "architecture = \"sm_80\"").unwrap();
    let found = run(&["--kernel-file", path.to_str().unwrap()]);
    let checks = found["checks"].as_array().unwrap();
    let of_kernels = checks
        .iter()
        .find(|check| check["name"] == "kernels")
        .unwrap();
    assert_eq!(of_kernels["status"], "problem");
    assert!(found.get("kernels").is_none());
}

/// The rows of the table of links.
fn links(ended: &Ended) -> Vec<Vec<&str>> {
    let lines = ended.stdout.lines();
    let lines = lines.skip_while(|line| *line != "links").skip(2);
    let rows = lines.take_while(|line| line.starts_with("  cuda:"));
    rows.map(|row| row.split_whitespace().collect()).collect()
}

fn on_gpus(count: usize) -> Run {
    Run::new(&["doctor"]).with("DEVICES", count)
}

#[test]
fn links_between_gpus_are_measured_both_ways() {
    let ended = on_gpus(3).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let (line, _) = check(&ended, "links");
    assert!(line.starts_with("ok"), "{line}");
    let rows = links(&ended);
    let pairs: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[2])).collect();
    let gpus = ["cuda:0", "cuda:1", "cuda:2"];
    let expected = gpus.iter().flat_map(|from| {
        let others = gpus.iter().filter(move |to| *to != from);
        others.map(move |to| (*from, *to, "yes"))
    });
    assert_eq!(pairs, expected.collect::<Vec<_>>());
    for row in rows {
        for number in &row[3..5] {
            assert!(number.parse::<f64>().unwrap() > 0.0, "{row:?}");
        }
    }
    // There is nothing to say of one GPU, nor of the CPU alone.
    for one in [on_gpus(1), on_gpus(2).and(&["--device", "cpu"])] {
        let ended = one.end();
        assert!(!ended.stdout.contains("links"), "{}", ended.stdout);
    }
}

#[test]
fn without_peer_access_the_way_through_the_host_is_measured() {
    let ended = on_gpus(2).with("PEERS", 0).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let (line, below) = check(&ended, "links");
    assert!(
        line.starts_with("warn") && line.contains("no peer access (cuda:0 to cuda:1, cuda:1"),
        "{line}"
    );
    assert!(below.contains("nvidia-smi topo"), "{below}");
    for row in links(&ended) {
        assert_eq!(
            (row[2], &row[5..]),
            ("no", &["memory", "of", "the", "host"][..])
        );
        assert!(row[4].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
    let json = on_gpus(2).with("PEERS", 0).and(&["--json"]).end();
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let links = found["links"].as_array().unwrap();
    assert_eq!(links.len(), 2);
    for (n, link) in links.iter().enumerate() {
        assert_eq!((&link["from"], &link["to"]), (&n.into(), &(1 - n).into()));
        assert_eq!(link["peer_access"], false);
        assert!(link["copy_bytes_per_s"].as_f64().unwrap() > 0.0, "{link}");
        assert!(link["store_us"].as_f64().unwrap() > 0.0, "{link}");
        assert_eq!(link["failures"], serde_json::json!([]));
    }
}

/// A number that was not measured is not shown, and the reason is.
#[test]
fn what_of_a_link_cannot_be_measured_is_said() {
    let ended = on_gpus(2).with("DEVICE", "dead@1").end();
    let (line, _) = check(&ended, "links");
    for part in [
        "warn",
        "cuda:0 to cuda:1: ",
        "cuda:1 to cuda:0: ",
        "0 of 1000 were answered within 2s",
    ] {
        assert!(line.contains(part), "{line} lacks {part}");
    }
    for row in links(&ended) {
        assert_eq!(row[4..6], ["not", "measured"]);
        assert!(row[3].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
    let refused = on_gpus(2).with("FAIL", "cuMemcpyPeerAsync:1:1").end();
    let (line, _) = check(&refused, "links");
    assert!(
        line.contains("cuda:0 to cuda:1: copying from GPU to GPU")
            && line.contains("INVALID_VALUE"),
        "{line}"
    );
    assert_eq!(links(&refused)[0][3..5], ["not", "measured"]);
    let small = on_gpus(2).with("MEMORY", 1_000_000).end();
    let (line, _) = check(&small, "links");
    assert!(
        line.contains("not measured: allocating") && line.contains("cuda:0"),
        "{line}"
    );
    assert_eq!(small.code, 0);
}

/// Several devices are looked at as a run would use them: of stages each has a share of the model.
#[test]
fn a_model_on_several_gpus_is_measured_by_what_each_holds() {
    let total = |more: &[&str]| {
        let run = doctor(&["--json", "--max-seqs", "2", "--device"]).and(more);
        let found: serde_json::Value =
            serde_json::from_str(&run.with("DEVICES", 2).end().stdout).unwrap();
        let items = found["memory"]["items"].as_array().unwrap().clone();
        let weights = items.iter().find(|item| item["name"] == "weights").unwrap();
        weights["bytes"].as_u64().unwrap()
    };
    let (whole, replicas) = (total(&["cuda:0"]), total(&["cuda:0,1"]));
    let stages = total(&["cuda:0,1", "--parallel", "stages"]);
    assert_eq!(whole, replicas);
    assert!(stages < whole, "{stages} of {whole}");
}
