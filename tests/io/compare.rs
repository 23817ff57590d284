//! Logits into a file, and the file held against others.

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::Path;
use tailgraph::backend::LogitsSink;
use tailgraph::io::arrays::LogitsTarget;
use tailgraph::io::expect::Comparison;
use tailgraph::io::logits::{LogitsFile, ScoreSink};
use tailgraph::io::tensors::TensorFile;

const VOCAB: usize = 4;

fn targets() -> Vec<LogitsTarget> {
    vec![
        LogitsTarget {
            number: 3,
            tokens: 2,
        },
        LogitsTarget {
            number: 7,
            tokens: 1,
        },
    ]
}

fn logits(request: u64) -> Vec<f32> {
    match request {
        0 => vec![1.0, 2.0, 3.0, 4.0, 8.0, 7.0, 6.0, 5.0],
        _ => vec![0.5, 0.25, -1.0, 0.0],
    }
}

fn write(path: &Path, last_only: bool) {
    let mut file = LogitsFile::create(path, true).unwrap();
    file.lay_out(&targets(), VOCAB, last_only).unwrap();
    let sink = ScoreSink::new(targets(), VOCAB, Some(file), None, None);
    if last_only {
        sink.rows(0, 1, &logits(0)[4..]).unwrap();
    } else {
        // Rows come in any order.
        sink.rows(0, 1, &logits(0)[4..]).unwrap();
        sink.rows(0, 0, &logits(0)[..4]).unwrap();
    }
    sink.rows(1, 0, &logits(1)).unwrap();
    assert!(!path.exists());
    sink.finish_file(None).unwrap();
}

fn compare(
    path: &Path,
    last_only: bool,
    change: impl Fn(u64, &mut [f32]),
) -> tailgraph::Result<(bool, String)> {
    let file = TensorFile::open(path)?;
    let comparison = Comparison::new(file, &targets(), VOCAB, 1e-4, last_only)?;
    let sink = ScoreSink::new(targets(), VOCAB, None, Some(comparison), None);
    for request in 0..2 {
        let mut rows = logits(request);
        change(request, &mut rows);
        let skip = if last_only && request == 0 { VOCAB } else { 0 };
        sink.rows(request, (skip / VOCAB) as u32, &rows[skip..])
            .unwrap();
    }
    let comparison = sink.comparison().unwrap();
    Ok((comparison.is_valid(), comparison.report()))
}

#[test]
fn the_file_reads_back_and_agrees_with_itself() {
    let dir = tempfile::tempdir().unwrap();
    for last_only in [false, true] {
        let path = dir.path().join(format!("{last_only}.safetensors"));
        write(&path, last_only);
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let first = tensors.tensor("logits.3").unwrap();
        let expected: &[usize] = if last_only { &[4] } else { &[2, 4] };
        assert_eq!(first.shape(), expected);
        let kept = if last_only {
            logits(0)[4..].to_vec()
        } else {
            logits(0)
        };
        let kept: Vec<u8> = kept.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(first.data(), kept);
        // [T, V] and [V] expectations serve runs of all and of last positions.
        for run_last in [false, true] {
            let (valid, report) = compare(&path, run_last, |_, _| {}).unwrap();
            assert!(valid, "{report}");
            assert!(report.contains("relative difference 0.000e0"), "{report}");
            let positions = if last_only || run_last { 2 } else { 3 };
            assert!(
                report.contains(&format!("top-1 agreement {positions}/{positions}")),
                "{report}"
            );
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn differences_are_measured_and_placed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logits.safetensors");
    write(&path, false);
    let (valid, report) = compare(&path, false, |request, rows| {
        if request == 0 {
            rows[6] += 0.5;
        }
    })
    .unwrap();
    assert!(!valid);
    assert!(
        report.contains("largest absolute difference 5.000e-1 (logits.3 position 1 token 2)"),
        "{report}"
    );
    assert!(report.contains("INVALID (tolerance 1e-4)"), "{report}");
    let norm: f64 = [logits(0), logits(1)]
        .concat()
        .iter()
        .map(|&v| f64::from(v * v))
        .sum::<f64>()
        .sqrt();
    assert!(
        report.contains(&format!("relative difference {:.3e}", 0.5 / norm)),
        "{report}"
    );
    // A small error that changes the top token is no tie where the expected gap is wide.
    let (valid, report) = compare(&path, false, |request, rows| {
        if request == 1 {
            rows[1] = 0.6;
        }
    })
    .unwrap();
    assert!(!valid);
    assert!(
        report.contains("disagrees: logits.7 position 0: expected token 0 (0.5), found 1 (0.25)"),
        "{report}"
    );
    assert!(report.contains("top-1 agreement 2/3"), "{report}");
    let (valid, report) = compare(&path, false, |_, rows| rows[0] = f32::NAN).unwrap();
    assert!(!valid);
    assert!(
        report.contains("positions with a NaN or an infinity: 2"),
        "{report}"
    );
}

#[test]
fn ties_are_shown_and_forgiven() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("expected.safetensors");
    let bytes =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let (first, second) = (bytes(&logits(0)), bytes(&[0.5, 0.49999, -1.0, 0.0]));
    let save = |second: &[u8]| {
        let views = [
            (
                "logits.3",
                TensorView::new(Dtype::F32, vec![2, 4], &first).unwrap(),
            ),
            (
                "logits.7",
                TensorView::new(Dtype::F32, vec![1, 4], second).unwrap(),
            ),
        ];
        serialize_to_file(views, None, &path).unwrap();
    };
    save(&second);
    let swap = |request: u64, rows: &mut [f32]| {
        if request == 1 {
            rows.copy_from_slice(&[0.49999, 0.5, -1.0, 0.0]);
        }
    };
    let (valid, report) = compare(&path, false, swap).unwrap();
    assert!(valid, "{report}");
    assert!(
        report.contains("tie: logits.7 position 0: expected token 0"),
        "{report}"
    );
    assert!(report.contains("top-1 agreement 2/3, ties 1"), "{report}");
}

/// An infinite logit on top is no tie, and its prompt is the one that is furthest off.
#[test]
fn an_infinite_expectation_is_not_met() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("expected.safetensors");
    let (mut first, second) = (logits(0), logits(1));
    for infinite in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        first[0] = infinite;
        let bytes = |values: &[f32]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let (a, b) = (bytes(&first), bytes(&second));
        let view =
            |shape: &[usize], data| TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap();
        let arrays = [
            ("logits.3", view(&[2, VOCAB], &a)),
            ("logits.7", view(&[1, VOCAB], &b)),
        ];
        serialize_to_file(arrays, None, &path).unwrap();
        let (valid, report) = compare(&path, false, |_, _| {}).unwrap();
        assert!(!valid && report.contains("ties 0"), "{report}");
        if infinite == f32::INFINITY {
            let expected = "disagrees: logits.3 position 0: expected token 0 (inf), found 3 (4)";
            assert!(report.contains(expected), "{report}");
        }
        assert!(
            report.contains("(largest of a prompt NaN, logits.3)"),
            "{report}"
        );
        assert!(
            report.contains("positions with a NaN or an infinity: 1"),
            "{report}"
        );
    }
}

