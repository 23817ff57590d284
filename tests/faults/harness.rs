//! Every kind of run with every trouble.

use crate::job::{Job, KINDS, Kind};
use crate::trouble::{Trouble, pick, run};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailgraph::io::hash::mix64;

const TROUBLES: usize = 9;

/// How long a run of `kind` takes when nothing happens.
fn undisturbed(kind: Kind) -> Duration {
    let job = Job::new(kind);
    let start = Instant::now();
    let ended = job.command(&[]).output().unwrap();
    let took = start.elapsed();
    assert!(ended.status.success() && job.is_done(), "{ended:?}");
    assert_eq!(job.leftovers(), [""; 0]);
    took
}

/// Whether the trouble showed.
fn one(kind: Kind, turn: usize, whole: Duration) -> bool {
    let seed = mix64((kind as u64) << 32 | turn as u64);
    let trouble = pick(kind, turn, seed, whole);
    let what = format!("{kind:?}, turn {turn}, {trouble:?}");
    let job = Job::new(kind);
    let (ended, refused) = run(&job, job.command(&[]), trouble);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!said.contains("panicked"), "{what}: {said}");
    job.check(&what);
    match (trouble, ended.status.code()) {
        // The recording's name is the last that is given: all else is there then.
        (_, Some(0)) => assert!(job.is_done(), "{what}: it says that it is done"),
        (Trouble::Signal("KILL", _), code) => assert_eq!(code, None, "{what}"),
        (Trouble::Signal(name, _), code) => {
            let number = match name {
                "HUP" => 129,
                "INT" => 130,
                _ => 143,
            };
            // By the signal itself where it came before anything else.
            assert!(
                code.is_none() || code == Some(number),
                "{what}: {code:?} {said}"
            );
        }
        (_, code) => {
            // A preset that is not there is wrong usage, as is a folder that another run has filled.
            let usage = kind == Kind::Synth && code == Some(2);
            assert!(code == Some(1) || usage, "{what}: {said}");
            assert!(
                said.contains(job.path("").to_str().unwrap()),
                "{what}: {said}"
            );
        }
    }

    // Once more, without trouble.
    job.write_input();
    let kept = job.journal().exists();
    let more: &[&str] = match kind {
        // An OUTPUT of somebody else's rows has none that count.
        Kind::Generate | Kind::Record if kept || job.is_done() => &["--resume"],
        // Before its first row a journal does not say whose the file of errors is.
        Kind::Packed if job.has_rows() || job.is_done() => &["--resume"],
        _ => &[],
    };
    let again = job.command(more).output().unwrap();
    // A folder that is whole is left alone.
    let filled = kind == Kind::Synth && again.status.code() == Some(2);
    assert!(
        again.status.success() || filled,
        "{what}: {more:?}: {again:?}"
    );
    assert!(job.is_done(), "{what}: {more:?}: {again:?}");
    // A recording of the first run may be left beside that of the second, which took its place.
    assert_eq!(job.leftovers(), [""; 0], "{what}");
    assert!(!job.is_untouched(&job.output()), "{what}");
    ended.status.code() != Some(0) || refused
}

#[test]
fn what_was_there_is_whole_or_as_it_was_and_a_resumed_run_is_an_undisturbed_one() {
    let runs = KINDS.into_iter().flat_map(|(kind, turns)| {
        let whole = undisturbed(kind);
        (0..turns * TROUBLES).map(move |turn| (kind, turn, whole))
    });
    let runs: Vec<_> = runs.collect();
    let next = AtomicUsize::new(0);
    let shown: [AtomicUsize; TROUBLES] = Default::default();
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(kind, turn, whole)) = runs.get(n) else {
                return;
            };
            let showed = one(kind, turn, whole);
            shown[turn % TROUBLES].fetch_add(usize::from(showed), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    // Or the moments are none within a run.
    let shown = shown.map(AtomicUsize::into_inner);
    println!(
        "of {} runs with each trouble, it showed in {shown:?}",
        runs.len() / TROUBLES
    );
    assert!(shown.iter().all(|&runs| runs > 0), "{shown:?}");
}
