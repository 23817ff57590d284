//! How much memory a test or its children took: what is fed with broken files must not eat the machine.

/// A GiB, which none may reach.
const BOUND_BYTES: u64 = 1 << 30;

/// The most that was resident since this process began must be below 1 GiB.
pub fn assert_peak_below_a_gib() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bytes = peak_in(&status).expect("VmHWM in /proc/self/status");
    assert!(
        bytes < BOUND_BYTES,
        "{bytes} bytes were resident at the peak"
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

/// The most that was resident of `command`, which ends well, as far as a look every few milliseconds tells.
pub fn peak_bytes(command: &mut std::process::Command) -> u64 {
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        peak = peak.max(peak_in(&std::fs::read_to_string(&status).unwrap()).unwrap_or(0));
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success(), "{command:?}");
            return peak;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// The peak memory in a process's status; one that has ended has none.
fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
