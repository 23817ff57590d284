//! What one device has of a model.

use super::Stage;
use crate::model::ModelConfig;
use std::ops::Range;

/// Layers that follow each other, with the embedding before the model's first and the head after its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerRange {
    layers: Range<usize>,
    /// Layers of the whole model.
    all: usize,
}

impl LayerRange {
    pub fn whole(config: &ModelConfig) -> Self {
        let all = config.layer_types.len();
        Self {
            layers: 0..all,
            all,
        }
    }

    /// What stages that follow each other, of which there is at least one, have together.
    pub fn of(config: &ModelConfig, stages: &[Stage]) -> Self {
        let start = stages.first().map_or(0, |stage| stage.layers.start);
        let end = stages.last().map_or(0, |stage| stage.layers.end);
        Self {
            layers: start..end,
            ..Self::whole(config)
        }
    }

    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    pub fn has(&self, layer: usize) -> bool {
        self.layers.contains(&layer)
    }

    pub fn has_head(&self) -> bool {
        self.layers.end == self.all
    }
}
