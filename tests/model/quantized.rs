//! Checkpoints in 8 bits: as they come, as they are written, as another format, and refused where they are not understood.

use crate::checkpoint::load;
use crate::common::checkpoint::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tailgraph::model::config::Quantization;
use tailgraph::model::e4m3;
use tailgraph::model::{Model, ModelConfig, ModelSource, WeightFormat, WeightsAs, synth};

fn compressed(strategy: &str, block: Value) -> Value {
    json!({"quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": null,
        "sparsity_config": {"format": "dense", "ignore": [], "targets": []},
        "version": "0.13.0",
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": strategy,
                "block_structure": block, "observer": "minmax", "observer_kwargs": {}},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true},
        }},
    }})
}

fn fine_grained(block: Value) -> Value {
    json!({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": block, "modules_to_not_convert": ["lm_head"]}})
}

/// A checkpoint in 8 bits with a scale for each channel, in one file, whose tensors and config.json `change` has changed.
fn changed(
    dir: &Path,
    quantization: &Value,
    change: impl FnOnce(&mut BTreeMap<String, Raw>),
) -> PathBuf {
    let out = dir.join("model");
    let source = random_source(dir, &small_config(), 5);
    synth::write_as(WeightsAs::FP8, &source, &out, 1 << 30, &mut |_| {}).unwrap();
    let mut tensors = read_tensors(&out);
    change(&mut tensors);
    let shard = out.join("model-00001-of-00001.safetensors");
    std::fs::remove_file(shard).unwrap();
    write_tensors(&out.join("model.safetensors"), &tensors);
    let config = config_with(quantization.clone());
    std::fs::write(out.join("config.json"), config.to_string()).unwrap();
    out
}

fn f32s(shape: &[usize], values: &[f32]) -> Raw {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (Dtype::F32, shape.to_vec(), bytes)
}

const IN_PROJ: &str = "model.layers.0.conv.in_proj.weight";

#[test]
fn what_is_written_is_the_random_model_quantized() {
    let dir = tempfile::tempdir().unwrap();
    let source = random_source(dir.path(), &small_config(), 9);
    let out = dir.path().join("model");
    let written = synth::write_as(WeightsAs::FP8, &source, &out, 4096, &mut |_| {}).unwrap();
    assert!(written.shards > 1);
    let found = load(&out);
    assert_eq!(found.warnings, [""; 0]);
    assert_eq!(found.config.quantization, Some(Quantization::Channel));
    assert_eq!(found.matrix_format(), WeightFormat::E4M3);
    let original = Model::load(&source).unwrap();
    let mut made = Model::load(&source).unwrap();
    made.weights_as = WeightsAs::FP8;
    let made = made.converted().unwrap();
    // Nothing needs the memory of the weights that these are made of.
    assert!(made.arena.is_none() && made.weights.all().all(|tensor| tensor.made().is_none()));
    assert_same_weights(&found.weights, &made.weights);
    let (made, original) = (by_name(&made.weights), by_name(&original.weights));
    let mut in_8_bits = 0;
    for (name, tensor) in by_name(&found.weights) {
        assert_eq!(tensor.scales(), made[&name].scales(), "{name}");
        let is_projection = tensor.shape.len() == 2
            && !["embed", "gate.weight"]
                .iter()
                .any(|part| name.contains(part));
        assert_eq!(tensor.format == WeightFormat::E4M3, is_projection, "{name}");
        in_8_bits += usize::from(is_projection);
        let columns = tensor.cols();
        let rows = tensor.to_f32();
        let exact = original[&name].to_f32();
        for (row, exact) in rows.chunks(columns).zip(exact.chunks(columns)) {
            let most = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (found, exact) in row.iter().zip(exact) {
                // Half of the distance of two numbers, and of two subnormal ones.
                let most_off = (exact.abs() / 16.0).max(most / 448.0 / 1024.0);
                assert!(
                    (found - exact).abs() <= most_off * 1.001,
                    "{name}: {found} of {exact}"
                );
            }
        }
    }
    // in_proj and out_proj of two layers, q, k, v and out of two, 3 dense ones, 3 of 5 experts in 3 layers.
    assert_eq!(in_8_bits, 4 + 8 + 3 + 45);
}

/// Every layout of scales gives each element its own, and bf16 is what they come to.
#[test]
fn scales_are_those_of_a_channel_a_tensor_or_a_block() {
    // in_proj is [48, 16].
    let scales: Vec<f32> = (0..48).map(|i| 0.5 + i as f32 / 64.0).collect();
    let bf16 = |value: &f32| half::bf16::from_f32(*value).to_le_bytes();
    let channel = (
        Dtype::BF16,
        vec![48, 1],
        scales.iter().flat_map(bf16).collect(),
    );
    type Of = fn(usize, usize) -> usize;
    let cases: [(Value, Raw, &str, Of); 6] = [
        (
            compressed("channel", Value::Null),
            channel.clone(),
            "_scale",
            |row, _| row,
        ),
        (
            compressed("channel", Value::Null),
            (Dtype::BF16, vec![48], channel.2),
            "_scale",
            |row, _| row,
        ),
        (
            compressed("tensor", Value::Null),
            f32s(&[], &scales[..1]),
            "_scale",
            |_, _| 0,
        ),
        (
            fine_grained(Value::Null),
            f32s(&[1], &scales[..1]),
            "_scale",
            |_, _| 0,
        ),
        (
            compressed("block", json!([32, 10])),
            f32s(&[2, 2], &scales[..4]),
            "_scale",
            |row, column| row / 32 * 2 + column / 10,
        ),
        (
            fine_grained(json!([20, 16])),
            f32s(&[3, 1], &scales[..3]),
            "_scale_inv",
            |row, _| row / 20,
        ),
    ];
    for (quantization, of_projection, end, place) in cases {
        let dir = tempfile::tempdir().unwrap();
        let is_block = !quantization["quantization_config"]["weight_block_size"].is_null()
            || quantization.to_string().contains("\"block\"");
        let is_tensor = !is_block && !quantization.to_string().contains("\"channel\"");
        let model = changed(dir.path(), &quantization, |tensors| {
            let names: Vec<String> = tensors
                .keys()
                .filter(|n| n.ends_with("_scale"))
                .cloned()
                .collect();
            for name in names {
                let (dtype, shape, bytes) = tensors.remove(&name).unwrap();
                let of = name.strip_suffix("_scale").unwrap();
                let [rows, columns] = tensors[of].1[..] else {
                    unreachable!()
                };
                let scales = if of == IN_PROJ {
                    of_projection.clone()
                } else if is_tensor {
                    f32s(&[1], &[0.01])
                } else if is_block {
                    let block = if end == "_scale" { (32, 10) } else { (20, 16) };
                    let shape = [rows.div_ceil(block.0), columns.div_ceil(block.1)];
                    f32s(&shape, &vec![0.01; shape[0] * shape[1]])
                } else {
                    (dtype, shape, bytes)
                };
                tensors.insert(format!("{of}{end}"), scales);
            }
            // Static checkpoints have scales of activations too, which are not quantized here.
            tensors.insert(IN_PROJ.replace("weight", "input_scale"), f32s(&[1], &[0.1]));
        });
        let mut found = load(&model);
        assert_eq!(found.warnings, [""; 0], "{quantization}");
        let rounded: Vec<f32> = match of_projection.0 {
            Dtype::BF16 => scales
                .iter()
                .map(|s| half::bf16::from_f32(*s).to_f32())
                .collect(),
            _ => scales.clone(),
        };
        let tensor = by_name(&found.weights)[IN_PROJ].clone();
        let elements = tensor.bytes().iter().enumerate();
        let expected: Vec<f32> = elements
            .map(|(i, &bits)| e4m3::to_f32(bits) * rounded[place(i / 16, i % 16)])
            .collect();
        assert_eq!(tensor.to_f32(), expected, "{quantization}");
        let mut some_rows = vec![0.0; 3 * 16];
        tensor.rows_to_f32(30..33, &mut some_rows);
        assert_eq!(some_rows, expected[30 * 16..33 * 16], "{quantization}");
        found.weights_as = WeightsAs::BF16;
        let found = found.converted().unwrap();
        assert_eq!(found.weights.matrix_format(), Some(WeightFormat::BF16));
        let tensor = by_name(&found.weights)[IN_PROJ];
        assert!(tensor.scales().is_none());
        let round = |x: &f32| half::bf16::from_f32(*x).to_f32();
        assert_eq!(
            tensor.to_f32(),
            expected.iter().map(round).collect::<Vec<_>>()
        );
    }
}

/// All experts in one tensor have their scales in one tensor.
#[test]
fn fused_experts_have_the_scales_of_separate_ones() {
    let dir = tempfile::tempdir().unwrap();
    let separate = load(&changed(
        dir.path(),
        &compressed("channel", Value::Null),
        |_| {},
    ));
    for scale_shape in [&[5, 16, 1][..], &[5, 16]] {
        let dir = tempfile::tempdir().unwrap();
        let fused = load(&changed(
            dir.path(),
            &compressed("channel", Value::Null),
            |tensors| {
                for layer in 1..4 {
                    let prefix = format!("model.layers.{layer}.feed_forward.experts.");
                    for (end, dtype) in [("", Dtype::F8_E4M3), ("_scale", Dtype::F32)] {
                        let (mut gate_up, mut down) = (vec![], vec![]);
                        for expert in 0..5 {
                            let mut take = |part| {
                                let name = format!("{prefix}{expert}.{part}.weight{end}");
                                tensors.remove(&name).unwrap().2
                            };
                            gate_up.extend([take("w1"), take("w3")].concat());
                            down.extend(take("w2"));
                        }
                        let shapes = match end {
                            "" => [vec![5, 16, 16], vec![5, 16, 8]],
                            _ => [scale_shape.to_vec(), scale_shape.to_vec()],
                        };
                        let [wide, narrow] = shapes;
                        tensors
                            .insert(format!("{prefix}gate_up_proj{end}"), (dtype, wide, gate_up));
                        tensors.insert(format!("{prefix}down_proj{end}"), (dtype, narrow, down));
                    }
                }
            },
        ));
        assert_eq!(fused.warnings, [""; 0]);
        assert_same_weights(&fused.weights, &separate.weights);
        let separate = by_name(&separate.weights);
        for (name, tensor) in by_name(&fused.weights) {
            assert_eq!(tensor.scales(), separate[&name].scales(), "{name}");
        }
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let channel = || compressed("channel", Value::Null);
    let with = |path: &[&str], value: Value| {
        let mut config = channel();
        let mut at = &mut config["quantization_config"];
        for name in path {
            at = &mut at[*name];
        }
        *at = value;
        config
    };
    let weights = ["config_groups", "group_0", "weights"];
    let in_weights = |name, value| with(&[&weights[..], &[name]].concat(), value);
    for (config, parts) in [
        (
            with(&["format"], json!("pack-quantized")),
            &["pack-quantized", "float-quantized"][..],
        ),
        (
            with(&["quant_method"], json!("gptq")),
            &["\"gptq\"", "compressed-tensors"],
        ),
        (
            json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            &["\"bitsandbytes\""],
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "bits": 4}}),
            &["\"awq\""],
        ),
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
            &["modelopt", "NVFP4"],
        ),
        (
            with(&["kv_cache_scheme"], json!({"num_bits": 8})),
            &["quantization_config.kv_cache_scheme", "expected null"],
        ),
        (
            with(&["transform_config"], json!({"a": 1})),
            &["quantization_config.transform_config"],
        ),
        (
            with(&["quantization_status"], json!("frozen")),
            &["quantization_status", "frozen", "compressed"],
        ),
        (
            with(&["rotation"], json!(1)),
            &["quantization_config.rotation", "not understood"],
        ),
        (
            with(&["config_groups"], json!({})),
            &["quantization_config.config_groups", "is empty"],
        ),
        (
            in_weights("num_bits", json!(4)),
            &[
                "config_groups.group_0.weights.num_bits",
                "found 4",
                "expected 8",
            ],
        ),
        (
            in_weights("type", json!("int")),
            &["group_0.weights.type", "\"int\"", "\"float\""],
        ),
        (
            in_weights("type", Value::Null),
            &["group_0.weights.type", "is missing", "\"float\""],
        ),
        (
            with(&["sparsity_config"], json!({"format": "sparse-24-bitmask"})),
            &[
                "quantization_config.sparsity_config.format",
                "sparse-24",
                "\"dense\"",
            ],
        ),
        (
            in_weights("symmetric", json!(false)),
            &["group_0.weights.symmetric", "false"],
        ),
        (
            in_weights("strategy", json!("group")),
            &["group_0.weights.strategy", "\"group\"", "\"block\""],
        ),
        (
            in_weights("strategy", json!("block")),
            &["group_0.weights.block_structure", "is missing"],
        ),
        (
            in_weights("group_size", json!(64)),
            &["group_0.weights.group_size", "found 64"],
        ),
        (
            in_weights("zero", json!(64)),
            &["group_0.weights.zero", "not understood"],
        ),
        (
            fine_grained(json!([128])),
            &["quantization_config.weight_block_size", "rows and columns"],
        ),
        (
            fine_grained(json!([0, 128])),
            &["quantization_config.weight_block_size"],
        ),
    ] {
        let text = config_with(config).to_string();
        let found = ModelConfig::from_json(text.as_bytes(), Path::new("config.json"));
        let message = found.unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        assert_says(&message, parts);
    }
}

