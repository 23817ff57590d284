//! That a command's files are different ones, so that none is written over another.

use super::args::RecordArg;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::resolve;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `-`: standard input or output.
pub(super) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Another file of the command, if it has one, and what that is.
pub(super) type Other<'a> = (Option<&'a Path>, &'a str);

/// Refuses to write `output`, which `flag` names, over one of `others`.
///
/// # Errors
/// [`Error::Usage`] where both are one file, which need not be there yet.
pub(super) fn keep_apart(flag: &str, output: &Path, others: &[Other<'_>]) -> Result<()> {
    match first(others, |other| is_same(output, other)) {
        None => Ok(()),
        Some(what) => Err(Error::Usage(format!(
            "{flag} {}: found the {what} file, expected another",
            output.display()
        ))),
    }
}

/// [`keep_apart`] where the others are written too: nor may they be one device or standard output.
///
/// # Errors
/// As [`keep_apart`].
pub(super) fn keep_outputs_apart(flag: &str, output: &Path, others: &[Other<'_>]) -> Result<()> {
    let named = |other: &Path| other == output && output != Path::new("/dev/null");
    match first(others, named) {
        None => keep_apart(flag, output, others),
        Some(what) => Err(Error::Usage(format!(
            "{flag} {}: found the same name as {what}, expected a file of its own",
            output.display()
        ))),
    }
}

/// [`keep_apart`] for an OUTPUT that is put together: nor may one of `others` be what is written on the way, OUTPUT.partial.
///
/// # Errors
/// As [`keep_apart`].
pub(super) fn keep_journal_apart(flag: &str, output: &Path, others: &[Other<'_>]) -> Result<()> {
    keep_apart(flag, output, others)?;
    // By way of the file itself, wherever links lead.
    let Some(output_place) = place(output) else {
        return Ok(());
    };
    for suffix in [".partial", ".partial.tmp"] {
        let path = beside(&output_place, suffix);
        if let Some(what) = first(others, |other| is_same(&path, other)) {
            return Err(Error::Usage(format!(
                "{flag} {}: is written by way of {}, which is the {what} file: expected another",
                output.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

impl RecordArg {
    /// Refuses to write over the other files of a run.
    ///
    /// # Errors
    /// As [`keep_apart`].
    pub(super) fn keep_apart(&self, files: &[Other<'_>]) -> Result<()> {
        match &self.record {
            Some(record) => keep_journal_apart("--record", record, files),
            None => Ok(()),
        }
    }
}

/// What the first of these is that `is` holds for.
fn first<'a>(others: &[Other<'a>], is: impl Fn(&Path) -> bool) -> Option<&'a str> {
    let mut found = others.iter().filter(|(path, _)| path.is_some_and(&is));
    found.next().map(|&(_, what)| what)
}

fn is_same(a: &Path, b: &Path) -> bool {
    match (place(a), place(b)) {
        (Some(a), Some(b)) => a == b,
        // A file may be open as standard input.
        (Some(_), None) | (None, Some(_)) => is_same_file(a, b),
        (None, None) => false,
    }
}

/// Whether both are there, and are one regular file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Where a file is, or would be: nothing for `-`, and for a pipe or a device, which is not written over.
fn place(path: &Path) -> Option<PathBuf> {
    match is_stdio(path) {
        true => None,
        false => resolve::place(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_many_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("there"), "").unwrap();
        std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
        let same = [
            ("there", "there"),
            ("there", "sub/../there"),
            ("there", "link"),
            ("absent", "sub/../absent"),
        ];
        for (a, b) in same {
            assert!(is_same(&at(a), &at(b)), "{a} {b}");
        }
        let different = [
            ("there", "absent"),
            ("absent", "sub/absent"),
            ("no/x", "no/x"),
        ];
        for (a, b) in different {
            assert!(!is_same(&at(a), &at(b)), "{a} {b}");
        }
        assert!(!is_same(Path::new("-"), Path::new("-")));
        assert!(!is_same(Path::new("/dev/null"), Path::new("/dev/null")));
        assert!(is_same(Path::new("absent"), Path::new("./absent")));
    }

    #[test]
    fn two_outputs_are_not_one_stream() {
        let apart = |a: &str, b: &str| {
            keep_outputs_apart("--svg", Path::new(a), &[(Some(Path::new(b)), "--table")]).is_ok()
        };
        assert!(!apart("-", "-") && !apart("/dev/stdout", "/dev/stdout") && !apart("x", "./x"));
        assert!(apart("-", "x") && apart("/dev/null", "/dev/null"));
    }

    #[test]
    fn a_journal_is_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let message = |other: &str| {
            keep_journal_apart("--output", &at("out"), &[(Some(&at(other)), "input")])
                .map_err(|error| error.to_string())
                .err()
        };
        assert!(message("out").unwrap().contains("found the input file"));
        for other in ["out.partial", "out.partial.tmp"] {
            assert!(message(other).unwrap().contains("by way of"), "{other}");
        }
        assert_eq!(message("out.other"), None);
    }
}
