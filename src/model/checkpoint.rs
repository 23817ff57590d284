//! A checkpoint on disk: one safetensors file, or shards and their index, mapped into memory.

use super::config::{ModelConfig, Quantization};
use super::e4m3::Scales;
use super::fields;
use super::files;
use super::header::{self, Stored, UniqueMap};
use super::op::OpKind;
use super::tensors::{self, Role, TensorSpec};
use super::weights::{Tensor, WeightFormat, Weights, widen};
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use memmap2::Mmap;
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(super) const SINGLE_FILE: &str = "model.safetensors";
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// What a checkpoint may have beside a config that ties it to the embedding.
const HEAD: &str = "lm_head.weight";

/// Bytes that are looked at of a file that may be none of weights at all; an empty beginning of one is no sign of that.
const SNIFFED_BYTES: usize = 512;

/// The weights in `dir` and, for the user, what was found there that the model does not have.
///
/// The files stay mapped for as long as the weights live; nobody may change or shorten them meanwhile.
///
/// # Errors
/// Where a file is missing or broken, or a tensor is missing or of another type or shape than `config` says:
/// one line that names the file and the tensor.
pub fn load(dir: &Path, config: &ModelConfig) -> Result<(Weights, Vec<String>)> {
    let mut checkpoint = Checkpoint::open(dir, config)?;
    let weights = tensors::build(config, |spec| checkpoint.tensor(spec))?;
    Ok((weights, checkpoint.warnings()))
}

/// Whether the weights in `dir` have a head with other values than the embedding, beside a `config` that ties both.
///
/// # Errors
/// The head or the embedding is of another type or shape than `config` says. What else is wrong is for [`load`] to say.
pub(super) fn has_own_head(dir: &Path, config: &ModelConfig) -> Result<bool> {
    let opened = Checkpoint::open(dir, config).ok();
    let with_head = opened.filter(|checkpoint| checkpoint.places.contains_key(HEAD));
    let Some(mut checkpoint) = with_head else {
        return Ok(false);
    };
    let untied = ModelConfig {
        tie_word_embeddings: false,
        ..config.clone()
    };
    let weights = tensors::build(&untied, |spec| {
        let wanted = spec.role == Role::Embedding || spec.name == HEAD;
        wanted.then(|| checkpoint.tensor(spec)).transpose()
    })?;
    let [embedding, head] =
        [OpKind::Embed, OpKind::LmHead].map(|kind| weights.of(None, kind)[0].as_ref());
    Ok(embedding
        .zip(head)
        .is_some_and(|(embedding, head)| !head.equals(embedding)))
}

/// The files of weights that [`load`] reads, in the order of their names; what is missing is for `load` to say.
///
/// # Errors
/// There are none, or the index cannot be read.
pub(super) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let (single, index) = (dir.join(SINGLE_FILE), dir.join(INDEX_FILE));
    if files::is_there(&single) {
        return Ok(vec![single]);
    }
    if !files::is_there(&index) {
        return Err(no_weights(dir));
    }
    let names = shard_files(&index)?.into_keys();
    let paths = names.map(|file| dir.join(file));
    Ok(paths.filter(|path| files::is_there(path)).collect())
}

/// A mapped safetensors file.
struct Shard {
    path: PathBuf,
    map: Arc<Mmap>,
    tensors: HashMap<String, Stored>,
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self> {
        let file = files::open(&path, "a safetensors file")?;
        // SAFETY: the file must not change while it is mapped; `load` asks that of its callers, and nothing here
        // writes to checkpoints in use.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io(&path, error))?;
        files::refuse_others(
            &path,
            &map[..map.len().min(SNIFFED_BYTES)],
            "a safetensors file",
        )?;
        let tensors = header::read(&map, &path)?;
        Ok(Self {
            path,
            map: Arc::new(map),
            tensors,
        })
    }
}

struct Checkpoint {
    /// The file that lists all tensors: the index or the only shard.
    listing: PathBuf,
    shards: Vec<Shard>,
    /// The shard of each tensor.
    places: HashMap<String, usize>,
    quantization: Option<Quantization>,
    used: HashSet<String>,
}

/// Where a matrix lies.
struct Place<'a> {
    name: &'a str,
    /// The shape of the tensor of that name: `[rows, ..]`, or `[experts, rows, columns]` of a fused one.
    shape: &'a [usize],
    /// Which matrix it is of a fused one.
    expert: Option<usize>,
    /// Its rows among those of that matrix.
    rows: Range<usize>,
}

