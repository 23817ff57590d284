//! A GPU's schedule on record: replayed by the host, kernel by kernel, and gone on with while the host is stopped.

use crate::binary::{generate_rows, path, replay, spawn};
use crate::common::rows::rows_without_timing;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tailgraph::io::record::{Line, Reader, Turn};
use tailgraph::runtime::EndReason;

const ROWS: u32 = 96;

/// More rows than slots, of mixed lengths, greedy and sampled, some with logprobs; some run out of time, in a slot or
/// before, and some are cancelled by the host, which finds their stop string.
fn mixture() -> String {
    let row = |i: u32| {
        let ids: Vec<u32> = (0..1 + i * 29 % 150)
            .map(|j| 8 + (i * 37 + j * 11) % 250)
            .collect();
        let sampling = match i % 3 {
            0 => "",
            1 => {
                ",\"temperature\":0.8,\"top_p\":0.9,\"repetition_penalty\":1.2,\"frequency_penalty\":0.4,\"logprobs\":3"
            }
            _ => {
                ",\"temperature\":1.1,\"top_k\":40,\"presence_penalty\":0.5,\"logit_bias\":{\"40\":2,\"41\":-9},\"logprobs\":0"
            }
        };
        let (tokens, end) = match i % 8 {
            // Long before its last token.
            3 => (900, ",\"timeout_ms\":25"),
            // Ids without a byte print as <id>, and most have none.
            5 => (900, ",\"stop\":[\"<\"]"),
            _ => (1 + i * 13 % 70, ""),
        };
        format!("{{\"id\":{i},\"input_ids\":{ids:?},\"max_new_tokens\":{tokens}{sampling}{end}}}\n")
    };
    (0..ROWS).map(row).collect()
}

/// How many requests of a recording ended for a reason, and of those the ones that had tokens.
fn ends(record: &str, wanted: EndReason) -> (usize, usize) {
    let mut reader = Reader::open(Path::new(record)).unwrap();
    let mut counts = (0, 0);
    while let Some(line) = reader.next_line().unwrap() {
        if let Line::End(end) = line
            && end.reason == wanted
        {
            counts.0 += 1;
            counts.1 += usize::from(end.tokens > 0);
        }
    }
    counts
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_the_gpu_scheduled_the_host_replays_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| path(folder.path(), name);
    let (rows, output, record) = (file("rows"), file("answers"), file("record"));
    std::fs::write(&rows, mixture()).unwrap();
    for (launch, dtype, stages) in [
        (&["device-graph"][..], "bf16", "1"),
        (&["device-graph"], "f16", "2"),
        (&["host-graph"], "bf16", "1"),
        (&["host-graph-ahead"], "bf16", "1"),
    ] {
        let files = ["--input", &rows, "--output", &output, "--record", &record];
        let files = [&files[..], &["--overwrite"]].concat();
        let way = ["--dtype", dtype, "--stages", stages, "--launch"];
        let sizes = ["--model", "random:tiny", "--max-seqs", "13"];
        let arguments = [&files[..], &sizes, &way, launch].concat();
        let (code, answers) = generate_rows(&arguments, &output);
        // Rows that ran out of time have failed.
        assert_eq!((code, answers.len()), (3, ROWS as usize), "{arguments:?}");
        let launch = launch.join(" ");
        for reason in [EndReason::Length, EndReason::Timeout, EndReason::Cancelled] {
            let (all, with_tokens) = ends(&record, reason);
            println!(
                "{launch} {dtype}: {all} end by {reason:?}, {with_tokens} of them with tokens"
            );
            assert!(with_tokens > 0, "{launch} {dtype}: {reason:?}");
        }
        for by in ["host-kernels", "host-graph"] {
            let device = ["--device", "cuda", "--launch", by];
            let (code, report) = replay(&record, &device);
            let what = format!("{launch} {dtype}, {stages} stages, by {by}");
            println!("{what}: {report}");
            let equal = code == 0 && report.ends_with("equal\n");
            assert!(equal, "{what}: {code}: {report}");
        }
        // The comparison sees the last bit: another type does not come out the same.
        let (code, report) = replay(&record, &["--device", "cuda", "--dtype", "f32"]);
        assert_eq!(code, 4, "{report}");
    }
}

/// The turns of a recording.
fn turns(record: &str) -> Vec<Turn> {
    let mut reader = Reader::open(Path::new(record)).unwrap();
    let mut turns = vec![];
    while let Some(line) = reader.next_line().unwrap() {
        if let Line::Turn(turn) = line {
            turns.push(*turn);
        }
    }
    turns
}

