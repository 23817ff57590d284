//! The modules of src/ in the order that lib.rs gives, and the parts of the CUDA backend in that of its mod.rs: each uses only what
//! stands to its right there. Files that are not part of one another do not use each other in a circle. Read from the
//! sources, so that what only one build compiles (GPU support, tests) is held to it too.

use std::collections::{BTreeMap, BTreeSet};
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
        .filter_map(|line| {
            let line = line
                .strip_prefix("pub(crate)")
                .or(line.strip_prefix("pub"))?;
            line.strip_prefix(" mod ")?.strip_suffix(';')
        })
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

/// Code without the items that only tests compile; rustfmt ends an item by a line that is indented as it began.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept += line;
            kept.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &str| {
            line.strip_prefix(indent).is_some_and(|item| {
                !item.starts_with([' ', '#']) && item.trim_end().ends_with([';', '}'])
            })
        };
        lines.by_ref().find(|line| ends(line));
    }
    kept
}

/// The paths that a tree of `use` begins with, each after `stem`; what follows the tree.
fn paths<'a>(stem: &[String], tree: &'a str, found: &mut Vec<Vec<String>>) -> &'a str {
    let tree = tree.trim_start();
    if let Some(mut list) = tree.strip_prefix('{') {
        loop {
            list = list.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if let Some(rest) = list.strip_prefix('}') {
                return rest;
            }
            list = paths(stem, list, found);
            // `as NAME`, and a glob.
            list = &list[list.find([',', '}']).expect("an end of the braces")..];
        }
    }
    let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, rest) = tree.split_at(end.unwrap_or(tree.len()));
    let mut path = stem.to_vec();
    match name {
        "self" | "" => {}
        "super" => drop(path.pop()),
        name => path.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(below) => paths(&path, below, found),
        None => {
            found.push(path);
            rest
        }
    }
}

/// The modules of `all` that the code of module `own` names by paths from `crate` or `super`: the deepest of each path.
fn named(code: &str, own: &[String], all: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found = Vec::new();
    for (root, stem) in [("crate::", &[][..]), ("super::", own)] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let tree = if stem.is_empty() {
                &code[at + root.len()..]
            } else {
                &code[at..]
            };
            paths(stem, tree, &mut found);
        }
    }
    let deepest = |path: Vec<String>| {
        let lengths = (1..=path.len()).rev();
        let mut above = lengths.map(|length| path[..length].to_vec());
        above.find(|module| all.contains(module))
    };
    found.into_iter().filter_map(deepest).collect()
}

type Uses = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// What each module of src/ uses, apart from its own parts and what it is part of.
fn uses_of_files() -> Uses {
    let mut found = Vec::new();
    files(&src(), &mut found);
    found.retain(|path| !path.ends_with("tests.rs") && !path.ends_with("main.rs"));
    let all: BTreeSet<_> = found.iter().map(|path| modules(path)).collect();
    let uses = found.iter().map(|path| {
        let own = modules(path);
        let text = std::fs::read_to_string(path).unwrap();
        let mut named = named(&without_tests(&code(&text)), &own, &all);
        named.retain(|other| !other.starts_with(&own) && !own.starts_with(other));
        (own, named)
    });
    uses.collect()
}

/// All that a module leads to.
fn reached<'a>(uses: &'a Uses, from: &'a Vec<String>) -> BTreeSet<&'a Vec<String>> {
    let (mut seen, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(module) = ahead.pop() {
        let next = uses.get(module).into_iter().flatten();
        ahead.extend(next.filter(|&next| seen.insert(next)));
    }
    seen
}

/// The modules that lead back to themselves, in sets that lead to each other.
fn circles(uses: &Uses) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for from in uses.keys() {
        let mut circle = reached(uses, from);
        if circle.contains(from) {
            circle.retain(|other| reached(uses, other).contains(from));
            found.insert(circle.iter().map(|module| module.join("::")).collect());
        }
    }
    found
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

/// Circles that are still to be broken.
const KNOWN: &[&str] = &[];

#[test]
fn files_that_are_no_part_of_each_other_make_no_circle() {
    let uses = uses_of_files();
    let arrows: usize = uses.values().map(BTreeSet::len).sum();
    assert!(arrows > 1000, "found {arrows} uses between files");
    let found: Vec<String> = circles(&uses).iter().map(|all| all.join(" ")).collect();
    assert_eq!(found, KNOWN, "circles between files, and those known");
}

#[test]
fn circles_are_found_whatever_the_paths() {
    let split = |path: &str| -> Vec<String> { path.split("::").map(str::to_owned).collect() };
    let all: BTreeSet<_> = ["a", "a::b", "a::c", "d", "e"].map(split).into();
    let code = "
use crate::{d::{self, x as y}, a::{b::Z, Other}};
#[cfg(test)]
mod tests {
    use crate::e::only_in_tests;
}
fn f() { super::c::g(); }
";
    let found = named(&without_tests(code), &split("a::b"), &all);
    assert_eq!(found, ["a", "a::b", "a::c", "d"].map(split).into());
    let arrows = [("a", "d"), ("d", "e"), ("e", "d"), ("a::b", "a::b")];
    let arrows = arrows.map(|(from, to)| (split(from), BTreeSet::from([split(to)])));
    let found = circles(&arrows.into());
    assert_eq!(
        found,
        [
            vec!["a::b".to_owned()],
            vec!["d".to_owned(), "e".to_owned()]
        ]
        .into()
    );
}
