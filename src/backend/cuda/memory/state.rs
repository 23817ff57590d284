//! What sequences keep on a device between steps, as byte offsets: conv state by slot, and behind that by prefix; keys and values by page. One
//! allocation, layer after layer, every array on a multiple of [`ALIGN_BYTES`].

use super::arena::ALIGN_BYTES;
use crate::model::{DType, LayerType, ModelConfig};
use crate::plan::{EngineOptions, LayerRange};

/// Where a layer's arrays start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateAt {
    /// `[slots + prefixes, L - 1, H]`, operand type.
    Conv(usize),
    /// `[pages, kv_heads, page_tokens, D]` each, operand type.
    Pages { k: usize, v: usize },
}

/// Where the state of a range of layers lies. Sizes saturate, so that one that no machine has is refused as such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    /// One entry for each layer of the model; `None` for those that the range does not have.
    pub layers: Vec<Option<StateAt>>,
    /// Bytes of a conv layer's array.
    pub conv_bytes: usize,
    pub bytes: usize,
    /// Bytes of keys and values, which `bytes` includes.
    pub page_bytes: usize,
}

impl StateLayout {
    pub fn new(
        config: &ModelConfig,
        range: &LayerRange,
        options: &EngineOptions,
        operand: DType,
    ) -> Self {
        let aligned = |dimensions: &[usize]| {
            let size = dimensions
                .iter()
                .fold(operand.bytes(), |n, &d| n.saturating_mul(d));
            size.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(size)
        };
        let columns = config.conv_l_cache.saturating_sub(1);
        let places = (options.max_seqs as usize).saturating_add(options.prefixes as usize);
        let conv = aligned(&[places, columns, config.hidden_size]);
        let pages = aligned(&[
            options.pages as usize,
            options.page_tokens as usize,
            config.num_key_value_heads,
            config.head_dim,
        ]);
        let (mut bytes, mut page_bytes) = (0usize, 0usize);
        let mut take = |size: usize| {
            let at = bytes;
            bytes = bytes.saturating_add(size);
            at
        };
        let mut layer = |mixer: &LayerType| match mixer {
            LayerType::Conv => StateAt::Conv(take(conv)),
            LayerType::FullAttention => {
                page_bytes = page_bytes.saturating_add(pages.saturating_mul(2));
                StateAt::Pages {
                    k: take(pages),
                    v: take(pages),
                }
            }
        };
        let layers = config.layer_types.iter().enumerate();
        let layers = layers.map(|(index, mixer)| range.has(index).then(|| layer(mixer)));
        let layers = layers.collect();
        Self {
            layers,
            conv_bytes: conv,
            bytes,
            page_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;

    #[test]
    fn layers_follow_each_other() {
        let source = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let (config, _) = source.config().unwrap();
        let options = EngineOptions {
            max_seqs: 3,
            max_context: 100,
            page_tokens: 17,
            pages: 5,
            step_tokens: 67,
            chunk_tokens: 67,
            chunk_share: 0,
            chunk_align: 64,
            steps_in_flight: 1,
            prefixes: 2,
            record: false,
        };
        let layout = StateLayout::new(&config, &LayerRange::whole(&config), &options, DType::BF16);
        // 5 x 2 x 2048 and 5 x 17 x 8 x 64 elements of 2 bytes, on multiples of 256.
        let (conv, pages) = (40_960, 87_040);
        let mut end = 0;
        for at in &layout.layers {
            end = match at.unwrap() {
                StateAt::Conv(at) => {
                    assert_eq!(at, end);
                    at + conv
                }
                StateAt::Pages { k, v } => {
                    assert_eq!((k, v), (end, end + pages));
                    v + pages
                }
            };
        }
        assert_eq!((layout.bytes, layout.page_bytes), (end, 6 * 2 * pages));
    }
}
