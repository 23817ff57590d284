//! cuBLASLt's products, to hold ours against: for `bench kernel` alone, and only where the library is on this machine. It is
//! loaded by its name at run time; nothing that serves a model knows of it.

use super::kernels::Dense;
use super::workload::Random;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::timed::time_in_a_row;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::{Error, Result};
use crate::model::{DType, WeightFormat, e4m3};
use crate::session::Target;
use crate::telemetry::warn;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// CUBLAS_OP_T of cublas_api.h, which this binding leaves out.
static TRANSPOSED: i32 = 1;
/// What NVIDIA advises for Hopper.
static WORKSPACE_BYTES: usize = 32 << 20;
/// All the matrices of one graph together have so many times the bytes of the L2 cache, so that each comes from memory.
const CACHES: usize = 3;
const LEAST_MATRICES: usize = 4;
const MOST_MATRICES: usize = 64;
/// The graph is launched so often, of which the best time counts.
const ROUNDS: usize = 5;
/// Values that are made up; arrays are filled with them again and again.
const MADE_BYTES: usize = 1 << 20;

/// The library, open on a GPU.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    stream: Arc<CudaStream>,
    workspace: Buffer,
    l2_bytes: usize,
}

type Answer<T> = std::result::Result<T, CublasError>;

fn refused(error: CublasError) -> Error {
    Error::Runtime(format!("cuBLASLt answered {:?}", error.0))
}

impl CublasLt {
    /// `None`: the target is no GPU, or the library is not on this machine, which is said.
    ///
    /// # Errors
    /// The library or the driver refuses.
    pub fn of(target: &Target) -> Result<Option<Self>> {
        let Target::Gpu(device) = target else {
            return Ok(None);
        };
        // SAFETY: loading it runs its own initialisation alone.
        if !unsafe { sys::is_culib_present() } {
            warn(
                "cuBLASLt: found no libcublasLt.so on this machine, so the table has no column of it; put the lib folder of a CUDA 13 \
                 toolkit, or that of the PyPI package nvidia-cublas, in LD_LIBRARY_PATH",
            );
            return Ok(None);
        }
        let context = &device.gpu.context;
        let driver = |error| failed("preparing cuBLASLt", error);
        context.bind_to_thread().map_err(driver)?;
        let l2 = context.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
        Ok(Some(Self {
            l2_bytes: l2.map_err(driver)?.max(1) as usize,
            workspace: Buffer::named(context, "cuBLASLt's workspace", WORKSPACE_BYTES)?,
            stream: context.new_stream().map_err(driver)?,
            // Last: what fails before leaves no handle behind.
            handle: result::create_handle().map_err(refused)?,
        }))
    }