fn signal(child: &std::process::Child, name: &str) {
    let id = child.id().to_string();
    let status = Command::new("kill").args([name, &id]).status().unwrap();
    assert!(status.success());
}

/// What the GPU did while the host read nothing: the turns from the first after the host's last look to the first
/// after its next, where that took longest.
fn longest_silence(turns: &[Turn]) -> (&[Turn], Duration) {
    let mut longest = (0..0, 0);
    let mut first = 0;
    for (index, turn) in turns.iter().enumerate() {
        if turn.event_tail != turns[first].event_tail {
            let waited = turn.now_ns - turns[first].now_ns;
            if waited > longest.1 {
                longest = (first..index, waited);
            }
            first = index;
        }
    }
    (&turns[longest.0], Duration::from_nanos(longest.1))
}

const STOP: Duration = Duration::from_secs(5);

/// SIGSTOP takes every thread of the process off the CPU. The GPU needs none of them until the event ring is full.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stopped_host_does_not_stop_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| path(folder.path(), name);
    let (rows, record) = (file("rows"), file("record"));
    // One sequence is slow enough for the host to keep the ring empty; what 16 give may have filled it already.
    for (max_seqs, count) in [(1, 30), (16, 350)] {
        let row = |i: u32| {
            format!(
                "{{\"id\":{i},\"input_ids\":[{}],\"max_new_tokens\":1000}}\n",
                8 + i % 250
            )
        };
        std::fs::write(&rows, (0..count).map(row).collect::<String>()).unwrap();
        let arguments = |output: &str| {
            let common = [
                "--overwrite",
                "--model",
                "random:tiny",
                "--launch",
                "device-graph",
            ];
            let max_seqs = max_seqs.to_string();
            let files = [
                "--max-seqs",
                &max_seqs,
                "--input",
                &rows,
                "--output",
                output,
            ];
            [&common[..], &files]
                .concat()
                .iter()
                .map(|s| (*s).to_owned())
                .collect::<Vec<_>>()
        };
        let (stopped, undisturbed) = (file("stopped"), file("undisturbed"));
        let mut recorded = arguments(&stopped);
        recorded.extend(["--record".to_owned(), record.clone()]);
        let mut child = spawn(&recorded);
        // Until tokens come in quantity.
        let partial = file("stopped.partial");
        let served = |path: &str| std::fs::metadata(path).map_or(0, |data| data.len()) > 0;
        for _ in 0..2000 {
            if served(&partial) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            served(&partial) && child.try_wait().unwrap().is_none(),
            "it runs"
        );
        signal(&child, "-STOP");
        std::thread::sleep(STOP);
        signal(&child, "-CONT");
        assert!(child.wait().unwrap().success());

        let turns = turns(&record);
        let (silence, waited) = longest_silence(&turns);
        let reader = Reader::open(Path::new(&record)).unwrap();
        let capacity = u64::from(reader.header.engine.rings.events);
        let steps = silence.iter().filter(|turn| turn.step.is_some()).count();
        let (first, last) = (&silence[0], &silence[silence.len() - 1]);
        let went_on = Duration::from_nanos(last.end_ns - first.now_ns);
        println!(
            "{max_seqs} sequences: the host looked away for {waited:?}; the GPU composed {steps} steps in {went_on:?}, \
             until the ring of {capacity} events was full"
        );
        assert!(waited >= STOP - Duration::from_millis(200), "{waited:?}");
        let events = steps as u64 * max_seqs;
        assert!(
            steps > 0 && events <= capacity + 2 * max_seqs,
            "{steps} steps"
        );
        assert!(max_seqs > 1 || events > capacity / 4 * 3, "{steps} steps");
        let mut tails = silence.iter().map(|turn| turn.event_tail);
        assert!(tails.all(|tail| tail == first.event_tail));
        assert!(
            silence
                .windows(2)
                .all(|pair| pair[0].now_ns < pair[1].now_ns)
        );

        let (code, report) = replay(&record, &["--device", "cuda", "--launch", "host-kernels"]);
        println!("{report}");
        assert!(code == 0 && report.ends_with("equal\n"), "{code}: {report}");
        // A sequence that runs alone always runs in the same buckets, so its bits owe nothing to time.
        if max_seqs == 1 {
            let alone = arguments(&undisturbed);
            let alone: Vec<&str> = alone.iter().map(String::as_str).collect();
            let (code, expected) = generate_rows(&alone, &undisturbed);
            assert_eq!(code, 0);
            assert!(
                rows_without_timing(Path::new(&stopped)) == expected,
                "a token differs"
            );
        }
    }
}
