//! What people pass as `--model` in the place of a checkpoint's directory, named for what it is.

use crate::magic;
use crate::model::files;
use std::io::Read;
use std::path::Path;

/// What `path` is and what helps, if it is no directory with a config.json.
pub(super) fn about(path: &Path) -> Option<String> {
    if let Some(link) = files::dangling_link(path) {
        return Some(link);
    }
    match std::fs::metadata(path) {
        Ok(about) if about.is_dir() => about_dir(path),
        Ok(_) => Some(about_file(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("is missing".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

fn about_file(path: &Path) -> String {
    let ends = |end: &str| path.to_string_lossy().ends_with(end);
    // Not of a pipe, which would be waited for.
    let mut first = Vec::new();
    if let Ok(file) = files::open(path, "a directory") {
        // What cannot be read is not recognised.
        let _ = file.take(64).read_to_end(&mut first);
    }
    let beside = || match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => dir.display().to_string(),
        None => ".".to_owned(),
    };
    if let Some(what) = magic::recognise(&first) {
        format!("found {what}")
    } else if ends(".safetensors") || ends("config.json") || ends(".index.json") {
        format!("found a file, where its folder is wanted ({})", beside())
    } else {
        "found a file".to_owned()
    }
}

fn about_dir(dir: &Path) -> Option<String> {
    let config = dir.join("config.json");
    if config.is_file() {
        return None;
    }
    if let Some(link) = files::dangling_link(&config) {
        return Some(format!("its config.json: {link}"));
    }
    if config.is_dir() {
        return Some("its config.json is a directory".to_owned());
    }
    let mut names: Vec<String> = match std::fs::read_dir(dir) {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect(),
        Err(error) => return Some(error.to_string()),
    };
    names.sort_unstable();
    let first = |wanted: &dyn Fn(&str) -> bool| names.iter().find(|name| wanted(name));
    if first(&|name| name == "snapshots").is_some() {
        return Some(about_cache(&dir.join("snapshots")));
    }
    if let Some(name) = first(&|name| name.starts_with("models--")) {
        return Some(format!(
            "found the Hugging Face hub's cache, where one of its models is wanted, as {}/snapshots/REVISION is",
            dir.join(name).display()
        ));
    }
    if let Some(name) = first(&|name| name.ends_with(".gguf")) {
        return Some(format!(
            "found {name}, a GGUF file, which is not supported (take the published safetensors checkpoint)"
        ));
    }
    if first(&|name| name == "adapter_config.json").is_some() {
        return Some(
            "found an adapter alone, which is to be merged into its model first".to_owned(),
        );
    }
    let below = first(&|name| dir.join(name).join("config.json").is_file());
    if let Some(name) = below {
        return Some(format!(
            "found no config.json, but one in {}",
            dir.join(name).display()
        ));
    }
    Some("found no config.json (is the download whole?)".to_owned())
}

/// A model's folder in the hub's cache: the checkpoint is one level deeper.
fn about_cache(snapshots: &Path) -> String {
    let revisions = std::fs::read_dir(snapshots).into_iter().flatten();
    let mut revisions: Vec<_> = revisions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.join("config.json").is_file().then_some(path)
        })
        .collect();
    revisions.sort_unstable();
    let one = match revisions.as_slice() {
        [] => "but none of its snapshots has a config.json: download it again".to_owned(),
        [one] => format!(
            "where one of its snapshots is wanted: `model` {}",
            one.display()
        ),
        [one, ..] => format!(
            "where one of its {} snapshots is wanted, as `model` {}",
            revisions.len(),
            one.display()
        ),
    };
    format!("found a model's folder of the Hugging Face hub's cache, {one}")
}
