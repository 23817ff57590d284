//! What a GPU has used, by NVML (libnvidia-ml, which comes with the driver): the total energy since the driver was
//! loaded, which GPUs of compute capability 7.0 and newer count.

use cudarc::driver::{CudaContext, sys};
use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

type Device = *mut c_void;
const SUCCESS: c_uint = 0;

/// One GPU's counter.
pub struct Meter {
    library: Library,
    device: Device,
}

impl Meter {
    /// The counter of `context`'s GPU; `None` where there is no NVML, or it does not know this GPU.
    pub fn new(context: &CudaContext) -> Option<Self> {
        let mut bus: [c_char; 32] = [0; 32];
        // SAFETY: the driver writes at most this many bytes, with a NUL at the end.
        unsafe {
            sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, context.cu_device())
        }
        .result()
        .ok()?;
        // SAFETY: the driver's own library, whose initialisation has no requirements.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        let mut device: Device = std::ptr::null_mut();
        // SAFETY: the signatures are those of nvml.h; `bus` ends with a NUL and `device` outlives the call.
        unsafe {
            let init: Symbol<unsafe extern "C" fn() -> c_uint> =
                library.get(b"nvmlInit_v2\0").ok()?;
            let find: Symbol<unsafe extern "C" fn(*const c_char, *mut Device) -> c_uint> =
                library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
            let bus = CStr::from_ptr(bus.as_ptr());
            if init() != SUCCESS || find(bus.as_ptr(), &mut device) != SUCCESS {
                return None;
            }
        }
        let meter = Self { library, device };
        meter.joules().map(|_| meter)
    }

    /// Since the driver was loaded.
    pub fn joules(&self) -> Option<f64> {
        let mut millijoules: c_ulonglong = 0;
        // SAFETY: the signature is that of nvml.h, the device is one that NVML gave.
        let answer = unsafe {
            let read: Symbol<unsafe extern "C" fn(Device, *mut c_ulonglong) -> c_uint> = self
                .library
                .get(b"nvmlDeviceGetTotalEnergyConsumption\0")
                .ok()?;
            read(self.device, &mut millijoules)
        };
        (answer == SUCCESS).then_some(millijoules as f64 / 1e3)
    }
}
