//! The golden checkpoints as models, and what transformers computes with them.

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailgraph::model::{Model, ModelSource};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/goldens");

/// One checkpoint and its arrays.
pub struct Golden {
    pub model: Arc<Model>,
    arrays: Vec<u8>,
}

/// `variant` is `a` or `b`.
pub fn load(variant: &str) -> Golden {
    let dir = PathBuf::from(format!("{GOLDENS}/lfm2moe-tiny-{variant}"));
    Golden {
        model: Arc::new(Model::load(&ModelSource::Dir(dir.clone())).unwrap()),
        arrays: read(&dir.join("golden.safetensors")),
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Golden {
    fn array<const N: usize, T>(&self, name: &str, value: impl Fn([u8; N]) -> T) -> Vec<T> {
        let arrays = SafeTensors::deserialize(&self.arrays).unwrap();
        let array = arrays.tensor(name).unwrap();
        let (values, rest) = array.data().as_chunks::<N>();
        assert!(rest.is_empty());
        values.iter().map(|&bytes| value(bytes)).collect()
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        self.array(name, f32::from_le_bytes)
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.array(name, |bytes| i32::from_le_bytes(bytes) as u32)
    }

    /// All prompts.
    pub fn prompts(&self) -> Vec<Vec<u32>> {
        (0..11).map(|i| self.ids(&format!("prompt.{i}"))).collect()
    }
}
