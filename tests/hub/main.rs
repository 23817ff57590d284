//! `--model org/name`: a folder, else the cache of the hub's tools, else the hub, which is one of the tests' own here.

#[path = "../common/mod.rs"]
mod common;
mod environment;
mod rig;
mod server;

use common::program::{Ended, end, this_program};
use common::python::{ask_in, interpreter};
use rig::{CUT, Rig, SHARD};
use server::{Asked, COMMIT, Hub, Odd};
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tailgraph::model::ModelSource;
use tailgraph::model::hub::Download;

fn well(_: &Asked) -> Option<Odd> {
    None
}

#[test]
fn a_model_is_downloaded_once() {
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, well);
    let mut first = rig.command("org/tiny", &hub.endpoint);
    assert_eq!(
        end(first.env("HF_TOKEN", "hf_secret"), "").good(),
        rig.expected()
    );
    for asked in hub.asked() {
        // Where large files lie is not the hub.
        let is_hub = asked.host.starts_with("127.0.0.1");
        assert_eq!(
            asked.authorization.as_deref() == Some("Bearer hf_secret"),
            is_hub,
            "{asked:?}"
        );
        assert!(asked.gets("/elsewhere/") || is_hub, "{asked:?}");
        let needed = !["README", ".bin", ".gguf"]
            .iter()
            .any(|part| asked.path.contains(part));
        // How large weights are is asked before any of them is fetched, too.
        let sized = asked.method == "HEAD" && asked.path.ends_with(".safetensors");
        assert!(needed && asked.before <= usize::from(sized), "{asked:?}");
    }
    let reference = fs::read_to_string(rig.in_cache().join("refs/main")).unwrap();
    assert_eq!(reference, COMMIT);
    for entry in fs::read_dir(rig.in_cache().join("snapshots").join(COMMIT)).unwrap() {
        let path = entry.unwrap().path();
        let blob = path.canonicalize().unwrap();
        assert!(blob.parent().unwrap().ends_with("blobs"), "{blob:?}");
        let published = rig.model.join(path.file_name().unwrap());
        assert_eq!(fs::read(blob).unwrap(), fs::read(published).unwrap());
    }

    // By branch and by commit, with a hub that nobody asks and without one.
    let all = hub.asked().len();
    for model in ["org/tiny".to_owned(), format!("org/tiny@{COMMIT}")] {
        assert_eq!(
            end(&mut rig.command(&model, &hub.endpoint), "").good(),
            rig.expected()
        );
        let mut offline = rig.command(&model, "http://127.0.0.1:9");
        assert_eq!(
            end(offline.env("HF_HUB_OFFLINE", "1"), "").good(),
            rig.expected()
        );
    }
    // A folder of that name wins, whatever is in it.
    fs::create_dir_all(rig.dir.path().join("org/tiny")).unwrap();
    rig.run(&hub)
        .fails_in_a_line(1, &["org/tiny: found no config.json"]);
    assert_eq!(hub.asked().len(), all);
}

#[test]
fn the_cache_is_that_of_the_hubs_own_library() {
    let Some(python) = interpreter("the hub's cache") else {
        return;
    };
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, well);
    let library = |offline: &str| {
        let home = rig.home();
        let variables = [
            ("HF_HOME", home.to_str().unwrap()),
            ("HF_ENDPOINT", &hub.endpoint),
            ("HF_HUB_OFFLINE", offline),
            ("HF_HUB_DISABLE_XET", "1"),
        ];
        ask_in(&variables, &python, "hub_snapshot.py", &"org/tiny".into())
    };
    rig.run(&hub).good();
    let snapshot = rig.in_cache().join("snapshots").join(COMMIT);
    assert_eq!(library("1"), snapshot.to_str().unwrap());

    fs::remove_dir_all(rig.home()).unwrap();
    library("0");
    let mut offline = rig.command("org/tiny", "http://127.0.0.1:9");
    let said = end(offline.env("HF_HUB_OFFLINE", "1"), "").good();
    assert_eq!(said, rig.expected());
}