impl Place<'_> {
    /// Rows of the whole matrix, and elements of each.
    fn matrix(&self) -> (usize, usize) {
        let shape = &self.shape[usize::from(self.expert.is_some())..];
        (shape[0], shape[1..].iter().product())
    }
}

impl Checkpoint {
    /// Prefers the single file where both forms are there, as transformers does.
    fn open(dir: &Path, config: &ModelConfig) -> Result<Self> {
        let opened = Self::open_files(dir)?;
        Ok(Self {
            quantization: config.quantization,
            ..opened
        })
    }

    fn open_files(dir: &Path) -> Result<Self> {
        let single = dir.join(SINGLE_FILE);
        let index = dir.join(INDEX_FILE);
        if files::is_there(&single) {
            let shard = Shard::open(single.clone())?;
            let places = shard.tensors.keys().map(|name| (name.clone(), 0)).collect();
            Ok(Self::new(single, vec![shard], places))
        } else if files::is_there(&index) {
            Self::open_sharded(dir, index)
        } else {
            Err(no_weights(dir))
        }
    }

    /// Opens every shard that the index names, once by however many links. Where a tensor lies the shards themselves say,
    /// as for transformers: it is looked for in all of them, and of several in the last by name.
    fn open_sharded(dir: &Path, index: PathBuf) -> Result<Self> {
        let mut shards = Vec::new();
        let mut places = HashMap::new();
        let mut opened = HashSet::new();
        for (file, tensor) in shard_files(&index)?.into_iter().rev() {
            let path = dir.join(&file);
            if !files::is_there(&path) {
                let (tensor, file) = (quote::name(&tensor), quote::name(&file));
                let message = format!("tensor {tensor}: its shard {file} is missing");
                return Err(Error::file(&index, message));
            }
            let is_open = |about: Metadata| !opened.insert((about.dev(), about.ino()));
            if path.metadata().is_ok_and(is_open) {
                continue;
            }
            let shard = Shard::open(path)?;
            for tensor in shard.tensors.keys() {
                places.entry(tensor.clone()).or_insert(shards.len());
            }
            shards.push(shard);
        }
        Ok(Self::new(index, shards, places))
    }

    fn new(listing: PathBuf, shards: Vec<Shard>, places: HashMap<String, usize>) -> Self {
        Self {
            listing,
            shards,
            places,
            quantization: None,
            used: HashSet::new(),
        }
    }

    /// The tensor `spec`, or its part of a fused one.
    fn tensor(&mut self, spec: TensorSpec) -> Result<Tensor> {
        let fused = spec
            .fused
            .as_ref()
            .filter(|fused| self.places.contains_key(&fused.name));
        match fused {
            Some(fused) if self.places.contains_key(&spec.name) => Err(Error::file(
                &self.listing,
                format!(
                    "found both {} and {}, expected experts either separate or fused",
                    quote::name(&spec.name),
                    quote::name(&fused.name)
                ),
            )),
            Some(fused) => self.part(
                &spec,
                Place {
                    name: &fused.name,
                    shape: &fused.shape,
                    expert: Some(fused.expert),
                    rows: fused.rows.clone(),
                },
            ),
            None => self.part(
                &spec,
                Place {
                    name: &spec.name,
                    shape: &spec.shape,
                    expert: None,
                    rows: 0..spec.shape[0],
                },
            ),
        }
    }

    fn part(&mut self, spec: &TensorSpec, place: Place<'_>) -> Result<Tensor> {
        let (shard, format) = self.find(spec, place.name, place.shape)?;
        let (all_rows, columns) = place.matrix();
        let first_row = place.expert.unwrap_or(0) * all_rows + place.rows.start;
        let row_bytes = columns * format.bytes();
        let start = shard.tensors[place.name].bytes.start + first_row * row_bytes;
        let range = start..start + place.rows.len() * row_bytes;
        let map = shard.map.clone();
        let (name, shape) = (spec.name.as_str(), spec.shape.clone());
        let tensor = Tensor::new(name, format, shape, map, range);
        match self.quantization {
            Some(quantization) if format == WeightFormat::E4M3 => {
                Ok(tensor.scaled(self.scales(&place, quantization)?))
            }
            _ => Ok(tensor),
        }
    }

