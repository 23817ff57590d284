//! A published model, a cache, and a run that wants the model from the tests' hub.

use crate::common::program::{Ended, command, end, tailgraph};
use crate::server::Hub;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A checkpoint of a few shards, files that nobody needs beside it, and a cache.
pub struct Rig {
    pub dir: TempDir,
    pub model: PathBuf,
}

/// One of the shards, and where it is cut.
pub const SHARD: &str = "model-00002";
pub const CUT: usize = 100_000;

impl Rig {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("published");
        let to = model.to_str().unwrap();
        tailgraph(&[
            "synth",
            "--model",
            "random:tiny",
            "--output",
            to,
            "--shard-size",
            "500KB",
            "--quiet",
        ]);
        for name in ["README.md", "pytorch_model.bin", "weights.gguf"] {
            fs::write(model.join(name), "not needed").unwrap();
        }
        Self { dir, model }
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub fn command(&self, model: &str, endpoint: &str) -> Command {
        let run = [
            "generate",
            "--quiet",
            "--max-new-tokens",
            "3",
            "--device",
            "cpu",
            "--model",
            model,
            "--raw",
            "Hi",
        ];
        self.asking(&run, endpoint)
    }

    pub fn asking(&self, arguments: &[&str], endpoint: &str) -> Command {
        let mut command = command(arguments);
        command.current_dir(self.dir.path());
        for (name, _) in std::env::vars() {
            let of_the_hub = ["HF_", "HUGGING", "TRANSFORMERS", "XDG_", "SSL_"];
            let is_of_it = of_the_hub.iter().any(|start| name.starts_with(start));
            if is_of_it {
                command.env_remove(name);
            }
        }
        command
            .env("HF_HOME", self.home())
            .env("HF_ENDPOINT", endpoint);
        command
    }

    pub fn run(&self, hub: &Hub) -> Ended {
        end(&mut self.command("org/tiny", &hub.endpoint), "")
    }

    pub fn expected(&self) -> String {
        end(&mut self.command("published", ""), "").good()
    }

    pub fn in_cache(&self) -> PathBuf {
        self.home().join("hub/models--org--tiny")
    }

    /// Nothing leads to what is not whole.
    pub fn has_no_whole_model(&self) {
        assert!(!self.in_cache().join("refs/main").exists());
    }
}
