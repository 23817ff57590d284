//! How much memory a test took: what is fed with broken files must not eat the machine.

/// The most that was resident since this process began must be below 1 GiB.
pub fn assert_peak_below_a_gib() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("VmHWM in /proc/self/status");
    assert!(kib < 1 << 20, "{kib} KiB were resident at the peak");
}
