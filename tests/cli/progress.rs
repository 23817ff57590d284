//! What is drawn on a terminal while rows are served, and what is said where there is none; what no terminal is shown.

use crate::common::program::{bench, command, run};
use crate::common::rows::{mixed_input, text};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A terminal: what a person sees and types at, and what a program is given.
struct Terminal {
    person: File,
    program: OwnedFd,
}

impl Terminal {
    fn new(columns: u16) -> Self {
        let size = libc::winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut person, mut program) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: both descriptors are written, and nothing else is asked for.
        let made = unsafe { libc::openpty(&mut person, &mut program, null, null.cast(), &size) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: they are new, and nobody else's.
        unsafe {
            Self {
                person: File::from_raw_fd(person),
                program: OwnedFd::from_raw_fd(program),
            }
        }
    }

    fn end(&self) -> Stdio {
        self.program.try_clone().unwrap().into()
    }

    /// All that is shown until the program and with it the terminal's other end are gone.
    fn shown(self, mut child: Child) -> (String, i32) {
        drop(self.program);
        let mut person = self.person;
        let mut shown = Vec::new();
        // It ends by an error: the other end is closed.
        let _ = person.read_to_end(&mut shown);
        let code = child.wait().unwrap().code().unwrap();
        (String::from_utf8_lossy(&shown).into_owned(), code)
    }
}

