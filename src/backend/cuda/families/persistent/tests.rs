use super::*;

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