    /// The scales of a matrix, which its elements are multiplied by. They are beside it under its name and `_scale`, or `_scale_inv` as
    /// fine-grained FP8 has it.
    fn scales(&mut self, place: &Place<'_>, quantization: Quantization) -> Result<Scales> {
        let (all_rows, all_columns) = place.matrix();
        let (rows, columns) = match quantization {
            Quantization::Tensor => (all_rows, all_columns),
            Quantization::Channel => (1, all_columns),
            Quantization::Block(rows, columns) => (rows.min(all_rows), columns.min(all_columns)),
        };
        let (down, across) = (all_rows.div_ceil(rows), all_columns.div_ceil(columns));
        let [name, inverse] = ["_scale", "_scale_inv"].map(|end| place.name.to_owned() + end);
        let name = if self.places.contains_key(&inverse) {
            inverse
        } else {
            name
        };
        let Some(&shard) = self.places.get(&name) else {
            let (name, of) = (quote::name(&name), quote::name(place.name));
            let message = format!("tensor {name}: is missing, expected the scales of {of}");
            return Err(Error::file(&self.listing, message));
        };
        let shard = &self.shards[shard];
        let stored = &shard.tensors[&name];
        let wrong = |message| Error::file(&shard.path, format!("tensor {name:?}: {message}"));
        let Some(format) = plain_format(stored.dtype) else {
            let found = stored.dtype;
            return Err(wrong(format!(
                "found dtype {found}, expected F32 (or BF16, F16)"
            )));
        };
        let experts = place.expert.map(|_| place.shape[0]);
        let expected: Vec<usize> = experts.into_iter().chain([down, across]).collect();
        // Dimensions of 1 are written or not: a tensor's scale is [] or [1], a channel's [N, 1] or [N].
        let is_many = |size: &&usize| **size != 1;
        if !stored
            .shape
            .iter()
            .filter(is_many)
            .eq(expected.iter().filter(is_many))
        {
            return Err(wrong(format!(
                "found shape {}, expected {expected:?} by config.json",
                quote::text(format_args!("{:?}", stored.shape))
            )));
        }
        let first_row = place.rows.start;
        if matches!(quantization, Quantization::Block(..)) && !first_row.is_multiple_of(rows) {
            return Err(wrong(format!(
                "has blocks of {rows} rows, expected a divisor of {first_row}, the row of the tensor where a matrix begins"
            )));
        }
        let first = place.expert.unwrap_or(0) * down + first_row / rows;
        let last = first + place.rows.len().div_ceil(rows);
        let bytes = &shard.map[stored.bytes.clone()];
        let bytes = &bytes[first * across * format.bytes()..last * across * format.bytes()];
        let mut values = vec![0.0; (last - first) * across];
        widen(format, bytes, &mut values);
        let is_scale = |value: &f32| value.is_finite() && *value >= 0.0;
        if let Some(value) = values.iter().find(|value| !is_scale(value)) {
            return Err(wrong(format!(
                "found the scale {value}, expected finite numbers from 0"
            )));
        }
        let of_input = place.name.strip_suffix("weight");
        let of_input = of_input.map(|module| format!("{module}input_scale"));
        self.used.extend([name].into_iter().chain(of_input));
        Ok(Scales {
            values,
            rows,
            columns,
        })
    }

    /// The shard that holds the tensor `name` of this shape, and how it is stored there.
    fn find(
        &mut self,
        spec: &TensorSpec,
        name: &str,
        shape: &[usize],
    ) -> Result<(&Shard, WeightFormat)> {
        let Some(&shard) = self.places.get(name) else {
            let or_fused = match &spec.fused {
                Some(fused) => format!(" (or {} for all experts)", quote::name(&fused.name)),
                None => String::new(),
            };
            return Err(Error::file(
                &self.listing,
                format!(
                    "tensor {}: is missing, expected {:?} of shape {shape:?}{or_fused}",
                    quote::name(name),
                    spec.role.published_format()
                ),
            ));
        };
        let shard = &self.shards[shard];
        let stored = &shard.tensors[name];
        let wrong = |message| Error::file(&shard.path, format!("tensor {name:?}: {message}"));
        let in_8_bits = self.quantization.is_some() && spec.role == Role::Matrix;
        let format = match stored.dtype {
            Dtype::F8_E4M3 if in_8_bits => Some(WeightFormat::E4M3),
            other => plain_format(other),
        };
        let Some(format) = format else {
            let expected = match spec.role {
                Role::ExpertBias => "F32 (or BF16, F16)",
                _ if in_8_bits => "F8_E4M3 (or BF16, F16, F32)",
                _ => "BF16 (or F16, F32)",
            };
            let why = match stored.dtype {
                Dtype::F8_E4M3 if self.quantization.is_some() => {
                    ": only projections are read in 8 bits"
                }
                Dtype::F8_E4M3 => ": config.json has no quantization_config",
                _ => "",
            };
            let found = stored.dtype;
            return Err(wrong(format!(
                "found dtype {found}, expected {expected}{why}"
            )));
        };
        if stored.shape != shape {
            return Err(wrong(format!(
                "found shape {}, expected {shape:?} by config.json",
                quote::text(format_args!("{:?}", stored.shape))
            )));
        }
        if !self.used.contains(name) {
            self.used.insert(name.to_owned());
        }
        Ok((shard, format))
    }