#[test]
fn what_a_network_does_is_survived() {
    type Does = fn(&Asked) -> Option<Odd>;
    let cases: [Does; 8] = [
        |asked| (asked.gets(SHARD) && asked.before < 2).then_some(Odd::Cut(CUT)),
        |asked| {
            let odd = match asked.before {
                0 => Odd::Cut(CUT),
                _ => Odd::Anew,
            };
            asked.gets(SHARD).then_some(odd)
        },
        |asked| (asked.gets(SHARD) && asked.before == 0).then_some(Odd::Spoilt),
        |asked| (asked.gets("tokenizer.json") && asked.before == 0).then_some(Odd::Spoilt),
        |asked| {
            (asked.before < 2)
                .then_some(Odd::Status(429, "retry-after: 0\r\n"))
                .filter(|_| !asked.path.contains("/api/"))
        },
        |asked| (asked.before == 0).then_some(Odd::Status(503, "")),
        |asked| (asked.gets("config.json") && asked.before == 0).then_some(Odd::Cut(10)),
        // The model has another name by now.
        |asked| {
            (asked.method == "HEAD" && asked.before == 0).then_some(Odd::Status(307, "location: /org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/tokenizer.json\r\n")).filter(|_| asked.path.ends_with("/tokenizer.json"))
        },
    ];
    let rig = Rig::new();
    let expected = rig.expected();
    for (case, does) in cases.into_iter().enumerate() {
        let hub = Hub::of(&rig.model, does);
        assert_eq!(rig.run(&hub).good(), expected, "case {case}");
        if case == 0 {
            let from = hub.asked().into_iter().filter(|asked| asked.gets(SHARD));
            let from: Vec<_> = from.map(|asked| asked.from).collect();
            assert_eq!(from, [None, Some(CUT), Some(2 * CUT)]);
        }
        fs::remove_dir_all(rig.home()).unwrap();
    }
}

#[test]
fn a_run_that_was_killed_is_gone_on_from() {
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, |asked| match asked.before {
        _ if !asked.gets(SHARD) => None,
        0 => Some(Odd::Cut(CUT)),
        1 => Some(Odd::Slow(Duration::from_secs(600))),
        _ => None,
    });
    let mut first = rig.command("org/tiny", &hub.endpoint);
    let mut first = first.stdout(Stdio::null()).spawn().unwrap();
    while hub.asked().iter().filter(|asked| asked.gets(SHARD)).count() < 2 {
        assert!(first.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    // A second run waits for the first.
    let mut second = rig.command("org/tiny", &hub.endpoint);
    let second = second.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    first.kill().unwrap();
    first.wait().unwrap();
    let ended = Ended::of(second.wait_with_output().unwrap());
    assert_eq!(ended.good(), rig.expected());
    let last = hub.asked().into_iter().rfind(|asked| asked.gets(SHARD));
    assert_eq!(last.unwrap().from, Some(CUT));
}

/// [`a_program_hears_of_a_download_and_may_end_it`] by itself, in a process with the hub's environment.
const ENDS_AT: &str = "TAILGRAPH_TEST_DOWNLOAD_ENDS_AT";

#[test]
fn a_program_hears_of_a_download_and_may_end_it() {
    if let Ok(end) = std::env::var(ENDS_AT) {
        return watch("org/tiny", end.parse().unwrap());
    }
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, well);
    let said = |at: u64| {
        let mut program = this_program("a_program_hears_of_a_download_and_may_end_it");
        program.current_dir(rig.dir.path());
        program.env("HF_HOME", rig.home());
        program.env("HF_ENDPOINT", &hub.endpoint);
        end(program.env(ENDS_AT, at.to_string()), "").good()
    };
    let ended = said(CUT as u64);
    assert!(ended.contains("ended by Interrupted"), "{ended}");
    rig.has_no_whole_model();
    let whole = said(u64::MAX);
    assert!(whole.contains("ended by nothing"), "{whole}");
    let last = hub.asked().into_iter().filter_map(|asked| asked.from).max();
    assert!(
        last.unwrap() >= CUT,
        "what had come was not asked for again"
    );
}

