//! How much memory a run on the CPU may take: what the user allows, else a share of what the machine has free.

use super::bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// The share of available memory that a run takes when nobody says otherwise: the rest of the machine goes on working.
const AVAILABLE_PERCENT: u64 = 80;
/// The budget on systems that do not tell (other than Linux).
const ASSUMED_BYTES: u64 = 4 << 30;

/// Bytes that may be allocated, and where the number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub bytes: u64,
    /// For messages: `--memory-limit`, `80% of the 15.2 GiB available`.
    pub source: String,
}

impl Budget {
    /// `--memory-limit` where it is given, else a share of what the machine has free now.
    pub fn new(memory_limit: Option<u64>) -> Self {
        if let Some(bytes) = memory_limit {
            return Self {
                bytes,
                source: "--memory-limit".into(),
            };
        }
        match Available::now() {
            Some(available) => Self {
                bytes: available.bytes / 100 * AVAILABLE_PERCENT,
                source: format!(
                    "{AVAILABLE_PERCENT}% of the {} available",
                    Bytes(available.bytes)
                ),
            },
            None => Self {
                bytes: ASSUMED_BYTES,
                source: "assumed: this system does not say how much memory is available".into(),
            },
        }
    }
}

/// Memory that can be allocated without swapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    pub bytes: u64,
    /// All there is: the machine's, or what its control group allows.
    pub total_bytes: u64,
    /// True where a control group (a container) allows less than the machine has.
    pub limited: bool,
}

impl Available {
    /// Of this machine or container; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::under(Path::new("/"))
    }

    /// From `proc` and `sys` below `root`.
    fn under(root: &Path) -> Option<Self> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let field = |name: &str| {
            meminfo.lines().find_map(|line| {
                let kib = line.strip_prefix(name)?.strip_prefix(':')?;
                let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
                Some(kib.saturating_mul(1024))
            })
        };
        let machine = Self {
            bytes: field("MemAvailable")?,
            total_bytes: field("MemTotal")?,
            limited: false,
        };
        let group = tightest_group(root);
        Some(match group {
            Some(group) if group.bytes < machine.bytes => group,
            _ => machine,
        })
    }
}

/// The control group (version 2) of this process, or one above it, that leaves the least memory.
fn tightest_group(root: &Path) -> Option<Available> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = membership.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let mount = root.join("sys/fs/cgroup");
    let mut group = mount.join(path);
    // Inside a container the path may be the host's, and not there: its own group is then the mount itself.
    if !group.is_dir() {
        group = mount.clone();
    }
    let mut tightest: Option<Available> = None;
    loop {
        if let Some(here) = group_available(&group)
            && tightest.as_ref().is_none_or(|t| here.bytes < t.bytes)
        {
            tightest = Some(here);
        }
        if group == mount || !group.starts_with(&mount) || !group.pop() {
            return tightest;
        }
    }
}

/// What one control group leaves: its limit less what it uses, file cache not counted as used.
fn group_available(group: &Path) -> Option<Available> {
    let number =
        |file: PathBuf| -> Option<u64> { fs::read_to_string(file).ok()?.trim().parse().ok() };
    // "max" is no limit, and no number.
    let limit = number(group.join("memory.max"))?;
    let used = number(group.join("memory.current"))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache: u64 = stat
        .lines()
        .filter_map(|line| {
            line.strip_prefix("active_file ")
                .or_else(|| line.strip_prefix("inactive_file "))
        })
        .filter_map(|n| n.trim().parse::<u64>().ok())
        .sum();
    Some(Available {
        bytes: limit.saturating_sub(used.saturating_sub(cache)),
        total_bytes: limit,
        limited: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       16000000 kB\nMemFree:        1000 kB\nMemAvailable:   10000000 kB\n",
    );

    #[test]
    fn a_machine_without_groups() {
        let root = machine(&[MEMINFO]);
        assert_eq!(
            Available::under(root.path()),
            Some(Available {
                bytes: 10_000_000 * 1024,
                total_bytes: 16_000_000 * 1024,
                limited: false
            })
        );
        assert_eq!(Available::under(machine(&[]).path()), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "2000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "1500000000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 5\ninactive_file 300000000\nactive_file 200000000\n",
            ),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
        ]);
        assert_eq!(
            Available::under(root.path()),
            Some(Available {
                bytes: 1_000_000_000,
                total_bytes: 2_000_000_000,
                limited: true
            })
        );
    }

    #[test]
    fn a_limit_is_taken_as_it_is() {
        let budget = Budget::new(Some(5));
        assert_eq!(
            (budget.bytes, budget.source.as_str()),
            (5, "--memory-limit")
        );
    }
}