#[test]
fn a_malformed_checkpoint_is_refused_by_name() {
    type Change = fn(&mut BTreeMap<String, Raw>);
    const SCALE: &str = "model.layers.0.conv.in_proj.weight_scale";
    let channel = compressed("channel", Value::Null);
    let none = json!({});
    let cases: [(&Value, Change, &[&str]); 9] = [
        (&none, |_| {}, &["F8_E4M3", "no quantization_config"]),
        (
            &channel,
            |tensors| drop(tensors.remove(SCALE)),
            &[SCALE, "is missing", IN_PROJ],
        ),
        (
            &channel,
            |tensors| tensors.get_mut(SCALE).unwrap().1 = vec![1, 24, 2],
            &[SCALE, "found shape [1, 24, 2]", "[48, 1]"],
        ),
        (
            &channel,
            |tensors| drop(tensors.insert(SCALE.into(), f32s(&[1], &[1.0]))),
            &[SCALE, "found shape [1]", "[48, 1]"],
        ),
        (
            &channel,
            |tensors| tensors.get_mut(SCALE).unwrap().0 = Dtype::I32,
            &[SCALE, "found dtype I32", "expected F32"],
        ),
        (
            &channel,
            |tensors| drop(tensors.insert(SCALE.into(), f32s(&[48], &[f32::NAN; 48]))),
            &[SCALE, "found the scale NaN"],
        ),
        (
            &channel,
            |tensors| drop(tensors.insert(SCALE.into(), f32s(&[48], &[-1.0; 48]))),
            &[SCALE, "found the scale -1"],
        ),
        (
            &channel,
            |tensors| tensors.get_mut(IN_PROJ).unwrap().0 = Dtype::F8_E5M2,
            &[IN_PROJ, "found dtype F8_E5M2", "expected F8_E4M3 (or BF16"],
        ),
        (
            &channel,
            |tensors| {
                let gate = tensors
                    .get_mut("model.layers.1.feed_forward.gate.weight")
                    .unwrap();
                gate.0 = Dtype::F8_E4M3;
                gate.2.truncate(gate.1.iter().product());
            },
            &["feed_forward.gate.weight", "F8_E4M3", "only projections"],
        ),
    ];
    for (quantization, change, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let message = load_error(&changed(dir.path(), quantization, change));
        assert_says(&message, parts);
    }
}

