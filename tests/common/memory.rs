//! How much memory a test or its children took: what is fed with broken files must not eat the machine.

/// A GiB, which none may reach.
const BOUND_BYTES: u64 = 1 << 30;

/// The most that was resident since this process began must be below 1 GiB.
pub fn assert_peak_below_a_gib() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("VmHWM in /proc/self/status");
    assert!(
        kib * 1024 < BOUND_BYTES,
        "{kib} KiB were resident at the peak"
    );
}

/// So must what each child that has ended had; `of` says which.
pub fn assert_childrens_peak_below_a_gib(of: &str) {
    // SAFETY: all zeros is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    let code = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert_eq!(code, 0);
    let bytes = usage.ru_maxrss as u64 * 1024;
    assert!(bytes < BOUND_BYTES, "{of}: {bytes} bytes");
}
