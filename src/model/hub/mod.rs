//! `--model org/name[@revision]`: a model of the Hugging Face hub, from the cache that its other tools use too, or else
//! from the hub into that cache.
//!
//! - `name`: what is a name, and what the environment says: where models are kept, where the hub is, whose token it is shown
//! - `web`: requests that are tried again where that may help, and what is said where it does not; who is trusted, and shown a token
//! - `transfer`: one file, from where an earlier try ended, held to its checksum
//!
//! Names, folders and addresses are the `hf-hub` crate's. Its requests (0.5) are not used: they show the token to whatever host
//! or port the hub redirects to, write what comes behind what is there without a look at whether the server heeded the range,
//! compare no checksum, and give up after five seconds where another process downloads the same file.

mod name;
mod transfer;
mod web;

pub use self::name::{Name, name_of_snapshot};

use self::name::Place;
use self::transfer::{check_room, fetch};
use self::web::Web;
use super::checkpoint;
use super::files::{MORE_TEMPLATES, SMALL_FILES};
use crate::error::{Error, Result};
use hf_hub::CacheRepo;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What says a model's shapes.
const CONFIGS: [&str; 2] = ["config.json", "generation_config.json"];

/// How a download goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Download<'a> {
    /// Bytes of a file that are in the cache, and those that it has in all.
    Came { file: &'a str, bytes: u64, of: u64 },
    /// Nothing comes just now: the hub asked to wait, or another process downloads the same file.
    Waits { why: &'a str },
    /// All but the weights is in this folder: whoever finds there that they are of no use may end the download before they come.
    Shapes { folder: &'a Path },
}

/// Is told how a download goes on, for each part of a file and twice a second while it waits. [`ControlFlow::Break`] ends the
/// download with [`Error::Interrupted`]; the bytes in the cache stay, and the next download goes on from there. A hub that is silent
/// tells nobody anything: a request to it ends after ten minutes at most.
pub type Watch<'a> = &'a dyn Fn(Download<'_>) -> ControlFlow<()>;

/// The folder of the model, downloaded where it is not there yet.
///
/// # Errors
/// It is neither in the cache nor to be had.
pub fn find(name: &Name, watch: Watch<'_>) -> Result<PathBuf> {
    let place = Place::of_this_machine()?;
    if let Some(folder) = cached(&place, name)? {
        return Ok(folder);
    }
    if place.offline {
        return Err(name.error(format!(
            "found neither such a folder nor the whole model in {}, expected one of them, since HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set",
            place.cache.path().display()
        )));
    }
    download(&place, name, watch)
}

/// The folder of the model with what says its shapes; the rest of it is there if it was.
///
/// # Errors
/// It is neither in the cache nor to be had.
pub fn find_config(name: &Name, watch: Watch<'_>) -> Result<PathBuf> {
    let place = Place::of_this_machine()?;
    if place.offline || cached(&place, name)?.is_some() {
        return find(name, watch);
    }
    let web = Web::new(&place, name, watch)?;
    let listed = web.files()?;
    let repo = place.cache.repo(name.repo());
    let is_wanted = |file: &&String| CONFIGS.contains(&file.as_str());
    for file in listed.files.iter().filter(is_wanted) {
        fetch(&web, &repo, &listed.commit, file)?;
    }
    Ok(repo.pointer_path(&listed.commit))
}

/// Whether this is a folder of the cache into which no download has been whole yet.
pub fn lacks_weights(folder: &Path) -> bool {
    name_of_snapshot(folder).is_some() && is_whole(folder).is_ok_and(|whole| !whole)
}

/// The model's folder in the cache, if all of it is there. What a branch is on the hub by now is not looked up.
fn cached(place: &Place, name: &Name) -> Result<Option<PathBuf>> {
    let repo = place.cache.repo(name.repo());
    let folder = if name.is_commit() {
        repo.pointer_path(name.revision())
    } else {
        // The crate's own look-up takes a line's end for a part of the commit.
        match std::fs::read_to_string(ref_path(&repo, name)) {
            Ok(commit) => repo.pointer_path(commit.trim()),
            Err(_) => return Ok(None),
        }
    };
    Ok(is_whole(&folder)?.then_some(folder))
}

/// Small files are downloaded first: where the weights are whole, everything is.
fn is_whole(folder: &Path) -> Result<bool> {
    let there = |name: &str| folder.join(name).is_file();
    if !there("config.json") || !there("tokenizer.json") {
        return Ok(false);
    }
    if there(checkpoint::SINGLE_FILE) {
        return Ok(true);
    }
    if !there(checkpoint::INDEX_FILE) {
        return Ok(false);
    }
    let shards = checkpoint::shard_files(&folder.join(checkpoint::INDEX_FILE))?;
    Ok(shards.keys().all(|shard| there(shard)))
}

fn download(place: &Place, name: &Name, watch: Watch<'_>) -> Result<PathBuf> {
    let web = Web::new(place, name, watch)?;
    let listed = web.files()?;
    let repo = place.cache.repo(name.repo());
    let folder = repo.pointer_path(&listed.commit);
    let wanted = |file: &&String| SMALL_FILES.contains(&file.as_str()) || is_template(file);
    for file in listed.files.iter().filter(wanted) {
        fetch(&web, &repo, &listed.commit, file)?;
    }
    let lists = |file: &str| listed.files.iter().any(|listed| listed == file);
    let weights = if lists(checkpoint::SINGLE_FILE) {
        vec![checkpoint::SINGLE_FILE.to_owned()]
    } else if lists(checkpoint::INDEX_FILE) {
        let shards = checkpoint::shard_files(&folder.join(checkpoint::INDEX_FILE))?;
        shards.into_keys().collect()
    } else {
        return Err(name.error(format!(
            "found neither {} nor {} among its files on {}, expected a published safetensors checkpoint",
            checkpoint::SINGLE_FILE,
            checkpoint::INDEX_FILE,
            web.endpoint
        )));
    };
    web.tell(Download::Shapes { folder: &folder })?;
    check_room(&web, &repo, &listed.commit, &weights)?;
    for file in &weights {
        fetch(&web, &repo, &listed.commit, file)?;
    }
    if !name.is_commit() {
        // Last: a name leads to a folder that is whole.
        set_ref(&repo, name, &listed.commit)?;
    }
    Ok(folder)
}

/// `additional_chat_templates/NAME.jinja`
fn is_template(file: &str) -> bool {
    let inside = file.strip_prefix(MORE_TEMPLATES);
    let inside = inside.and_then(|rest| rest.strip_prefix('/'));
    inside.is_some_and(|template| template.ends_with(".jinja") && !template.contains('/'))
}

/// The file that holds the commit of a revision.
fn ref_path(repo: &CacheRepo, name: &Name) -> PathBuf {
    let snapshots = repo.pointer_path("");
    snapshots.with_file_name("refs").join(name.revision())
}

fn set_ref(repo: &CacheRepo, name: &Name, commit: &str) -> Result<()> {
    let path = ref_path(repo, name);
    make_folder_of(&path)?;
    // The hub's own library writes it in place, too; one that is torn names no folder, and its revision is asked for again.
    std::fs::write(&path, commit).map_err(|error| Error::create(path, &error))
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|error| Error::create(folder, &error))
}
