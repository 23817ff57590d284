//! What a name stands for: a place where a file is or would be, or something that is written to as it is.

use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Links in a row that are followed, as many as Linux does.
const LINKS_AT_MOST: usize = 40;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// A regular file, or nothing yet: the path has no links in it.
    Place(PathBuf),
    /// Another name of a descriptor of this process, such as /dev/stdout or /proc/self/fd/1.
    Descriptor(RawFd),
    /// A pipe, a device, or a descriptor of another process.
    Special(PathBuf),
}

/// Follows every link, one whose target is not there included: a file is made where the link points. `-` is standard
/// output.
///
/// # Errors
/// The folder is not there, `path` is a directory, or its links go round in a circle.
pub fn resolve(path: &Path) -> Result<Resolved> {
    if path.as_os_str() == "-" {
        return Ok(Resolved::Descriptor(1));
    }
    let mut at = path.to_owned();
    for _ in 0..LINKS_AT_MOST {
        let Some(name) = at.file_name().filter(|_| !names_a_folder(&at)) else {
            return Err(directory(path));
        };
        let folder = at.parent().filter(|folder| *folder != Path::new(""));
        let folder = folder.unwrap_or(Path::new("."));
        let folder = folder
            .canonicalize()
            .map_err(|error| Error::create(path, &error))?;
        let full = folder.join(name);
        match descriptor(&full) {
            Some(Owner::This(number)) => return Ok(Resolved::Descriptor(number)),
            Some(Owner::Other) => return Ok(Resolved::Special(full)),
            None => {}
        }
        match full.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                let next = full.read_link().map_err(|error| Error::io(&full, error))?;
                at = folder.join(next);
            }
            Ok(found) if found.is_dir() => return Err(directory(path)),
            Ok(found) if found.is_file() => return Ok(Resolved::Place(full)),
            Ok(_) => return Ok(Resolved::Special(full)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Resolved::Place(full));
            }
            Err(error) => return Err(Error::create(path, &error)),
        }
    }
    Err(Error::file(
        path,
        format!("found more than {LINKS_AT_MOST} links one after the other, expected a file"),
    ))
}

/// Where the file is or would be; nothing for a stream, and where nothing can be.
pub fn place(path: &Path) -> Option<PathBuf> {
    match resolve(path) {
        Ok(Resolved::Place(place)) => Some(place),
        _ => None,
    }
}

fn directory(path: &Path) -> Error {
    Error::file(path, "found a directory, expected a file to write")
}

/// `NAME/` is a directory, there or not.
fn names_a_folder(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

enum Owner {
    This(RawFd),
    Other,
}

/// /proc/PID/fd/N and /proc/PID/task/TID/fd/N. `path` is canonical but for its last part.
fn descriptor(path: &Path) -> Option<Owner> {
    let parts: Vec<&OsStr> = path
        .components()
        .filter(|part| *part != Component::RootDir)
        .map(Component::as_os_str)
        .collect();
    let (pid, number) = match parts[..] {
        [proc, pid, fd, number] if proc == "proc" && fd == "fd" => (pid, number),
        [proc, pid, task, _, fd, number] if proc == "proc" && task == "task" && fd == "fd" => {
            (pid, number)
        }
        _ => return None,
    };
    let number = number.to_str()?.parse().ok()?;
    Some(match pid.to_str()?.parse::<u32>() {
        Ok(pid) if std::process::id() == pid => Owner::This(number),
        _ => Owner::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_to_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("there"), "").unwrap();
        symlink("there", at("link")).unwrap();
        symlink("../link", at("sub/link")).unwrap();
        symlink("sub", at("folder")).unwrap();
        symlink("folder/absent", at("dangling")).unwrap();
        for (name, expected) in [
            ("there", "there"),
            ("sub/../there", "there"),
            ("link", "there"),
            ("folder/link", "there"),
            ("absent", "absent"),
            ("dangling", "sub/absent"),
        ] {
            assert_eq!(
                resolve(&at(name)).unwrap(),
                Resolved::Place(at(expected)),
                "{name}"
            );
        }
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        symlink("sub", at("directory")).unwrap();
        for (name, expected) in [
            ("a", "links one after the other"),
            ("sub", "found a directory"),
            ("directory", "found a directory"),
            ("absent/", "found a directory"),
            ("..", "found a directory"),
            ("no/file", "found no such directory"),
        ] {
            let error = resolve(&at(name)).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn other_names_of_descriptors_are_no_places() {
        let dir = tempfile::tempdir().unwrap();
        let alias = dir.path().join("alias");
        symlink("/proc/self/fd/1", &alias).unwrap();
        for name in [
            "-",
            "/dev/stdout",
            "/proc/self/fd/1",
            "/proc/thread-self/fd/1",
            "/dev/fd/1",
            alias.to_str().unwrap(),
        ] {
            assert_eq!(
                resolve(Path::new(name)).unwrap(),
                Resolved::Descriptor(1),
                "{name}"
            );
        }
        for name in ["/dev/null", "/proc/1/fd/1"] {
            let found = resolve(Path::new(name)).unwrap();
            assert_eq!(found, Resolved::Special(name.into()), "{name}");
        }
    }
}
