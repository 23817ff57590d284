//! The golden checkpoints as models, and what transformers computes with them.

use super::fixtures;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailgraph::model::{Model, ModelSource};

/// One checkpoint and its arrays.
pub struct Golden {
    pub model: Arc<Model>,
    arrays: Vec<u8>,
}

/// `variant` is one of `a` to `g`.
pub fn load(variant: &str) -> Golden {
    let dir = PathBuf::from(fixtures::golden(variant));
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

/// Norm of the difference over norm of what is expected.
pub fn relative_error<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (found, expected) in pairs {
        assert_eq!(found.len(), expected.len());
        for (&found, &expected) in found.iter().zip(expected) {
            difference += (f64::from(found) - f64::from(expected)).powi(2);
            norm += f64::from(expected).powi(2);
        }
    }
    (difference / norm).sqrt()
}
