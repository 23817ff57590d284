//! Plan files: bucket sizes and stage cuts as TOML. `graphs/default.toml` is built in; `--bucket-file` names another,
//! which replaces what it has.

use super::{BucketSizes, Limits, MAX_BUCKETS, MAX_SEQS, MAX_STAGES, Plan, StepKind};
use crate::error::{Error, Result};
use crate::model::ModelConfig;
use crate::quote;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

const DEFAULT: &str = include_str!("../../graphs/default.toml");
/// The name errors give the built-in file.
const DEFAULT_NAME: &str = "graphs/default.toml (built in)";

/// Rows of a mixed or score bucket, at most.
const MAX_BUCKET_ROWS: u32 = 65_536;

/// The contents of a plan file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphFile {
    /// Where it came from, for messages.
    pub path: PathBuf,
    pub bucket_sizes: BucketSizes,
    /// For some numbers of stages, the layers at which the stages after the first begin.
    pub cuts: BTreeMap<usize, Vec<usize>>,
}

impl GraphFile {
    /// The file that is built in.
    ///
    /// # Errors
    /// Never in a released build: a test reads the file.
    pub fn built_in() -> Result<Self> {
        let empty = BucketSizes {
            decode: Vec::new(),
            mixed: Vec::new(),
            score: Vec::new(),
        };
        Self::parse(Path::new(DEFAULT_NAME), DEFAULT, empty)
    }

    /// The file at `path`; bucket sizes that it does not name are the built-in ones.
    ///
    /// # Errors
    /// [`Error::File`]: it cannot be read, or names the key, what it holds and what it should.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_toml(path, "a TOML file of bucket sizes and stages")?;
        Self::parse(path, &text, Self::built_in()?.bucket_sizes)
    }

    /// The file at `path`, or the built-in one.
    ///
    /// # Errors
    /// Fails as [`Self::read`] does.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        path.map_or_else(Self::built_in, Self::read)
    }

    /// The plan for `config` in `limits.stages` stages: cut where the file says, else balanced for what the run is
    /// of.
    ///
    /// # Errors
    /// [`Error::Usage`] for an impossible number of stages, [`Error::File`] for cuts that the model does not have.
    pub fn plan(&self, config: Arc<ModelConfig>, limits: &Limits) -> Result<Plan> {
        let stages = limits.stages.unwrap_or(1);
        match self.cuts.get(&stages) {
            None => Plan::new(config, self.bucket_sizes.clone(), stages, limits.prompts),
            Some(cuts) => Plan::with_cuts(config, self.bucket_sizes.clone(), cuts)
                .map_err(|error| Error::file(&self.path, format!("stages.{stages}: {error}"))),
        }
    }

    fn parse(path: &Path, text: &str, mut bucket_sizes: BucketSizes) -> Result<Self> {
        let wrong = |message: String| Error::file(path, message);
        let table = parse_toml(path, text)?;
        let mut cuts = BTreeMap::new();
        for (key, value) in &table {
            let Value::Table(entries) = value else {
                return Err(match key.as_str() {
                    "buckets" | "stages" => wrong(format!(
                        "{key}: found {}, expected a table [{key}]",
                        describe(value)
                    )),
                    _ => wrong(unknown(key)),
                });
            };
            match key.as_str() {
                "buckets" => {
                    for (name, value) in entries {
                        let (kind, sizes) = match name.as_str() {
                            "decode" => (StepKind::Decode, &mut bucket_sizes.decode),
                            "mixed" => (StepKind::Mixed, &mut bucket_sizes.mixed),
                            "score" => (StepKind::Score, &mut bucket_sizes.score),
                            _ => {
                                return Err(wrong(format!(
                                    "buckets: unknown key '{}': expected decode, mixed or score",
                                    quote::text(name)
                                )));
                            }
                        };
                        *sizes = read_buckets(kind, value).map_err(wrong)?;
                    }
                }
                "stages" => {
                    for (name, value) in entries {
                        let (stages, layers) = read_cuts(name, value).map_err(wrong)?;
                        cuts.insert(stages, layers);
                    }
                }
                _ => return Err(wrong(unknown(key))),
            }
        }
        if let Some(kind) = StepKind::ALL
            .iter()
            .find(|&&k| bucket_sizes.of(k).is_empty())
        {
            return Err(wrong(format!("buckets.{}: missing", kind.name())));
        }
        Ok(Self {
            path: path.to_owned(),
            bucket_sizes,
            cuts,
        })
    }
}

