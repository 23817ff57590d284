//! The kernels that one model uses, found by name once.

use super::attention;
use super::experts::Combine;
use super::grouped::Grouped;
use super::limits::{Library, SHARED_BYTES, Variants, types};
use super::persistent::Persistent;
use super::router::{Route, router_shared_bytes};
use super::skinny::Skinny;
use super::swap_ab::SwapAb;
use super::tiled::{Tile, Tiled};
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::tuning::variants::Architecture;
use crate::backend::cuda::tuning::{KernelChoice, Served};
use crate::error::{Error, Result};
use crate::model::config::Quantization;
use crate::model::declared::Role;
use crate::model::{DType, ModelConfig, WeightFormat};
use crate::plan::{Activations, Op, OpKind, Precision};
use crate::sys::abi;

/// The kernels that multiply with matrices of one format.
#[derive(Debug)]
pub struct Products {
    pub tiled: Tiled,
    /// Where the GPU and the types have them.
    pub skinny: Option<Skinny>,
    /// These three where the GPU has the instructions of 9.0 and the types [are streamed](Precision::is_streamed).
    pub grouped: Option<Grouped>,
    pub swap_ab: Option<SwapAb>,
    pub persistent: Option<Persistent>,
}

impl Products {
    fn load(library: &Library, precision: Precision, experts: usize) -> Result<Self> {
        let warpgroups = library.gpu.is(Architecture::has_warpgroups);
        let streamed = warpgroups && precision.is_streamed();
        Ok(Self {
            tiled: tiled(library, precision)?,
            skinny: Skinny::load(library, precision, experts)?,
            grouped: when(streamed, || Grouped::load(library, precision))?,
            swap_ab: when(streamed, || SwapAb::load(library, precision))?,
            persistent: when(streamed, || Persistent::load(library, precision))?,
        })
    }
}

/// Handles, by operation.
#[derive(Debug)]
pub struct Kernels {
    pub precision: Precision,
    /// What says which of them serve which bucket.
    pub(super) file: Served,
    pub embed: Kernel,
    pub rmsnorm: Kernel,
    pub rmsnorm_sampled: Kernel,
    /// Those of projections.
    pub products: Products,
    /// Those of the LM head, where it is stored otherwise.
    head: Option<Products>,
    pub conv: Kernel,
    pub conv_decode: Kernel,
    pub conv_rows: Kernel,
    pub qk_norm_rope: Kernel,
    /// [`Kernels::qk_norm_rope`] and attention, of decode steps: with blocks of 1, 2, 4 and 8 warps.
    pub attention_decode: [Kernel; attention::DECODE_WARPS.len()],
    pub attention_chunks: (Kernel, u32),
    /// Where the GPU and the types have it.
    pub attention_prompt: Option<attention::Prompt>,
    pub query_tiles: Kernel,
    /// One row a block.
    pub router_1: Kernel,
    /// [`abi::TG_ROUTER_MANY_ROWS`] rows a block, of so much shared memory at most.
    pub router_many: Kernel,
    pub router_many_bytes: u32,
    /// The same where the GPU has clusters.
    pub route: Option<Route>,
    pub sort_tokens: Kernel,
    /// By the blocks of a cluster.
    pub sort_tokens_many: Option<Kernel>,
    pub combine: Combine,
    pub needed_rows: Kernel,
    pub gather_rows: Kernel,
    pub share_prefixes: Kernel,
    pub mark_seen: Kernel,
    pub sample_best: Kernel,
    pub sample: Kernel,
    pub logits_wait: Kernel,
    pub logits_copy: Kernel,
    pub logits_post: Kernel,
}

impl Kernels {
    /// # Errors
    /// Shapes or types that the GPU path does not take, named; variants for other GPUs; or the driver refuses.
    pub fn load(
        library: &Library,
        config: &ModelConfig,
        precision: Precision,
        choice: &KernelChoice,
    ) -> Result<Self> {
        check(config, precision)?;
        let warpgroups = library.gpu.is(Architecture::has_warpgroups);
        if precision.activations == Activations::FP8 && !warpgroups {
            let (major, minor) = library.gpu.capability;
            return Err(Error::Usage(format!(
                "`activations` fp8: expected a GPU of compute capability 9.0, whose tensor cores this build multiplies rows in 8 bits with, found {major}.{minor}"
            )));
        }
        let x = precision.compute.name();
        let head = Role::Head.stored(precision.weights);
        let d = config.head_dim;
        let kernel = |name: &str| library.kernel(name);
        let products =
            |weights| Products::load(library, precision.with(weights), config.num_experts);
        let router_1 = kernel(&format!("tg_router_1_{x}"))?;
        router_1.allow_shared(SHARED_BYTES)?;
        let router_many = kernel(&format!("tg_router_many_{x}"))?;
        let router_many_bytes = library.gpu.limits().block_bytes;
        router_many.allow_shared(router_many_bytes)?;
        Ok(Self {
            precision,
            file: choice.for_gpu(library.gpu.capability, library.gpu.class)?,
            embed: kernel(&format!("tg_embed_{}", head.name()))?,
            rmsnorm: kernel(&format!("tg_rmsnorm_{x}"))?,
            rmsnorm_sampled: kernel(&format!("tg_rmsnorm_sampled_{x}"))?,
            products: products(precision.weights)?,
            head: when(head != precision.weights, || products(head))?,
            conv: kernel(&format!("tg_conv_{x}"))?,
            conv_decode: kernel(&format!("tg_conv_decode_{x}"))?,
            conv_rows: kernel(&format!("tg_conv_rows_{x}"))?,
            qk_norm_rope: kernel(&format!("tg_qk_norm_rope_{x}_d{d}"))?,
            attention_decode: attention::decode_kernels(library, x, d)?,
            attention_chunks: attention::chunks(library, precision, d)?,
            attention_prompt: attention::Prompt::load(library, precision, d)?,
            query_tiles: kernel("tg_query_tiles")?,
            router_1,
            router_many,
            router_many_bytes,
            route: when(warpgroups, || Route::load(library, x, config.num_experts))?,
            sort_tokens: kernel("tg_sort_tokens")?,
            sort_tokens_many: when(warpgroups, || kernel("tg_sort_tokens_many"))?,
            combine: Combine::load(library, precision)?,
            needed_rows: kernel("tg_needed_rows")?,
            gather_rows: kernel("tg_gather_rows")?,
            share_prefixes: kernel("tg_share_prefixes")?,
            mark_seen: kernel("tg_mark_seen")?,
            sample_best: kernel("tg_sample_best")?,
            sample: kernel("tg_sample")?,
            logits_wait: kernel("tg_logits_wait")?,
            logits_copy: kernel("tg_logits_copy")?,
            logits_post: kernel("tg_logits_post")?,
        })
    }
}

