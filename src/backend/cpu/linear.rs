//! Matrix products y = x W^T with weights widened to f32 as they are read, each weight row once a call.
//!
//! Work is split over outputs only; a (row, output) pair is always one dot product in the order of
//! [`super::lanes`].

use super::lanes::Isa;
use crate::model::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Widened weights that a task holds at once, in elements: small enough to stay in a core's own cache.
const TILE_ELEMENTS: usize = 48 * 1024;
/// Multiply-adds below which a task is not worth splitting off.
const TASK_PRODUCTS: usize = 32 * 1024;

thread_local! {
    /// A tile of widened weight rows; grows to the largest tile a worker meets and stays.
    static TILE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Some rows of x against one weight matrix `[outputs, cols]`.
#[derive(Clone)]
pub struct Product<'a> {
    pub weight: &'a Tensor,
    /// Rows of x, and of y.
    pub rows: Range<usize>,
}

/// Where in y a product's outputs go: element `[row, output]` lands at `row * stride + offset + output`.
#[derive(Clone, Copy)]
pub struct Columns {
    pub stride: usize,
    pub offset: usize,
}

impl Columns {
    /// y is `[rows, outputs]`, nothing else beside it.
    pub fn all(outputs: usize) -> Self {
        Self {
            stride: outputs,
            offset: 0,
        }
    }
}

/// Runs matrix products; owns the scratch for their results before they are put in place.
pub struct Linear {
    isa: Isa,
    /// Results output-major: `[outputs of a block, rows]`, product after product.
    scratch: Vec<f32>,
}