/// Without what orders a terminal about: the states that a line went through.
fn states(shown: &str) -> Vec<String> {
    let moved = shown.replace("\u{1b}[2K", "\r").replace("\u{1b}[1A", "\r");
    let parts = moved.split(['\r', '\n']);
    parts
        .map(|part| part.trim_end().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

const TINY: [&str; 3] = ["generate", "--model", "random:tiny"];

#[test]
fn a_narrow_terminal_shows_all_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let bad = "{\"prompt\":7}\n";
    std::fs::write(
        &input,
        bad.to_owned() + &mixed_input(|i, row| row["id"] = (i + 1).into()),
    )
    .unwrap();
    let terminal = Terminal::new(40);
    let child = command(&[&TINY[..], &["-i", text(&input), "-o", "/dev/null"]].concat())
        .stderr(terminal.end())
        .spawn()
        .unwrap();
    let (shown, code) = terminal.shown(child);
    assert_eq!(code, 3, "{shown}");
    let states: Vec<String> = states(&shown)
        .into_iter()
        .filter(|state| state.contains(" t/s"))
        .collect();
    assert!(states.iter().all(|state| state.len() < 40), "{states:?}");
    let last = states.last().unwrap_or_else(|| panic!("{shown:?}"));
    for part in ["/25 ", "% ", " 1 fail ", " t/s 0:"] {
        assert!(last.contains(part), "{last:?} in {shown:?}");
    }
}

#[test]
fn typing_is_not_drawn_over_and_answers_are_harmless() {
    let terminal = Terminal::new(80);
    // This is one expression: whoever holds its other end keeps a terminal open.
    let child = command(&[&TINY[..], &["--lines", "--max-new-tokens", "60"]].concat())
        .stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .spawn()
        .unwrap();
    let mut typing = terminal.person.try_clone().unwrap();
    let typist = std::thread::spawn(move || {
        for line in ["first\n", "second\n", "third\n"] {
            std::thread::sleep(Duration::from_millis(700));
            typing.write_all(line.as_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(700));
        typing.write_all(b"\x04").unwrap();
    });
    let (shown, code) = terminal.shown(child);
    typist.join().unwrap();
    assert_eq!(code, 0, "{shown}");
    let typed = shown.find("third").unwrap_or_else(|| panic!("{shown}"));
    assert!(!shown[..typed].contains("tok/s"), "{shown:?}");
    assert!(shown.contains("180 tokens in "), "{shown:?}");
    assert!(shown.starts_with("tailgraph: type a prompt"), "{shown:?}");
    let own = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let answers = shown[..typed].contains(own);
    assert!(!answers, "{shown:?}");
    assert!(
        shown.contains("\\u00"),
        "no control character to be shown: {shown:?}"
    );
}

/// One after the other, each as a pipe has it.
#[test]
fn texts_are_shown_as_they_come() {
    let prompts = ["--max-new-tokens", "400", "one", "two"];
    let piped = run(&[&TINY[..], &prompts].concat()).good();
    let terminal = Terminal::new(80);
    let mut child = command(&[&TINY[..], &prompts].concat())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .spawn()
        .unwrap();
    let mut person = terminal.person.try_clone().unwrap();
    let mut begun = [0; 16];
    person.read_exact(&mut begun).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "all came at once");
    let (rest, code) = terminal.shown(child);
    assert_eq!(code, 0, "{rest}");
    let shown = String::from_utf8_lossy(&begun).into_owned() + &rest;
    let (texts, speed) = shown.rsplit_once("800 tokens in ").unwrap();
    assert!(
        speed.contains(" tok/s); ended at --max-new-tokens"),
        "{speed}"
    );
    let harmless = |c: char| match c {
        c if c.is_control() && !"\n\t".contains(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    let expected: String = piped.chars().map(harmless).collect();
    assert_eq!(texts.replace("\r\n", "\n"), expected);
}

/// Every command that shows something of a file that somebody else made and named is tried.
#[test]
fn no_control_character_comes_from_a_file() {
    const HOSTILE: &str = "\u{1b}]0;t\u{7}\u{9b}31mX\u{7f}\nY";
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut results = bench("decode", &["--batch", "1", "--gen-len", "4"]);
    for name in [
        "launch",
        "kernel_file",
        "model_filename",
        "gpu_info",
        "cpu_info",
    ] {
        results[0][name] = HOSTILE.into();
    }
    let (file, model, shard) = (at("results.json"), at(HOSTILE), at("x\u{1b}[2J"));
    std::fs::write(&file, serde_json::to_string(&results).unwrap()).unwrap();
    run(&["synth", "--model", "random:tiny", "--output", &model]).good();
    let rows = at("rows.jsonl");
    let row = serde_json::json!({"id": HOSTILE, "prompt": "x", "max_new_tokens": 1});
    std::fs::write(&rows, row.to_string()).unwrap();
    let (file, model) = (file.as_str(), model.as_str());
    for args in [
        &["bench", "compare", file, file][..],
        &["bench", "compare", file, file, "--format", "csv"],
        &["bench", "compare", file, file, "--format", "json"],
        &["report", file, "--output", "-"],
        &["doctor", "--model", model],
        &["inspect", "--model", model, "--format", "json"],
        &[
            "synth",
            "--model",
            "random:tiny",
            "--output",
            &at("a\u{1b}[2J"),
        ],
        &["generate", "--model", model, "--quiet", "-i", &rows],
        &[
            "bench",
            "--model",
            model,
            "--gen-len",
            "4",
            "--batch",
            "1",
            "--repeats",
            "1",
            "--quiet",
        ],
        &["merge", &shard, "-o", &at("merged")],
    ] {
        let terminal = Terminal::new(80);
        let child = command(args)
            .stdout(terminal.end())
            .stderr(terminal.end())
            .spawn()
            .unwrap();
        let (shown, _) = terminal.shown(child);
        let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        assert!(!shown.contains(obeyed), "{args:?}: {shown:?}");
        let quoted = shown.contains("u{1b}") || shown.contains("u001b") || args[0] == "inspect";
        assert!(quoted, "{args:?}: {shown:?}");
    }
}

#[test]
fn where_there_is_no_terminal_a_line_comes_every_few_seconds() {
    let mut child = command(&[&TINY[..], &["--max-new-tokens", "2"]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = child.stdin.take().unwrap();
    rows.write_all(b"{\"prompt\":\"x\"}\n").unwrap();
    let begun = Instant::now();
    let mut line = Vec::new();
    let mut stderr = child.stderr.take().unwrap();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        assert_eq!(
            stderr.read(&mut byte).unwrap(),
            1,
            "{}",
            String::from_utf8_lossy(&line)
        );
        line.push(byte[0]);
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    let line = String::from_utf8(line).unwrap();
    assert!(
        line.starts_with("1 row, 0 failed; ") && line.contains(" new tok/s; 0 running"),
        "{line}"
    );
    drop(rows);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("1 row, 0 failed, 1 ended"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