impl Kernels {
    /// Those that multiply for these operations.
    pub(super) fn products_of(&self, ops: &[Op]) -> &Products {
        let head = self.head.as_ref();
        let is_head = ops.iter().any(|op| op.kind == OpKind::LmHead);
        head.filter(|_| is_head).unwrap_or(&self.products)
    }
}

/// What is loaded where the GPU and the types have it.
fn when<T>(has: bool, load: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    has.then(load).transpose()
}

/// The matrix product's variants for these types, smallest tile first.
fn tiled(library: &Library, precision: Precision) -> Result<Tiled> {
    let Precision {
        compute, weights, ..
    } = precision;
    let name = if compute.is_half() {
        types(precision)
    } else {
        format!("{}_{}", compute.name(), weights.name())
    };
    let rows: &[u32] = match (compute, weights) {
        // Registers are too few for the largest.
        (DType::F32, WeightFormat::E4M3) => &[8, 32, 64],
        _ if precision.is_streamed() => &[8, 32, 64, 128],
        _ => &[8, 64],
    };
    let names = rows.iter().map(|rows| format!("tg_tiled_{name}_r{rows}"));
    Variants::load(library, names, |tile: &Tile| tile.shared_bytes)
}

/// What the kernels take, said before any weight is read.
///
/// # Errors
/// The first field that does not fit, with its value and what is expected.
pub fn check(config: &ModelConfig, precision: Precision) -> Result<()> {
    let Precision {
        compute,
        weights,
        activations,
    } = precision;
    let in_8_bits = weights == WeightFormat::E4M3;
    if activations == Activations::FP8 && (compute, in_8_bits) != (DType::BF16, true) {
        return Err(Error::Usage(format!(
            "`activations` fp8 with `dtype` {} and weights in {}: expected `dtype` bf16 and weights in 8 bits, as `weights` fp8 makes them",
            compute.name(),
            weights.name()
        )));
    }
    if in_8_bits && compute == DType::F16 {
        return Err(Error::Usage(
            "`dtype` f16 with weights in 8 bits: the GPU has no such kernels: use `dtype` bf16 or f32, or `weights` bf16".into(),
        ));
    }
    if let (true, Some(Quantization::Block(rows, columns))) = (in_8_bits, config.quantization) {
        return Err(Error::Usage(format!(
            "config.json: scales are for blocks of {rows} x {columns} weights, the GPU takes one for each row: use `weights` bf16, or `device` cpu"
        )));
    }
    let refused = |what: String| Err(Error::Usage(format!("{what}: use `device` cpu")));
    if compute.is_half() && weights != compute.into() && !in_8_bits {
        return refused(format!(
            "weights are {} for `dtype` {}, expected the same type",
            weights.name(),
            compute.name()
        ));
    }
    let takes = |field: &str, value: usize, is_taken: bool, what: &str| {
        if is_taken {
            return Ok(());
        }
        refused(format!(
            "config.json: {field} is {value}, the GPU takes {what}"
        ))
    };
    for (field, value) in [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("moe_intermediate_size", config.moe_intermediate_size),
    ] {
        let is_taken = value > 0 && value.is_multiple_of(32);
        takes(field, value, is_taken, "multiples of 32")?;
    }
    let head_dim = config.head_dim;
    let is_taken = matches!(head_dim, 64 | 128);
    takes("head_dim", head_dim, is_taken, "64 or 128")?;
    let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return refused(format!(
            "config.json: num_attention_heads is {heads} and num_key_value_heads {kv_heads}, expected a multiple"
        ));
    }
    let (experts, top_k) = (config.num_experts, config.num_experts_per_tok);
    let most_top_k = experts.min(abi::TG_MAX_TOP_K as usize);
    for (field, value, most) in [
        ("num_experts", experts, abi::TG_MAX_EXPERTS as usize),
        ("num_experts_per_tok", top_k, most_top_k),
        ("conv_L_cache", config.conv_l_cache, 8),
    ] {
        takes(field, value, value <= most, &format!("at most {most}"))?;
    }
    let router = router_shared_bytes(1, config.hidden_size as u32);
    if router > SHARED_BYTES {
        return refused(format!(
            "config.json: hidden_size is {}, whose row does not fit the {SHARED_BYTES} bytes of shared memory \
             that the router has",
            config.hidden_size
        ));
    }
    Ok(())
}
