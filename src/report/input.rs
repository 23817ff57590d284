//! What a report is made of: files as they are written elsewhere, told by how they begin.

use super::bench::{self, Row};
use super::decode_speed;
use super::steps::Steps;
use super::trace::{self, Traced};
use crate::error::{Error, Result};
use std::path::Path;

/// One file.
pub enum Input {
    Benched(Vec<Row>),
    Steps(Box<Steps>),
    Traced(Box<Traced>),
}

/// Reads a file of any kind that is known here.
///
/// # Errors
/// There is no such file, or it is of no kind that is known, or not all of its kind.
pub fn read(path: &Path) -> Result<Input> {
    let expected =
        "JSON of `tailgraph bench`, of `tailgraph trace`, or of the measurements in profiles/";
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy().into_owned();
    match trace::beginning(path, expected)? {
        trace::Beginning::List => bench::read(path, &name).map(Input::Benched),
        trace::Beginning::Object(key) => match key.as_str() {
            "traceEvents" => Ok(Input::Traced(Box::new(trace::read(path, name)?))),
            "schema" => bench::read(path, &name).map(Input::Benched),
            _ => {
                let steps = decode_speed::read(path, &name, expected)?;
                Ok(Input::Steps(Box::new(steps)))
            }
        },
        trace::Beginning::Other => {
            let message = format!("found no JSON object or list, expected {expected}");
            Err(Error::file(path, message))
        }
    }
}
