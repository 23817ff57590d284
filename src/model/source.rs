//! What a model is named by: a checkpoint's directory, a model of the hub or a random preset.

mod mistaken;

use super::checkpoint;
use super::config::ModelConfig;
use super::generation::GenerationConfig;
use super::hub::{self, Watch};
use super::random;
use super::tensors::Role;
use super::weights::WeightFormat;
use crate::error::{Error, Result};
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Where a model comes from: `DIR`, `ORG/NAME[@REVISION]`, whose folder is found first, or `random:PRESET[@SEED]`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSource {
    Dir(PathBuf),
    /// PRESET is `tiny`, `lfm2-8b-a1b`, `lfm2.5-8b-a1b`, `lfm2-24b-a2b`, `lfm2.5-24b-a2b` or a path to a config.json.
    Random {
        preset: String,
        seed: u64,
    },
}

const RANDOM_PREFIX: &str = "random:";

impl ModelSource {
    /// Reads `DIR`, `ORG/NAME[@REVISION]` or `random:PRESET[@SEED]`. SEED defaults to 0. A name of the hub is looked up
    /// where no such folder is, and the model downloaded where no cache has it.
    ///
    /// # Errors
    /// `Error::Usage` for a preset or seed that does not exist; `Error::File` for a directory that is not there
    /// or has no config.json, and for a name of the hub that is not to be had.
    pub fn parse(text: &str) -> Result<Self> {
        Self::watched(text, &|_| ControlFlow::Continue(()))
    }

    /// [`Self::parse`] whose download `watch` hears of, and may end:
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tailgraph::model::ModelSource;
    /// use tailgraph::model::hub::Download;
    ///
    /// static NO_MORE: AtomicBool = AtomicBool::new(false);
    /// let source = ModelSource::watched("random:tiny", &|download| {
    ///     if let Download::Came { file, bytes, of } = download {
    ///         println!("{file}: {bytes} of {of} bytes");
    ///     }
    ///     if NO_MORE.load(Ordering::Relaxed) {
    ///         return ControlFlow::Break(());
    ///     }
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), tailgraph::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Self::parse`] does; `Error::Interrupted` where `watch` ended the download.
    pub fn watched(text: &str, watch: Watch<'_>) -> Result<Self> {
        Self::parse_by(text, |name| hub::find(name, watch))
    }

    /// [`Self::watched`] for who wants [`Self::config`] and [`Self::matrix_format`] alone: of a model of the hub that no cache has,
    /// only the files of the first are downloaded.
    ///
    /// # Errors
    /// Fails as [`Self::watched`] does.
    pub fn watched_config(text: &str, watch: Watch<'_>) -> Result<Self> {
        Self::parse_by(text, |name| hub::find_config(name, watch))
    }

    fn parse_by(text: &str, find: impl Fn(&hub::Name) -> Result<PathBuf>) -> Result<Self> {
        match text.strip_prefix(RANDOM_PREFIX) {
            Some(preset) => Self::parse_random(preset),
            None => Self::parse_dir(text, find),
        }
    }

    fn parse_random(text: &str) -> Result<Self> {
        let usage =
            |message: String| Err(Error::Usage(format!("`model` {RANDOM_PREFIX}{message}")));
        // A path may hold an @ itself.
        let (preset, seed) = match text.rsplit_once('@') {
            Some((preset, seed)) if !Path::new(text).is_file() => match seed.parse() {
                Ok(number) => (preset, number),
                Err(_) => {
                    return usage(format!(
                        "{text}: found the seed {seed:?}, expected an integer from 0 to {}",
                        u64::MAX
                    ));
                }
            },
            _ => (text, 0),
        };
        if !random::is_named_preset(preset) && !Path::new(preset).is_file() {
            return usage(format!(
                "{text}: found the preset {preset:?}, expected {} or the path of a config.json",
                random::preset_names()
            ));
        }
        Ok(Self::Random {
            preset: preset.to_owned(),
            seed,
        })
    }

    fn parse_dir(text: &str, find: impl Fn(&hub::Name) -> Result<PathBuf>) -> Result<Self> {
        let dir = Path::new(text);
        if dir.symlink_metadata().is_err()
            && let Some(name) = hub::Name::parse(text)
        {
            return find(&name).map(Self::Dir);
        }
        match mistaken::about(dir) {
            None => Ok(Self::Dir(dir.to_owned())),
            Some(found) => Err(Error::file(
                dir,
                format!(
                    "{found}, expected a model's directory with a config.json (or ORG/NAME of the hub, or {RANDOM_PREFIX}PRESET[@SEED])"
                ),
            )),
        }
    }

    /// The checkpoint's directory; a random preset has none.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            Self::Random { .. } => None,
        }
    }

    /// The configuration alone, before any weight is loaded or made; the token ids of generation_config.json are
    /// already in it. A checkpoint whose head has other values than its embedding is not tied, whatever its
    /// config.json says, as for transformers and vLLM.
    ///
    /// # Errors
    /// Where config.json or generation_config.json cannot be read or is wrong, or the head does not fit it.
    pub fn config(&self) -> Result<(ModelConfig, GenerationConfig)> {
        match self {
            Self::Dir(dir) => {
                let mut config = ModelConfig::from_file(&dir.join("config.json"))?;
                let generation = GenerationConfig::from_file(&dir.join("generation_config.json"))?;
                generation.apply_to(&mut config);
                config.tie_word_embeddings &= !checkpoint::has_own_head(dir, &config)?;
                Ok((config, generation))
            }
            Self::Random { preset, .. } => {
                Ok((random::preset_config(preset)?, GenerationConfig::default()))
            }
        }
    }

    /// The format that the matrices have before any is converted: f32 where they have several. Of a checkpoint only
    /// the headers are read; of one whose weights are still on the hub it is the type that such models are published in.
    ///
    /// # Errors
    /// Where a checkpoint's files are missing or broken, or hold other tensors than `config` says.
    pub fn matrix_format(&self, config: &ModelConfig) -> Result<WeightFormat> {
        match self {
            Self::Dir(dir) if hub::lacks_weights(dir) => Ok(match config.quantization {
                Some(_) => WeightFormat::E4M3,
                None => Role::Matrix.published_format(),
            }),
            Self::Dir(dir) => {
                let (weights, _) = checkpoint::load(dir, config)?;
                Ok(weights.matrix_format().unwrap_or(WeightFormat::F32))
            }
            Self::Random { .. } => Ok(Role::Matrix.published_format()),
        }
    }
}

impl ModelSource {
    /// The model's name for people: a checkpoint's folder, or the name of one from the hub's cache.
    pub fn short_name(&self) -> String {
        let folder = match self {
            Self::Dir(dir) => dir.canonicalize().ok(),
            Self::Random { .. } => None,
        };
        if let Some(name) = folder.as_deref().and_then(hub::name_of_snapshot) {
            return name;
        }
        let name = folder.as_deref().and_then(Path::file_name);
        name.map_or_else(
            || self.to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dir(dir) => write!(f, "{}", dir.display()),
            Self::Random { preset, seed } => write!(f, "{RANDOM_PREFIX}{preset}@{seed}"),
        }
    }
}
