//! Keys and values in pages.

/// The pool of one stage: a page id is the same index in each of its attention layers.
pub struct KvPool {
    /// `[layers, pages, page_tokens, kv_heads, head_dim]` each
    keys: Vec<f32>,
    values: Vec<f32>,
    pages: usize,
    page_tokens: usize,
    /// kv_heads * head_dim
    token_elements: usize,
}

impl KvPool {
    /// `token_elements` is kv_heads * head_dim.
    pub fn new(layers: usize, pages: usize, page_tokens: usize, token_elements: usize) -> Self {
        let elements = layers * pages * page_tokens * token_elements;
        Self {
            keys: vec![0.0; elements],
            values: vec![0.0; elements],
            pages,
            page_tokens,
            token_elements,
        }
    }

    fn page_start(&self, layer: usize, page: u32) -> usize {
        (layer * self.pages + page as usize) * self.page_tokens * self.token_elements
    }

    /// Stores key and value `[kv_heads, head_dim]` of one position; `table` is the slot's pages.
    pub fn write(
        &mut self,
        layer: usize,
        table: &[u32],
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let start = self.page_start(layer, table[position / self.page_tokens])
            + position % self.page_tokens * self.token_elements;
        self.keys[start..start + self.token_elements].copy_from_slice(key);
        self.values[start..start + self.token_elements].copy_from_slice(value);
    }

    /// Gives page `to` what page `from` holds, in all layers.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let elements = self.page_tokens * self.token_elements;
        let layer_elements = (self.pages * elements).max(1);
        let (from, to) = (from as usize * elements, to as usize * elements);
        for pool in [&mut self.keys, &mut self.values] {
            for layer in pool.chunks_mut(layer_elements) {
                layer.copy_within(from..from + elements, to);
            }
        }
    }

    /// Keys and values of one page: `[page_tokens, kv_heads, head_dim]` each.
    pub fn page(&self, layer: usize, page: u32) -> (&[f32], &[f32]) {
        let start = self.page_start(layer, page);
        let range = start..start + self.page_tokens * self.token_elements;
        (&self.keys[range.clone()], &self.values[range])
    }
}
