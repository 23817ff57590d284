//! GPUs by name, and the least time that operations take on one: the roofline. Launch and synchronisation are not in it.

use super::class::GpuClass;
use crate::plan::{Activations, Cost, Precision};
use crate::sys::abi::TG_PARTS;
use std::ops::{Add, Mul};

/// What bounds an operation on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Gpu {
    /// The name that `--gpu` takes.
    pub name: &'static str,
    pub title: &'static str,
    /// The driver's name for it. Other products have the short name in theirs too, and other rates: an H100 PCIe, a GH200.
    pub driver_name: &'static str,
    pub bytes_per_s: f64,
    /// Matrix products of bf16 or f16 operands, f32 sums, dense.
    pub half_flops_per_s: f64,
    /// f32 operands without tensor cores.
    pub f32_flops_per_s: f64,
    pub l2_bytes: f64,
    pub source: &'static str,
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// Shared memory that a block may ask for.
    pub block_bytes: u32,
}

pub const H200: Gpu = Gpu {
    name: "h200",
    title: "H200 SXM",
    driver_name: "NVIDIA H200",
    bytes_per_s: 4.54e12,
    half_flops_per_s: 790e12,
    f32_flops_per_s: 50e12,
    l2_bytes: 50e6,
    source: "measured (streaming read, matrix products)",
    memory_bytes: 141_000_000_000,
    capability: (9, 0),
    multiprocessors: 132,
    block_bytes: 227 * 1024,
};

pub const H100: Gpu = Gpu {
    name: "h100",
    title: "H100 SXM",
    driver_name: "NVIDIA H100 80GB HBM3",
    bytes_per_s: 3.35e12,
    half_flops_per_s: 990e12,
    f32_flops_per_s: 67e12,
    l2_bytes: 50e6,
    source: "datasheet",
    memory_bytes: 80_000_000_000,
    capability: (9, 0),
    multiprocessors: 132,
    block_bytes: 227 * 1024,
};

pub const A100: Gpu = Gpu {
    name: "a100",
    title: "A100 SXM 80GB",
    driver_name: "NVIDIA A100-SXM4-80GB",
    bytes_per_s: 2.04e12,
    half_flops_per_s: 312e12,
    f32_flops_per_s: 19.5e12,
    l2_bytes: 40e6,
    source: "datasheet",
    memory_bytes: 80_000_000_000,
    capability: (8, 0),
    multiprocessors: 108,
    block_bytes: 163 * 1024,
};

pub const B200: Gpu = Gpu {
    name: "b200",
    title: "B200 SXM",
    driver_name: "NVIDIA B200",
    bytes_per_s: 7.7e12,
    half_flops_per_s: 2250e12,
    f32_flops_per_s: 75e12,
    l2_bytes: 126e6,
    source: "datasheet",
    memory_bytes: 180_000_000_000,
    capability: (10, 0),
    multiprocessors: 148,
    block_bytes: 227 * 1024,
};

pub const GPUS: [&Gpu; 4] = [&H200, &H100, &A100, &B200];

/// Which side of the roofline an operation is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Memory,
    Compute,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

impl Gpu {
    /// The GPU that `--gpu` names.
    ///
    /// # Errors
    /// One line with the names there are.
    pub fn by_name(name: &str) -> Result<&'static Self, String> {
        GPUS.into_iter()
            .find(|gpu| gpu.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
                format!("unknown GPU '{name}': expected one of {}", names.join(", "))
            })
    }

    /// The GPU that the driver names so, and no other: one whose rates nobody has written down has none here.
    pub fn of_driver(name: &str) -> Option<&'static Self> {
        GPUS.into_iter().find(|gpu| gpu.driver_name == name)
    }

    /// By which kernel files have entries of its own.
    pub fn class(&self) -> GpuClass {
        GpuClass {
            multiprocessors: self.multiprocessors,
            gb_per_s: (self.bytes_per_s / 1e9).round() as u32,
        }
    }

    /// The most that an operation of this precision computes. An f32 row is the sum of three bf16 ones, so with bf16 weights a product
    /// of it is three on the tensor cores. Attention multiplies f32 by f32, which is six products, and takes longer than this rate says. Activations in
    /// 8 bits have twice the rate of 16, as the instructions do (cuBLASLt's products on an H200 reach 1,305 TFLOP/s of these 1,580), and what is not
    /// multiplied in 8 bits takes longer than that says.
    pub fn flops_per_s(&self, precision: Precision) -> f64 {
        if precision.activations == Activations::FP8 {
            2.0 * self.half_flops_per_s
        } else if precision.compute.is_half() {
            self.half_flops_per_s
        } else if precision.is_streamed() {
            (self.half_flops_per_s / f64::from(TG_PARTS)).max(self.f32_flops_per_s)
        } else {
            self.f32_flops_per_s
        }
    }

    /// The ridge of the roofline, in FLOPs a byte: what computes less a byte is bound by memory.
    pub fn ridge(&self, precision: Precision) -> f64 {
        self.flops_per_s(precision) / self.bytes_per_s
    }

    /// What floors on this GPU are by.
    pub fn rates(&self, precision: Precision) -> Rates {
        Rates {
            bytes_per_s: self.bytes_per_s,
            flops_per_s: Some(self.flops_per_s(precision)),
            l2_bytes: self.l2_bytes,
            source: format!("{}, {}", self.title, self.source),
        }
    }
}

