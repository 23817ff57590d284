//! What the host and its GPUs are set to, and what the GPUs do while a run goes on, by NVML (libnvidia-ml, which comes with
//! the driver). Without NVML nothing is known of GPUs. Of several GPUs, energy is that of all, the rest that of the first.

use super::host::thread_time;
use super::stats::{quantile, sorted};
use crate::backend::cuda::device::GpuDevice;
use crate::session::Target;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml, bitmasks::device::ThrottleReasons, error::NvmlError};
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at a GPU.
const PERIOD: Duration = Duration::from_millis(100);
/// SM clocks that differ by more, as a share of their median, are unsteady.
const STEADY: f64 = 0.05;

/// Settings that times depend on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Machine {
    /// The host's kernel.
    pub kernel_release: Option<String>,
    /// How the first processor's clock is governed; null where the system leaves it to the hardware or does not say.
    pub cpu_governor: Option<String>,
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver speaks.
    pub cuda_driver_version: Option<String>,
    /// The CUDA toolkit that the kernels were built with.
    pub cuda_toolkit_version: Option<String>,
    pub gpu_uuid: Option<String>,
    /// The GPU is cut into instances.
    pub mig: Option<bool>,
    /// This process shares the GPU by CUDA's multi-process service; NVML tells processes by their ids outside of containers.
    pub mps: Option<bool>,
    pub ecc: Option<bool>,
    pub persistence_mode: Option<bool>,
}

impl Machine {
    /// The settings of this host, and of the GPUs that are watched.
    pub fn new(watch: &Watch) -> Self {
        let line = |path| Some(std::fs::read_to_string(path).ok()?.trim().to_owned());
        let mut machine = Self {
            kernel_release: line("/proc/sys/kernel/osrelease"),
            cpu_governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            cuda_toolkit_version: option_env!("TAILGRAPH_CUDA_TOOLKIT").map(str::to_owned),
            ..Self::default()
        };
        if let Some(gpus) = &watch.gpus {
            gpus.describe(&mut machine);
        }
        machine
    }
}

/// What a GPU did over the runs that count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct GpuState {
    pub sm_clock_mhz_min: Option<f64>,
    pub sm_clock_mhz_median: Option<f64>,
    pub sm_clock_mhz_max: Option<f64>,
    /// The SM clocks' range is more than 5% of their median.
    pub clocks_unsteady: Option<bool>,
    pub memory_clock_mhz_min: Option<f64>,
    pub memory_clock_mhz_median: Option<f64>,
    pub memory_clock_mhz_max: Option<f64>,
    pub power_w_median: Option<f64>,
    pub power_w_max: Option<f64>,
    pub temperature_c_max: Option<f64>,
    /// NVML's names of whatever held the clocks down, with commas between; empty where nothing did.
    pub throttle_reasons: Option<String>,
}

/// One look at a GPU. What NVML does not know is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Look {
    sm_mhz: Option<f64>,
    memory_mhz: Option<f64>,
    power_w: Option<f64>,
    temperature_c: Option<f64>,
    throttled: Option<Vec<&'static str>>,
}

impl GpuState {
    pub fn of<'a>(looks: impl Iterator<Item = &'a Look>) -> Self {
        let looks: Vec<_> = looks.collect();
        let at = |value: fn(&Look) -> Option<f64>, share: f64| {
            let seen: Vec<f64> = looks.iter().copied().filter_map(value).collect();
            (!seen.is_empty()).then(|| quantile(&sorted(&seen), share))
        };
        let range = |value| [0.0, 0.5, 1.0].map(|share| at(value, share));
        let [sm_min, sm_median, sm_max] = range(|look| look.sm_mhz);
        let [memory_min, memory_median, memory_max] = range(|look| look.memory_mhz);
        let throttled: Vec<_> = looks.iter().filter_map(|l| l.throttled.as_ref()).collect();
        let names: BTreeSet<_> = throttled.iter().copied().flatten().copied().collect();
        let unsteady = || Some((sm_max? - sm_min?) / sm_median? > STEADY);
        Self {
            sm_clock_mhz_min: sm_min,
            sm_clock_mhz_median: sm_median,
            sm_clock_mhz_max: sm_max,
            clocks_unsteady: unsteady(),
            memory_clock_mhz_min: memory_min,
            memory_clock_mhz_median: memory_median,
            memory_clock_mhz_max: memory_max,
            power_w_median: at(|look| look.power_w, 0.5),
            power_w_max: at(|look| look.power_w, 1.0),
            temperature_c_max: at(|look| look.temperature_c, 1.0),
            throttle_reasons: (!throttled.is_empty())
                .then(|| names.into_iter().collect::<Vec<_>>().join(", ")),
        }
    }
}

/// GPUs that are looked at while runs go on; none on the CPU.
#[derive(Default)]
pub struct Watch {
    gpus: Option<Arc<NvmlGpus>>,
}

/// A run that is being watched, by a thread that looks until nobody is there to tell it anything.
pub struct Watching(Option<(Sender<()>, JoinHandle<Seen>)>);

/// What a run was seen to do.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    /// What all GPUs used.
    pub joules: Option<f64>,
    /// Looks at the first GPU.
    pub looks: Vec<Look>,
    /// Processor time of the looking, which is no cost of the run.
    pub processor: Duration,
}

