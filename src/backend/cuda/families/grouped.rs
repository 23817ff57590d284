//! The experts' products of wide steps: a kernel that streams every expert's weights once, on GPUs that have wgmma and the
//! copy engine for tensors (kernels/grouped/grouped.cu says how, and lists its instances). Here is what it can serve, and what its
//! launches look like.

use super::Lowering;
use super::experts::{ExpertRows, ExpertWeights, Routing, most_expert_tiles};
use super::limits::{Library, Limits, Variants, types};
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::limits::grouped_rows;
use crate::backend::cuda::tuning::variants::{Experts, Grouped as Shape};
use crate::error::Result;
use crate::model::{ModelConfig, WeightFormat};
use crate::plan::Precision;
use crate::sys::abi;

/// Weight rows of a work tile.
const OUTPUTS: u32 = abi::TG_GROUPED_OUTPUTS;
/// Steps of up to so many rows of 16 bits have the fewest loaders that there are for their tiles, and the router a block beside each.
const FEW_LOADERS_ROWS: u32 = 16;
const MOST_TILES: u32 = abi::TG_GROUPED_MOST_TILES;
/// K-blocks of a prediction that are prefetched into L2 while those before them fill the pipeline, where nothing has prefetched them
/// before. Measured: profiles/log/many-rows.md, "Room beside each other".
const BEYOND_K_BLOCKS: u32 = 8;
/// The same of weights in 8 bits, of which as many bytes are twice as many k-blocks. Not measured.
const BEYOND_K_BLOCKS_E4M3: u32 = 16;

/// What the kernels' names end with before their type; of f32 rows there are the first two.
const INSTANCES: [&str; 7] = [
    "",
    "_many",
    "_tall",
    "_512",
    "_512_tallest",
    "_1024",
    "_1024_tallest",
];
/// Those that weights in 8 bits have not.
const OF_16_BITS: [&str; 2] = ["_512", "_1024"];

/// What an instance was compiled for (`GROUPED` of kernels/grouped/grouped.cu, in its order).
#[derive(Debug, Clone, Copy, bytemuck::AnyBitPattern)]
#[repr(C)]
struct Tile {
    /// Rows of a step, at most.
    rows: u32,
    /// Rows of an expert tile, at most.
    tile_rows: u32,
    /// Warps that load rows, each of which has a stage of the pipeline.
    loaders: u32,
    threads: u32,
    static_bytes: u32,
    /// Not 0: down's sums are rounded to the operand type.
    rounds: u32,
}

/// The kernels for one pair of types, on a GPU that has what they need.
#[derive(Debug)]
pub struct Grouped {
    /// Ascending in what they take, of equal ones in loaders.
    instances: Variants<Tile>,
    precision: Precision,
    limits: Limits,
}

impl Tile {
    fn takes(&self, rows: u32, shape: Shape) -> bool {
        let fits = rows <= self.rows && shape.tile_rows <= self.tile_rows;
        fits && shape.stages >= self.loaders
    }

    /// Dynamic shared memory of a block, at most.
    fn block_bytes(&self, limits: Limits) -> u32 {
        limits.block_bytes.saturating_sub(self.static_bytes)
    }
}