/// How fast a device is at its best: what floors are by.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    pub bytes_per_s: f64,
    /// Unknown: bytes alone make the floor.
    pub flops_per_s: Option<f64>,
    pub l2_bytes: f64,
    pub source: String,
}

impl Rates {
    /// What the user gave, else what is known of this GPU, else nothing.
    pub fn new(
        bandwidth_gb_s: Option<f64>,
        tflops: Option<f64>,
        gpu: Option<&Gpu>,
        precision: Precision,
    ) -> Option<Self> {
        let known = gpu.map(|gpu| gpu.rates(precision));
        let given_flops_per_s = tflops.map(|tflops| tflops * 1e12);
        if let Some(gb_s) = bandwidth_gb_s {
            return Some(Self {
                bytes_per_s: gb_s * 1e9,
                flops_per_s: given_flops_per_s,
                l2_bytes: known.map_or(f64::INFINITY, |known| known.l2_bytes),
                source: "given".to_owned(),
            });
        }
        known.map(|known| Self {
            flops_per_s: given_flops_per_s.or(known.flops_per_s),
            ..known
        })
    }

    /// The rates of a device of which nothing is known: bytes and FLOPs count and take no time.
    pub fn unlimited() -> Self {
        Self {
            bytes_per_s: f64::INFINITY,
            flops_per_s: None,
            l2_bytes: f64::INFINITY,
            source: String::new(),
        }
    }

    /// The floor of operations that follow each other: the sum over the operations of the larger of the time for its bytes and the
    /// time for its products. An operation's activations cross the memory bus only where they do not fit the L2 cache.
    pub fn least(&self, costs: impl IntoIterator<Item = Cost>) -> Least {
        let mut sum = Least::default();
        for cost in costs {
            let mut bytes = cost.floor_bytes();
            if cost.activation_bytes > self.l2_bytes {
                bytes += cost.activation_bytes;
            }
            let memory_us = bytes / self.bytes_per_s * 1e6;
            let compute_us = self.flops_per_s.map_or(0.0, |rate| cost.flops / rate * 1e6);
            if compute_us > memory_us {
                sum.compute_us += compute_us;
            } else {
                sum.memory_us += memory_us;
            }
            sum.bytes += bytes;
            sum.flops += cost.flops;
        }
        sum
    }
}

/// What operations take at least.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Least {
    /// Bytes that cross the memory bus.
    pub bytes: f64,
    pub flops: f64,
    /// The time of the operations that memory bounds.
    pub memory_us: f64,
    /// The time of the operations that products bound.
    pub compute_us: f64,
}

impl Least {
    /// The floor.
    pub fn us(&self) -> f64 {
        self.memory_us + self.compute_us
    }

    /// What bounds the larger part of the time.
    pub fn bound(&self) -> Bound {
        if self.compute_us > self.memory_us {
            Bound::Compute
        } else {
            Bound::Memory
        }
    }
}

impl Add for Least {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            flops: self.flops + other.flops,
            memory_us: self.memory_us + other.memory_us,
            compute_us: self.compute_us + other.compute_us,
        }
    }
}

impl Mul<f64> for Least {
    type Output = Self;
    fn mul(self, times: f64) -> Self {
        Self {
            bytes: self.bytes * times,
            flops: self.flops * times,
            memory_us: self.memory_us * times,
            compute_us: self.compute_us * times,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_products_do_not_have_its_rates() {
        for gpu in GPUS {
            assert_eq!(Gpu::of_driver(gpu.driver_name), Some(gpu));
            assert!(gpu.driver_name.to_lowercase().contains(gpu.name));
        }
        for other in [
            "NVIDIA H100 PCIe",
            "NVIDIA H100 NVL",
            "NVIDIA H200 NVL",
            "NVIDIA GH200 480GB",
            "NVIDIA GH200 144G HBM3e",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA GB200",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "",
        ] {
            assert_eq!(Gpu::of_driver(other), None, "{other}");
        }
    }
}
