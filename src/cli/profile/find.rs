//! Where Nsight is: on the PATH, with the CUDA toolkit, or in the folders that its own packages make.

use super::Tool;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where to look, in this order.
pub(super) struct Places {
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
pub(super) fn find(tool: Tool, places: &Places) -> Option<PathBuf> {
    let name = tool.program();
    let on_path = places.path.iter().flat_map(env::split_paths);
    let in_toolkits = places.toolkits.iter().flat_map(|toolkit| {
        let own = newest_first(toolkit, folder(tool));
        [toolkit.join("bin")]
            .into_iter()
            .chain(own.into_iter().flat_map(inside))
    });
    let in_packages = newest_first(&places.packages.join(folder(tool)), "")
        .into_iter()
        .flat_map(inside);
    on_path
        .chain(in_toolkits)
        .chain(in_packages)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

/// What the folders of its versions are called.
fn folder(tool: Tool) -> &'static str {
    match tool {
        Tool::Systems => "nsight-systems",
        Tool::Compute => "nsight-compute",
    }
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

/// What to say where there is none.
pub(super) fn missing(tool: Tool) -> String {
    let (title, name) = (tool.title(), tool.program());
    let (package, page) = match tool {
        Tool::Systems => (
            "nsight-systems",
            "https://developer.nvidia.com/nsight-systems",
        ),
        Tool::Compute => (
            "nsight-compute",
            "https://developer.nvidia.com/nsight-compute",
        ),
    };
    format!(
        "{name} is neither on the PATH nor in CUDA_HOME, /usr/local/cuda or /opt/nvidia/{package}: install {title} 2025.3 \
         or newer ({page}, also in NVIDIA's package repository), or use --print for the command line alone"
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

    #[test]
    fn a_missing_tool_is_one_line_with_what_to_do() {
        for tool in [Tool::Systems, Tool::Compute] {
            let message = missing(tool);
            assert!(!message.contains('\n'));
            for part in [tool.program(), "install Nsight", "--print", "CUDA_HOME"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}
