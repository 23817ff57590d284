//! What the kernels of a run came to, by bucket and operation: `kernels` of a trace's `otherData`.

use serde::{Deserialize, Serialize};

/// All timed steps of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Steps whose kernels are in the file; the others were left untimed.
    pub steps: u64,
    /// Of so many steps the last was left untimed.
    pub untimed_every: u64,
    /// Steps whose times were not read soon enough: they are not in the file.
    pub lost: u64,
    /// What floors are by; `None`: nothing is known of the device, and there are none.
    pub floor: Option<String>,
    /// The roofline that floors are by; `None` as there, and in files of before there was any.
    #[serde(default)]
    pub roofline: Option<Roofline>,
    pub buckets: Vec<Bucket>,
}

/// What bounds a device: a line that rises with the FLOPs a byte up to the ridge, and is flat behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    pub bytes_per_s: f64,
    /// Of the run's type of products.
    pub flops_per_s: f64,
}

impl Roofline {
    /// FLOPs a byte from which on products bound an operation, and not memory.
    pub fn ridge(&self) -> f64 {
        self.flops_per_s / self.bytes_per_s
    }
}

/// Steps of one kind and bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    pub kind: String,
    /// Rows.
    pub bucket: u32,
    /// Timed ones; what follows is their means.
    pub steps: u64,
    pub rows: f64,
    /// As the step's slice has it.
    pub step_us: f64,
    /// From when the first kernel was ready until the last had ended; of several stages, all of them.
    pub kernels_us: f64,
    /// From the end of the last kernel to the turn that collected the step, handing over the times included.
    pub handover_us: f64,
    /// What timing adds to a step; `None` where too few untimed steps stand between timed ones of as many rows.
    pub overhead: Option<Overhead>,
    pub operations: Vec<Operation>,
}

/// Untimed steps, each against the mean of the timed steps before and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    pub untimed_steps: u64,
    pub us: f64,
    /// Standard error of `us`.
    pub us_error: f64,
    /// `us` over the mean of the untimed steps.
    pub share: f64,
}

/// An operation, over all layers that have it; operations that are done by the same kernels are one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub operation: String,
    /// How often a step has it.
    pub per_step: f64,
    pub us_each: f64,
    pub us_per_step: f64,
    /// What has to come from memory, as the plan counts: every sequence at the mean context, routing even.
    pub bytes_per_step: f64,
    /// As the plan counts; 0 also in files of before they were counted.
    #[serde(default)]
    pub flops_per_step: f64,
    pub floor_us_per_step: Option<f64>,
    /// Floor over time.
    pub fraction: Option<f64>,
    /// None on the CPU.
    pub kernels: Vec<Kernel>,
}

/// Launches of one kernel for one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    pub kernel: String,
    pub per_step: f64,
    pub us_each: f64,
    /// How long before its turn it stood ready on an SM, on average.
    pub early_us: f64,
}

impl Operation {
    /// FLOPs a byte; `None` where nothing has to come from memory.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes_per_step > 0.0).then(|| self.flops_per_step / self.bytes_per_step)
    }

    /// FLOPs a second that were reached.
    pub fn flops_per_s(&self) -> Option<f64> {
        self.a_second(self.flops_per_step)
    }

    /// Bytes a second that were reached, of those that have to come.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.a_second(self.bytes_per_step)
    }

    fn a_second(&self, amount: f64) -> Option<f64> {
        (self.us_per_step > 0.0).then(|| amount / self.us_per_step * 1e6)
    }
}