impl Linear {
    /// `scratch` elements hold the results of a block of outputs: at least the most rows a call will bring.
    pub fn new(isa: Isa, scratch: usize) -> Self {
        Self {
            isa,
            scratch: vec![0.0; scratch],
        }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// y = x W^T for `rows` rows: x is `[rows, cols]`.
    pub fn run(&mut self, x: &[f32], weight: &Tensor, rows: usize, y: &mut [f32], to: Columns) {
        let product = Product {
            weight,
            rows: 0..rows,
        };
        self.run_grouped(x, &[product], y, to);
    }

    /// Several matrices of one shape, each against its own rows of x `[rows, cols]`; the row ranges follow
    /// each other without gaps from 0.
    pub fn run_grouped(&mut self, x: &[f32], products: &[Product<'_>], y: &mut [f32], to: Columns) {
        let (Some(first), Some(last)) = (products.first(), products.last()) else {
            return;
        };
        let (outputs, cols, rows) = (first.weight.rows(), first.weight.cols(), last.rows.end);
        if rows == 0 {
            return;
        }
        let block = (self.scratch.len() / rows).clamp(1, outputs);
        for start in (0..outputs).step_by(block) {
            let block = start..(start + block).min(outputs);
            let results = &mut self.scratch[..rows * block.len()];
            multiply(self.isa, x, cols, products, block.clone(), results);
            put_in_place(products, block, results, rows, y, to);
        }
    }
}

/// One task: some outputs of one product.
struct Task<'a, 'w> {
    product: &'a Product<'w>,
    outputs: Range<usize>,
    /// `[outputs, rows]`
    results: &'a mut [f32],
}

fn multiply(
    isa: Isa,
    x: &[f32],
    cols: usize,
    products: &[Product<'_>],
    block: Range<usize>,
    mut results: &mut [f32],
) {
    let mut tasks = Vec::new();
    for product in products.iter().filter(|p| !p.rows.is_empty()) {
        let rows = product.rows.len();
        let tile = tile_outputs(rows, cols);
        for start in block.clone().step_by(tile) {
            let outputs = start..(start + tile).min(block.end);
            let (here, rest) = results.split_at_mut(outputs.len() * rows);
            results = rest;
            tasks.push(Task {
                product,
                outputs,
                results: here,
            });
        }
    }
    let run = |task: Task<'_, '_>| {
        let x = &x[task.product.rows.start * cols..task.product.rows.end * cols];
        TILE.with_borrow_mut(|tile| {
            let elements = task.outputs.len() * cols;
            if tile.len() < elements {
                tile.resize(elements, 0.0);
            }
            let tile = &mut tile[..elements];
            task.product.weight.rows_to_f32(task.outputs, tile);
            isa.products(x, tile, cols, task.results);
        });
    };
    if tasks.len() == 1 {
        tasks.into_iter().for_each(run);
    } else {
        tasks.into_par_iter().for_each(run);
    }
}

/// Outputs of one task: a multiple of 4 (the widest register block) that fits the tile and is worth a task.
fn tile_outputs(rows: usize, cols: usize) -> usize {
    let fits = TILE_ELEMENTS / cols;
    let worth = TASK_PRODUCTS.div_ceil(rows * cols);
    (fits.min(worth.max(16)) & !3).max(4)
}

/// Copies output-major results to their rows of y.
fn put_in_place(
    products: &[Product<'_>],
    block: Range<usize>,
    results: &[f32],
    rows: usize,
    y: &mut [f32],
    to: Columns,
) {
    let outputs = block.len();
    let place = |product: &Product<'_>, row: usize, y: &mut [f32]| {
        let n = product.rows.len();
        let results = &results[product.rows.start * outputs..product.rows.end * outputs];
        let y = &mut y[to.offset + block.start..][..outputs];
        for (output, y) in y.iter_mut().enumerate() {
            *y = results[output * n + row - product.rows.start];
        }
    };
    let of_row = |row: usize| {
        let index = products.partition_point(|p| p.rows.end <= row);
        &products[index]
    };
    let y = &mut y[..rows * to.stride];
    if rows * outputs < TASK_PRODUCTS {
        for (row, y) in y.chunks_mut(to.stride).enumerate() {
            place(of_row(row), row, y);
        }
    } else {
        y.par_chunks_mut(to.stride)
            .with_min_len(16)
            .enumerate()
            .for_each(|(row, y)| place(of_row(row), row, y));
    }
}

/// h += y, element by element.
pub fn add(h: &mut [f32], y: &[f32]) {
    for (h, y) in h.iter_mut().zip(y) {
        *h += y;
    }
}

/// Adds `bias` `[cols]` to every row of y.
pub fn add_bias(y: &mut [f32], bias: &[f32]) {
    for row in y.chunks_mut(bias.len()) {
        add(row, bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::check::Numbers;
    use crate::model::WeightFormat;
    use std::sync::Arc;

    #[test]
    fn bits_depend_on_neither_rows_nor_blocks_nor_instructions() {
        let mut numbers = Numbers::new(5);
        let (rows, outputs, cols) = (37, 150, 260);
        let x = numbers.normal(rows * cols);
        let weight = numbers.bf16_matrix(outputs, cols);
        let mut reference = Vec::new();
        for row in x.chunks(cols) {
            let mut y = vec![0.0; outputs];
            Linear::new(Isa::Portable, outputs).run(row, &weight, 1, &mut y, Columns::all(outputs));
            reference.extend(y);
        }
        for isa in Isa::available() {
            for scratch in [rows, rows * 7, rows * outputs] {
                let mut y = vec![0.0; rows * outputs];
                let mut linear = Linear::new(isa, scratch);
                linear.run(&x, &weight, rows, &mut y, Columns::all(outputs));
                assert!(y == reference, "{isa:?} with scratch {scratch}");
            }
        }
    }

    #[test]
    fn weights_of_every_type_are_widened_exactly() {
        let values = [1.5f32, -0.25, 3.0, 0.0, -7.0, 0.5];
        let of = |format: WeightFormat, bytes: Vec<u8>| {
            let length = bytes.len();
            Tensor::new("m", format, vec![2, 3], Arc::new(bytes), 0..length)
        };
        let half = |v: &f32| half::f16::from_f32(*v).to_le_bytes();
        let bf16 = |v: &f32| half::bf16::from_f32(*v).to_le_bytes();
        for weight in [
            of(
                WeightFormat::F32,
                values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            ),
            of(WeightFormat::F16, values.iter().flat_map(half).collect()),
            of(WeightFormat::BF16, values.iter().flat_map(bf16).collect()),
        ] {
            let mut y = [0.0; 2];
            let mut linear = Linear::new(Isa::detect(), 2);
            linear.run(&[1.0, 2.0, 4.0], &weight, 1, &mut y, Columns::all(2));
            assert_eq!(y, [13.0, -12.0], "{weight:?}");
        }
    }
}
