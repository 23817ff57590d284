//! The files of a command are different ones: none that it writes is one that it reads, or another that it writes. Found
//! before any of them is opened.

use super::args::BucketArgs;
use crate::error::{Error, Result};
use crate::files::names::{UNFINISHED, beside};
use crate::files::resolve::{Resolved, place, resolve};
use crate::files::{Out, Unfinished};
use crate::io::finished::job_path;
use crate::io::record::record_paths;
use crate::io::shard::record_path;
use crate::model::{ModelSource, fingerprint};
use clap::ValueEnum;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `-`: standard input or output.
pub fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Where a command with formats `F` prints: `output`, else standard output. Opened before there is anything to print.
///
/// # Errors
/// [`Error::Usage`] where `output` is a format's name, which `-o` stands for in other programs; it cannot be written.
pub fn open_printed<F: ValueEnum>(output: Option<&Path>) -> Result<Out> {
    let Some(path) = output else {
        return Out::stdout();
    };
    let name = path.to_str().unwrap_or_default();
    if F::from_str(name, false).is_ok() {
        return Err(Error::Usage(format!(
            "--output {name}: found the name of a format, expected a file: formats are --format {name}, and ./{name} is a file"
        )));
    }
    Out::open(path, Unfinished::Removed)
}

/// A file that is written where it is asked for. Claimed before any work: what cannot be written is said at once.
///
/// # Errors
/// It cannot be written.
pub fn open_asked(path: Option<&Path>) -> Result<Option<Out>> {
    path.map(|path| Out::open(path, Unfinished::Removed))
        .transpose()
}

/// All files of a command, each with what a message calls it.
#[derive(Default)]
pub struct Files {
    read: Vec<(PathBuf, &'static str)>,
    written: Vec<(PathBuf, &'static str)>,
}

impl Files {
    pub fn reads<P: AsRef<Path>>(
        mut self,
        what: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let paths = paths.into_iter();
        let paths = paths.map(|path| (path.as_ref().to_owned(), what));
        self.read.extend(paths);
        self
    }

    /// Rows, which may come from a file by way of standard input.
    pub fn reads_rows(self, path: Option<&Path>) -> Self {
        let path = path.filter(|path| !is_stdio(path));
        self.reads("input", [path.unwrap_or(Path::new("/dev/stdin"))])
    }

    /// What a run is of.
    pub fn runs(self, model: &ModelSource, settings: &BucketArgs) -> Self {
        let files = fingerprint::files(model);
        self.reads("model", files)
            .reads("--bucket-file", settings.bucket_file.as_deref())
            .reads("--kernel-file", settings.kernel_file.as_deref())
    }

    /// `flag` names it. Nothing where it is not asked for.
    pub fn writes(mut self, flag: &'static str, path: Option<&Path>) -> Self {
        let path = path.map(|path| (path.to_owned(), flag));
        self.written.extend(path);
        self
    }

    /// The recordings of so many replicas, or what is made of them: of several each has a file of its own.
    ///
    /// # Errors
    /// [`Error::Usage`] where several are to go to one stream.
    pub fn writes_each(
        self,
        flag: &'static str,
        path: Option<&Path>,
        replicas: usize,
    ) -> Result<Self> {
        let Some(path) = path else {
            return Ok(self);
        };
        let is_file = matches!(resolve(path), Ok(Resolved::Place(_)) | Err(_));
        if replicas > 1 && !is_file {
            return Err(Error::Usage(format!(
                "{flag} {}: found a stream, expected the name of a file, of which each of the {replicas} devices has one with its number",
                path.display()
            )));
        }
        let paths = record_paths(path, replicas).into_iter();
        Ok(paths.fold(self, |files, path| files.writes(flag, Some(&path))))
    }

    /// The record of what the rows of `output` answer, beside it.
    pub fn writes_job(self, output: Option<&Path>) -> Self {
        let record = output.and_then(place).map(|place| job_path(&place));
        self.writes("the record of --output", record.as_deref())
    }

    /// The record of the shard that `output` is, beside it.
    pub fn writes_shard(self, output: Option<&Path>) -> Self {
        let record = output.map(record_path);
        self.writes("--shard", record.as_deref())
    }

    /// # Errors
    /// [`Error::Usage`] where two are one file, which need not be there yet, or one stream.
    pub fn keep_apart(&self) -> Result<()> {
        let wrong = |(output, flag): &(PathBuf, &str), found: String| {
            let message = format!("{flag} {}: {found}", output.display());
            Err(Error::Usage(message))
        };
        for (n, output) in self.written.iter().enumerate() {
            for (other, what) in &self.written[..n] {
                if is_same(&output.0, other) || is_one_stream(&output.0, other) {
                    let found =
                        format!("found the same name as {what}, expected a file of its own");
                    return wrong(output, found);
                }
                if let Some(way) = way_through(other, &output.0) {
                    let found = format!(
                        "found {}, by way of which {what} is written: expected another",
                        way.display()
                    );
                    return wrong(output, found);
                }
            }
        }
        for (n, output) in self.written.iter().enumerate() {
            for (other, what) in self.written[..n].iter().chain(&self.read) {
                if is_same(&output.0, other) {
                    return wrong(output, format!("found the {what} file, expected another"));
                }
                if let Some(way) = way_through(&output.0, other) {
                    let found = format!(
                        "is written by way of {}, which is the {what} file: expected another",
                        way.display()
                    );
                    return wrong(output, found);
                }
            }
        }
        Ok(())
    }
}

/// What is written on the way to `output`, beside the file itself and wherever links lead, if it is `other`.
fn way_through(output: &Path, other: &Path) -> Option<PathBuf> {
    let place = place(output)?;
    let ways = UNFINISHED.map(|ending| beside(&place, ending));
    ways.into_iter().find(|way| is_same(way, other))
}

fn is_one_stream(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (resolve(a), resolve(b)) else {
        return false;
    };
    let is_place = matches!(a, Resolved::Place(_));
    a == b && !is_place && a != Resolved::Special("/dev/null".into())
}

fn is_same(a: &Path, b: &Path) -> bool {
    match (place(a), place(b)) {
        (Some(a), Some(b)) => a == b,
        // A file may be open as standard input; and what a run writes to a pipe that it reads would be its own input.
        (Some(_), None) | (None, _) => is_same_file(a, b),
    }
}

/// Whether both are there, and are one regular file or one pipe. A terminal may well be both.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => {
            let is_one = (a.dev(), a.ino()) == (b.dev(), b.ino());
            is_one && (a.is_file() || a.file_type().is_fifo())
        }
        _ => false,
    }
}
