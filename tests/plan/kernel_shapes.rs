//! Kernel files with entries for other shapes than the first.

use crate::kernels::{GROUPED, H200, SKINNY, read, with};
use tailgraph::backend::cuda::tuning::variants::Experts;
use tailgraph::backend::cuda::tuning::{KernelFile, Shape};
use tailgraph::model::DType;

/// Not as [`SKINNY`].
const FUSED: &str = "products = \"skinny\", skinny_stages = 6, experts = \"fused\"";

fn at(shape: &str) -> Shape {
    Shape::parse(shape).unwrap()
}

/// A model has the entries of its shape, else of the nearest that has any of the type, those of no named shape included.
#[test]
fn shapes_have_entries_of_their_own() {
    let text = format!(
        "[decode.bf16]\n8 = {{ {SKINNY} }}\n[decode.f32]\n8 = {{ {SKINNY} }}\n\
         [shape.h2048-e64-f1536.decode.bf16]\n1 = {{ {FUSED} }}\n"
    );
    let file = with(&text).unwrap();
    let wide = at("h2048-e64-f1536");
    let experts = |file: &KernelFile, dtype, shape| {
        let origin = file.origin(H200, dtype, shape);
        let entries = origin.map_or(&[][..], |origin| file.entries_of(origin, dtype));
        entries
            .iter()
            .map(|entry| entry.variant.experts)
            .collect::<Vec<_>>()
    };
    for (shape, expected) in [
        (wide, Experts::Fused),
        (at("h1024-e64-f1536"), Experts::Fused),
        (at("h2048-e128-f768"), Experts::Fused),
        (Shape::BASE, Experts::Skinny),
        (at("h2048-e32-f1536"), Experts::Skinny),
    ] {
        assert_eq!(experts(&file, DType::BF16, shape), [expected], "{shape}");
        assert_eq!(
            experts(&file, DType::F32, shape),
            [Experts::Skinny],
            "{shape}: no other has this type"
        );
    }
    assert_eq!(file.origin(H200, DType::F16, wide), None);
    let again = read(&file.to_string()).unwrap();
    assert!(again.all().eq(file.all()), "{file}");
    assert_eq!(again.name(H200), file.name(H200));
    let without = with(text.split("[shape").next().unwrap()).unwrap();
    assert_ne!(without.name(H200), file.name(H200));
}

#[test]
fn what_is_wrong_with_a_shape_is_named() {
    for (text, parts) in [
        ("[shape.large.decode.bf16]", ["'large'", "h2048-e64-f1536"]),
        (
            "[shape.h2048-e32-f1792.decode.bf16]",
            ["h2048-e32-f1792", "[decode.TYPE]"],
        ),
        (
            "[shape.h64-e64-f32.score.bf16]",
            ["shape.h64-e64-f32: ", "'score'"],
        ),
        (
            "[shape.h64-e64-f32.decode.fp8]",
            ["shape.h64-e64-f32.decode: ", "'fp8'"],
        ),
        (
            "[shape]\nh64-e64-f32 = 1",
            ["shape.h64-e64-f32: ", "expected a table"],
        ),
    ] {
        let error = with(text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {error} lacks {part}");
        }
    }
    let text = format!("[shape.h64-e64-f32.decode.bf16]\n1 = {{ {GROUPED}, skinny_stages = 4 }}");
    let error = with(&text).unwrap_err().to_string();
    for part in ["shape.h64-e64-f32.decode.bf16.1: ", "skinny_stages: "] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
}
