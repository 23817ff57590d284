//! What of a GPU decides which kernels serve it best, beside its architecture, and by which kernel files have entries of its own.
//! Two products of one chip are one where these numbers are; a GPU that nobody knows by name has them too.

use std::fmt;

/// Memory rates are the same up to this ratio: what a driver says and what a datasheet rounds are of one GPU, and so are two products
/// with the same memory in another form.
const SAME_RATE: f64 = 1.1;

/// Multiprocessors, and the rate of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuClass {
    pub multiprocessors: u32,
    /// At its best; 0 where the driver does not say.
    pub gb_per_s: u32,
}

impl GpuClass {
    /// The class by what a driver says: at each edge of the memory's clock every line of the bus has a bit.
    pub fn of_driver(multiprocessors: u32, memory_khz: u32, bus_bits: u32) -> Self {
        let bits_per_s = 2e3 * f64::from(memory_khz) * f64::from(bus_bits);
        Self {
            multiprocessors,
            gb_per_s: (bits_per_s / 8e9).round() as u32,
        }
    }

    /// Reads what [`fmt::Display`] writes; `None` for all else.
    pub fn parse(name: &str) -> Option<Self> {
        let (multiprocessors, gb_per_s) = name.strip_prefix('m')?.split_once("-b")?;
        let class = Self {
            multiprocessors: multiprocessors.parse().ok().filter(|&n| n > 0)?,
            gb_per_s: gb_per_s.parse().ok()?,
        };
        (class.to_string() == name).then_some(class)
    }

    /// Whether entries of one are the other's own.
    pub fn is_like(self, other: Self) -> bool {
        self.multiprocessors == other.multiprocessors
            && apart(self.gb_per_s, other.gb_per_s) < SAME_RATE.ln()
    }

    /// How much more or less each has, as ratios that are all added up as logarithms: 0 where they are the same.
    pub fn distance(self, other: Self) -> f64 {
        apart(self.multiprocessors, other.multiprocessors) + apart(self.gb_per_s, other.gb_per_s)
    }
}

/// What is not known is no difference.
fn apart(a: u32, b: u32) -> f64 {
    match (a, b) {
        (0, _) | (_, 0) => 0.0,
        (a, b) => (f64::from(a) / f64::from(b)).ln().abs(),
    }
}

/// Writes the class's name in kernel files.
impl fmt::Display for GpuClass {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "m{}-b{}", self.multiprocessors, self.gb_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> GpuClass {
        GpuClass::parse(name).unwrap()
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let class = at("m132-b4800");
        assert_eq!((class.multiprocessors, class.gb_per_s), (132, 4800));
        assert_eq!(class.to_string(), "m132-b4800");
        assert_eq!(at("m7-b0").gb_per_s, 0);
        for wrong in ["", "m132", "132-b4800", "m0-b1", "m132-b04800", "m+1-b2"] {
            assert_eq!(GpuClass::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_rate_is_the_clock_and_the_bus() {
        let class = GpuClass::of_driver(80, 1_000_000, 4096);
        assert_eq!(class.to_string(), "m80-b1024");
        assert_eq!(GpuClass::of_driver(80, 0, 0).gb_per_s, 0);
    }

    #[test]
    fn one_gpu_has_rates_that_are_nearly_the_same() {
        let known = at("m132-b4800");
        assert!(
            known.is_like(known)
                && known.is_like(at("m132-b4540"))
                && known.is_like(at("m132-b5200"))
        );
        for other in ["m132-b3352", "m132-b5300", "m131-b4800"] {
            assert!(
                !known.is_like(at(other)) && !at(other).is_like(known),
                "{other}"
            );
        }
        assert!(
            known.is_like(at("m132-b0")),
            "nobody says that it is another"
        );
    }
}