    /// The time in us of one product by the first algorithm that the library's heuristic gives: y [rows, outputs] = x [rows, inner]
    /// by the transpose of w [outputs, inner], all in `dtype`, or x and w in E4M3 where the weights are; sums in f32. `None`: it
    /// gives none.
    ///
    /// # Errors
    /// The library or the driver refuses.
    pub fn us(&self, dense: Dense, dtype: DType) -> Result<Option<f64>> {
        let operands = match dense.weights {
            WeightFormat::E4M3 => WeightFormat::E4M3,
            _ => dtype.into(),
        };
        let product = Product::new(dense, operands, dtype).map_err(refused)?;
        let ([w, x, y], preference) = (product.layouts, product.preference);
        // SAFETY: all of them are alive.
        let found = unsafe {
            let of = product.product;
            result::get_matmul_algo_heuristic(self.handle, of, w, x, y, y, preference)
        };
        let algorithm = match found {
            Err(CublasError(CUBLAS_STATUS_NOT_SUPPORTED)) => return Ok(None),
            found => found.map_err(refused)?.algo,
        };
        let array = |rows: u32, columns: u32, element_bytes: usize| {
            let bytes = rows as usize * columns as usize * element_bytes;
            Buffer::named(self.stream.context(), "an array of cuBLASLt's", bytes)
        };
        let x = array(dense.rows, dense.inner, operands.bytes())?;
        let y = array(dense.rows, dense.outputs, dtype.bytes())?;
        let matrix = || array(dense.outputs, dense.inner, operands.bytes());
        let mut matrices = vec![matrix()?];
        let count = (CACHES * self.l2_bytes).div_ceil(matrices[0].bytes());
        for _ in 1..count.clamp(LEAST_MATRICES, MOST_MATRICES) {
            matrices.push(matrix()?);
        }
        let made = made_up(operands);
        for buffer in matrices.iter().chain([&x]) {
            for start in (0..buffer.bytes()).step_by(made.len()) {
                let part = (buffer.bytes() - start).min(made.len());
                buffer.write(&self.stream, start, &made[..part])?;
            }
        }
        let graph = Captured::capture(&self.stream, "cuBLASLt's products", |_| {
            let enqueue = |w| product.enqueue(self, &algorithm, [w, &x, &y]);
            matrices.iter().try_for_each(enqueue).map_err(refused)
        })?;
        let exec = Exec::new(&graph, LaunchedBy::Host)?;
        // SAFETY: the arrays live until the end of this function, and every launch is waited for.
        let launch = || unsafe { exec.launch() };
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            launch()?;
            best = best.min(time_in_a_row(&self.stream, 1, launch)?);
        }
        Ok(Some(best.as_secs_f64() * 1e6 / matrices.len() as f64))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and every product has been waited for.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Descriptors of one product.
struct Product {
    product: sys::cublasLtMatmulDesc_t,
    /// The layouts of w, x and y, as the library sees them: column by column, so w lies transposed, and y is [outputs, rows].
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    preference: sys::cublasLtMatmulPreference_t,
}

impl Product {
    fn new(dense: Dense, operands: WeightFormat, results: DType) -> Answer<Self> {
        let layout = |rows: u32, columns: u32, format| {
            let kind = match format {
                WeightFormat::BF16 => sys::cudaDataType::CUDA_R_16BF,
                WeightFormat::F16 => sys::cudaDataType::CUDA_R_16F,
                WeightFormat::F32 => sys::cudaDataType::CUDA_R_32F,
                WeightFormat::E4M3 => sys::cudaDataType::CUDA_R_8F_E4M3,
            };
            result::create_matrix_layout(kind, rows.into(), columns.into(), rows.into())
        };
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let made = Self {
            product: result::create_matmul_desc(sums, sys::cudaDataType::CUDA_R_32F)?,
            layouts: [
                layout(dense.inner, dense.outputs, operands)?,
                layout(dense.inner, dense.rows, operands)?,
                layout(dense.outputs, dense.rows, results.into())?,
            ],
            preference: result::create_matmul_pref()?,
        };
        // SAFETY: the descriptors are alive, and the attributes are of these types and sizes.
        unsafe {
            result::set_matmul_desc_attribute(
                made.product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const TRANSPOSED).cast(),
                size_of_val(&TRANSPOSED),
            )?;
            result::set_matmul_pref_attribute(
                made.preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const WORKSPACE_BYTES).cast(),
                size_of_val(&WORKSPACE_BYTES),
            )?;
        }
        Ok(made)
    }

    /// Enqueues y = x by the transpose of w, arrays of the sizes that the layouts say.
    fn enqueue(
        &self,
        library: &CublasLt,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        [w, x, y]: [&Buffer; 3],
    ) -> Answer<()> {
        let [of_w, of_x, of_y] = self.layouts;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let at = |buffer: &Buffer| buffer.at(0) as *mut c_void;
        // SAFETY: descriptors and arrays are alive and go together; the stream is being captured, so nothing runs yet.
        unsafe {
            result::matmul(
                library.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at(w),
                of_w,
                at(x),
                of_x,
                at(y),
                of_y,
                at(y),
                of_y,
                algorithm,
                at(&library.workspace),
                WORKSPACE_BYTES,
                library.stream.cu_stream().cast(),
            )
        }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing that uses them runs any more.
        unsafe {
            let _ = result::destroy_matmul_pref(self.preference);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
        }
    }
}

/// Numbers between -1 and 1 that look random: how many bits change moves a GPU's power, and so its clock.
fn made_up(format: WeightFormat) -> Vec<u8> {
    let mut random = Random::new(0, 0);
    let value = |_| {
        let value = (2.0 * random.uniform() - 1.0) as f32;
        match format {
            WeightFormat::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            WeightFormat::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            WeightFormat::F32 => value.to_le_bytes().to_vec(),
            WeightFormat::E4M3 => vec![e4m3::from_f32(value)],
        }
    };
    let count = MADE_BYTES / format.bytes();
    (0..count).flat_map(value).collect()
}
