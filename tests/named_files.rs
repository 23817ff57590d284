//! Files that comments and documents name are there: a path from the root, one of kernels/ from that folder, and what a
//! Markdown link points to.

use std::path::{Path, PathBuf};

const FOLDERS: [&str; 5] = ["graphs", "kernels", "profiles", "src", "tests"];
const ENDINGS: [&str; 9] = ["rs", "cu", "cuh", "h", "c", "cpp", "py", "sh", "md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Text files below `folder` that say what is where today: neither what was (profiles/log), nor results, nor fixtures.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            if !["fixtures", "log", "out", "results"]
                .map(Some)
                .contains(&name.to_str())
            {
                files(&path, found);
            }
        } else if ends_as_known(&path.to_string_lossy()) {
            found.push(path);
        }
    }
}

fn ends_as_known(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, end)| ENDINGS.contains(&end))
}

/// The part of a line where files are named: all of it, but of a line of Rust only its comment.
fn prose<'a>(path: &Path, line: &'a str) -> &'a str {
    if path.extension().is_some_and(|end| end == "rs") {
        line.split_once("//").map_or("", |(_, comment)| comment)
    } else {
        line
    }
}

/// Paths in a line, whole words with a slash and a known ending. Capitals stand for names of the reader's own.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words = line.split(move |c: char| !inside(c));
    let words = words.map(|word| word.trim_end_matches('.'));
    words.filter(|word| {
        let is_placeholder = |part: &str| {
            let stem = part.split('.').next().unwrap_or_default();
            stem != "README" && stem.contains(|c: char| c.is_ascii_uppercase())
        };
        word.contains('/') && ends_as_known(word) && !word.split('/').any(is_placeholder)
    })
}

/// Where a path of `paths` has to be, if it begins with a folder of ours.
fn place(path: &str, families: &[String]) -> Option<PathBuf> {
    let first = path.split('/').next().unwrap_or_default();
    if FOLDERS.contains(&first) {
        return Some(root().join(path));
    }
    let is_family = families.iter().any(|family| family == first);
    let in_kernels = is_family && [".cu", ".cuh", ".h"].iter().any(|end| path.ends_with(end));
    in_kernels.then(|| root().join("kernels").join(path))
}

fn families() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("kernels")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir());
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    folders.map(name).collect()
}

#[test]
fn files_that_are_named_are_there() {
    let mut all = vec![root().join("README.md"), root().join("build.rs")];
    for folder in FOLDERS {
        files(&root().join(folder), &mut all);
    }
    let families = families();
    let (mut looked_at, mut missing) = (0, Vec::new());
    for file in &all {
        let text = std::fs::read_to_string(file).unwrap();
        for (number, line) in text.lines().enumerate() {
            for path in paths(prose(file, line)) {
                let Some(place) = place(path, &families) else {
                    continue;
                };
                looked_at += 1;
                if !place.exists() {
                    missing.push(format!("{}:{}: {path}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(
        looked_at > 300,
        "found {looked_at} paths in {} files",
        all.len()
    );
    assert!(missing.is_empty(), "no such files: {missing:#?}");
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut all = vec![root().join("README.md")];
    for folder in FOLDERS {
        files(&root().join(folder), &mut all);
    }
    let log = root().join("profiles/log");
    files(&log, &mut all);
    all.retain(|path| path.extension().is_some_and(|end| end == "md"));
    let (mut looked_at, mut missing) = (0, Vec::new());
    for file in &all {
        let text = std::fs::read_to_string(file).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap_or_default();
            if link.is_empty() || link.contains("://") {
                continue;
            }
            looked_at += 1;
            if !file.parent().unwrap().join(link).exists() {
                missing.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(
        looked_at > 50,
        "found {looked_at} links in {} documents",
        all.len()
    );
    assert!(missing.is_empty(), "links to nothing: {missing:#?}");
}

#[test]
fn paths_are_found_in_prose() {
    let found: Vec<&str> =
        paths("see src/a.rs, (kernels/b/c.cuh). Not d.rs, FAMILY/e.cu, f/g").collect();
    assert_eq!(found, ["src/a.rs", "kernels/b/c.cuh"]);
    let families = ["skinny".to_owned()];
    assert_eq!(place("a/b.rs", &families), None);
    assert_eq!(place("skinny/x.md", &families), None);
    let kernel = place("skinny/x.cuh", &families);
    assert_eq!(kernel, Some(root().join("kernels/skinny/x.cuh")));
    assert_eq!(prose(Path::new("a.rs"), "f(\"x\"); // y"), " y");
}
