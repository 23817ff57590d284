//! How fast the CPU reference multiplies. Ignored: it measures the machine. To run it:
//! `cargo test --release --test cpu -- --ignored --nocapture speed`

use std::sync::Arc;
use std::time::Instant;
use tailgraph::backend::cpu::lanes::Isa;
use tailgraph::backend::cpu::linear::{Columns, Linear};
use tailgraph::model::{Tensor, WeightFormat};

#[test]
#[ignore = "measures the machine; needs an optimised build"]
fn speed_of_a_product_of_32_rows() {
    let (rows, outputs, cols) = (32, 7168, 2048);
    let bytes: Vec<u8> = (0..outputs * cols)
        .flat_map(|i| half::bf16::from_f32((i % 251) as f32 / 251.0 - 0.5).to_le_bytes())
        .collect();
    let length = bytes.len();
    let weight = Tensor::new(
        "w",
        WeightFormat::BF16,
        vec![outputs, cols],
        Arc::new(bytes),
        0..length,
    );
    let x: Vec<f32> = (0..rows * cols).map(|i| (i % 97) as f32 / 97.0).collect();
    let mut y = vec![0.0; rows * outputs];
    let threads = rayon::current_num_threads();
    for isa in Isa::available() {
        for rows in [1, 4, rows] {
            let mut linear = Linear::new(isa, rows * 512);
            let best = (0..60)
                .map(|_| {
                    let start = Instant::now();
                    linear.run(&x, &weight, rows, &mut y, Columns::all(outputs));
                    start.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            let flops = 2.0 * (rows * outputs * cols) as f64 / best;
            println!(
                "{isa:?}, {rows} rows: {:.2} ms, {:.1} GFLOP/s, {:.1} per thread",
                best * 1e3,
                flops / 1e9,
                flops / 1e9 / threads as f64
            );
            if isa != Isa::Portable && rows == 32 {
                assert!(flops / threads as f64 >= 15e9);
            }
        }
    }
}
