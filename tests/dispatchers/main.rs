//! The dispatchers of kernels/sched as they are (dispatch.cuh, stages.cu, lead.cuh), run on the host around steps that sample at
//! random: GPUs that launch their own graphs (`gpu.cpp`), where others may go first at every load and store. And that is worth what it
//! finds: bugs are put in, and each is found.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// Runs, each with a seed of its own, until one finds a bug.
const SEEDS: u64 = 200;

/// What `flags` make of paths in the repository.
fn compile(to: &Path, flags: &[&str]) {
    let output = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "-O1",
            "-w",
            "-U_FORTIFY_SOURCE",
            "-Ikernels",
            "-Itests/dispatchers",
        ])
        .args(flags)
        .arg("-o")
        .arg(to)
        .output()
        .expect("the C++ compiler starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {said}");
}

/// A program for each dispatcher; the folder that they lie in.
static PROGRAMS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let object = |to: &str, flags: &[&str]| {
        let to = at(&format!("{to}.o"));
        compile(&to, &[flags, &["-c"]].concat());
        to.to_str().expect("a path in UTF-8").to_owned()
    };
    // Each load and store is a call; a file of kernels is C++.
    let kernels = |name: &str| {
        let source = format!("kernels/sched/{name}.cu");
        let flags = ["-std=c++17", "-fsanitize=thread", "-include", "cuda.h"];
        object(name, &[&flags[..], &["-x", "c++", &source]].concat())
    };
    let gpu = object("gpu", &["-std=c++17", "tests/dispatchers/gpu.cpp"]);
    let core = object("core", &["-x", "c", "kernels/sched/sched.c"]);
    let alone = kernels("dispatcher");
    let chain = |name: &str, defined: [&str; 3], objects: &[&str]| {
        let all = ["-std=c++17", "tests/dispatchers/chain.cpp", &gpu, &core];
        compile(&at(name), &[&all, &defined[..], objects].concat());
    };
    let one = "-DCOPIES=2";
    chain(
        "alone",
        ["-DDISPATCH=tg_dispatch", one, "-DCLAIMS=0"],
        &[&alone],
    );
    let others = kernels("dispatcher_claims");
    let dispatcher = ["-DDISPATCH=tg_dispatch_claims", one, "-DCLAIMS=1"];
    chain("claims", dispatcher, &[&others, &alone]);
    let dispatcher = ["-DDISPATCH=tg_dispatch_tail", "-DCOPIES=1", "-DCLAIMS=0"];
    chain("tail", dispatcher, &[&others, &alone]);
    let all = ["-std=c++17", "tests/dispatchers/stages.cpp", &gpu, &core];
    compile(&at("stages"), &[&all[..], &[&kernels("stages")]].concat());
    folder
});

/// What a run has to say where it fails.
fn run(name: &str, seed: u64, bug: u32) -> Result<(), String> {
    let requests = "60";
    let output = Command::new(PROGRAMS.path().join(name))
        .args([&seed.to_string(), requests, &bug.to_string()])
        .output()
        .expect("a program that was compiled starts");
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}, {}: {said}", output.status))
}

fn holds(name: &str, seeds: u64) {
    for seed in 1..=seeds {
        run(name, seed, 0).unwrap_or_else(|said| panic!("{said}"));
    }
}

/// `bug`: a site of TG_MUT, or 1000 and a barrier at which nobody waits.
fn is_found(name: &str, bug: u32) {
    let found = (1..=SEEDS).find_map(|seed| run(name, seed, bug).err());
    let said = found.unwrap_or_else(|| panic!("bug {bug} of {name} was not found"));
    println!("{bug}: {}", said.lines().next().unwrap_or_default());
}

#[test]
fn a_gpu_that_runs_alone_keeps_order() {
    holds("alone", 25);
}

#[test]
fn a_replica_keeps_order() {
    holds("claims", 25);
}

#[test]
fn tail_launches_keep_order() {
    holds("tail", 10);
}

#[test]
fn stages_keep_order() {
    holds("stages", 15);
}

#[test]
fn rows_that_are_read_behind_the_start_barrier_are_found() {
    is_found("alone", 170);
}

#[test]
fn stop_ids_of_a_slot_that_is_given_away_are_found() {
    is_found("claims", 171);
}

#[test]
fn waits_of_a_chain_are_needed() {
    // settled; open; what a chain has left has settled before
    for bug in [172, 173, 174] {
        is_found("alone", bug);
    }
}

#[test]
fn barriers_of_the_launching_warp_are_needed() {
    // next, again, start
    for barrier in [2, 3, 4] {
        is_found("alone", 1000 + barrier);
    }
}

#[test]
fn waits_of_stages_are_needed() {
    // settled; opened; an order before its graph; blocks that hand on; rows that come; a step that the chain had left is launched once
    for bug in [172, 175, 176, 177, 178, 179] {
        is_found("stages", bug);
    }
}

#[test]
fn posts_of_links_are_needed() {
    // posts before it has written; gives back before it has read
    for bug in [143, 146] {
        is_found("stages", bug);
    }
}