impl Grouped {
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, precision: Precision) -> Result<Self> {
        let (types, is_half) = (types(precision), precision.compute.is_half());
        let count = if is_half { INSTANCES.len() } else { 2 };
        let in_8_bits = precision.weights == WeightFormat::E4M3;
        let names = INSTANCES[..count].iter();
        let names = names.filter(|of| !(in_8_bits && OF_16_BITS.contains(of)));
        let names = names.map(|of| format!("tg_grouped_experts{of}_{types}"));
        let limits = library.gpu.limits();
        Ok(Self {
            instances: Variants::load(library, names, |tile: &Tile| tile.block_bytes(limits))?,
            precision,
            limits,
        })
    }

    /// For a bucket of `rows` rows in launches of this shape: the one that takes the fewest rows and the lowest tiles, with as many
    /// loaders as the pipeline has stages for where there is much to load.
    fn instance(&self, rows: u32, shape: Shape) -> Option<usize> {
        let few = self.precision.compute.is_half() && rows <= FEW_LOADERS_ROWS;
        let mut tiles = self.instances.tiles.iter();
        let takes = |tile: &Tile| tile.takes(rows, shape);
        let first = tiles.clone().position(takes)?;
        let of = |tile: &Tile| (tile.rows, tile.tile_rows);
        let alike = of(&self.instances.tiles[first]);
        if few {
            Some(first)
        } else {
            tiles.rposition(|tile| takes(tile) && of(tile) == alike)
        }
    }

    /// The instance of a variant that [`Grouped::serves`] has said this bucket can have.
    fn served(&self, rows: u32, shape: Shape) -> (&Tile, &Kernel) {
        let instance = self.instance(rows, shape);
        let instance = instance.expect("a variant that `serves` has said this bucket can have");
        self.instances.of(instance)
    }

    /// A launch of this shape, whose stages the kernel files count in weights of 16 bits: of 8 bits twice as many, or what there is room for.
    fn of_weights(&self, rows: u32, shape: Shape) -> Shape {
        if self.precision.weights != WeightFormat::E4M3 {
            return shape;
        }
        let most = self.served(rows, shape).0.block_bytes(self.limits);
        let twice = (2 * shape.stages).min(abi::TG_GROUPED_MOST_STAGES);
        let of_stages = |stages| Shape { stages, ..shape };
        let mut shapes = (shape.stages..=twice).rev().map(of_stages);
        let fits = shapes.find(|&shape| shared_bytes(self.precision, shape) <= most);
        fits.unwrap_or(shape)
    }

    /// Whether down's sums are rounded to the operand type, in such a bucket and variant.
    pub(super) fn rounds(&self, rows: u32, shape: Shape) -> bool {
        self.served(rows, shape).0.rounds != 0
    }

    /// Whether this kernel does the experts of a bucket of `rows` rows in launches of this shape.
    ///
    /// # Errors
    /// What of the model or the shape it has no room for.
    pub fn serves(
        &self,
        config: &ModelConfig,
        rows: u32,
        shape: Shape,
    ) -> std::result::Result<(), String> {
        let (experts, top_k) = (config.num_experts as u32, config.num_experts_per_tok as u32);
        let most = grouped_rows(self.precision.compute);
        if rows > most {
            return Err(format!("the grouped kernels take up to {most} tokens"));
        }
        let tiles = most_expert_tiles(rows, experts, top_k, shape.tile_rows);
        if tiles > MOST_TILES {
            return Err(format!(
                "{experts} experts may have {tiles} tiles of {} rows, the grouped kernels take {MOST_TILES}",
                shape.tile_rows
            ));
        }
        let Some(instance) = self.instance(rows, shape) else {
            return Err(format!(
                "no grouped kernel takes tiles of {} rows with {} stages at {rows} tokens",
                shape.tile_rows, shape.stages
            ));
        };
        let bytes = shared_bytes(self.precision, shape);
        let most = self.instances.tiles[instance].block_bytes(self.limits);
        if bytes > most {
            return Err(format!(
                "{} stages for tiles of {} rows need {bytes} bytes of a block's shared memory, which has {most} at {rows} tokens",
                shape.stages, shape.tile_rows
            ));
        }
        Ok(())
    }
}

/// Dynamic shared memory of a block: stages of grouped_stage_bytes, and what aligns the first one.
fn shared_bytes(precision: Precision, shape: Shape) -> u32 {
    let is_half = precision.compute.is_half();
    let rows = shape.tile_rows * if is_half { 1 } else { abi::TG_PARTS };
    let weights = match precision.weights {
        WeightFormat::E4M3 => OUTPUTS / 2,
        _ => OUTPUTS,
    };
    shape.stages * abi::TG_GMMA_ROW_BYTES * (weights + rows) + abi::TG_GMMA_ATOM_BYTES
}

/// The experts' packed matrices, as tensor copies bring them: boxes of `outputs` weight rows, in groups of 16, by 64 columns. A group
/// is 8 rows of gate and 8 of up, of which that comes first which has the lower address, or two times 8 of down. 64 columns are 8 lines, or
/// of 8 bits a whole block.
pub(super) fn expert_boxes(w: &Matrix, pair: Option<&Matrix>, experts: u32, outputs: u32) -> Boxes {
    let block_rows = u64::from(abi::TG_PACKED_ROWS);
    let element = w.format.bytes() as u64;
    let filled = u64::from(w.columns.next_multiple_of(BOX_COLUMNS));
    // Bytes of 8 rows.
    let block_bytes = block_rows * filled * element;
    let (second, group, matrices) = match pair {
        Some(pair) => (w.address.abs_diff(pair.address), block_bytes, 1),
        None => (block_bytes, 2 * block_bytes, 2),
    };
    let blocks = filled / u64::from(BOX_COLUMNS);
    let along = match w.format {
        WeightFormat::E4M3 => {
            let block = abi::TG_PACKED_ROWS * BOX_COLUMNS;
            [
                (u64::from(block / 2), 2, block / 2),
                (blocks, block.into(), 1),
            ]
        }
        _ => [
            (BOX_COLUMNS.into(), element, BOX_COLUMNS),
            (
                block_rows * blocks,
                u64::from(BOX_COLUMNS) * element,
                abi::TG_PACKED_ROWS,
            ),
        ],
    };
    let groups = u64::from(w.rows) / (matrices * block_rows);
    let at = pair.map_or(w.address, |pair| w.address.min(pair.address));
    let dimensions = [
        along[0],
        along[1],
        (2, second, 2),
        (groups, group, outputs / abi::TG_GROUPED_GROUP_ROWS),
        (experts.into(), w.stride_bytes(), 1),
    ];
    Boxes::new(at, w.format, dimensions)
}

