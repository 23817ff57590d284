//! Machines that cannot run anything on a GPU.

use crate::rig::{Run, WAYS};

/// The driver of these tests itself: with nothing wrong, every way serves.
#[test]
fn with_nothing_wrong_everything_is_served() {
    for way in WAYS {
        let ended = Run::generate(way).and(&["one", "two"]).end();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{way}");
        assert_eq!(ended.stdout, "AAA\n\nAAA\n", "{way}");
    }
}

/// Files that no loader takes stand before whatever driver the machine may have.
#[test]
fn no_driver() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let run = || {
        Run::generate("device-graph")
            .and(&["one"])
            .over(folder.path())
    };
    run()
        .end()
        .fails_in_a_line(1, &["no NVIDIA driver found", "install driver 580"]);
}

#[test]
fn no_gpu() {
    let run = Run::generate("device-graph")
        .and(&["one"])
        .with("DEVICES", 0);
    run.end()
        .fails_in_a_line(1, &["shows no GPU", "nvidia-smi"]);
}

#[test]
fn a_driver_that_is_too_old() {
    for (version, found) in [(12_040, "CUDA 12.4"), (12_090, "CUDA 12.9")] {
        let run = Run::generate("host-graph")
            .and(&["one"])
            .with("VERSION", version);
        run.end()
            .fails_in_a_line(1, &[found, "expected 13.0", "update it to 580"]);
    }
    let run = Run::generate("host-graph")
        .and(&["one"])
        .with("VERSION", 13_010);
    assert_eq!(run.end().code, 0);
}

#[test]
fn a_gpu_without_kernels_in_this_build() {
    for capability in ["7.5", "9.1", "12.0"] {
        let run = Run::generate("host-kernels").and(&["one"]);
        let named = format!("compute capability {capability}");
        let parts = [
            "cuda:0 Test GPU 0",
            &named,
            "expected compute capability 8.x, 9.0 or 10.x",
        ];
        run.with("CAPABILITY", capability)
            .end()
            .fails_in_a_line(1, &parts);
    }
}

#[test]
fn a_gpu_that_is_not_there() {
    let run = Run::new(&[
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cuda:2",
        "one",
    ]);
    let ended = run.with("DEVICES", 2).end();
    ended.fails_in_a_line(2, &["cuda:2 does not exist", "cuda:0 to cuda:1"]);
}

#[test]
fn a_driver_that_refuses_names_its_call() {
    for (fails, parts) in [
        ("cuInit:1:999", ["cuInit", "CUDA_ERROR_UNKNOWN"]),
        (
            "cuInit:1:803",
            ["cuInit", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"],
        ),
        (
            "cuDevicePrimaryCtxRetain:1:46",
            ["opening cuda:0 Test GPU 0", "CUDA_ERROR_DEVICE_UNAVAILABLE"],
        ),
        (
            "cuModuleLoadData:1:209",
            ["loading kernel tg_", "CUDA_ERROR_NO_BINARY_FOR_GPU"],
        ),
        (
            "cuModuleGetFunction:1:500",
            ["finding kernel tg_", "CUDA_ERROR_NOT_FOUND"],
        ),
    ] {
        let run = Run::generate("device-graph")
            .and(&["one"])
            .with("FAIL", fails);
        run.end().fails_in_a_line(1, &parts);
    }
}

/// Nobody asked for the GPU, so the CPU serves; but not without a word where there is a GPU that it takes the place of.
#[test]
fn a_gpu_is_not_passed_over_in_silence() {
    let run = || {
        Run::new(&[
            "generate",
            "--model",
            "random:tiny",
            "--max-new-tokens",
            "1",
            "--quiet",
            "one",
        ])
    };
    for (name, value, why) in [
        ("VERSION", "12040", Some("speaks CUDA 12.4")),
        ("CAPABILITY", "7.5", Some("compute capability 7.5")),
        ("DEVICES", "0", None),
    ] {
        let ended = run().with(name, value).end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        match why {
            None => assert_eq!(ended.stderr, ""),
            Some(why) => {
                assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
                assert!(ended.stderr.contains("warning: running on the CPU"));
                assert!(ended.stderr.contains(why), "{}", ended.stderr);
            }
        }
    }
}
