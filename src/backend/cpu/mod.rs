//! The CPU reference: interprets a plan in f32 with paged keys, values and conv state as the GPU holds them.
