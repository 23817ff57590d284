//! The modules of src/ in the order that lib.rs gives, and the parts of the CUDA backend in that of its mod.rs: each uses only what
//! stands to its right there. Read from the
//! sources, so that what only one build compiles (GPU support, tests) is held to it too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Names of the layers in their order, as the doc comment of a module has them in the paragraph that begins with `from`.
fn layers(module: &str, from: &str) -> Vec<String> {
    let (_, from) = module.split_once(from).expect("a paragraph of layers");
    let (_, from) = from.split_once(":\n").expect("a list of layers");
    let (list, _) = from.split_once(".\n").expect("an end of the list");
    let list = list.replace("//!", "");
    list.split("->")
        .map(|name| name.trim().trim_matches('`').to_owned())
        .collect()
}

/// The code of a file: without what follows `//` in a line.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// What follows each `path` of `code`: a name, or all first names of a list in braces.
fn names_after(code: &str, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let identifier = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices(path) {
        // Part of a longer path is another one.
        if code[..at].ends_with(|c: char| identifier(c) || c == ':') {
            continue;
        }
        let rest = code[at + path.len()..].trim_start();
        if !rest.starts_with('{') {
            names.insert(rest.chars().take_while(|&c| identifier(c)).collect());
            continue;
        }
        let (mut depth, mut first) = (0, true);
        for (at, c) in rest.char_indices() {
            match c {
                '{' => (depth, first) = (depth + 1, depth == 0),
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' => first = depth == 1,
                c if first && depth == 1 && identifier(c) => {
                    let name = rest[at..].chars().take_while(|&c| identifier(c));
                    names.insert(name.collect());
                    first = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// All Rust files below `folder`.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The modules that a file is in, from the top: `a/b.rs` and `a/b/mod.rs` are both a, b.
fn modules(path: &Path) -> Vec<String> {
    let path = path.strip_prefix(src()).unwrap().with_extension("");
    let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| name != "mod").collect()
}

/// Modules below `above` that a file uses, by their whole path or by as many `super::` as lead there.
fn uses(text: &str, above: &[&str], depth: usize) -> BTreeSet<String> {
    let code = code(text);
    let path: String = above.iter().map(|name| format!("{name}::")).collect();
    let mut names = names_after(&code, &format!("crate::{path}"));
    names.extend(names_after(&code, &"super::".repeat(depth - above.len())));
    names
}

/// Holds the modules that `file` declares to the order that it lists after `from`; they are below `above`. Returns how many uses
/// of each other there are.
fn hold_to_order(file: &Path, from: &str, above: &[&str]) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let layers = layers(&text, from);
    let declared: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let listed: BTreeSet<&str> = layers.iter().map(String::as_str).collect();
    assert_eq!(listed, declared, "{}: layers, and modules", file.display());
    assert_eq!(layers.len(), declared.len(), "a layer is listed twice");
    let place = |name: &str| layers.iter().position(|layer| layer == name);

    let mut paths = Vec::new();
    files(file.parent().unwrap(), &mut paths);
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for path in paths {
        let modules = modules(&path);
        // main.rs uses the library, and lib.rs lists it.
        let Some(own) = modules.get(above.len()).and_then(|name| place(name)) else {
            continue;
        };
        let text = std::fs::read_to_string(&path).unwrap();
        for name in uses(&text, above, modules.len()) {
            let Some(used) = place(&name) else { continue };
            arrows += usize::from(used != own);
            if used < own {
                wrong.push(format!("{}: uses {name}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "against the order of {}: {wrong:#?}",
        file.display()
    );
    arrows
}

#[test]
fn each_module_uses_only_what_stands_to_its_right() {
    let arrows = hold_to_order(&src().join("lib.rs"), "//! The layers", &[]);
    assert!(
        arrows > 500,
        "found {arrows} uses of other modules, expected those of the whole crate"
    );
}

#[test]
fn so_does_each_part_of_the_cuda_backend() {
    let file = src().join("backend/cuda/mod.rs");
    let arrows = hold_to_order(&file, "//! to CUDA", &["backend", "cuda"]);
    assert!(arrows > 50, "found {arrows} uses of other parts");
}

#[test]
fn uses_are_found_however_they_are_written() {
    let text = "
use crate::{
    alpha::{one, two},
    beta,
};
use crate::gamma::x; // crate::comment
fn f() { crate::delta::g(); super::epsilon::h(); super::super::zeta::i(); other_crate::eta::k(); }
";
    let found = |depth| uses(text, &[], depth).into_iter().collect::<Vec<_>>();
    assert_eq!(
        found(1),
        ["alpha", "beta", "delta", "epsilon", "gamma", "super"]
    );
    assert_eq!(found(2), ["alpha", "beta", "delta", "gamma", "zeta"]);
    let text = "use crate::alpha::beta::x; use crate::gamma::y; fn f() { super::delta::z(); }";
    let below: Vec<_> = uses(text, &["alpha"], 2).into_iter().collect();
    assert_eq!(below, ["beta", "delta"]);
    let doc = "//! The layers, as they are:\n//! `a` -> `b` ->\n//! `c`.\n//!\n";
    let order = layers(doc, "//! The layers");
    assert_eq!(order, ["a", "b", "c"]);
}