/// The text of a file that should be `expected`.
///
/// # Errors
/// [`Error::File`]: it cannot be read, is not text, or is far larger than any such file is.
pub fn read_toml(path: &Path, expected: &str) -> Result<String> {
    const MOST_BYTES: u64 = 1 << 20;
    let open = |error| Error::open(path, &error, expected);
    let file = std::fs::File::open(path).map_err(open)?;
    let mut text = String::new();
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(open)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Error::file(
            path,
            format!("found more than {MOST_BYTES} bytes, expected {expected}"),
        ));
    }
    Ok(text)
}

/// # Errors
/// [`Error::File`] with the line that is not TOML.
pub fn parse_toml(path: &Path, text: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .and_then(|span| text.get(..span.start))
            .map_or(1, |before| before.matches('\n').count() + 1);
        let message = quote::message(error.message());
        Error::file(path, format!("line {line}: not TOML: {message}"))
    })
}

fn unknown(key: &str) -> String {
    format!(
        "unknown key '{}': expected [buckets] or [stages]",
        quote::text(key)
    )
}

/// Bucket sizes of a kind: 1 to [`MAX_BUCKETS`] ascending numbers of rows.
fn read_buckets(kind: StepKind, value: &Value) -> std::result::Result<Vec<u32>, String> {
    // A decode step has one row a slot.
    let most = match kind {
        StepKind::Decode => MAX_SEQS,
        StepKind::Mixed | StepKind::Score => MAX_BUCKET_ROWS,
    };
    let key = format!("buckets.{}", kind.name());
    let rows = read_ascending(&key, value, 1, u64::from(most), "tokens")?;
    if rows.is_empty() || rows.len() > MAX_BUCKETS {
        return Err(format!(
            "{key}: found {} buckets, expected 1 to {MAX_BUCKETS}",
            rows.len()
        ));
    }
    // Checked against `most` above.
    Ok(rows.into_iter().map(|n| n as u32).collect())
}

/// A number of stages and the layers at which all but the first begin.
fn read_cuts(name: &str, value: &Value) -> std::result::Result<(usize, Vec<usize>), String> {
    let stages = name
        .parse::<usize>()
        .ok()
        .filter(|n| (1..=MAX_STAGES).contains(n))
        .ok_or_else(|| {
            format!(
                "stages: unknown key '{}': expected a number of stages from 1 to {MAX_STAGES}",
                quote::text(name)
            )
        })?;
    let key = format!("stages.{stages}");
    let layers = read_ascending(&key, value, 1, u64::from(u32::MAX), "layer")?;
    if layers.len() != stages - 1 {
        return Err(format!(
            "{key}: found {} layers, expected {} (where each stage after the first begins)",
            layers.len(),
            stages - 1
        ));
    }
    Ok((stages, layers.into_iter().map(|n| n as usize).collect()))
}

/// An array of integers in `least ..= most`, each larger than the one before.
fn read_ascending(
    key: &str,
    value: &Value,
    least: u64,
    most: u64,
    what: &str,
) -> std::result::Result<Vec<u64>, String> {
    let Value::Array(items) = value else {
        return Err(format!(
            "{key}: found {}, expected an array of integers",
            describe(value)
        ));
    };
    let mut numbers: Vec<u64> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let number = item
            .as_integer()
            .and_then(|n| u64::try_from(n).ok())
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| {
                format!(
                    "{key}[{index}]: found {}, expected {what} from {least} to {most}",
                    describe(item)
                )
            })?;
        if let Some(&before) = numbers.last().filter(|&&before| before >= number) {
            return Err(format!(
                "{key}[{index}]: found {number} after {before}, expected ascending numbers"
            ));
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// A value as an error shows it: its type, and itself where it is short.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::String(s) if s.chars().count() <= 40 => quote::name(s),
        Value::String(_) => "a string".into(),
        Value::Datetime(_) => "a date".into(),
        Value::Array(_) => "an array".into(),
        Value::Table(_) => "a table".into(),
    }
}