impl<'a> Lowering<'a> {
    /// The kernels for wide steps and the shape of their launch, where this bucket's experts are theirs.
    pub fn grouped(&self) -> Option<(&'a Grouped, Shape)> {
        match self.variant.experts {
            Experts::Grouped(shape) => {
                let grouped = self.products.grouped.as_ref()?;
                Some((grouped, grouped.of_weights(self.bucket.rows, shape)))
            }
            _ => None,
        }
    }

    /// y and partial, as [`ExpertRows`] says: all that comes before [`Lowering::combine_experts`].
    pub(super) fn grouped_experts(
        &mut self,
        (grouped, shape): (&Grouped, Shape),
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) {
        let (experts, top_k) = self.experts();
        let ExpertWeights { gate, up, down } = weights;
        let args = abi::tg_grouped_args {
            partial: rows.partial,
            y: rows.y,
            x: rows.x,
            chosen: routing.experts,
            counts: routing.tile_count,
            step: self.step,
            experts,
            k: top_k,
            predicts: shape.predict.into(),
            beyond: match (std::mem::take(&mut self.prefetched), gate.format) {
                (true, _) => 0,
                (false, WeightFormat::E4M3) => BEYOND_K_BLOCKS_E4M3,
                (false, _) => BEYOND_K_BLOCKS,
            },
            hidden: self.hidden(),
            inner: self.expert_inner(),
            tile_rows: shape.tile_rows,
            stages: shape.stages,
            up_first: (up.address < gate.address).into(),
            gate_scale: gate.scale_address(),
            up_scale: up.scale_address(),
            down_scale: down.scale_address(),
            ..Default::default()
        };
        let gate_up = expert_boxes(gate, Some(up), experts, OUTPUTS);
        let arguments = arguments![gate_up, expert_boxes(down, None, experts, OUTPUTS), &args];
        let blocks = grouped.limits.multiprocessors;
        let blocks = blocks.min(abi::TG_GROUPED_MOST_BLOCKS);
        let shared = shared_bytes(grouped.precision, shape);
        let (tile, kernel) = grouped.served(self.bucket.rows, shape);
        self.call(kernel, (blocks, 1, 1), tile.threads, shared, arguments);
        self.with_weights([*gate, *up, *down]);
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::backend::cuda::families::limits::GpuShape;
    use crate::backend::cuda::tuning::GpuClass;
    use crate::model::{DType, ModelSource};

    fn of(operand: DType) -> Grouped {
        of_weights(operand, WeightFormat::BF16)
    }

    fn of_weights(operand: DType, weights: WeightFormat) -> Grouped {
        let gpu = GpuShape {
            capability: (9, 0),
            class: GpuClass::parse("m132-b4800").unwrap(),
            block_bytes: 227 * 1024,
        };
        let library = Library::unloaded(gpu);
        let kernels = Grouped::load(&library, Precision::new(operand, weights));
        kernels.unwrap()
    }

    fn shape(tile_rows: u32, stages: u32) -> Shape {
        Shape {
            tile_rows,
            stages,
            predict: true,
            prefetch_mib: 0,
        }
    }

    #[test]
    fn a_launch_has_the_smallest_kernel_that_takes_it() {
        let (halves, f32) = (of(DType::BF16), of(DType::F32));
        let name = |kernels: &Grouped, rows, shape| {
            let instance = kernels.instance(rows, shape);
            instance.map(|index| kernels.instances.of(index).1.name().to_owned())
        };
        for (rows, tile_rows, stages, of) in [
            (16, 64, 8, "_bf16"),
            (17, 64, 8, "_many_bf16"),
            (256, 64, 4, "_bf16"),
            (8, 96, 5, "_tall_bf16"),
            (256, 96, 6, "_tall_bf16"),
            (256, 128, 6, "_512_tallest_bf16"),
            (257, 8, 16, "_512_bf16"),
            (512, 96, 5, "_512_bf16"),
            (513, 96, 5, "_1024_bf16"),
            (1024, 128, 5, "_1024_tallest_bf16"),
        ] {
            let found = name(&halves, rows, shape(tile_rows, stages)).unwrap();
            let expected = format!("tg_grouped_experts{of}");
            assert_eq!(found, expected, "{rows} rows, tiles of {tile_rows}");
            let many = ["512", "1024"].iter().any(|rows| of.contains(rows));
            let rounds = halves.rounds(rows, shape(tile_rows, stages));
            assert_eq!(rounds, many, "{expected}");
        }
        assert_eq!(name(&halves, 512, shape(64, 2)), None, "three loaders");
        assert_eq!(name(&halves, 1025, shape(64, 8)), None);
        let few = name(&f32, 1, shape(32, 5)).unwrap();
        assert_eq!(few, "tg_grouped_experts_many_f32");
        assert_eq!(name(&f32, 257, shape(32, 6)), None);
        let e4m3 = of_weights(DType::BF16, WeightFormat::E4M3);
        for (rows, tile_rows, of) in [
            (64, 64, "_many"),
            (256, 96, "_tall"),
            (512, 96, "_512_tallest"),
            (1024, 8, "_1024_tallest"),
        ] {
            let found = name(&e4m3, rows, shape(tile_rows, 8)).unwrap();
            assert_eq!(found, format!("tg_grouped_experts{of}_bf16_e4m3"));
        }
    }

    /// Weights of half the bytes leave room for more stages.
    #[test]
    fn weights_in_8_bits_have_pipelines_as_deep() {
        let (config, _) = ModelSource::parse("random:lfm2-8b-a1b")
            .and_then(|source| source.config())
            .unwrap();
        let e4m3 = of_weights(DType::BF16, WeightFormat::E4M3);
        for (rows, tile_rows, stages) in [(64, 32, 16), (128, 64, 13), (256, 96, 10), (512, 128, 8)]
        {
            assert_eq!(e4m3.serves(&config, rows, shape(tile_rows, stages)), Ok(()));
            let more = e4m3.serves(&config, rows, shape(tile_rows, stages + 1));
            assert!(more.is_err() || stages == abi::TG_GROUPED_MOST_STAGES);
        }
    }

    #[test]
    fn boxes_of_8_bits_are_whole_blocks() {
        let (rows, columns) = (96, 160);
        let matrix = |address| {
            let filled = 192;
            Matrix {
                stride: 2 * rows * filled,
                ..Matrix::of_rows(address, WeightFormat::E4M3, rows as u32, columns)
            }
        };
        let (gate, up) = (matrix(0x8000), matrix(0x4000));
        let boxes = expert_boxes(&gate, Some(&up), 5, OUTPUTS);
        assert_eq!(boxes.at, up.address);
        assert_eq!(boxes.sizes, [256, 3, 2, 12, 5]);
        assert_eq!(boxes.strides[1..], [512, 0x4000, 1536, gate.stride]);
        assert_eq!(boxes.each, [256, 1, 2, 8, 1]);
        let down = expert_boxes(&gate, None, 5, OUTPUTS);
        assert_eq!(down.sizes, [256, 3, 2, 6, 5]);
        assert_eq!(down.strides[1..], [512, 1536, 3072, gate.stride]);
        let dense = Boxes::of(&gate, 64);
        assert_eq!(dense.sizes, [768, 12]);
        assert_eq!((dense.strides[1], dense.each), (1536, vec![256, 8]));
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let (config, _) = ModelSource::parse("random:lfm2-24b-a2b")
            .and_then(|source| source.config())
            .unwrap();
        let halves = of(DType::F16);
        for (rows, shape, parts) in [
            (1024, shape(128, 5), None),
            (512, shape(128, 6), None),
            (512, shape(96, 7), None),
            (1024, shape(128, 6), Some(["6 stages", "at 1024 tokens"])),
            (512, shape(128, 7), Some(["7 stages", "at 512 tokens"])),
            (1024, shape(16, 6), Some(["320 tiles", "take 256"])),
            (300, shape(64, 2), Some(["2 stages", "300 tokens"])),
            (1025, shape(64, 6), Some(["up to 1024 tokens", "grouped"])),
        ] {
            let found = halves.serves(&config, rows, shape);
            match parts {
                None => assert_eq!(found, Ok(()), "{rows} rows, {shape:?}"),
                Some(parts) => {
                    let error = found.unwrap_err();
                    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
                }
            }
        }
        let f32 = of(DType::F32).serves(&config, 257, shape(32, 6));
        assert_eq!(f32, Err("the grouped kernels take up to 256 tokens".into()));
    }
}
