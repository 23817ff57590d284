//! The part of a page that stands the operations of a run against the roofline of its GPU: how much each computes for a byte,
//! and how fast it was. Of traces that have the times of kernels.

use super::charts::{BOTTOM, both};
use super::html::Page;
use super::svg::{Scale, Svg, exact, figure};
use super::traced::{MIXED, color};
use crate::trace::kernels::{Bucket, Kernels, Operation, Roofline};

/// Pixels.
const HEIGHT: f64 = 400.0;
const TOP: f64 = 44.0;
const LEFT: f64 = 56.0;

/// An operation as a mark.
struct Mark {
    title: String,
    color: usize,
    /// FLOPs a byte.
    intensity: f64,
    tflops: f64,
}

pub fn write(page: &mut Page, kernels: &Kernels) {
    let marks: Vec<Mark> = kernels.buckets.iter().flat_map(marks).collect();
    if marks.is_empty() {
        return;
    }
    page.head("Operations against the roofline");
    if let Some(roofline) = &kernels.roofline {
        page.text(&format!(
            "A mark is an operation of a bucket, over all layers that have it. No operation can be above the line: left of the ridge, at {} FLOPs a byte, memory bounds it ({} TB/s), and right of it products do ({} TFLOP/s).",
            figure(roofline.ridge().round()),
            figure(roofline.bytes_per_s / 1e12),
            figure(roofline.flops_per_s / 1e12)
        ));
    }
    let kinds = [
        ("decode", "decode"),
        ("mixed", "mixed: prompts too"),
        ("score", "score"),
    ];
    let there = |kind: &str| kernels.buckets.iter().any(|bucket| bucket.kind == kind);
    let key: Vec<(&str, usize)> = kinds
        .iter()
        .filter(|(kind, _)| there(kind))
        .map(|&(kind, name)| (name, color(kind)))
        .collect();
    page.key(&key);
    page.chart(&both(|width| chart(kernels.roofline, &marks, width)));
    let heads = [
        "bucket",
        "operations",
        "us a step",
        "MB",
        "GFLOP",
        "FLOP/B",
        "bound",
        "TFLOP/s",
        "TB/s",
        "of roofline",
    ];
    let rows: Vec<Vec<String>> = kernels
        .buckets
        .iter()
        .flat_map(|bucket| {
            let of = |operation| row(bucket, operation, kernels.roofline);
            bucket.operations.iter().map(of)
        })
        .collect();
    page.table(2, &heads, &rows);
    if let Some(floor) = &kernels.floor {
        page.note(&format!("The roofline is that of {floor}."));
    }
}

/// Of the operations that compute and move something: the others have no place on logarithmic axes.
fn marks(bucket: &Bucket) -> impl Iterator<Item = Mark> {
    bucket.operations.iter().filter_map(move |operation| {
        let (intensity, rate) = (operation.intensity()?, operation.flops_per_s()?);
        (intensity > 0.0 && rate > 0.0).then(|| Mark {
            title: format!(
                "{} of {} {}: {} TFLOP/s at {} FLOPs a byte",
                operation.operation,
                bucket.kind,
                bucket.bucket,
                figure(rate / 1e12),
                figure(intensity)
            ),
            color: color(&bucket.kind),
            intensity,
            tflops: rate / 1e12,
        })
    })
}

fn row(bucket: &Bucket, operation: &Operation, roofline: Option<Roofline>) -> Vec<String> {
    let or_dash = |value: Option<f64>| value.map_or("\u{2013}".to_owned(), exact);
    let intensity = operation.intensity();
    let side = roofline.map(|roofline| match intensity {
        Some(intensity) if intensity < roofline.ridge() => "memory",
        _ => "compute",
    });
    vec![
        format!("{} {}", bucket.kind, bucket.bucket),
        operation.operation.clone(),
        exact(operation.us_per_step),
        exact(operation.bytes_per_step / 1e6),
        exact(operation.flops_per_step / 1e9),
        or_dash(intensity),
        side.unwrap_or("\u{2013}").to_owned(),
        or_dash(operation.flops_per_s().map(|rate| rate / 1e12)),
        or_dash(operation.bytes_per_s().map(|rate| rate / 1e12)),
        operation.fraction.map_or("\u{2013}".to_owned(), |share| {
            format!("{}%", figure((share * 1e3).round() / 10.0))
        }),
    ]
}

