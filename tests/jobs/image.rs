//! The recipe of the image, as far as it can be held to the rest without a daemon that builds it.

use crate::script;
use std::path::Path;

#[test]
fn the_image_is_made_as_the_readme_says_and_is_the_one_that_runs() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (image, cargo) = (read(&script("Dockerfile")), read(&root.join("Cargo.toml")));
    let rust = cargo
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""))
        .unwrap();
    let rust = rust.trim_end_matches('"');
    assert!(image.contains(&format!("FROM rust:{rust}-bookworm AS build\n")));
    // One glibc in both stages: a binary wants that of its build or a newer one.
    assert!(image.contains("\nFROM debian:bookworm-slim\n"));
    let readme = read(&root.join("README.md"));
    for line in ["kernels/toolchain", "cargo build --release --features cuda"] {
        assert!(readme.contains(line), "{line}");
    }
    let made = "RUN kernels/toolchain && cargo build --release --locked --features cuda\n";
    assert!(image.contains(made));
    let named = image
        .lines()
        .find_map(|line| line.strip_prefix("#   docker build "))
        .unwrap();
    let tag = named
        .split(' ')
        .skip_while(|word| *word != "-t")
        .nth(1)
        .unwrap();
    let job = read(&script("kubernetes.yaml"));
    assert!(job.contains(&format!("image: {tag}\n")), "{tag}");
    assert!(tag.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))));
    // Kubernetes replaces the entry point by the command, which is found on the PATH.
    assert!(image.contains(" /usr/local/bin/tailgraph\n"));
}
