//! `bench handover` where something is missing, or where a GPU does nothing: the driver's kernels do not run here.

use crate::rig::{Run, driver};

fn handover(ways: &str) -> Run {
    let options = ["bench", "handover", "--rows", "2", "-r", "1", "--quiet"];
    Run::new(&options).and(&["--ways", ways]).with("DEVICES", 2)
}

/// In its place lies what is no library, so that the system's own is not found either.
fn without_nccl(run: Run) -> Run {
    let folder = tempfile::tempdir().unwrap().keep();
    for name in ["libnccl.so.2", "libnccl.so"] {
        std::fs::write(folder.join(name), "no library").unwrap();
    }
    std::fs::copy(driver().join("libcuda.so"), folder.join("libcuda.so")).unwrap();
    run.over(&folder)
}

#[test]
fn a_way_by_its_name_says_what_it_lacks() {
    let ended = without_nccl(handover("nccl-spin")).end();
    let parts = [
        "--ways nccl-spin",
        "libnccl.so.2",
        "LD_LIBRARY_PATH",
        "pip install nvidia-nccl-cu13",
    ];
    ended.fails_in_a_line(2, &parts);
    let ended = handover("stores-device").with("PEERS", 0).end();
    let parts = ["--ways stores-device", "cuda:0 and cuda:1", "expected"];
    ended.fails_in_a_line(2, &parts);
}

#[test]
fn all_leaves_out_what_is_not_there_and_says_why() {
    let ended = without_nccl(handover("all")).end();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    for way in ["nccl-queued", "reduce-nccl-spin"] {
        let said = format!("left out: --ways {way}: libnccl.so.2");
        assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    }
    let ended = without_nccl(handover("all")).with("PEERS", 0).end();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
}

#[test]
fn ways_whose_kernels_tell_nothing_fail_each_by_its_name() {
    let ended = handover("all").end();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    for way in [
        "nccl-spin",
        "copies-graph",
        "stores-queued",
        "stores-device",
        "reduce-nccl-queued",
        "reduce-stores-spin",
    ] {
        let said = format!("{way}: all launches ended with cuda:0 at step 0 and cuda:1 at step 0");
        assert!(ended.stderr.contains(&said), "{way}: {}", ended.stderr);
    }
}

#[test]
fn two_gpus_are_expected() {
    for (devices, there) in [("cuda:0", 2), ("cuda:0,1,2", 3), ("cpu", 2)] {
        let run = handover("all").and(&["--device", devices]);
        let said = format!("--device {devices}, expected two GPUs");
        run.with("DEVICES", there)
            .end()
            .fails_in_a_line(2, &[&said]);
    }
    handover("stores")
        .end()
        .fails(2, &["expected all, or some of nccl-spin"]);
}