/// Both axes are logarithmic, so memory's bound is a straight line too.
fn chart(roofline: Option<Roofline>, marks: &[Mark], width: f64) -> String {
    let (right, floor) = (width - 20.0, HEIGHT - BOTTOM);
    let xs = || marks.iter().map(|mark| mark.intensity);
    let corner = roofline.map(|roofline| (roofline.ridge(), roofline.flops_per_s / 1e12));
    let beyond = corner.map(|(ridge, _)| ridge * 3.0);
    let (least, most) = xs()
        .chain(beyond)
        .fold((f64::MAX, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    let roof: Vec<(f64, f64)> = match (roofline, corner) {
        (Some(roofline), Some(corner)) => vec![
            (least, least * roofline.bytes_per_s / 1e12),
            corner,
            (most, corner.1),
        ],
        _ => vec![],
    };
    let x = Scale::log([least, most], LEFT, right);
    let heights = marks.iter().map(|mark| mark.tflops);
    let y = Scale::log(heights.chain(roof.iter().map(|&(_, y)| y)), floor, TOP);
    let mut svg = Svg::new(width, HEIGHT);
    svg.text(0.0, 14.0, "start", "axis", "TFLOP/s");
    svg.line((LEFT, floor), (right, floor), "axisline");
    for tick in y.ticks(9) {
        svg.line((LEFT, y.at(tick)), (right, y.at(tick)), "grid");
        svg.text(LEFT - 8.0, y.at(tick) + 4.0, "end", "tick", &figure(tick));
    }
    for tick in x.ticks(if width < 500.0 { 6 } else { 10 }) {
        svg.line((x.at(tick), floor), (x.at(tick), floor + 5.0), "axisline");
        svg.text(x.at(tick), floor + 19.0, "middle", "tick", &figure(tick));
    }
    let name = "FLOPs a byte that has to come from memory";
    svg.text((LEFT + right) / 2.0, HEIGHT - 6.0, "middle", "axis", name);
    let roof: Vec<(f64, f64)> = roof.iter().map(|&(at, up)| (x.at(at), y.at(up))).collect();
    if let (Some((ridge, _)), [_, (at, top), _]) = (corner, &roof[..]) {
        svg.path(&roof, "line c9");
        svg.path(&[(*at, *top), (*at, floor)], "line c9 dashed");
        let name = format!("ridge: {} FLOP/B", figure(ridge.round()));
        svg.text(*at, TOP - 10.0, "middle", "name t9", &name);
    }
    for mark in marks {
        let place = (x.at(mark.intensity), y.at(mark.tflops));
        svg.mark(mark.color, place.0, place.1, &mark.title);
    }
    let kinds = match marks.iter().any(|mark| mark.color == MIXED) {
        true => "operations of decode steps and of steps with prompts",
        false => "operations",
    };
    svg.finish(&format!(
        "TFLOP/s over FLOPs a byte, both logarithmic: {kinds}, and the roofline where it is known"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str, bytes: f64, flops: f64, us: f64) -> Operation {
        Operation {
            operation: name.to_owned(),
            per_step: 1.0,
            us_each: us,
            us_per_step: us,
            bytes_per_step: bytes,
            flops_per_step: flops,
            floor_us_per_step: Some(us / 2.0),
            fraction: Some(0.5),
            kernels: vec![],
        }
    }

    fn kernels(roofline: Option<Roofline>) -> Kernels {
        Kernels {
            roofline,
            buckets: vec![Bucket {
                kind: "mixed".to_owned(),
                bucket: 512,
                steps: 1,
                rows: 512.0,
                step_us: 10.0,
                kernels_us: 9.0,
                handover_us: 1.0,
                overhead: None,
                operations: vec![
                    operation("embed", 1e6, 0.0, 1.0),
                    operation("qk_norm_rope", 1e6, 5e6, 1.0),
                    operation("lm_head", 1e6, 9e9, 20.0),
                ],
            }],
            ..Kernels::default()
        }
    }

    fn page(kernels: &Kernels) -> String {
        let mut page = Page::new("t");
        write(&mut page, kernels);
        page.finish("")
    }

    #[test]
    fn operations_have_a_mark_and_a_side_of_the_ridge() {
        let roofline = Roofline {
            bytes_per_s: 4e12,
            flops_per_s: 800e12,
        };
        let html = page(&kernels(Some(roofline)));
        for part in [
            "ridge: 200 FLOP/B",
            "lm_head of mixed 512: 450 TFLOP/s at 9000 FLOPs a byte",
            "qk_norm_rope of mixed 512: 5 TFLOP/s at 5 FLOPs a byte",
            "FLOPs a byte that has to come from memory",
            "compute",
            "memory",
        ] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        assert!(!html.contains("embed of mixed"), "it has no FLOPs");
        let html = page(&kernels(None));
        assert!(html.contains("lm_head of mixed") && !html.contains("ridge:"));
    }

    /// Files of before there were FLOPs.
    #[test]
    fn without_flops_there_is_no_part() {
        let mut old = kernels(None);
        old.buckets[0].operations.truncate(1);
        assert!(!page(&old).contains("roofline"));
    }
}