/// Ends the download once a file has so many bytes.
fn watch(model: &str, end: u64) {
    let source = ModelSource::watched(model, &|download| match download {
        Download::Came { file, bytes, of } => {
            assert!(!file.is_empty() && bytes <= of, "{download:?}");
            if bytes >= end {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Continue(()),
    });
    match source {
        Ok(_) => println!("ended by nothing"),
        Err(error) => println!("ended by {error:?}"),
    }
}

/// Whether a model fits, and what its steps are, is said before 17 GB of it are here.
#[test]
fn shapes_need_no_weights() {
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, well);
    for command in [
        // What is free changes from run to run.
        &[
            "doctor",
            "--device",
            "cpu",
            "--memory-limit",
            "1GiB",
            "--model",
            "org/tiny",
        ][..],
        &["inspect", "--model", "org/tiny"],
    ] {
        let said = end(&mut rig.asking(command, &hub.endpoint), "").good();
        let here = [command, &["published"]].concat();
        let here: Vec<&str> = here
            .into_iter()
            .filter(|&word| word != "org/tiny")
            .collect();
        let known = end(&mut rig.asking(&here, ""), "").good();
        assert_eq!(said.replace("org/tiny", "published"), known);
    }
    let got = |asked: &Asked| asked.method == "GET" && asked.path.contains("/resolve/");
    let files = hub.asked().into_iter().filter(got).map(|asked| asked.path);
    assert!(files.clone().count() >= 1);
    for path in files {
        assert!(path.ends_with("config.json"), "{path}");
    }
    rig.has_no_whole_model();
    assert_eq!(rig.run(&hub).good(), rig.expected());
}

#[test]
fn weights_that_do_not_fit_are_not_downloaded() {
    let rig = Rig::new();
    let hub = Hub::of(&rig.model, well);
    let small = ["--memory-limit", "1MiB"];
    let here = end(rig.command("published", "").args(small), "");
    here.fails_in_a_line(1, &["--memory-limit", "1.0 MiB"]);
    let there = end(rig.command("org/tiny", &hub.endpoint).args(small), "");
    assert_eq!((there.code, there.stderr), (here.code, here.stderr));
    assert!(
        !hub.asked()
            .iter()
            .any(|asked| asked.path.ends_with(".safetensors"))
    );
    assert_eq!(rig.run(&hub).good(), rig.expected());
}

#[test]
fn weights_that_the_disk_has_no_room_for_are_not_downloaded() {
    let rig = Rig::new();
    let vast = |asked: &Asked| asked.path.contains(SHARD).then_some(Odd::Size(1 << 60));
    let hub = Hub::of(&rig.model, vast);
    let blobs = rig.in_cache().join("blobs");
    rig.run(&hub).fails_in_a_line(
        1,
        &[
            &format!("{}: found ", blobs.display()),
            "free on its disk, expected 1.0 EiB for the model's weights",
            "HF_HOME or HF_HUB_CACHE",
        ],
    );
    let weights = |asked: &Asked| asked.method == "GET" && asked.path.ends_with(".safetensors");
    assert!(!hub.asked().iter().any(weights));
    // What is there already needs no room.
    let whole = Hub::of(&rig.model, well);
    assert_eq!(rig.run(&whole).good(), rig.expected());
    fs::remove_file(rig.in_cache().join("refs/main")).unwrap();
    assert_eq!(rig.run(&hub).good(), rig.expected());
}

#[test]
fn runs_that_need_one_model_at_once_all_get_it() {
    let rig = Rig::new();
    let expected = rig.expected();
    let hub = Hub::of(&rig.model, well);
    for _ in 0..5 {
        let start = |_| {
            let mut run = rig.command("org/tiny", &hub.endpoint);
            let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
            run.spawn().unwrap()
        };
        let runs: Vec<_> = (0..4).map(start).collect();
        for run in runs {
            let ended = Ended::of(run.wait_with_output().unwrap());
            assert_eq!(ended.good(), expected);
        }
        fs::remove_dir_all(rig.home()).unwrap();
    }
}

#[test]
fn what_cannot_be_is_said() {
    type Does = fn(&Asked) -> Option<Odd>;
    const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba98";
    let cases: [(Does, &[&str]); 14] = [
        (
            |_| Some(Odd::Status(401, "")),
            &["answered 401", "no such folder here", "HF_TOKEN"],
        ),
        (
            |asked| asked.gets("tokenizer.json").then_some(Odd::Spoilt),
            &["tokenizer.json", "contents of the git SHA-1", "expected"],
        ),
        (
            |asked| asked.gets("/api/").then_some(Odd::Status(403, "")),
            &["answered 403", "accept its conditions"],
        ),
        (
            |asked| {
                asked
                    .path
                    .contains("resolve")
                    .then_some(Odd::Status(403, ""))
            },
            &["answered 403"],
        ),
        (
            |_| Some(Odd::Status(404, "")),
            &["answered 404", "no such model or revision"],
        ),
        (
            |_| Some(Odd::Status(429, "retry-after: 0\r\n")),
            &["answered 429 Too Many Requests", "; tried "],
        ),
        (
            |asked| {
                asked
                    .gets("/elsewhere/")
                    .then_some(Odd::Status(429, "retry-after: 0\r\n"))
            },
            &["answered 429", "tried 5 times"],
        ),
        (
            |asked| asked.gets(SHARD).then_some(Odd::Spoilt),
            &[SHARD, "contents of the SHA-256", "expected"],
        ),
        (
            |_| Some(Odd::Lists(&["config.json", "pytorch_model.bin"])),
            &["found neither model.safetensors nor"],
        ),
        (
            |asked| (asked.method == "HEAD").then_some(Odd::Etag("../../../evil")),
            &["found the etag \"../../../evil\""],
        ),
        (
            |_| {
                Some(Odd::Status(
                    302,
                    "location: /api/models/org/tiny/revision/main\r\n",
                ))
            },
            &["redirect"],
        ),
        (
            |asked| (asked.method == "HEAD").then_some(Odd::Commit(OTHER)),
            &["found the commit \"fedcba98", "expected 01234567"],
        ),
        // What is too much may be little, or more than a disk has.
        (
            |asked| asked.gets("tokenizer.json").then_some(Odd::Longer(1)),
            &["tokenizer.json: found more than", "bytes"],
        ),
        (
            |asked| asked.gets(SHARD).then_some(Odd::Longer(100 << 20)),
            &[SHARD, "found more than", "bytes"],
        ),
    ];
    let rig = Rig::new();
    for (does, parts) in cases {
        // What an earlier case left would not be asked for.
        fs::create_dir_all(rig.home()).unwrap();
        fs::remove_dir_all(rig.home()).unwrap();
        let hub = Hub::of(&rig.model, does);
        rig.run(&hub)
            .fails(1, &[parts, &["tailgraph: org/tiny: "]].concat());
        rig.has_no_whole_model();
    }
    for entry in fs::read_dir(rig.in_cache().join("blobs")).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().len() < 1 << 20);
    }
    let hub = Hub::of(&rig.model, |_| Some(Odd::Commit(OTHER)));
    let mut asked = rig.command(&format!("org/tiny@{COMMIT}"), &hub.endpoint);
    end(&mut asked, "").fails_in_a_line(1, &[&format!("expected {COMMIT}")]);
    let mut offline = rig.command("org/tiny", "");
    end(offline.env("HF_HUB_OFFLINE", "1"), "").fails_in_a_line(
        1,
        &["org/tiny: found neither such a folder", "HF_HUB_OFFLINE"],
    );
    end(&mut rig.command("org/tiny", "http://127.0.0.1:9"), "")
        .fails_in_a_line(1, &["cannot be reached"]);
    end(&mut rig.command("org/tiny", "huggingface"), "")
        .fails_in_a_line(2, &["HF_ENDPOINT: found \"huggingface\""]);
    // An index may not lead out of its folder.
    fs::remove_dir_all(rig.home()).unwrap();
    let index = rig.model.join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"a": "../../../evil"}}"#).unwrap();
    rig.run(&Hub::of(&rig.model, well))
        .fails_in_a_line(1, &["\"../../../evil\""]);
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // The folder's own removal says if it is still there.
        let _ = Command::new("umount").arg(self.0).output();
    }
}

