//! Tensors as the copy engine of a GPU from 9.0 on is told of them, for kernels that bring whole boxes of them to shared
//! memory (kernels/common/wgmma.cuh).

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::matrix::Matrix;
use crate::error::Result;
use crate::model::WeightFormat;
use crate::sys::abi;
use cudarc::driver::sys;

/// A kernel's argument: `TensorMap` of kernels/common/wgmma.cuh.
#[derive(Debug, Clone, Copy)]
pub struct TensorMap(pub(super) sys::CUtensorMap);

/// Columns of a box.
pub const BOX_COLUMNS: u32 = abi::TG_GMMA_COLUMNS;

/// A tensor in boxes, innermost dimension first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boxes {
    /// On 16 bytes.
    pub at: Address,
    /// How an element is stored. Two weights of 8 bits count as one element of 16, so that a packed block is 256 of them.
    pub format: WeightFormat,
    pub sizes: Vec<u64>,
    /// Bytes from one element of a dimension to the next, a multiple of 16: of all but the first, whose elements lie side
    /// by side. What stands for the first is not looked at.
    pub strides: Vec<u64>,
    /// Elements of a box, at most 256.
    pub each: Vec<u32>,
}

impl Boxes {
    /// A tensor of dimensions (size, bytes from one element to the next, elements of a box), innermost first.
    pub fn new(at: Address, format: WeightFormat, dimensions: [(u64, u64, u32); 5]) -> Self {
        Self {
            at,
            format,
            sizes: dimensions.map(|(size, _, _)| size).into(),
            strides: dimensions.map(|(_, stride, _)| stride).into(),
            each: dimensions.map(|(_, _, each)| each).into(),
        }
    }

    /// A matrix that stands alone, in boxes of 64 columns by `box_rows` rows: row after row, or of 8 bits in packed blocks.
    pub fn of(w: &Matrix, box_rows: u32) -> Self {
        if w.format != WeightFormat::E4M3 {
            return Self::of_rows(w.address, w.format, [w.rows, w.columns], box_rows);
        }
        let block = abi::TG_PACKED_ROWS * BOX_COLUMNS;
        let along = u64::from(w.columns.div_ceil(BOX_COLUMNS)) * u64::from(block);
        Self {
            at: w.address,
            format: w.format,
            sizes: vec![along / 2, w.rows.div_ceil(abi::TG_PACKED_ROWS).into()],
            strides: vec![2, along],
            each: vec![block / 2, box_rows / abi::TG_PACKED_ROWS],
        }
    }

    /// Weights in 8 bits whose boxes are of whole packed blocks along K, for products of rows in 8 bits: two blocks a box, row after row.
    #[must_use]
    pub fn of_block_rows(mut self) -> Self {
        let rows = abi::TG_PACKED_ROWS;
        self.sizes[0] /= u64::from(rows);
        self.each[0] /= rows;
        self.sizes[1] *= u64::from(rows);
        self.strides[1] /= u64::from(rows);
        self.each[1] = 2 * rows;
        self
    }

    /// A matrix `[rows, columns]`, row after row, in boxes of 64 columns by `box_rows` rows. A row is a multiple of 16 bytes.
    pub fn of_rows(
        at: Address,
        format: WeightFormat,
        [rows, columns]: [u32; 2],
        box_rows: u32,
    ) -> Self {
        let element = format.bytes() as u64;
        Self {
            at,
            format,
            sizes: vec![columns.into(), rows.into()],
            strides: vec![element, element * u64::from(columns)],
            each: vec![BOX_COLUMNS, box_rows],
        }
    }
}

impl TensorMap {
    /// What of a box lies past the tensor is zeros. Rows of 16-bit elements, 128 bytes of a box each, and rows of blocks in 8 bits, 64 bytes
    /// each, are swizzled as the matrix instructions want them.
    ///
    /// # Errors
    /// The driver refuses the shape.
    pub fn new(boxes: &Boxes) -> Result<Self> {
        use sys::CUtensorMapDataType_enum as Type;
        use sys::CUtensorMapSwizzle_enum as Swizzle;
        let (dtype, swizzle) = match boxes.format {
            WeightFormat::BF16 => (
                Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            ),
            WeightFormat::F16 => (
                Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            ),
            WeightFormat::E4M3 => (
                Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                if boxes.each[0] == BOX_COLUMNS / 2 {
                    Swizzle::CU_TENSOR_MAP_SWIZZLE_64B
                } else {
                    Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE
                },
            ),
            WeightFormat::F32 => (
                Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            ),
        };
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let dimensions = boxes.sizes.len();
        assert!(
            boxes.strides.len() == dimensions && boxes.each.len() == dimensions,
            "{boxes:?}"
        );
        let side_by_side = vec![1; dimensions];
        // SAFETY: the map and the arrays, of so many dimensions, live through the call; nothing is read through the address.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                dimensions as u32,
                boxes.at as *mut _,
                boxes.sizes.as_ptr(),
                boxes.strides[1..].as_ptr(),
                boxes.each.as_ptr(),
                side_by_side.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                // Boxes of 64 columns stream at 4.5 TB/s with these on an H200, with 256 bytes at 4.2 to 4.4.
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|error| failed(&format!("making a tensor map of {boxes:?}"), error))?;
        Ok(Self(map))
    }
}
