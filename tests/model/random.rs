//! Random presets: the same bits on every machine, and the distributions that are promised.

use crate::common::checkpoint::{by_name, config_with, random_source, small_config};
use serde_json::json;
use tailgraph::model::{Model, ModelSource, Tensor, WeightFormat};

fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// (tensor, seed, FNV-1a of its bytes), computed by another program that follows the definition in numpy.
const FINGERPRINTS: [(&str, u64, u64); 9] = [
    ("model.embed_tokens.weight", 0, 0x79cd_235b_19a2_0f71),
    ("model.embed_tokens.weight", 7, 0x81e1_070f_e19e_3f34),
    (
        "model.layers.0.operator_norm.weight",
        7,
        0x0e6b_22ea_9651_cb96,
    ),
    ("model.layers.1.conv.conv.weight", 7, 0xb998_e5b3_c7e4_a0b4),
    (
        "model.layers.2.feed_forward.expert_bias",
        7,
        0x2215_b651_3ed9_08c6,
    ),
    (
        "model.layers.2.self_attn.k_layernorm.weight",
        7,
        0xc263_3139_f266_63cb,
    ),
    (
        "model.layers.4.feed_forward.experts.7.w2.weight",
        7,
        0x849a_cd7c_ced2_2a87,
    ),
    (
        "model.layers.4.feed_forward.gate.weight",
        7,
        0x694d_2082_8ea2_6d4e,
    ),
    (
        "model.layers.4.feed_forward.gate.weight",
        (3 << 32) + 7,
        0x021f_0668_e65a_1fe5,
    ),
];

#[test]
fn tiny_has_the_fingerprints_of_its_definition() {
    for (name, seed, expected) in FINGERPRINTS {
        let source = ModelSource::parse(&format!("random:tiny@{seed}")).unwrap();
        let model = Model::load(&source).unwrap();
        let tensors = by_name(&model.weights);
        assert_eq!(
            fnv1a_64(tensors[name].bytes()),
            expected,
            "{name} of seed {seed}"
        );
    }
}

fn deviation(tensor: &Tensor) -> (f64, f64) {
    let values = tensor.to_f32();
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = values
        .iter()
        .map(|&v| (f64::from(v) - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean, square.sqrt())
}

#[test]
fn tensors_have_the_promised_distributions() {
    let dir = tempfile::tempdir().unwrap();
    let config = config_with(json!({
        "hidden_size": 192, "intermediate_size": 320, "num_experts": 64, "head_dim": 128, "vocab_size": 100,
        "conv_bias": true, "tie_embedding": false
    }));
    let model = Model::load(&random_source(dir.path(), &config, 1)).unwrap();
    let tensors = by_name(&model.weights);
    let cases = [
        ("model.embed_tokens.weight", 0.0, 0.02),
        ("lm_head.weight", 0.0, 1.0 / 192f64.sqrt()),
        ("model.embedding_norm.weight", 1.0, 0.1),
        ("model.layers.0.operator_norm.weight", 1.0, 0.1),
        ("model.layers.1.self_attn.q_layernorm.weight", 1.0, 0.1),
        (
            "model.layers.0.conv.in_proj.weight",
            0.0,
            1.0 / 192f64.sqrt(),
        ),
        ("model.layers.0.conv.conv.weight", 0.0, 0.5),
        ("model.layers.0.conv.in_proj.bias", 0.0, 0.02),
        (
            "model.layers.1.self_attn.out_proj.weight",
            0.0,
            1.0 / 512f64.sqrt(),
        ),
        (
            "model.layers.0.feed_forward.w2.weight",
            0.0,
            1.0 / 320f64.sqrt(),
        ),
        (
            "model.layers.1.feed_forward.gate.weight",
            0.0,
            1.0 / 192f64.sqrt(),
        ),
        ("model.layers.1.feed_forward.expert_bias", 0.0, 0.05),
        (
            "model.layers.1.feed_forward.experts.63.w2.weight",
            0.0,
            1.0 / 8f64.sqrt(),
        ),
    ];
    for (name, mean, std) in cases {
        let tensor = tensors[name];
        let (found_mean, found_std) = deviation(tensor);
        let n = (tensor.shape.iter().product::<usize>() as f64).sqrt();
        assert!(
            (found_mean - mean).abs() < 5.0 * std / n,
            "{name}: mean {found_mean}"
        );
        // bf16 keeps 8 bits: its rounding adds little to five standard errors.
        let slack = 5.0 / (2f64.sqrt() * n) + 0.005;
        assert!(
            (found_std / std - 1.0).abs() < slack,
            "{name}: deviation {found_std}"
        );
    }
    for (name, tensor) in tensors {
        let expected = if name.ends_with("expert_bias") {
            WeightFormat::F32
        } else {
            WeightFormat::BF16
        };
        assert_eq!(tensor.format, expected, "{name}");
        assert!(tensor.to_f32().iter().all(|v| v.is_finite()), "{name}");
    }
}

#[test]
fn seeds_and_names_give_different_weights_and_shapes_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let load = |config, seed| Model::load(&random_source(dir.path(), &config, seed)).unwrap();
    let one = load(small_config(), 1);
    let two = load(small_config(), 2);
    let taller = load(config_with(json!({"vocab_size": 80})), 1);
    let of = |model: &Model| by_name(&model.weights)["model.embed_tokens.weight"].clone();
    let [embedding, other, taller] = [&one, &two, &taller].map(of);
    assert_ne!(embedding.bytes(), other.bytes());
    assert_eq!(
        embedding.bytes(),
        &taller.bytes()[..embedding.bytes().len()]
    );
    let tensors = by_name(&one.weights);
    assert_ne!(
        tensors["model.layers.0.operator_norm.weight"].bytes(),
        tensors["model.layers.0.ffn_norm.weight"].bytes()
    );
}

#[test]
fn sources_are_parsed_and_shown() {
    let parse = |text: &str| ModelSource::parse(text);
    let random = |preset: &str, seed| ModelSource::Random {
        preset: preset.to_owned(),
        seed,
    };
    assert_eq!(parse("random:tiny").unwrap(), random("tiny", 0));
    assert_eq!(
        parse("random:lfm2-8b-a1b@18446744073709551615").unwrap(),
        random("lfm2-8b-a1b", u64::MAX)
    );
    assert_eq!(random("tiny", 7).to_string(), "random:tiny@7");
    assert_eq!(random("tiny", 7).dir(), None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a@1");
    std::fs::write(&path, small_config().to_string()).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(parse(&format!("random:{path}")).unwrap(), random(path, 0));
    assert_eq!(parse(&format!("random:{path}@3")).unwrap(), random(path, 3));
    for (text, expected) in [
        ("random:tiny@x", "found the seed \"x\", expected an integer"),
        ("random:tiny@-1", "found the seed \"-1\""),
        (
            "random:huge",
            "found the preset \"huge\", expected tiny, lfm2-8b-a1b, lfm2.5-8b-a1b, lfm2-24b-a2b, lfm2.5-24b-a2b or the path",
        ),
        ("random:", "found the preset \"\""),
        (
            "random:/nowhere/config.json@1",
            "found the preset \"/nowhere/config.json\"",
        ),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (path, expected) in [
        (
            "/nowhere/at/all",
            "is missing, expected a model's directory",
        ),
        (path, "found a file, expected a model's directory"),
        (empty.to_str().unwrap(), "found no config.json"),
    ] {
        let error = parse(path).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains(expected), "{error}");
    }
}
