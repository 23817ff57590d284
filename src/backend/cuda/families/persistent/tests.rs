use super::*;

#[test]
fn a_tile_has_128_rows() {
    assert_eq!(tiles(512, 6144, 256), 96);
    assert_eq!(tiles(513, 6144, 256), 120);
    assert_eq!(tiles(1, 1, 128), 1);
}

/// LFM2-8B-A1B's in-projection, qkv and out-projection on 132 multiprocessors.
#[test]
fn the_wider_tiles_serve_where_they_end_sooner() {
    let wide = |rows, weight_rows| {
        let rounds = |width| tiles(rows, weight_rows, width).div_ceil(132);
        wide_is_sooner(rounds(256), rounds(128))
    };
    assert_eq!(
        [256, 512, 1024].map(|rows| wide(rows, 6144)),
        [false, true, true]
    );
    assert_eq!(
        [512, 1024, 2048].map(|rows| wide(rows, 3072)),
        [false, true, true]
    );
    assert_eq!(
        [512, 1024, 2048].map(|rows| wide(rows, 2048)),
        [false, false, true]
    );
}

#[test]
fn gate_and_up_take_turns_of_eight_rows() {
    let product = Product {
        y: 0,
        x: 0,
        w: 1 << 20,
        w_pair: 1 << 16,
        bias: 0,
        outputs: 416,
        inner: 64,
        epilogue: Epilogue::SiluMul,
        parts: Parts::Scratch(0),
    };
    let boxes = weight_boxes(&product, DType::BF16, 256);
    assert_eq!(boxes.at, 1 << 16);
    assert_eq!(boxes.sizes, [64, 8, 2, 52, 1]);
    assert_eq!(boxes.strides[1..], [128, (1 << 20) - (1 << 16), 1024, 128]);
    assert_eq!(boxes.each, [64, 8, 2, 16, 1]);
    let rows: u32 = boxes.each[1..].iter().product();
    assert_eq!(rows, 256);
}
