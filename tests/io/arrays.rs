//! Token arrays: what is read, and what is refused with which words.

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::{Path, PathBuf};
use tailgraph::io::arrays::{self, Kind, Sample};

fn ints(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn save(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.to_vec(), bytes).unwrap(),
        )
    });
    serialize_to_file(views, None, path).unwrap();
}

fn tokens(samples: &[Sample]) -> Vec<(u64, Vec<u32>)> {
    samples
        .iter()
        .map(|s| (s.number, s.tokens.clone()))
        .collect()
}

/// A .npy file of version 1.
pub fn npy(path: &Path, descr: &str, fortran: bool, shape: &str, data: &[u8]) {
    let order = if fortran { "True" } else { "False" };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn safetensors_prompts_in_numeric_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.safetensors");
    let long = [3_i64, 4].iter().flat_map(|v| v.to_le_bytes()).collect();
    save(
        &path,
        &[
            ("prompt.10", Dtype::I32, &[1], ints(&[9])),
            ("prompt.2", Dtype::I64, &[2], long),
            ("prompt.x", Dtype::F32, &[1], vec![0; 4]),
            ("logits.0", Dtype::F32, &[1], vec![0; 4]),
        ],
    );
    let samples = arrays::safetensors(&path).unwrap();
    assert_eq!(tokens(&samples), [(2, vec![3, 4]), (10, vec![9])]);
    assert_eq!(samples[0].name, "prompt.2");
    assert_eq!(Kind::of(&path), Kind::Safetensors);
    assert_eq!(Kind::of(Path::new("-")), Kind::Rows);
}

#[test]
fn rectangles_of_every_kind_agree() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    let expected = [(0, vec![1, 2, 3]), (1, vec![4, 5, 6])];
    let data = ints(&[1, 2, 3, 4, 5, 6]);
    save(
        &at("a.safetensors"),
        &[("input_ids", Dtype::I32, &[2, 3], data.clone())],
    );
    assert_eq!(
        tokens(&arrays::safetensors(&at("a.safetensors")).unwrap()),
        expected
    );
    std::fs::write(at("a.bin"), &data).unwrap();
    assert_eq!(
        tokens(&arrays::bin(&at("a.bin"), (2, 3)).unwrap()),
        expected
    );
    npy(&at("c.npy"), "<i4", false, "(2, 3)", &data);
    assert_eq!(tokens(&arrays::npy(&at("c.npy")).unwrap()), expected);
    let wide: Vec<u8> = (1..=6_i64).flat_map(i64::to_le_bytes).collect();
    npy(&at("w.npy"), "<i8", false, "(2, 3)", &wide);
    assert_eq!(tokens(&arrays::npy(&at("w.npy")).unwrap()), expected);
}

#[test]
fn what_is_not_an_array_of_tokens_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let check = |result: tailgraph::Result<Vec<Sample>>, expected: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.starts_with(path.to_str().unwrap()), "{message}");
        assert!(!message.contains('\n'), "{message}");
    };
    save(&path, &[("x", Dtype::I32, &[1], ints(&[1]))]);
    check(arrays::safetensors(&path), "found neither prompt.0");
    save(&path, &[("prompt.0", Dtype::F32, &[1], vec![0; 4])]);
    check(
        arrays::safetensors(&path),
        "prompt.0: found F32 [1], expected int32 or int64 [T]",
    );
    save(&path, &[("prompt.0", Dtype::I32, &[1, 1], ints(&[1]))]);
    check(arrays::safetensors(&path), "prompt.0: found I32 [1, 1]");
    save(&path, &[("prompt.0", Dtype::I32, &[0], vec![])]);
    check(arrays::safetensors(&path), "prompt.0: found no tokens");
    save(&path, &[("prompt.0", Dtype::I32, &[2], ints(&[1, -5]))]);
    check(
        arrays::safetensors(&path),
        "prompt.0: found -5 at position 1",
    );
    save(&path, &[("input_ids", Dtype::I32, &[0, 4], vec![])]);
    check(arrays::safetensors(&path), "found [0, 4]");
    save(
        &path,
        &[
            ("input_ids", Dtype::I32, &[1, 1], ints(&[1])),
            ("prompt.0", Dtype::I32, &[1], ints(&[1])),
        ],
    );
    check(arrays::safetensors(&path), "found both");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    check(arrays::safetensors(&path), "");
    std::fs::write(&path, b"hello").unwrap();
    check(arrays::safetensors(&path), "not a safetensors file");
    check(arrays::npy(&path), "not a .npy file");
    check(
        arrays::bin(&path, (1, 1)),
        "found 5 bytes, expected 1 x 1 int32",
    );
    check(arrays::bin(&path, (usize::MAX, 9)), "found 5 bytes");
    for (descr, fortran, shape) in [
        ("<f4", false, "(1, 1)"),
        (">i4", false, "(1, 1)"),
        ("<i4", true, "(1, 1)"),
        ("<i4", false, "(1,)"),
    ] {
        npy(&path, descr, fortran, shape, &[0; 4]);
        check(
            arrays::npy(&path),
            "expected int32 or int64 [N, T], little-endian",
        );
    }
    npy(&path, "<i4", false, "(1000000000000, 1000000)", &[0; 16]);
    check(arrays::npy(&path), "bytes of data");
    npy(&path, "<i4", false, "(50, 50)", &[0; 16]);
    check(arrays::npy(&path), "bytes of data");
}

#[test]
fn samples_are_held_against_the_model() {
    let sample = |tokens: &[u32]| {
        [Sample {
            number: 0,
            name: "prompt.0".into(),
            tokens: tokens.to_vec(),
        }]
    };
    let check = |tokens: &[u32]| {
        arrays::check(Path::new("f"), &sample(tokens), 10, 3).map_err(|e| e.to_string())
    };
    assert_eq!(check(&[9, 9, 9]), Ok(()));
    assert!(check(&[0, 10]).unwrap_err().contains(
        "prompt.0: found token id 10 at position 1, expected one below the vocabulary size 10"
    ));
    assert!(
        check(&[0; 4])
            .unwrap_err()
            .contains("prompt.0: found 4 tokens, expected at most the context of 3")
    );
}