/// A layer that `ignore` keeps in bf16 is so, and is made 8 bits where that is asked for.
#[test]
fn matrices_may_be_in_several_formats() {
    let dir = tempfile::tempdir().unwrap();
    let channel = compressed("channel", Value::Null);
    let path = changed(dir.path(), &channel, |tensors| {
        tensors.remove(&format!("{IN_PROJ}_scale"));
        let plain = (
            Dtype::BF16,
            vec![48, 16],
            half::bf16::ONE.to_le_bytes().repeat(48 * 16),
        );
        tensors.insert(IN_PROJ.into(), plain);
    });
    let mut model = load(&path);
    let format = |model: &Model| by_name(&model.weights)[IN_PROJ].format;
    assert_eq!(
        (format(&model), model.matrix_format()),
        (WeightFormat::BF16, WeightFormat::E4M3)
    );
    model.weights_as = WeightsAs::FP8;
    let model = model.converted().unwrap();
    assert_eq!(format(&model), WeightFormat::E4M3);
    assert_eq!(by_name(&model.weights)[IN_PROJ].to_f32(), [1.0; 48 * 16]);
}

#[test]
fn a_configuration_in_8_bits_is_written_as_it_is_read() {
    for quantization in [
        Quantization::Tensor,
        Quantization::Channel,
        Quantization::Block(128, 64),
    ] {
        let config = small_config().to_string();
        let config = ModelConfig {
            quantization: Some(quantization),
            ..ModelConfig::from_json(config.as_bytes(), Path::new("config.json")).unwrap()
        };
        let json = config.to_json().to_string();
        let again = ModelConfig::from_json(json.as_bytes(), Path::new("config.json")).unwrap();
        assert_eq!(again, config);
    }
    // Random weights are in the published types, whatever the preset's file says.
    let dir = tempfile::tempdir().unwrap();
    let config = config_with(compressed("channel", Value::Null));
    let source = random_source(dir.path(), &config, 1);
    assert_eq!(source.config().unwrap().0.quantization, None);
    assert!(matches!(source, ModelSource::Random { .. }));
}