    /// One warning about all tensors that the model does not have. The head of a tied checkpoint is none of
    /// them: exporters often write the embedding a second time.
    fn warnings(&self) -> Vec<String> {
        const SHOWN: usize = 3;
        let mut unused: Vec<&str> = self
            .places
            .keys()
            .map(String::as_str)
            .filter(|&name| !self.used.contains(name) && name != HEAD)
            .collect();
        if unused.is_empty() {
            return Vec::new();
        }
        unused.sort_unstable();
        let names: Vec<String> = unused
            .iter()
            .take(SHOWN)
            .map(|name| quote::name(name))
            .collect();
        let more = if unused.len() > SHOWN { ", ..." } else { "" };
        vec![format!(
            "{}: ignored {} tensors that are not part of the model: {}{more}",
            self.listing.display(),
            unused.len(),
            names.join(", ")
        )]
    }
}

/// The format of this type, where it needs no scales.
fn plain_format(dtype: Dtype) -> Option<WeightFormat> {
    match dtype {
        Dtype::F32 => Some(WeightFormat::F32),
        Dtype::BF16 => Some(WeightFormat::BF16),
        Dtype::F16 => Some(WeightFormat::F16),
        _ => None,
    }
}

/// `weight_map` of the index: tensor and file names.
fn read_index(path: &Path) -> Result<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: UniqueMap<Value>,
    }
    let text = files::read(path, "an index of shards")?;
    let index: Index = fields::parse(&text, path, "an index of shards")?;
    let entries = index.weight_map.0.into_iter();
    entries
        .map(|(name, file)| match file {
            Value::String(file) => Ok((name, file)),
            other => Err(Error::file(
                path,
                format!(
                    "tensor {}: found {}, expected the name of a file",
                    quote::name(&name),
                    json::shown(&other)
                ),
            )),
        })
        .collect()
}

/// The files that an index names, each once however it is written, with a tensor that is said to be in it.
///
/// # Errors
/// The index cannot be read, or names what is not beside or below it.
pub(super) fn shard_files(index: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for (tensor, file) in read_index(index)? {
        let Some(name) = shard_name(&file) else {
            return Err(Error::file(
                index,
                format!(
                    "tensor {}: found the file {}, expected the name of one beside the index or below it",
                    quote::name(&tensor),
                    quote::name(&file)
                ),
            ));
        };
        files.entry(name).or_insert(tensor);
    }
    Ok(files)
}

/// `file` without `.` and double slashes; none where it leads out of its folder, or is no file's name.
fn shard_name(file: &str) -> Option<String> {
    let path = Path::new(file);
    let mut name = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => name.push(part),
            Component::CurDir => {}
            _ => return None,
        }
    }
    let is_name = path.file_name().is_some() && !file.contains('\0');
    name.into_os_string().into_string().ok().filter(|_| is_name)
}

/// What is said of a folder without weights that can be read, by what else lies there.
fn no_weights(dir: &Path) -> Error {
    let names: BTreeSet<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let first = |wanted: fn(&str) -> bool| names.iter().find(|name| wanted(name));
    let found = if let Some(name) = first(|name| name.ends_with(".gguf")) {
        format!(
            "found {}, a GGUF file, which is not supported (take the published safetensors checkpoint)",
            quote::name(name)
        )
    } else if let Some(name) = first(|name| name == "adapter_config.json") {
        format!(
            "found {}: an adapter alone, which is to be merged into its model first",
            quote::name(name)
        )
    } else if let Some(name) = first(is_pickle) {
        format!(
            "found {}, a pickled checkpoint, which is not read (convert it to safetensors: save_pretrained of transformers does)",
            quote::name(name)
        )
    } else if let Some(name) = first(|name| name.ends_with(".safetensors")) {
        format!("found {}, which no index names", quote::name(name))
    } else {
        "found no weights (is the download whole?)".to_owned()
    };
    Error::file(
        dir,
        format!("{found}, expected {SINGLE_FILE} or {INDEX_FILE}"),
    )
}

/// By the names that savers give; training's own state (optimizer.pt, training_args.bin) lies beside any weights.
fn is_pickle(name: &str) -> bool {
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    name.starts_with("pytorch_model")
        || ends(&[".pth", ".ckpt"])
        || (name.starts_with("model") && ends(&[".bin", ".pt"]))
}
