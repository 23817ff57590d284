//! cuBLASLt's products, to hold ours against: for `bench kernel` alone, and only where the library is on this machine. It is
//! loaded by its name at run time; nothing that serves a model knows of it.

use super::kernels::Dense;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::{Error, Result};
use crate::model::DType;
use crate::session::Target;
use crate::telemetry::warn;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaContext, CudaStream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// CUBLAS_OP_T of cublas_api.h, which this binding leaves out.
static TRANSPOSED: i32 = 1;
/// What NVIDIA advises for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Candidates of the heuristics that are measured.
const CANDIDATES: usize = 8;
/// All the matrices of one graph together have so many times the bytes of the L2 cache, so that each comes from memory.
const CACHES: usize = 3;
const LEAST_MATRICES: usize = 4;
const MOST_MATRICES: usize = 64;
/// A graph is launched once to warm up, and so often for a time, of which the best counts.
const ROUNDS: usize = 5;
/// Values that are made up; matrices are filled with them again and again.
const MADE_BYTES: usize = 8 << 20;

/// The library, open on a GPU.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    workspace: Buffer,
    l2_bytes: usize,
    /// Each shape is measured once.
    known: RefCell<HashMap<(Dense, &'static str), Option<f64>>>,
}

fn refused(doing: &str, error: CublasError) -> Error {
    Error::Runtime(format!("cuBLASLt: {doing}: it answered {:?}", error.0))
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
        let found = Self::open(&device.gpu.context)?;
        if found.is_none() {
            warn(
                "cuBLASLt: found no libcublasLt.so on this machine, so the table has no column of it; put the lib folder of a CUDA 13 \
                 toolkit, or that of the PyPI package nvidia-cublas, in LD_LIBRARY_PATH",
            );
        }
        Ok(found)
    }

    /// `None`: the library is not on this machine.
    fn open(context: &Arc<CudaContext>) -> Result<Option<Self>> {
        // SAFETY: loading it runs its own initialisation alone.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let driver = |error| failed("preparing cuBLASLt", error);
        context.bind_to_thread().map_err(driver)?;
        let l2 = context.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
        let workspace = Buffer::named(context, "cuBLASLt's workspace", WORKSPACE_BYTES)?;
        let stream = context.new_stream().map_err(driver)?;
        Ok(Some(Self {
            l2_bytes: l2.map_err(driver)?.max(1) as usize,
            // Last: what fails before leaves no handle behind.
            handle: result::create_handle().map_err(|error| refused("opening", error))?,
            stream,
            context: context.clone(),
            workspace,
            known: RefCell::default(),
        }))
    }

    /// The least time of one product in us, of what the heuristics propose: y [rows, outputs] = x [rows, inner] by the
    /// transpose of w [outputs, inner], all in `dtype`, sums in f32. `None`: the library has none.
    ///
    /// # Errors
    /// The library or the driver refuses.
    pub fn best_us(&self, dense: Dense, dtype: DType) -> Result<Option<f64>> {
        let shape = (dense, dtype.name());
        if let Some(&us) = self.known.borrow().get(&shape) {
            return Ok(us);
        }
        let us = self.measure(dense, dtype)?;
        self.known.borrow_mut().insert(shape, us);
        Ok(us)
    }

    fn measure(&self, dense: Dense, dtype: DType) -> Result<Option<f64>> {
        let task = Task::new(self, dense, dtype)?;
        let mut best: Option<f64> = None;
        let mut failed = None;
        for algorithm in task.candidates()? {
            // One that the heuristics propose may yet be refused; all of them may not.
            match task.us(&algorithm) {
                Ok(us) => best = Some(best.map_or(us, |best: f64| best.min(us))),
                Err(error) => failed = Some(error),
            }
        }
        match (best, failed) {
            (None, Some(error)) => Err(error),
            (best, _) => Ok(best),
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and every product has been waited for.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Descriptors of one product, and its arrays.
struct Task<'a> {
    library: &'a CublasLt,
    product: sys::cublasLtMatmulDesc_t,
    /// The layouts of w, x and y, as the library sees them: column by column, so w lies transposed, and y is [outputs, rows].
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    matrices: Vec<Buffer>,
    x: Buffer,
    y: Buffer,
}

impl<'a> Task<'a> {
    fn new(library: &'a CublasLt, dense: Dense, dtype: DType) -> Result<Self> {
        let Dense {
            rows,
            outputs,
            inner,
        } = dense;
        let bytes = |a: u32, b: u32| a as usize * b as usize * dtype.bytes();
        let (w_bytes, x_bytes) = (bytes(outputs, inner), bytes(rows, inner));
        let count = (CACHES * library.l2_bytes).div_ceil(w_bytes);
        let array = |what: &str, bytes: usize| Buffer::named(&library.context, what, bytes);
        let matrices: Vec<Buffer> = (0..count.clamp(LEAST_MATRICES, MOST_MATRICES))
            .map(|_| array("a matrix of cuBLASLt's", w_bytes))
            .collect::<Result<_>>()?;
        let x = array("cuBLASLt's operand", x_bytes)?;
        let y = array("cuBLASLt's result", bytes(rows, outputs))?;
        let made = made_up(dtype);
        for buffer in matrices.iter().chain([&x]) {
            for start in (0..buffer.bytes()).step_by(made.len()) {
                let part = (buffer.bytes() - start).min(made.len());
                buffer.write(&library.stream, start, &made[..part])?;
            }
        }
        let kind = match dtype {
            DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
            DType::F16 => sys::cudaDataType::CUDA_R_16F,
            DType::F32 => sys::cudaDataType::CUDA_R_32F,
        };
        let wrong = |error| refused("describing a product", error);
        let layout = |rows: u32, columns: u32| {
            let made = result::create_matrix_layout(kind, rows.into(), columns.into(), rows.into());
            made.map_err(wrong)
        };
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let task = Self {
            library,
            product: result::create_matmul_desc(sums, sys::cudaDataType::CUDA_R_32F)
                .map_err(wrong)?,
            layouts: [
                layout(inner, outputs)?,
                layout(inner, rows)?,
                layout(outputs, rows)?,
            ],
            matrices,
            x,
            y,
        };
        // SAFETY: the descriptor is alive, and the attribute is of this type and size.
        unsafe {
            result::set_matmul_desc_attribute(
                task.product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const TRANSPOSED).cast(),
                size_of_val(&TRANSPOSED),
            )
        }
        .map_err(wrong)?;
        Ok(task)
    }

    fn candidates(&self) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let wrong = |error| refused("asking for candidates", error);
        let preference = result::create_matmul_pref().map_err(wrong)?;
        let [w, x, y] = self.layouts;
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = Vec::with_capacity(CANDIDATES);
        let mut count = 0;
        let limit =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: descriptors are alive, the attribute is a u64, `found` has room for as many as are asked for, of which the
        // library writes the first `count`.
        let asked = unsafe {
            let bytes = WORKSPACE_BYTES as u64;
            let limited = result::set_matmul_pref_attribute(
                preference,
                limit,
                (&raw const bytes).cast(),
                size_of_val(&bytes),
            );
            let asked = limited.and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.library.handle,
                    self.product,
                    w,
                    x,
                    y,
                    y,
                    preference,
                    CANDIDATES as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            });
            let _ = result::destroy_matmul_pref(preference);
            if asked.is_ok() {
                found.set_len((count.max(0) as usize).min(CANDIDATES));
            }
            asked
        };
        match asked {
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(vec![]),
            asked => {
                asked.map_err(wrong)?;
                let works = |candidate: &&sys::cublasLtMatmulHeuristicResult_t| {
                    candidate.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                };
                Ok(found.iter().filter(works).map(|one| one.algo).collect())
            }
        }
    }

    /// One product by `algorithm`: a graph of one for each matrix, by the GPU's clock.
    fn us(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<f64> {
        let stream = &self.library.stream;
        let graph = Captured::capture(stream, "cuBLASLt's products", |stream| {
            let enqueue = |w: &Buffer| self.enqueue(stream, w, algorithm);
            self.matrices.iter().try_for_each(enqueue)
        })?;
        let exec = Exec::new(&graph, LaunchedBy::Host)?;
        let driver = |error| failed("timing cuBLASLt's products", error);
        // SAFETY: the arrays live as long as `self`, and every launch is waited for below.
        let launch = || unsafe { exec.launch() };
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            // With something before it the first event waits for no host.
            launch()?;
            let begin = stream
                .record_event(Some(CU_EVENT_DEFAULT))
                .map_err(driver)?;
            launch()?;
            let end = stream
                .record_event(Some(CU_EVENT_DEFAULT))
                .map_err(driver)?;
            stream.synchronize().map_err(driver)?;
            let ms = begin.elapsed_ms(&end).map_err(driver)?;
            best = best.min(f64::from(ms) * 1e3 / self.matrices.len() as f64);
        }
        Ok(best)
    }

    fn enqueue(
        &self,
        stream: &CudaStream,
        matrix: &Buffer,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<()> {
        let [w, x, y] = self.layouts;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let at = |buffer: &Buffer| buffer.at(0) as *mut c_void;
        // SAFETY: descriptors and arrays are alive as long as `self`, and of the sizes that the layouts say.
        unsafe {
            result::matmul(
                self.library.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at(matrix),
                w,
                at(&self.x),
                x,
                at(&self.y),
                y,
                at(&self.y),
                y,
                algorithm,
                at(&self.library.workspace),
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        }
        .map_err(|error| refused("a product", error))
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing that uses them runs any more.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
        }
    }
}

/// Numbers between -1 and 1 that look random: how many bits change moves a GPU's power, and so its clock.
fn made_up(dtype: DType) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let count = MADE_BYTES / dtype.bytes();
    match dtype {
        DType::BF16 => {
            let values: Vec<_> = (0..count).map(|_| half::bf16::from_f32(next())).collect();
            bytemuck::cast_slice(&values).to_vec()
        }
        DType::F16 => {
            let values: Vec<_> = (0..count).map(|_| half::f16::from_f32(next())).collect();
            bytemuck::cast_slice(&values).to_vec()
        }
        DType::F32 => {
            let values: Vec<f32> = (0..count).map(|_| next()).collect();
            bytemuck::cast_slice(&values).to_vec()
        }
    }
}
