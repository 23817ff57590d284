//! Both tools: where they are (on the PATH, with the CUDA toolkit, or in the folders that NVIDIA's packages make) and of which
//! release.

use crate::cli::args::profile::Tool;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest release that has all options of [`super::line`].
pub const OLDEST: [u32; 2] = [2025, 3];

impl Tool {
    /// Its program, its title, and what files and folders of it are called by.
    pub fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Systems => ("nsys", "Nsight Systems", "systems"),
            Self::Compute => ("ncu", "Nsight Compute", "compute"),
        }
    }
}

/// Where to look, in this order.
pub struct Places {
    /// As in PATH
    pub path: Option<OsString>,
    /// Folders of CUDA toolkits
    pub toolkits: Vec<PathBuf>,
    /// Folder of NVIDIA's own packages
    pub packages: PathBuf,
}

impl Places {
    pub fn of_this_machine() -> Self {
        let named = ["CUDA_HOME", "CUDA_PATH"]
            .into_iter()
            .filter_map(env::var_os);
        Self {
            path: env::var_os("PATH"),
            toolkits: named
                .map(PathBuf::from)
                .chain([PathBuf::from("/usr/local/cuda")])
                .collect(),
            packages: PathBuf::from("/opt/nvidia"),
        }
    }
}

/// The tool's program, where there is one.
pub fn find(tool: Tool, places: &Places) -> Option<PathBuf> {
    let (program, _, name) = tool.names();
    let package = format!("nsight-{name}");
    let on_path = places.path.iter().flat_map(env::split_paths);
    let in_toolkits = places.toolkits.iter().flat_map(|toolkit| {
        let own = newest_first(toolkit, &package);
        std::iter::once(toolkit.join("bin")).chain(own.into_iter().flat_map(inside))
    });
    let in_packages = newest_first(&places.packages.join(&package), "");
    on_path
        .chain(in_toolkits)
        .chain(in_packages.into_iter().flat_map(inside))
        .map(|folder| folder.join(program))
        .find(|file| is_program(file))
}

/// Folders with programs in that of one version.
fn inside(version: PathBuf) -> [PathBuf; 3] {
    [
        version.join("bin"),
        version.join("target-linux-x64"),
        version,
    ]
}

/// Folders in `folder` whose names begin with `start`, the largest version first: 2025.10 is newer than 2025.9.
fn newest_first(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u64>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(start)?;
            let numbers = rest.split(|c: char| !c.is_ascii_digit());
            Some((
                numbers.filter_map(|n| n.parse().ok()).collect(),
                entry.path(),
            ))
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// The release as `--version` says it, and its numbers; `None` where it says none.
pub fn version(program: &Path) -> Option<(String, Vec<u32>)> {
    let done = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let mut found = text.split_whitespace().map(|word| {
        let numbers = word.split('.').map_while(|number| number.parse().ok());
        (word.to_owned(), numbers.collect::<Vec<u32>>())
    });
    found.find(|(_, numbers)| numbers.len() > 1)
}

/// What to say where there is none.
pub fn missing(tool: Tool) -> String {
    let (program, _, name) = tool.names();
    format!(
        "{program} is neither on the PATH nor in CUDA_HOME, /usr/local/cuda or /opt/nvidia/nsight-{name}: {}; profile --print \
         shows the command line without it",
        install(tool)
    )
}

pub fn install(tool: Tool) -> String {
    let (_, title, name) = tool.names();
    let [year, release] = OLDEST;
    format!(
        "install {title} {year}.{release} or newer (https://developer.nvidia.com/nsight-{name}, also in NVIDIA's package repository)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn install(root: &Path, file: &str, mode: u32) -> PathBuf {
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn each_place_is_looked_at_in_its_turn() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let places = Places {
            path: Some(root.join("path").into()),
            toolkits: vec![root.join("cuda")],
            packages: root.join("opt"),
        };
        let finds = |tool, expected: &Path| assert_eq!(find(tool, &places).unwrap(), expected);
        assert_eq!(find(Tool::Systems, &places), None);

        install(root, "opt/nsight-systems/2025.9.1/bin/nsys", 0o755);
        let newer = install(
            root,
            "opt/nsight-systems/2025.10.1/target-linux-x64/nsys",
            0o755,
        );
        finds(Tool::Systems, &newer);
        let compute = install(root, "cuda/nsight-compute-2025.3.0/ncu", 0o755);
        finds(Tool::Compute, &compute);
        let toolkit = install(root, "cuda/bin/nsys", 0o755);
        finds(Tool::Systems, &toolkit);
        install(root, "path/nsys", 0o644);
        finds(Tool::Systems, &toolkit);
        let first = install(root, "path/nsys", 0o755);
        finds(Tool::Systems, &first);
    }
}
