//! What a report is made of: files as they are written elsewhere, told by how they begin.

use super::bench::{self, Row};
use super::trace;
use crate::error::{Error, Result};
use crate::{json, quote};
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

/// One file.
pub enum Input {
    Benched(Vec<Row>),
    /// What a page shows of a trace.
    Traced(Value),
    Launched(Vec<Launched>),
}

/// A result of `lab launch` (profiles/lab), one way beside one load, with the name of its file.
pub type Launched = Map<String, Value>;

/// What the first object of a file of such results begins with.
const LAUNCHED: &str = "launch_schema";

/// What files are called: by their own names, and by those of the folders above them as far as that takes to tell them apart.
pub fn names<P: AsRef<Path>>(paths: &[P]) -> Vec<String> {
    let name = |path: &P| {
        let path = path.as_ref();
        let mut tails = path
            .ancestors()
            .skip(1)
            .map(|above| path.strip_prefix(above));
        let alike = |tail: &Path| paths.iter().filter(|p| p.as_ref().ends_with(tail)).count();
        let tail = tails.find_map(|tail| tail.ok().filter(|tail| alike(tail) == 1));
        tail.unwrap_or(path).to_string_lossy().into_owned()
    };
    paths.iter().map(name).collect()
}

/// Reads a file of any kind that is known here, which is called `name`.
///
/// # Errors
/// There is no such file, or it is of no kind that is known, or not all of its kind.
pub fn read(path: &Path, name: String) -> Result<Input> {
    const EXPECTED: &str = "JSON of `tailgraph bench` or of `tailgraph trace`";
    let wrong = |found| {
        let message = format!("found {found}, expected {EXPECTED}");
        Err(Error::file(path, message))
    };
    let (is_list, key) = beginning(path, EXPECTED)?;
    match (key.as_deref(), is_list) {
        (Some(LAUNCHED), _) => launched(path, &name).map(Input::Launched),
        (Some("traceEvents"), false) => trace::read(path, name).map(Input::Traced),
        (Some("schema"), _) | (_, true) => bench::read(path, &name).map(Input::Benched),
        (Some(key), false) => wrong(format!("an object that begins with '{}'", quote::text(key))),
        (None, false) => wrong("no JSON object or list".to_owned()),
    }
}

/// Whether a file begins as a list, and the first name in its first object.
fn beginning(path: &Path, expected: &str) -> Result<(bool, Option<String>)> {
    let mut head = vec![];
    std::fs::File::open(path)
        .and_then(|file| file.take(256).read_to_end(&mut head))
        .map_err(|error| Error::open(path, &error, expected))?;
    let head = String::from_utf8_lossy(&head);
    let (is_list, first) = match head.trim_start().strip_prefix('[') {
        Some(items) => (true, items),
        None => (false, &*head),
    };
    let object = first.trim_start().strip_prefix('{').map(str::trim_start);
    let key = object.and_then(|rest| rest.strip_prefix('"')?.split_once('"'));
    Ok((is_list, key.map(|(key, _)| key.to_owned())))
}

fn launched(path: &Path, name: &str) -> Result<Vec<Launched>> {
    let mut rows: Vec<Launched> = json::rows(path, "results of `lab launch`")?;
    for row in &mut rows {
        let found = row.get(LAUNCHED).unwrap_or(&Value::Null);
        if found != 1 {
            let message = format!("found {LAUNCHED} {}, expected 1", quote::text(found));
            return Err(Error::file(path, message));
        }
        row.insert("file".to_owned(), name.into());
    }
    Ok(rows)
}
