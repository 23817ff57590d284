//! Weights of random presets, which a GPU makes: those that the host makes, to the bit.

use crate::common::random::Random;
use crate::rig::{decode, encode, matrix};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::limits::Library;
use tailgraph::backend::cuda::families::packed;
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::random::{Order, RandomKernels};
use tailgraph::model::e4m3::{Quantized, quantize};
use tailgraph::model::op::OpKind;
use tailgraph::model::{DType, Model, ModelSource, WeightFormat};

/// Columns that fill whole blocks of a packed matrix, and such that do not.
fn model(folder: &tempfile::TempDir, hidden: usize, inner: usize, seed: u64) -> Model {
    let text = format!(
        r#"{{"model_type": "lfm2_moe", "vocab_size": 301, "hidden_size": {hidden}, "num_hidden_layers": 2,
            "intermediate_size": 64, "moe_intermediate_size": {inner}, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "num_dense_layers": 1, "num_experts": 5,
            "num_experts_per_tok": 2, "conv_bias": true, "tie_embedding": true,
            "layer_types": ["conv", "full_attention"], "max_position_embeddings": 100}}"#
    );
    let config = folder.path().join("config.json");
    std::fs::write(&config, text).unwrap();
    let source = ModelSource::parse(&format!("random:{}@{seed}", config.display())).unwrap();
    Model::load(&source).unwrap()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_weights_are_the_hosts() {
    let gpu = Gpu::new();
    let library = Library::loaded(&gpu.module).unwrap();
    let kernels = RandomKernels::load(&library).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for (hidden, inner, seed) in [(256, 64, 0), (96, 160, u64::MAX - 5)] {
        let model = model(&folder, hidden, inner, seed);
        model.make().unwrap();
        for tensor in model.weights.all() {
            let made = tensor.made().expect("a preset's");
            let values = decode(tensor.format, tensor.bytes());
            for format in WeightFormat::ALL {
                let Quantized { bits, scales } = quantize(&values, tensor.cols());
                let in_8_bits = format == WeightFormat::E4M3;
                let mut expected = if in_8_bits {
                    bits
                } else {
                    encode(format, &values)
                };
                for order in [Order::Rows, Order::Packed] {
                    if in_8_bits && order == Order::Rows {
                        continue;
                    }
                    if order == Order::Packed {
                        if !tensor.rows().is_multiple_of(packed::ROWS) {
                            continue;
                        }
                        let rows = expected.clone();
                        let elements = packed::elements(tensor.rows(), tensor.cols());
                        expected.resize(elements * format.bytes(), 0);
                        packed::pack(&rows, tensor.cols(), format, &mut expected);
                    }
                    let found = gpu.poisoned(expected.len());
                    let row_scales = gpu.poisoned(scales.len() * 4);
                    let shape = [tensor.rows(), tensor.cols()];
                    let place = Matrix {
                        scale: in_8_bits.then(|| row_scales.at(0)),
                        ..matrix(&found, format, shape)
                    };
                    // SAFETY: the buffers have as many bytes as the tensor takes.
                    unsafe {
                        let made = kernels.make(&gpu.stream, tensor, made, &place, order);
                        made.unwrap();
                    }
                    if in_8_bits {
                        assert_eq!(
                            gpu.get_values(DType::F32, &row_scales),
                            scales,
                            "{tensor:?}"
                        );
                    }
                    assert!(
                        gpu.get(&found) == expected,
                        "{tensor:?} as {format:?}, {order:?}"
                    );
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 60, "{seen}");
    // What the host widens of one tensor is what it has in memory.
    let model = model(&folder, 96, 32, Random(5).below(100) as u64);
    let embedding = &model.weights.of(None, OpKind::Embed)[0];
    assert_eq!(
        embedding.to_f32(),
        decode(WeightFormat::BF16, embedding.bytes())
    );
}
