//! Both tools: where they are (on the PATH, or with the CUDA toolkit) and of which release.

use crate::cli::args::profile::Tool;
use std::env;
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

/// The tool's program, where there is one: on the PATH, else in a CUDA toolkit.
pub fn find(tool: Tool) -> Option<PathBuf> {
    let (program, ..) = tool.names();
    let path = env::var_os("PATH");
    let on_path = path.iter().flat_map(env::split_paths);
    let toolkits = env::var_os("CUDA_HOME").map(PathBuf::from).into_iter();
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]);
    on_path
        .chain(toolkits.map(|toolkit| toolkit.join("bin")))
        .map(|folder| folder.join(program))
        .find(|file| is_program(file))
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
    let (program, ..) = tool.names();
    format!(
        "{program} is neither on the PATH nor in CUDA_HOME/bin or /usr/local/cuda/bin: {}; profile --print shows the command line \
         without it",
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
