//! How much memory a run on the CPU may take: what the user allows, else a share of what the machine has free.

use crate::bytes::Bytes;
use std::fs;
use std::path::{Component, Path};

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
                source: "`memory_limit`".into(),
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

    /// The budget of one of `engines` that share this one; `common` bytes of it belong to all of them.
    #[must_use]
    pub fn shared(self, engines: u32, common: u64) -> Self {
        if engines < 2 {
            return self;
        }
        let own = self.bytes.saturating_sub(common) / u64::from(engines);
        Self {
            bytes: own.saturating_add(common).min(self.bytes),
            source: format!("for each of {engines} engines, of {}", self.source),
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
    /// Asks this machine or container; `None` where the system does not tell.
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

/// The files of a control group that say what it may take and has taken.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Lines of memory.stat: file cache, of the groups below as well, which is given back where memory runs short.
    cache: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: ["total_active_file ", "total_inactive_file "],
};
const VERSION_2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    cache: ["active_file ", "inactive_file "],
};

/// The control group of this process, or one above it, that leaves the least memory. Where a machine has both versions
/// of control groups, one of them has the memory.
fn tightest_group(root: &Path) -> Option<Available> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    let groups = membership.lines().filter_map(|line| {
        // hierarchy:controllers:path, the first 0 and the second empty in version 2
        let mut parts = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            tightest_of(&mount.join("memory"), path, &VERSION_1)
        } else if hierarchy == "0" && controllers.is_empty() {
            tightest_of(&mount, path, &VERSION_2)
        } else {
            None
        }
    });
    groups.min_by_key(|group| group.bytes)
}

/// From the group `path` up to the one at `mount`.
fn tightest_of(mount: &Path, path: &str, files: &Files) -> Option<Available> {
    let below = Path::new(path.trim_start_matches('/'));
    // Inside a container the path may be the host's, and not there: its own group is then the mount itself.
    let plain = below
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let start = if plain && mount.join(below).is_dir() {
        below
    } else {
        Path::new("")
    };
    let groups = start.ancestors().map(|group| mount.join(group));
    groups
        .filter_map(|group| group_available(&group, files))
        .min_by_key(|group| group.bytes)
}

/// What one control group leaves: its limit less what it uses, file cache not counted as used.
fn group_available(group: &Path, files: &Files) -> Option<Available> {
    let number = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse().ok()
    };
    // "max" is no limit, and no number; version 1 has a number past any machine's memory instead.
    let limit = number(files.limit)?;
    let used = number(files.used)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache: u64 = stat
        .lines()
        .filter_map(|line| files.cache.iter().find_map(|name| line.strip_prefix(name)))
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

    /// Megabytes, and whether a group limits them.
    fn available(files: &[(&str, &str)]) -> Option<(u64, bool)> {
        let found = Available::under(machine(files).path())?;
        Some((found.bytes / 1_000_000, found.limited))
    }

    #[test]
    fn a_machine_without_groups_has_what_it_says() {
        let whole = Available {
            bytes: 10_000_000 * 1024,
            total_bytes: 16_000_000 * 1024,
            limited: false,
        };
        assert_eq!(Available::under(machine(&[MEMINFO]).path()), Some(whole));
        assert_eq!(available(&[]), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let found = available(&[
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
        assert_eq!(found, Some((1000, true)));
    }

    #[test]
    fn version_1_has_its_own_names() {
        let limit = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let used = "sys/fs/cgroup/memory/memory.usage_in_bytes";
        let none = "9223372036854771712\n";
        let found = available(&[
            MEMINFO,
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/x\n4:hugetlb,memory:/a/b\n1:name=systemd:/x\n0::/x\n",
            ),
            (limit, none),
            (used, "7000000000\n"),
            (
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "3000000000\n",
            ),
            (
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes",
                "2500000000\n",
            ),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "active_file 1\ntotal_active_file 100000000\ntotal_inactive_file 200000000\n",
            ),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", none),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1\n"),
            // Another controller's.
            ("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1\n"),
            ("sys/fs/cgroup/cpu/x/memory.usage_in_bytes", "0\n"),
        ]);
        assert_eq!(found, Some((800, true)));
        // A container sees its own group at the mount, whatever the host calls it. Without a limit it has the machine's memory.
        for (path, limit_bytes, expected) in [
            ("/docker/0123", "1000000000\n", (600, true)),
            ("/../../x", "1000000000\n", (600, true)),
            ("/", "1000000000\n", (600, true)),
            ("/docker/0123", none, (10_240, false)),
        ] {
            let membership = format!("4:memory:{path}\n");
            let found = available(&[
                MEMINFO,
                ("proc/self/cgroup", &membership),
                (limit, limit_bytes),
                (used, "400000000\n"),
            ]);
            assert_eq!(found, Some(expected), "{path}");
        }
    }

    #[test]
    fn a_limit_is_taken_as_it_is() {
        let budget = Budget::new(Some(5));
        assert_eq!(
            (budget.bytes, budget.source.as_str()),
            (5, "`memory_limit`")
        );
    }
}