#[test]
fn expectations_that_do_not_fit_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("expected.safetensors");
    let data = [0_u8; 64];
    let save = |tensors: &[(&str, Dtype, Vec<usize>)]| {
        let views = tensors.iter().map(|(name, dtype, shape)| {
            let bytes = shape.iter().product::<usize>() * if *dtype == Dtype::I64 { 8 } else { 4 };
            (
                *name,
                TensorView::new(*dtype, shape.clone(), &data[..bytes]).unwrap(),
            )
        });
        serialize_to_file(views, None, &path).unwrap();
    };
    let error = || compare(&path, false, |_, _| {}).unwrap_err().to_string();
    save(&[("logits.3", Dtype::F32, vec![2, 4])]);
    assert!(error().contains("found no logits.7"), "{}", error());
    save(&[
        ("logits.3", Dtype::F32, vec![2, 3]),
        ("logits.7", Dtype::F32, vec![4]),
    ]);
    assert!(
        error().contains("logits.3: found F32 [2, 3], expected f32, bf16 or f16 [2, 4] or [4]"),
        "{}",
        error()
    );
    save(&[
        ("logits.3", Dtype::I64, vec![4]),
        ("logits.7", Dtype::F32, vec![4]),
    ]);
    assert!(error().contains("logits.3: found I64"), "{}", error());
}

/// KL((1/2, 1/2), (3/4, 1/4)) is 1/2 (ln 2/3 + ln 2) at each position from 40 on, and nothing before.
#[test]
fn divergence_is_told_by_ranges_of_positions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("expected.safetensors");
    let target = || {
        vec![LogitsTarget {
            number: 0,
            tokens: 70,
        }]
    };
    let bytes = vec![0; 70 * 2 * 4];
    let view = TensorView::new(Dtype::F32, vec![70, 2], &bytes).unwrap();
    serialize_to_file([("logits.0", view)], None, &path).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let comparison = Comparison::new(file, &target(), 2, 1.0, false).unwrap();
    let sink = ScoreSink::new(target(), 2, None, Some(comparison), None);
    for position in 0..70 {
        // The second is on top where it is the larger one.
        let logit = if position < 40 { 0.0 } else { 3f32.ln() };
        sink.rows(0, position, &[0.0, logit]).unwrap();
    }
    let report = sink.comparison().unwrap().report();
    let mean = 0.5 * ((2.0f64 / 3.0).ln() + 2f64.ln());
    for line in [
        "positions 0 to 31: top-1 agreement 32/32, mean KL divergence 0.000e0 nats".to_owned(),
        format!(
            "positions 32 to 63: top-1 agreement 8/32, mean KL divergence {:.3e} nats",
            mean * 0.75
        ),
        format!("positions 64 to 127: top-1 agreement 0/6, mean KL divergence {mean:.3e} nats"),
        format!("mean KL divergence {:.3e} nats", mean * 30.0 / 70.0),
    ] {
        assert!(
            report.lines().any(|found| found == line),
            "{line}: {report}"
        );
    }
}