impl Watch {
    /// Watches the GPUs of these targets.
    pub fn new<'t>(targets: impl Iterator<Item = &'t Target>) -> Self {
        Self {
            gpus: gpus(targets),
        }
    }

    /// Begins with what the GPUs have used so far; the first look is a little later, when they are at work.
    pub fn start(&self) -> Watching {
        Watching(self.gpus.clone().and_then(|gpus| {
            let (stop, stopped) = channel();
            let before = gpus.joules();
            let look = move || {
                let mut looks = vec![];
                let used = loop {
                    let waited = stopped.recv_timeout(PERIOD);
                    let has_ended = waited != Err(RecvTimeoutError::Timeout);
                    // Before the look, which takes a while too.
                    let used = has_ended.then(|| gpus.joules());
                    looks.extend(gpus.look());
                    if let Some(used) = used {
                        break used;
                    }
                };
                Seen {
                    joules: used.zip(before).map(|(now, before)| now - before),
                    looks,
                    processor: thread_time(),
                }
            };
            let thread = std::thread::Builder::new().name("gpu state".into());
            Some((stop, thread.spawn(look).ok()?))
        }))
    }
}

impl Watching {
    /// What was seen since the start.
    pub fn end(self) -> Seen {
        let seen = self.0.and_then(|(stop, thread)| {
            drop(stop);
            thread.join().ok()
        });
        seen.unwrap_or_default()
    }
}

/// GPUs as NVML knows them, the first of which is looked at.
struct NvmlGpus {
    nvml: Nvml,
    /// Where each is on the PCI bus; at least one.
    places: Vec<String>,
}

/// The GPUs of these targets, where there is an NVML.
fn gpus<'t>(targets: impl Iterator<Item = &'t Target>) -> Option<Arc<NvmlGpus>> {
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    let place = |device: &GpuDevice| {
        let at = |attribute| device.gpu.context.attribute(attribute).ok();
        let domain = at(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = at(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = at(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Some(format!("{domain:08x}:{bus:02x}:{device:02x}.0"))
    };
    let places = targets.flat_map(Target::gpus).map(place);
    let places: Vec<String> = places.collect::<Option<_>>()?;
    let nvml = (!places.is_empty()).then(Nvml::init)?.ok()?;
    Some(Arc::new(NvmlGpus { nvml, places }))
}

impl NvmlGpus {
    fn device(&self, place: &str) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_pci_bus_id(place)
    }

    fn describe(&self, machine: &mut Machine) {
        machine.driver_version = self.nvml.sys_driver_version().ok();
        let cuda = self.nvml.sys_cuda_driver_version().ok();
        machine.cuda_driver_version =
            cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
        let Ok(gpu) = self.device(&self.places[0]) else {
            return;
        };
        machine.gpu_uuid = gpu.uuid().ok();
        machine.mig = gpu.mig_mode().ok().map(|mode| mode.current != 0);
        let clients = gpu.mps_running_compute_processes().ok();
        machine.mps = clients.map(|all| all.iter().any(|one| one.pid == std::process::id()));
        machine.ecc = gpu.is_ecc_enabled().ok().map(|ecc| ecc.currently_enabled);
        machine.persistence_mode = gpu.is_in_persistent_mode().ok();
    }

    fn look(&self) -> Option<Look> {
        let gpu = self.device(&self.places[0]).ok()?;
        let throttled = gpu.current_throttle_reasons().ok().map(|reasons| {
            let held = reasons.difference(ThrottleReasons::GPU_IDLE | ThrottleReasons::NONE);
            held.iter_names().map(|(name, _)| name).collect()
        });
        Some(Look {
            sm_mhz: gpu.clock_info(Clock::SM).ok().map(f64::from),
            memory_mhz: gpu.clock_info(Clock::Memory).ok().map(f64::from),
            power_w: gpu.power_usage().ok().map(|mw| f64::from(mw) / 1e3),
            temperature_c: gpu.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            throttled,
        })
    }

    /// What all have used since the driver was loaded; GPUs of compute capability 7.0 and newer count it.
    fn joules(&self) -> Option<f64> {
        let each = self.places.iter().map(|place| {
            let millijoules = self.device(place).ok()?.total_energy_consumption().ok()?;
            Some(millijoules as f64 / 1e3)
        });
        each.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_spread_by_more_than_a_twentieth_are_unsteady() {
        let look = |mhz, throttled: &[&'static str]| Look {
            sm_mhz: Some(mhz),
            throttled: Some(throttled.to_vec()),
            ..Look::default()
        };
        let steady = [look(1960.0, &[]), look(1980.0, &[]), look(1900.0, &[])];
        let found = GpuState::of(steady.iter());
        assert_eq!(found.sm_clock_mhz_median, Some(1960.0));
        assert_eq!(found.clocks_unsteady, Some(false));
        assert_eq!(found.throttle_reasons.as_deref(), Some(""));
        let slowed = [look(1600.0, &["SW_POWER_CAP", "SYNC_BOOST"])];
        let found = GpuState::of(steady.iter().chain(&slowed));
        assert_eq!(found.sm_clock_mhz_min, Some(1600.0));
        assert_eq!(found.clocks_unsteady, Some(true));
        let reasons = found.throttle_reasons.as_deref();
        assert_eq!(reasons, Some("SW_POWER_CAP, SYNC_BOOST"));
        assert_eq!(GpuState::of([].iter()), GpuState::default());
    }

    #[test]
    fn without_a_gpu_the_host_is_all_there_is() {
        let watch = Watch::default();
        assert_eq!(watch.start().end(), Seen::default());
        let machine = Machine::new(&watch);
        assert!(
            machine
                .kernel_release
                .is_some_and(|release| !release.is_empty())
        );
        assert_eq!((machine.gpu_uuid, machine.mig), (None, None));
    }
}