#[test]
fn a_full_disk_keeps_what_has_come() {
    let rig = Rig::new();
    fs::create_dir(rig.home()).unwrap();
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(rig.home());
        mount
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount("size=20m") {
        eprintln!("skipped: this user may not mount a file system");
        return;
    }
    let home = rig.home();
    let _mounted = Mounted(&home);
    // Another program fills the disk once the download has begun.
    let other = home.join("other");
    let hub = Hub::of(&rig.model, move |asked| {
        if asked.gets(SHARD) && !other.exists() {
            let mut file = fs::File::create(&other).unwrap();
            while file.write_all(&[0; 4096]).is_ok() {}
            let bytes = file.metadata().unwrap().len();
            file.set_len(bytes - CUT as u64).unwrap();
        }
        None
    });
    rig.run(&hub).fails_in_a_line(
        1,
        &["No space left", "goes on from them once there is room"],
    );
    rig.has_no_whole_model();
    assert!(mount("remount,size=100m"));
    assert_eq!(rig.run(&hub).good(), rig.expected());
    let from = hub.asked().into_iter().filter_map(|asked| asked.from);
    assert!(from.max().unwrap() > 0);
}

/// `printf abc | git hash-object --stdin` gives this hash.
#[test]
fn small_files_have_the_hash_of_git() {
    let found = server::git_hash(b"abc");
    assert_eq!(found, "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
}
